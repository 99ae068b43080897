"""What all failures have in common."""

from typing import ClassVar


class MulgilError(Exception):
    """A failure with a place in the OpenAI error envelope."""

    status: ClassVar[int]
    type: str = "invalid_request_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def headers(self) -> dict[str, str]:
        """The response headers that belong to this failure."""
        return {}


def retry_headers(seconds: float) -> dict[str, str]:
    """`retry-after` in whole seconds, at least 1, rounded up, and the exact `retry-after-ms`."""
    milliseconds = max(1, -int(-seconds * 1000 // 1))
    return {"retry-after": str(max(1, -(-milliseconds // 1000))), "retry-after-ms": str(milliseconds)}
