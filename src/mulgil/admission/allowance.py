"""What is left of a caller's budgets, in the words of OpenAI's headers and errors."""

from collections.abc import Callable, Iterable

from mulgil.admission.policy import Balance, Limits, Shortage

_WORDS = {
    "requests": "requests per minute",
    "input_tokens": "input tokens per minute",
    "output_tokens": "output tokens per minute",
    "concurrency": "requests at the same time",
}

Scoped = tuple[Limits, Balance]


def rate_limit_headers(key: Scoped, tenant: Scoped) -> dict[str, str]:
    """`x-ratelimit-…` of the tighter of two scopes; nothing for a dimension that has no limit.

    `limit` and `remaining` are integers, `reset` is the time until the window is empty again, as a Go
    duration, which is what parsers of these headers expect. `tokens` is input and output together.
    """
    headers: dict[str, str] = {}
    requests = _tighter(key, tenant, lambda limits, used: (limits.requests, used.requests, used.requests_reset))
    prompt = _tighter(
        key, tenant, lambda limits, used: (limits.input_tokens, used.input_tokens, used.input_tokens_reset)
    )
    answer = _tighter(
        key,
        tenant,
        lambda limits, used: (limits.output_tokens, used.output_tokens + used.held_tokens, used.output_tokens_reset),
    )
    both = None
    if prompt and answer:
        both = prompt[0] + answer[0], prompt[1] + answer[1], max(prompt[2], answer[2])
    for name, found in (("requests", requests), ("tokens", both), ("input-tokens", prompt), ("output-tokens", answer)):
        if found:
            limit, remaining, reset = found
            headers[f"x-ratelimit-limit-{name}"] = str(limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(remaining)
            headers[f"x-ratelimit-reset-{name}"] = go_duration(reset)
    return headers


def explanation(shortage: Shortage) -> str:
    """The sentence that OpenAI's clients know, without the advice when to come back."""
    return (
        f"Rate limit reached for this {shortage.scope} on {_WORDS[shortage.dimension]}: "
        f"Limit {shortage.limit}, Used {shortage.used}, Requested {shortage.asked}."
    )


def longest(shortages: Iterable[Shortage]) -> Shortage:
    """The shortage that ends last, as far as that is known."""
    return max(shortages, key=lambda shortage: shortage.wait or 0.0)


def kind(shortage: Shortage) -> str:
    """The error's type: `tokens` for the two token budgets, else `requests`."""
    return "tokens" if shortage.dimension.endswith("tokens") else "requests"


def go_duration(seconds: float) -> str:
    """*seconds* as Go's time.ParseDuration reads it: `0s`, `17ms`, `1.5s`, `6m0s`."""
    milliseconds = round(seconds * 1000)
    if milliseconds <= 0:
        return "0s"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{rest / 1000:g}s"


def _tighter(
    key: Scoped, tenant: Scoped, read: Callable[[Limits, Balance], tuple[int | None, int, float]]
) -> tuple[int, int, float] | None:
    """Limit, remaining and reset of the scope with less left."""
    found = [
        (limit, max(0, limit - used), reset) for limit, used, reset in (read(*key), read(*tenant)) if limit is not None
    ]
    return min(found, key=lambda scope: scope[1], default=None)
