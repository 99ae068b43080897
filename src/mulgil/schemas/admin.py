"""The bodies of the admin API."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from mulgil.schemas.base import Listed, RequestModel, ResponseModel


def _moment(value: Any) -> Any:
    """JSON has no times; strict validation wants one."""
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        found = None
    if found is None or found.tzinfo is None:
        raise PydanticCustomError(
            "no_moment", "expected an ISO 8601 date and time with its offset, such as 2030-01-31T12:00:00Z"
        )
    return found


Moment = Annotated[AwareDatetime, BeforeValidator(_moment, json_schema_input_type=str)]
Models = Annotated[Listed[Annotated[str, Field(min_length=1, max_length=256)]], Field(min_length=1, max_length=256)]


class CreateKeyRequest(RequestModel):
    """What a new key is for; null is the default."""

    tenant: str | None = None
    tier: str | None = None
    models: Models | None = None
    expires: Moment | None = None

    def given(self) -> dict[str, Any]:
        """The fields that are not at their default."""
        return self.model_dump(exclude_none=True)


class ChangeKeyRequest(RequestModel):
    """What is to change. Null takes a list of models or an expiry away; elsewhere it changes nothing."""

    tier: str | None = None
    models: Models | None = None
    expires: Moment | None = None
    disabled: bool | None = None

    def changes(self) -> dict[str, Any]:
        """The fields that are to be set."""
        given = self.model_dump(exclude_unset=True)
        kept = {name for name in ("tier", "disabled") if given.get(name) is None}
        return {name: value for name, value in given.items() if name not in kept}


class RotateKeyRequest(RequestModel):
    """How long the old key is to work."""

    grace_seconds: int = Field(default=86_400, ge=0, le=30 * 86_400)


class KeyView(ResponseModel):
    """All that may be seen of a key."""

    object: Literal["key"] = "key"
    id: str
    prefix: str
    tenant: str
    tier: str
    models: tuple[str, ...] | None
    status: Literal["active", "disabled", "expired"]
    created: datetime
    expires: datetime | None
    disabled: bool
    replaced_valid_until: datetime | None
    """Until when the key before the last rotation works."""


class IssuedKey(KeyView):
    """A key that has just been made: nobody sees it again."""

    key: str


class KeyList(ResponseModel):
    """All keys, the oldest first."""

    object: Literal["list"] = "list"
    data: list[KeyView]


class DeletedKey(ResponseModel):
    """A key that is no more."""

    object: Literal["key"] = "key"
    id: str
    deleted: Literal[True] = True


class LimitsView(ResponseModel):
    """The limits of one scope; null is none."""

    requests_per_minute: int | None
    input_tokens_per_minute: int | None
    output_tokens_per_minute: int | None
    concurrent_requests: int | None


class BalanceView(ResponseModel):
    """What one scope has used in the window, and what is on hold."""

    requests: int
    input_tokens: int
    output_tokens: int
    held_tokens: int
    concurrency: int
    requests_reset: float
    input_tokens_reset: float
    output_tokens_reset: float


class KeyBalance(ResponseModel):
    """The balances of a key and of its tenant, and the limits that its tier sets for both."""

    object: Literal["balance"] = "balance"
    key_id: str
    tenant: str
    key: BalanceView
    key_limits: LimitsView
    of_tenant: BalanceView
    tenant_limits: LimitsView


class TenantBalance(ResponseModel):
    """The balance of a tenant."""

    object: Literal["balance"] = "balance"
    tenant: str
    of_tenant: BalanceView


class LoadAdapterRequest(RequestModel):
    """Which adapter to load, and the name under which it is to be served."""

    name: str
    path: str


class AdapterView(ResponseModel):
    """A LoRA adapter that is served."""

    object: Literal["adapter"] = "adapter"
    name: str
    path: str
    version: str
    """A digest of its files."""
    source: Literal["config", "admin"]
    """Whether the configuration names it or it was loaded by these routes, until the process ends."""


class AdapterList(ResponseModel):
    """All adapters that are served."""

    object: Literal["list"] = "list"
    data: list[AdapterView]


class UnloadedAdapter(ResponseModel):
    """An adapter that is served no more."""

    object: Literal["adapter"] = "adapter"
    name: str
    deleted: Literal[True] = True
