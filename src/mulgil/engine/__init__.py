"""The engine port, its adapters, and the watch over the engine's health."""
