"""Benchmarks. `scripts/bench` runs the suite; fair_queue, silence, stores and idle_streams also run alone."""
