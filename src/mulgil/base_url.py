"""Base URLs of other servers, as an operator writes them."""

import re

_BASE_URL = re.compile(r"https?://[^\s/?#@]+[^\s?#@]*")
WHAT_IT_IS = "http://… or https://…, without a user, a query or a fragment"


def is_base_url(text: str) -> bool:
    """Whether *text* is `WHAT_IT_IS`."""
    return _BASE_URL.fullmatch(text) is not None
