"""Puts the events of a resumable stream together, as a reader whose line may break."""

import json
from typing import Any


class Read:
    """What a reader has put together from the events of a stream."""

    def __init__(self) -> None:
        self.text = ""
        self.last_id = 0
        self.errors: list[Any] = []
        self.usage: Any = None
        self.status: str | None = None
        self.finish: list[str] = []

    def event(self, lines: list[str]) -> None:
        fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
        if "data" not in fields:
            return
        data = json.loads(fields["data"])
        if fields.get("event") == "done":
            self.status = data["status"]
        elif "error" in data:
            self.errors.append(data["error"])
        elif not data["choices"]:
            self.usage = data["usage"]
        else:
            choice = data["choices"][0]
            self.text += choice["delta"].get("content") or ""
            self.finish += [choice["finish_reason"]] if choice["finish_reason"] else []
        if "id" in fields:
            assert int(fields["id"]) > self.last_id
            self.last_id = int(fields["id"])

    def feed(self, body: str) -> None:
        for one in body.split("\n\n")[:-1]:
            self.event(one.split("\n"))
