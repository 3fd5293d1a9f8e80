"""Gaussian noise in closed form, to which the accountants are held."""

from __future__ import annotations

import math

from scipy.special import log_ndtr, ndtr  # type: ignore[import-untyped]


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the least δ of Gaussian noise at ε: Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) (Balle and Wang 2018, theorem 8)."""
    near, far = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    return float(max(0.0, ndtr(near) - math.exp(epsilon + log_ndtr(-far))))
