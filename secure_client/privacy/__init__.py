"""Differential privacy at a site: what is released with noise, and what that costs. Imports no torch."""

from secure_client.privacy.query import PrototypeQuery, Released, Sums

__all__ = ["PrototypeQuery", "Released", "Sums"]
