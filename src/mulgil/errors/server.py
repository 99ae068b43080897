"""Failures that are ours: 5xx."""

from mulgil.errors.base import MulgilError, retry_headers


class ServiceUnavailableError(MulgilError):
    """Not now; `retry_after` seconds from now is a good moment to try again."""

    status = 503
    type = "server_error"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        return retry_headers(self.retry_after)


class EngineUnavailableError(ServiceUnavailableError):
    """The engine is loading, dead or not answering."""

    code = "engine_unavailable"


class ShuttingDownError(ServiceUnavailableError):
    """This server ends; another one, or the next, will answer."""

    code = "server_shutting_down"

    def __init__(self) -> None:
        super().__init__("The server is shutting down.", retry_after=1.0)


class OverloadedError(ServiceUnavailableError):
    """Too many requests wait for the engine, or this one has waited too long."""

    code = "overloaded"


class LimiterUnavailableError(ServiceUnavailableError):
    """The budgets cannot be asked, and the server is set to let nobody pass unasked."""

    code = "limiter_unavailable"


class KeysUnavailableError(ServiceUnavailableError):
    """The keys cannot be read or written, so nobody can tell whether this one is right."""

    code = "keys_unavailable"


class UsageUnavailableError(ServiceUnavailableError):
    """The usage ledger cannot be read; requests go on, and their rows wait."""

    code = "usage_unavailable"


class EngineError(MulgilError):
    """The engine failed this request."""

    status = 500
    type = "server_error"
    code = "engine_error"


class InternalServerError(EngineError):
    """A fault of the gateway itself; the message says nothing about its inside."""

    code = "internal_error"
