"""The settings of what an operator gets to see: logs, metrics, and what was used."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from mulgil.settings.groups import Group


class TelemetrySettings(Group):
    """Logs and metrics. Traces are asked for by OpenTelemetry's own variables (docs/operations.md)."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much is logged. Prompts and answers never are."""
    log_format: Literal["console", "json"] = "console"
    """How a log line is written: for people, or a JSON object."""
    access_log_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the requests that went well which have an access line; the others always have one."""
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    """Port on which `/metrics` is told to whoever asks; 0 takes a free one. Default: none. The server's own `/metrics`
    needs the admin token."""
    metrics_host: str = "127.0.0.1"
    """Address of that port."""
    engine_metrics: bool = True
    """Whether vLLM keeps its own series (`vllm:…`), which takes a microsecond of this process for each token."""


class UsageSettings(Group):
    """What was used, and what it costs."""

    usage_url: SecretStr | None = None
    """Where a row is kept for all that was used: `sqlite:///FILE` or `postgresql://…`, or `off`. Default: the file
    `usage.db` in `state_folder`."""
    state_folder: Path | None = None
    """Folder of what must outlive the process: usage, and rows of it that wait for their database. Default: systemd's
    `STATE_DIRECTORY`, else `mulgil` in `XDG_STATE_HOME` or `~/.local/state`."""

    @property
    def usage_folder(self) -> Path:
        """Where usage is kept, and where its rows wait.

        Raises:
            ValueError: nobody says where, and this user has no home.
        """
        if self.state_folder:
            return self.state_folder
        if given := os.environ.get("STATE_DIRECTORY"):
            return Path(given.partition(":")[0])
        try:
            return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "mulgil"
        except RuntimeError:
            raise ValueError("'state_folder' must say where usage is to be kept: this user has no home") from None

    @property
    def usage_database(self) -> str | None:
        """URL of the database of usage; None where none is kept."""
        if self.usage_url is None:
            return f"sqlite:///{self.usage_folder.absolute() / 'usage.db'}"
        url = self.usage_url.get_secret_value()
        return None if url == "off" else url
