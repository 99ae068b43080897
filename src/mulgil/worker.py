"""The worker for gunicorn: the server of `mulgil serve` under gunicorn's watch (deploy/gunicorn.conf.py)."""

import gc
import sys
from typing import Any

from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]  # neither is the next
from uvicorn_worker import UvicornWorker  # type: ignore[import-untyped]  # it has no types

from mulgil.logging_setup import log_to_stderr
from mulgil.server import GatewayServer, server_options
from mulgil.settings import Settings


class GatewayWorker(UvicornWorker):  # type: ignore[misc]  # untyped
    """Has the time-outs, the envelope for what is no HTTP, and the orderly end of `mulgil serve`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._settings = Settings()
        log_to_stderr(self._settings)
        self.CONFIG_KWARGS = server_options(self._settings)
        super().__init__(*args, **kwargs)

    async def _serve(self) -> None:
        self.config.app = self.wsgi
        server = GatewayServer(self._settings, self.wsgi.state.mulgil, self.config)
        self._install_sigquit_handler()
        gc.freeze()  # as `serve` does
        await server.serve(sockets=self.sockets)
        if not server.started:
            sys.exit(Arbiter.WORKER_BOOT_ERROR)
