"""What has come of a streamed answer, over as many lines as it took, and how the rest is asked for."""

import json
from collections.abc import Iterator
from typing import Any

from mulgil.client.events import Event

CONTINUE = (
    "Your last message was cut off. Go on exactly where it stopped: begin with the very next characters, "
    "repeat nothing, and add no remark."
)
_LENGTHS = ("max_tokens", "max_completion_tokens")


class Answer:
    """A streamed answer that grows; it is told what arrives, and sends nothing itself.

    Args:
        request: the arguments of `client.chat.completions.create`.
        instruction: asks a model to go on where its last message stops.

    Attributes:
        whole: it has come to its end.
        stream_id: what Mulgil calls it; None on other servers.
        last_id: of the last whole event.
        resumable: the server has not said that it does not know `stream_options.resumable`.
        seams: where the rest was asked for anew, in characters of the text.
    """

    def __init__(self, request: dict[str, Any], instruction: str) -> None:
        self._request = request | {"messages": list(request.get("messages", ()))}
        self._instruction = instruction
        self._http_request: Any = None
        self._texts: list[str] = []
        self._told: set[str] = set()
        self._roles: set[int] = set()
        self._finished: set[int] = set()
        self.whole = False
        self.stream_id: str | None = None
        self.last_id = ""
        self.resumable = True
        self.seams: list[int] = []

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return "".join(self._texts)

    @property
    def headers(self) -> dict[str, str]:
        """What a request says in its headers. Mulgil gives events their ids only where this `Accept` is."""
        given = self._request.get("extra_headers") or {}
        behind = {"Last-Event-ID": self.last_id} if self.stream_id is not None and self.last_id else {}
        return {**given, "Accept": "text/event-stream", **behind}

    @property
    def options(self) -> dict[str, Any]:
        """How the caller wants requests to be sent."""
        timeout = {"timeout": self._request["timeout"]} if "timeout" in self._request else {}
        return timeout | {"headers": self.headers}

    def arguments(self) -> dict[str, Any]:
        """The arguments that ask for the answer, or for its rest where a part of it is known."""
        asked = self._request | {"stream": True, "extra_headers": self.headers}
        if self.resumable:
            asked["stream_options"] = {**(asked.get("stream_options") or {}), "resumable": True}
        if not self.text:
            return asked
        for name in _LENGTHS:  # each piece of text is a token at least
            if asked.get(name):
                asked[name] = max(1, asked[name] - len(self._texts))
        known = {"role": "assistant", "content": self.text}
        asked["messages"] = [*asked["messages"], known, {"role": "user", "content": self._instruction}]
        return asked

    def opened(self, response: Any) -> None:
        """A server has begun to answer."""
        self._http_request = response.request
        if self.stream_id is None:
            self.stream_id = response.headers.get("x-mulgil-stream")
            self.last_id = ""
        elif response.status_code == 204:  # all of it has been read
            self.whole = True

    def take(self, event: Event) -> dict[str, Any] | None:
        """The chunk of an event; None where it has none that is new.

        Raises:
            openai.APIError: the server says that the answer failed.
        """
        if event.data.startswith("[DONE]"):
            self.whole = True
            return None
        payload: dict[str, Any] = json.loads(event.data)
        if event.type == "done":
            self._end(str(payload.get("status")))
            return None
        if error := payload.get("error"):
            raise self._failure(error)
        if event.id:  # a chunk that only breaks a silence has none
            self.last_id = event.id
        choices = payload.get("choices") or []
        repeated = [self._note(choice) for choice in choices]
        return None if choices and all(repeated) else payload

    def ends(self) -> None:
        """The body has come to its end.

        Raises:
            openai.APIConnectionError: the answer has not.
        """
        import openai  # noqa: PLC0415 - importing this module needs no SDK

        if not self.whole and not self.is_said():
            message = "The stream ended before the answer did."
            raise openai.APIConnectionError(message=message, request=self._http_request)
        self.whole = True

    def is_said(self) -> bool:
        """Every choice is finished, and nothing but an ending is missing that no other server than Mulgil repeats."""
        return self.stream_id is None and len(self._finished) >= self._choices

    def why_it_cannot_go_on(self) -> str | None:
        """Why the rest cannot be asked for after a broken line; None where it can be."""
        if self.stream_id is not None or not self._told:
            return None
        if self._choices > 1:
            return "an answer of several choices cannot be continued on a server that does not keep it"
        if self._told - {"content"}:
            return (
                f"{', '.join(sorted(self._told - {'content'}))} cannot be continued on a server that does not keep it"
            )
        kind = (self._request.get("response_format") or {"type": "text"})["type"]
        return None if kind == "text" else "a structured answer cannot be continued on a server that does not keep it"

    def breaks(self) -> bool:
        """The line has broken, and the rest will be asked for; whether that makes a seam."""
        here = len(self.text)
        if self.stream_id is not None or not self._told or here in self.seams:
            return False
        self.seams.append(here)
        return True

    @property
    def _choices(self) -> int:
        return self._request.get("n") or 1

    def _note(self, choice: dict[str, Any]) -> bool:
        """Keep what a choice has grown by; whether it is nothing but a role that has been told before."""
        index, delta = choice["index"], choice.get("delta") or {}
        grown = dict(_grown(delta))
        if not index and isinstance(text := grown.get("content"), str):
            self._texts.append(text)
        self._told.update(grown)
        if choice.get("finish_reason"):
            self._finished.add(index)
            return False
        repeated = bool(delta.get("role")) and index in self._roles and not grown
        if delta.get("role"):
            self._roles.add(index)
        return repeated

    def _end(self, status: str) -> None:
        if status != "completed":
            raise self._failure({"message": f"The stream is {status}.", "code": f"stream_{status}"})
        self.whole = True

    def _failure(self, error: object) -> Exception:
        import openai  # noqa: PLC0415 - importing this module needs no SDK

        said = error.get("message") if isinstance(error, dict) else None
        return openai.APIError(str(said or "The answer failed."), request=self._http_request, body=error)


def _grown(delta: dict[str, Any]) -> Iterator[tuple[str, object]]:
    return ((name, value) for name, value in delta.items() if value and name != "role")
