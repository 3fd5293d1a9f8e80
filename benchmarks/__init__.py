"""Benchmarks of this project, also against other systems; run from a checkout, no part of what is installed."""
