"""Failures that are the request's: 4xx."""

from collections.abc import Mapping

from mulgil.errors.base import MulgilError, retry_headers


class BadRequestError(MulgilError):
    """The request cannot be understood or served, for a reason other than one field's value."""

    status = 400


class InvalidJSONError(BadRequestError):
    """The body is not JSON: broken, NaN or Infinity, a lone surrogate, or nested too deeply."""

    code = "invalid_json"


class UnsupportedContentTypeError(BadRequestError):
    """The body is not declared as application/json."""

    code = "unsupported_content_type"


class ContextLengthError(BadRequestError):
    """The prompt does not fit the model's context."""

    code = "context_length_exceeded"

    def __init__(
        self, *, limit: int | None, prompt_tokens: int | None, at_least: bool = False, param: str = "messages"
    ) -> None:
        """A number is None where a server elsewhere refuses without telling it."""
        count = "more tokens" if prompt_tokens is None else f"{'at least ' if at_least else ''}{prompt_tokens} tokens"
        field = param.partition("[")[0]
        self._limit = "configured limit" if limit is None else f"configured limit of {limit} tokens"
        self._count = count
        # LangChain and LiteLLM recognise an overflow by this sentence, not by the code.
        super().__init__(
            f"Input tokens exceed the {self._limit}. Your {field} resulted in "
            f"{self._count}. Please reduce the length of the {field}.",
            param=param,
        )

    def however_short(self, kept_free: int) -> "ContextLengthError":
        """The same of a conversation that has lost all turns that may be dropped, with *kept_free* for its answer."""
        free = f", of which 'max_tokens' asks for {kept_free}" if kept_free > 1 else ""
        self.message = (
            f"Input tokens exceed the {self._limit}{free}. Your messages resulted in "
            f"{self._count}, without the turns that may be dropped. Please reduce the length of the messages."
        )
        self.args = (self.message,)
        return self


class UnsupportedParameterError(BadRequestError):
    """A parameter that this server or model does not have."""

    code = "unsupported_parameter"


class UnsupportedValueError(BadRequestError):
    """A value that OpenAI knows and this server or model does not have."""

    code = "unsupported_value"


class InvalidSchemaError(BadRequestError):
    """A JSON schema, regular expression or grammar that cannot be used, or is too large."""

    code = "invalid_json_schema"

    def __init__(self, reason: str, *, param: str, name: str | None = None) -> None:
        # LangChain recognises the failure by the beginning of this sentence.
        where = f"{param} '{name}'" if name else param
        super().__init__(f"Invalid schema for {where}: {reason.rstrip('.')}.", param=param)


class UnknownParameterError(BadRequestError):
    """A top-level field nobody knows, where the server is set to refuse those."""

    code = "unknown_parameter"


class InvalidFieldError(MulgilError):
    """A field is missing, of a wrong type or out of range; `param` is its dotted path."""

    status = 422

    def __init__(self, message: str, *, param: str, code: str) -> None:
        super().__init__(message, param=param)
        self.code = code


class RequestTooLargeError(MulgilError):
    """The body is larger than `max_body_bytes`."""

    status = 413
    code = "request_too_large"


class HeadTooLargeError(MulgilError):
    """The headers of the request are larger than any client's."""

    status = 431
    code = "request_head_too_large"


class RequestTimeoutError(MulgilError):
    """The request did not arrive whole in time."""

    status = 408
    code = "request_timeout"


class AuthenticationError(MulgilError):
    """No key (`code` null) or a wrong one (`code` invalid_api_key)."""

    status = 401

    def __init__(self, message: str, *, code: str | None) -> None:
        super().__init__(message)
        self.code = code

    @property
    def headers(self) -> dict[str, str]:
        return {"www-authenticate": "Bearer"}


class PermissionDeniedError(MulgilError):
    """The key is known and may not do this."""

    status = 403
    type = "permission_error"
    code = "model_not_allowed"


class AdminOnlyError(PermissionDeniedError):
    """A user's key, where only the admin token opens."""

    code = "admin_only"


class NotFoundError(MulgilError):
    """No such route."""

    status = 404
    code = "unknown_url"


class ModelNotFoundError(NotFoundError):
    """No such model, or not for this key: the two look alike on purpose."""

    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(f"The model `{model[:256]}` does not exist or you do not have access to it.", param="model")


class StreamNotFoundError(NotFoundError):
    """No such stream, no more, or another tenant's: they look alike on purpose."""

    code = "stream_not_found"

    def __init__(self, stream_id: str) -> None:
        super().__init__(f"There is no stream '{stream_id[:64]}', or it is not kept any more.", param="stream_id")


class TicketNotFoundError(NotFoundError):
    """No such ticket here: wrong, too late, or another gateway's, which a proxy may ask next."""

    code = "ticket_not_found"


class KeyNotFoundError(NotFoundError):
    """No key of this id."""

    code = "key_not_found"

    def __init__(self, key_id: str) -> None:
        super().__init__(f"There is no key with the id '{key_id[:64]}'.", param="key_id")


class AdapterNotFoundError(NotFoundError):
    """No LoRA adapter of this name."""

    code = "adapter_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no adapter with the name '{name[:64]}'.", param="name")


class AdapterConflictError(MulgilError):
    """As many LoRA adapters as may be are loaded, or still needed by running requests."""

    status = 409
    code = "adapter_conflict"


class MethodNotAllowedError(MulgilError):
    """The route exists, not with this method."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self._allow = allow

    @property
    def headers(self) -> dict[str, str]:
        return {"allow": self._allow}


class RateLimitError(MulgilError):
    """A budget is used up; the request fits in `retry_after` seconds if nothing else happens.

    `kind` is the error's type: requests (concurrency, too) or tokens.
    """

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, kind: str, retry_after: float, budgets: Mapping[str, str]) -> None:
        super().__init__(message)
        self.type = kind
        self.retry_after = retry_after
        self._budgets = budgets

    @property
    def headers(self) -> dict[str, str]:
        return {**self._budgets, **retry_headers(self.retry_after)}


class RequestExceedsLimitError(RateLimitError):
    """A request larger than a whole limit: it never fits, so no client should try again."""

    code = "request_exceeds_limit"

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message, kind=kind, retry_after=0.0, budgets={})

    @property
    def headers(self) -> dict[str, str]:
        return {"x-should-retry": "false"}


class InsufficientQuotaError(MulgilError):
    """What a key or its tenant may spend in a day or a month is spent: trying again is in vain for long."""

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"

    @property
    def headers(self) -> dict[str, str]:
        return {"x-should-retry": "false"}
