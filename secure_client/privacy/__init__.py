"""Differential privacy at a site: what it releases, what that costs, and what it has spent."""
