"""What programs import on top of the OpenAI SDK: tries that are worth it, and streams that outlive a broken line.

It works with `openai` 2 and 3, against Mulgil and against any other server that speaks OpenAI's API, and needs nothing
of Mulgil's own. Importing it does not import `openai`; calling it does.
"""

from mulgil.client.lines import SeamWarning
from mulgil.client.retrying import BackOff, async_call_with_retry, call_with_retry
from mulgil.client.streams import (
    AsyncResilientStream,
    ResilientStream,
    async_resilient_stream,
    resilient_stream,
)

__all__ = [
    "AsyncResilientStream",
    "BackOff",
    "ResilientStream",
    "SeamWarning",
    "async_call_with_retry",
    "async_resilient_stream",
    "call_with_retry",
    "resilient_stream",
]
