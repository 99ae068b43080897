"""The settings as the rules that single parts go by."""

from mulgil.api.body import BodyRules
from mulgil.catalogue import FALLBACK_HEADER, VARIANT_HEADER
from mulgil.engine.supervisor import Patience
from mulgil.kept import KeepRules
from mulgil.schemas.base import RequestLimits
from mulgil.settings import Settings

EXPOSED_HEADERS = (
    "x-request-id",
    "openai-processing-ms",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "x-mulgil-stream",
    "x-mulgil-cache",
    "x-mulgil-truncated-messages",
    VARIANT_HEADER,
    FALLBACK_HEADER,
    "traceparent",
    *(
        f"x-ratelimit-{what}-{budget}"
        for what in ("limit", "remaining", "reset")
        for budget in ("requests", "tokens", "input-tokens", "output-tokens")
    ),
)
"""What pages of other origins may read."""


def body_rules(settings: Settings) -> BodyRules:
    """What a request body may be."""
    limits = RequestLimits(
        max_output_tokens=settings.max_output_tokens,
        max_choices=settings.max_choices,
        max_messages=settings.max_messages,
        max_prompts=settings.max_prompts,
        max_tools=settings.max_tools,
        max_schema_bytes=settings.max_schema_bytes,
        max_schema_depth=settings.max_schema_depth,
        template_options=settings.template_options,
        max_embedding_inputs=settings.max_embedding_inputs,
    )
    return BodyRules(
        max_bytes=settings.max_body_bytes,
        max_depth=settings.max_json_depth,
        max_parts=settings.max_json_parts,
        unknown_fields=settings.unknown_fields,
        limits=limits,
    )


def patience_of(settings: Settings) -> Patience:
    """How long the watch over the engine waits before it acts."""
    return Patience(
        check_interval=settings.engine_check_interval,
        hung=settings.engine_hung_timeout,
        stalled=settings.engine_stall_timeout,
        rebuilds=settings.engine_rebuilds,
    )


def keep_rules(settings: Settings) -> KeepRules:
    """How long and how much of streams is kept."""
    return KeepRules(
        grace=settings.resume_grace,
        retention=settings.resume_retention,
        most=settings.max_kept_streams,
        most_bytes=settings.max_kept_bytes,
    )
