"""Benchmarks, side by side with nvitop on the same simulated driver: `python -m tests.bench`. Not part of the tests."""
