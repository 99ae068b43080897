"""gunicorn -c deploy/gunicorn.conf.py: one worker, since the weights live in the worker.

Settings come from the environment (docs/settings.md); install mulgil[gunicorn].
"""

import os

wsgi_app = "mulgil.app:create_app()"
worker_class = "mulgil.worker.GatewayWorker"
workers = 1
bind = f"{os.environ.get('MULGIL_HOST', '127.0.0.1')}:{os.environ.get('MULGIL_PORT', '8000')}"
timeout = 300  # a model takes its time to load; the event loop beats the heart meanwhile
graceful_timeout = 60
keepalive = 75  # longer than any proxy in front keeps an idle connection


def on_starting(server):  # noqa: D103 - the hook is documented by gunicorn
    if server.cfg.workers != 1:
        raise SystemExit(
            f"mulgil: {server.cfg.workers} workers would load the weights {server.cfg.workers} times, each for itself. "
            "Use one worker, and one process per accelerator behind nginx."
        )
