"""Servers elsewhere that speak OpenAI's API, as the operator describes them."""

import os
import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from mulgil.base_url import WHAT_IT_IS, is_base_url

_KEY = re.compile(r"[!-~]{1,4096}")
_WHAT_A_KEY_IS = "a key is printable ASCII characters without spaces"


def _checked_url(url: str) -> str:
    if not is_base_url(url):
        raise ValueError(f"must be {WHAT_IT_IS}")
    return url.rstrip("/")


def _checked_key(key: SecretStr) -> SecretStr:
    if not _KEY.fullmatch(key.get_secret_value()):
        raise ValueError(_WHAT_A_KEY_IS)
    return key


Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class UpstreamOptions(BaseModel):
    """One server.

    Attributes:
        url: its base URL, as `https://host/v1`.
        key: sent as a bearer token.
        key_env: the environment variable that holds it.
        model: what it is asked for; None: the name that the client asked for.
        connect_timeout: seconds in which a connection must stand.
        timeout: seconds of silence after which it is given up, before its answer begins and within it.
        context: prompt and answer together, in tokens; None: what its tokenize endpoint says.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: Annotated[str, AfterValidator(_checked_url)]
    key: Annotated[SecretStr, AfterValidator(_checked_key)] | None = None
    key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    model: str | None = Field(default=None, min_length=1)
    connect_timeout: Seconds = 5.0
    timeout: Seconds = 60.0
    context: int | None = Field(default=None, ge=2, strict=True)

    @model_validator(mode="after")
    def _has_one_key(self) -> "UpstreamOptions":
        if self.key is not None and self.key_env is not None:
            raise ValueError("'key' and 'key_env' both say what its key is: choose one")
        return self


def with_its_key(options: UpstreamOptions) -> UpstreamOptions:
    """*options* with the key that its variable holds.

    Raises:
        ValueError: the variable is not set, or holds no key.
    """
    if options.key_env is None:
        return options
    key = os.environ.get(options.key_env, "")
    if not key:
        raise ValueError(f"the environment variable {options.key_env} is not set")
    if not _KEY.fullmatch(key):
        raise ValueError(f"the environment variable {options.key_env}: {_WHAT_A_KEY_IS}")
    return options.model_copy(update={"key": SecretStr(key)})
