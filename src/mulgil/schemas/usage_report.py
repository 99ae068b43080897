"""`GET /v1/usage` and `GET /admin/usage`."""

from typing import Literal

from pydantic import AwareDatetime

from mulgil.schemas.base import ResponseModel


class UsageTotals(ResponseModel):
    """What requests came to. `prompt_tokens` includes the cached ones."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    total_tokens: int
    cost: str
    """A decimal number, exact, at the prices of the configuration; "0" where there are none."""


class UsageGroup(UsageTotals):
    """Those that are alike in what the report is told apart by; only these of the labels are there."""

    labels: dict[Literal["tenant", "key", "model", "status", "day", "month"], str]


class UsageReport(ResponseModel):
    """What came to an end from `since` on and before `until`."""

    object: Literal["usage"] = "usage"
    since: AwareDatetime
    until: AwareDatetime
    by: list[str]
    data: list[UsageGroup]
    total: UsageTotals
