"""Has everything that logs in this process, and in those of its engine, write in one format."""

import json
import logging
import os
from pathlib import Path

from mulgil.settings import Settings
from mulgil.telemetry import logs

log = logging.getLogger(__name__)


def log_to_stderr(settings: Settings) -> None:
    """Log as the settings say. To be called before vLLM is imported, which sets up its logging then."""
    logs.configure(settings.log_level, settings.log_format)
    if settings.engine == "vllm" and not os.environ.keys() & {"VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_CONFIG_PATH"}:
        level = os.environ.get("VLLM_LOGGING_LEVEL", settings.log_level)
        configuration = logs.configuration_of_vllm(level, settings.log_format)
        path = settings.engine_run_folder / f"logging-{settings.log_format}-{level.lower()}.json"
        try:
            _write(path, json.dumps(configuration))
        except OSError as error:
            log.warning("vLLM logs in its own format: %s", error)
            return
        os.environ["VLLM_LOGGING_CONFIG_PATH"] = str(path)


def _write(path: Path, text: str) -> None:
    """There whole or not at all: gateways that start at the same time write the same.

    Raises:
        OSError: it cannot be, or others could change it: what is in it is run.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = path.parent.lstat()
    if folder.st_uid != os.getuid() or folder.st_mode & 0o022:
        raise OSError(f"others may write to {path.parent}")
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)
