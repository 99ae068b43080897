"""Every failure a client can meet. The status, type and code are part of the promise (docs/errors.md).

MulgilError
├── BadRequestError 400
│   ├── InvalidJSONError
│   ├── UnsupportedContentTypeError
│   ├── ContextLengthError
│   ├── UnsupportedParameterError
│   ├── UnsupportedValueError
│   ├── InvalidSchemaError
│   └── UnknownParameterError
├── InvalidFieldError 422
├── RequestTooLargeError 413
├── HeadTooLargeError 431
├── RequestTimeoutError 408
├── AuthenticationError 401
├── PermissionDeniedError 403
│   └── AdminOnlyError
├── NotFoundError 404
│   ├── ModelNotFoundError
│   ├── StreamNotFoundError
│   ├── TicketNotFoundError
│   ├── KeyNotFoundError
│   └── AdapterNotFoundError
├── MethodNotAllowedError 405
├── AdapterConflictError 409
├── RateLimitError 429
│   └── RequestExceedsLimitError
├── InsufficientQuotaError 429
├── ServiceUnavailableError 503
│   ├── EngineUnavailableError
│   ├── ShuttingDownError
│   ├── OverloadedError
│   ├── LimiterUnavailableError
│   ├── KeysUnavailableError
│   └── UsageUnavailableError
└── EngineError 500
    └── InternalServerError

Each error is raised where it is known and rendered in one place (`mulgil.api.errors`).
"""

from mulgil.errors.base import MulgilError, retry_headers
from mulgil.errors.client import (
    AdapterConflictError,
    AdapterNotFoundError,
    AdminOnlyError,
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    HeadTooLargeError,
    InsufficientQuotaError,
    InvalidFieldError,
    InvalidJSONError,
    InvalidSchemaError,
    KeyNotFoundError,
    MethodNotAllowedError,
    ModelNotFoundError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    RequestExceedsLimitError,
    RequestTimeoutError,
    RequestTooLargeError,
    StreamNotFoundError,
    TicketNotFoundError,
    UnknownParameterError,
    UnsupportedContentTypeError,
    UnsupportedParameterError,
    UnsupportedValueError,
)
from mulgil.errors.server import (
    EngineError,
    EngineUnavailableError,
    InternalServerError,
    KeysUnavailableError,
    LimiterUnavailableError,
    OverloadedError,
    ServiceUnavailableError,
    ShuttingDownError,
    UsageUnavailableError,
)

__all__ = [
    "AdapterConflictError",
    "AdapterNotFoundError",
    "AdminOnlyError",
    "AuthenticationError",
    "BadRequestError",
    "ContextLengthError",
    "EngineError",
    "EngineUnavailableError",
    "HeadTooLargeError",
    "InsufficientQuotaError",
    "InternalServerError",
    "InvalidFieldError",
    "InvalidJSONError",
    "InvalidSchemaError",
    "KeyNotFoundError",
    "KeysUnavailableError",
    "LimiterUnavailableError",
    "MethodNotAllowedError",
    "ModelNotFoundError",
    "MulgilError",
    "NotFoundError",
    "OverloadedError",
    "PermissionDeniedError",
    "RateLimitError",
    "RequestExceedsLimitError",
    "RequestTimeoutError",
    "RequestTooLargeError",
    "ServiceUnavailableError",
    "ShuttingDownError",
    "StreamNotFoundError",
    "TicketNotFoundError",
    "UnknownParameterError",
    "UnsupportedContentTypeError",
    "UnsupportedParameterError",
    "UnsupportedValueError",
    "UsageUnavailableError",
    "retry_headers",
]
