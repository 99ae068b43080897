"""The access line: one for each request, when it is over. Never a prompt, an answer or a key."""

import logging
from typing import Any
from zlib import crc32

from mulgil.telemetry.observation import Observation

log = logging.getLogger(__name__)

_PROBES = frozenset(("/health", "/health/live", "/health/ready", "/metrics"))
_LONGEST_PATH = 256
_LONGEST_MODEL = 64
_RANGE = 2**32


class AccessLog:
    """Writes to the logger `mulgil.telemetry.access`; probes that went well at `debug`.

    Args:
        share: of the requests that went well, how many have a line, 0 to 1. Which ones is told by their ids, so that
            it can be known afterwards. Those that were refused, failed or hung up have one in any case.
    """

    def __init__(self, share: float = 1.0) -> None:
        self._share = share

    def write(self, observed: Observation) -> None:
        """The line of *observed*."""
        level = logging.DEBUG if observed.route in _PROBES and observed.status < 500 else logging.INFO
        if log.isEnabledFor(level) and self._is_chosen(observed):
            fields = fields_of(observed)
            log.log(level, "%s %s %d", observed.method, fields["path"], observed.status, extra={"fields": fields})

    def _is_chosen(self, observed: Observation) -> bool:
        if self._share >= 1 or observed.status >= 400 or observed.hung_up or observed.error:
            return True
        return crc32(observed.id.encode()) < self._share * _RANGE


def fields_of(observed: Observation) -> dict[str, Any]:
    """The fields of the line, without those that are unknown."""
    used, first = observed.used, observed.first_token_after
    fields = {
        "request_id": observed.id,
        "client_request_id": observed.client_id,
        "trace_id": observed.trace_id,
        "method": observed.method,
        "path": observed.path[:_LONGEST_PATH],
        "route": observed.route,
        "status": observed.status,
        "error": observed.error,
        "duration_ms": _milliseconds(observed.ended - observed.began),
        "tenant": observed.tenant,
        "key": observed.key,
        "key_prefix": observed.key_prefix or None,
        "tier": observed.tier,
        "model": observed.model[:_LONGEST_MODEL] if observed.model else None,
        "variant": observed.variant,
        "fallback": observed.fallback,
        "fallback_reason": observed.fallback_reason,
        "prompt_tokens": used.prompt if used else None,
        "cached_tokens": used.cached if used else None,
        "completion_tokens": used.completion if used else None,
        "truncated_messages": observed.truncated_messages or None,
        "ttft_ms": None if first is None else _milliseconds(first),
        "finish": used.finish if used else None,
        "cache": observed.cache,
        "hung_up": observed.hung_up or None,
        "retry_count": observed.retries,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1_000, 1)
