"""`/v1/streams` and `/v1/tickets`: streams that can be read again."""

from typing import Literal

from mulgil.schemas.base import ResponseModel


class Ticket(ResponseModel):
    """Stands for the key in a URL; to be used for the first time before `expires_at` (Unix time)."""

    ticket: str
    expires_at: int


class Stream(Ticket):
    """A stream that goes on without readers for a while. Its ticket opens it and nothing else."""

    id: str
    object: Literal["stream"] = "stream"
    created: int
    model: str
    status: Literal["running", "completed", "failed", "cancelled"]
    url: str


class StreamDeleted(ResponseModel):
    """It is stopped and forgotten."""

    id: str
    object: Literal["stream.deleted"] = "stream.deleted"
    deleted: Literal[True] = True
