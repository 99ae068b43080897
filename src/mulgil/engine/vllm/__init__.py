"""The engine port on vLLM, pinned to 0.32. Nothing outside this package imports vLLM.

What is not obvious here was found by running 0.32.0: see "Engine" in docs/architecture.md.
"""
