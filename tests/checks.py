"""Requests checked as the routes check them, without a server."""

from typing import Any

import pytest

from mulgil.api.body import BodyRules, validated
from mulgil.errors import MulgilError
from mulgil.schemas import chat, completions
from mulgil.schemas.base import RequestLimits

LIMITS = RequestLimits()
RULES = BodyRules(max_bytes=2**21, max_depth=64, limits=LIMITS)


def checked_chat(body: dict[str, Any], rules: BodyRules = RULES) -> chat.ChatCompletionRequest:
    """*body* as the chat route would have it."""
    request = validated(chat.ChatCompletionRequest, body, rules)
    chat.check_offered(body)
    chat.check_agreement(request, rules.limits)
    return request


def checked_completion(body: dict[str, Any], rules: BodyRules = RULES) -> completions.CompletionRequest:
    """*body* as the completions route would have it."""
    request = validated(completions.CompletionRequest, body, rules)
    completions.check_offered(body)
    completions.check_agreement(request, rules.limits)
    return request


def refused_chat(body: dict[str, Any], rules: BodyRules = RULES) -> MulgilError:
    """Why the chat route refuses *body*."""
    with pytest.raises(MulgilError) as refused:
        checked_chat(body, rules)
    return refused.value


def refused_completion(body: dict[str, Any], rules: BodyRules = RULES) -> MulgilError:
    """Why the completions route refuses *body*."""
    with pytest.raises(MulgilError) as refused:
        checked_completion(body, rules)
    return refused.value
