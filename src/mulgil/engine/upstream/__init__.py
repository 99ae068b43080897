"""A server elsewhere that speaks OpenAI's API, as something that can answer a request."""

from mulgil.engine.upstream.answering import Upstream

__all__ = ["Upstream"]
