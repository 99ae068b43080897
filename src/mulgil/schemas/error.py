"""The error envelope."""

from mulgil.schemas.base import ResponseModel


class ErrorDetail(ResponseModel):
    """What failed and why; all four keys are always there."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(ResponseModel):
    """The body of every failure on every route."""

    error: ErrorDetail
