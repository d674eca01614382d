"""Benchmarks of rxloop against the hand-written loops it replaces. Run with `python -m benchmarks`."""
