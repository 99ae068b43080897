"""Headers that every parser of them reads."""

import pytest

from mulgil.admission.allowance import explanation, go_duration, kind, longest, rate_limit_headers
from mulgil.admission.policy import Balance, Charge, Limits, Shortage, impossible


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0s"),
        (-1, "0s"),
        (0.017, "17ms"),
        (1, "1s"),
        (8.64, "8.64s"),
        (59.999, "59.999s"),
        (60, "1m0s"),
        (360, "6m0s"),
    ],
)
def test_durations_are_written_as_go_reads_them(seconds: float, written: str) -> None:
    assert go_duration(seconds) == written


def test_the_tighter_scope_shows_and_holds_count_as_used() -> None:
    key = Limits(requests=10, input_tokens=100, output_tokens=50), Balance(requests=2, output_tokens=10, held_tokens=30)
    tenant = Limits(requests=5, input_tokens=1000), Balance(requests=4, input_tokens=20, requests_reset=61.0)
    headers = rate_limit_headers(key, tenant)
    assert headers["x-ratelimit-limit-requests"] == "5"
    assert headers["x-ratelimit-remaining-requests"] == "1"
    assert headers["x-ratelimit-reset-requests"] == "1m1s"
    assert headers["x-ratelimit-remaining-output-tokens"] == "10"
    assert headers["x-ratelimit-remaining-tokens"] == "110"


def test_a_dimension_without_a_limit_has_no_header_and_nothing_is_ever_negative() -> None:
    headers = rate_limit_headers((Limits(requests=1), Balance(requests=9)), (Limits(), Balance()))
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert not any("tokens" in name for name in headers)


def test_the_shortage_that_lasts_longest_is_the_one_explained() -> None:
    short = Shortage("key", "requests", 3, 3, 1, 2.0)
    long = Shortage("tenant", "input_tokens", 100, 90, 20, 30.0)
    unknown = Shortage("key", "concurrency", 1, 1, 1, None)
    assert longest([short, long, unknown]) is long
    assert kind(long) == "tokens"
    assert kind(unknown) == "requests"
    assert explanation(long) == (
        "Rate limit reached for this tenant on input tokens per minute: Limit 100, Used 90, Requested 20."
    )


@pytest.mark.parametrize(
    ("limits", "dimension"),
    [
        (Limits(input_tokens=9), "input_tokens"),
        (Limits(output_tokens=19), "output_tokens"),
        (Limits(requests=0), "requests"),
        (Limits(concurrency=0), "concurrency"),
        (Limits(input_tokens=10, output_tokens=20, requests=1, concurrency=1), None),
        (Limits(), None),
    ],
)
def test_what_can_never_fit_is_known_without_a_store(limits: Limits, dimension: str | None) -> None:
    found = impossible(Charge(10, 20), limits, "key")
    assert (found and found.dimension) == dimension
