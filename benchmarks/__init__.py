"""Benchmarks against other systems, run from a checkout; no part of what is installed."""
