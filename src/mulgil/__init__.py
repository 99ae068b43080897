"""Mulgil (물길): an OpenAI-compatible gateway around one in-process vLLM engine."""

__version__ = "0.1.0"
