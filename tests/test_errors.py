"""The promise of docs/errors.md: statuses, codes, and when to come again."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mulgil import errors
from mulgil.errors import (
    AuthenticationError,
    ContextLengthError,
    EngineUnavailableError,
    MethodNotAllowedError,
    ModelNotFoundError,
    MulgilError,
    OverloadedError,
    RateLimitError,
    retry_headers,
)

# Which of the two it is, the budget that is used up decides.
BUDGETS = "requests or tokens"
DOCUMENTED = (Path(__file__).parents[1] / "docs" / "errors.md").read_text()


def kinds(base: type[MulgilError] = MulgilError) -> Iterator[type[MulgilError]]:
    for kind in base.__subclasses__():
        if not kind.__name__.startswith("_"):  # of one module, and never seen outside it
            yield kind
        yield from kinds(kind)


@pytest.mark.parametrize("kind", list(kinds()))
def test_every_error_is_documented_with_its_status_and_code(kind: type[MulgilError]) -> None:
    assert kind.__name__ in str(errors.__doc__)
    row = next((line for line in DOCUMENTED.splitlines() if f"`{kind.code}`" in line), None)
    if kind.code is not None:
        assert row is not None
        told = BUDGETS if issubclass(kind, RateLimitError) else kind.type
        assert f"| {kind.status} | {told} |" in row
    expected = {403: "permission_error"}.get(
        kind.status, "server_error" if kind.status >= 500 else "invalid_request_error"
    )
    assert kind.status == 429 or kind.type == expected


@pytest.mark.parametrize(
    ("seconds", "header", "milliseconds"),
    [
        (0, "1", "1"),
        (0.0001, "1", "1"),
        (0.25, "1", "250"),
        (0.9999, "1", "1000"),
        (1, "1", "1000"),
        (1.0001, "2", "1001"),
        (1.5, "2", "1500"),
        (5, "5", "5000"),
        (59.001, "60", "59001"),
        (-3, "1", "1"),
    ],
)
def test_when_to_come_again_is_rounded_up_to_whole_seconds_and_at_least_one(
    seconds: float, header: str, milliseconds: str
) -> None:
    assert retry_headers(seconds) == {"retry-after": header, "retry-after-ms": milliseconds}


@hypothesis_settings(max_examples=200, deadline=None, database=None)
@given(st.floats(0, 3_600))
def test_whoever_waits_as_told_is_never_too_early(seconds: float) -> None:
    headers = retry_headers(seconds)
    assert int(headers["retry-after"]) >= max(1, seconds)
    assert int(headers["retry-after"]) < seconds + 1.01 or headers["retry-after"] == "1"
    assert int(headers["retry-after-ms"]) >= seconds * 1_000
    assert int(headers["retry-after"]) * 1_000 >= int(headers["retry-after-ms"])


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (AuthenticationError("no", code=None), {"www-authenticate": "Bearer"}),
        (MethodNotAllowedError("no", allow="GET, HEAD"), {"allow": "GET, HEAD"}),
        (EngineUnavailableError("no", retry_after=5), {"retry-after": "5", "retry-after-ms": "5000"}),
        (OverloadedError("no", retry_after=0.2), {"retry-after": "1", "retry-after-ms": "200"}),
        (ModelNotFoundError("x"), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_headers_that_belong_to_an_error(error: MulgilError, headers: dict[str, str]) -> None:
    assert error.headers == headers


def test_a_context_overflow_is_told_in_the_words_that_clients_look_for() -> None:
    error = ContextLengthError(limit=10, prompt_tokens=12)
    assert error.message == (
        "Input tokens exceed the configured limit of 10 tokens. Your messages resulted in 12 tokens. "
        "Please reduce the length of the messages."
    )
    assert "resulted in at least 12 tokens" in ContextLengthError(limit=10, prompt_tokens=12, at_least=True).message


def test_the_name_of_a_model_is_cut() -> None:
    assert len(ModelNotFoundError("x" * 100_000).message) < 400
