"""Differential privacy at a site: what is released with noise, what that costs, what was spent. Imports no torch."""
