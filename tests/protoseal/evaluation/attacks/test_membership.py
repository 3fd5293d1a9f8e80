"""Membership inference on prototypes of Gaussian features, whose true-positive rates have a closed form."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm  # type: ignore[import-untyped]  # it ships no types

from protoseal.evaluation.attacks.membership import Scores, scores_of_release
from protoseal.evaluation.attacks.recorded_run import Rows
from protoseal.evaluation.attacks.statistics import allowed_by, true_positive_rate

FEATURES, OUTSIDERS, RATE, DELTA = 512, 400, 0.001, 1e-5
CLIP = float(np.sqrt(FEATURES))
NOISE = 3.7304
"""Noise multiplier of one release with ε = 1 at δ = 1e-5."""


def rate(releases: int, records: int, noise: float = 0.0) -> float:
    """Return the true-positive rate at 0.1 % false positives over all releases.

    Each release is the mean of so many clipped records, whose sum has noise of ``noise`` times the clipping bound.
    """
    rng = np.random.default_rng(7)
    found = [_one_release(rng, records, noise) for _ in range(releases)]
    members, outsiders = (
        np.concatenate([getattr(each, name) for each in found]) for name in ("members", "outsiders")
    )
    return true_positive_rate(members, outsiders, RATE)


def _one_release(rng: np.random.Generator, records: int, noise: float) -> Scores:
    """Score one release; public records come in pairs of opposite sign, so that their mean is the true one."""
    members, outsiders, public = (_drawn(rng, count, noise) for count in (records, OUTSIDERS, OUTSIDERS // 2))
    total = members.sum(axis=0, keepdims=True) + rng.normal(size=(1, FEATURES)) * noise * CLIP
    return scores_of_release(
        total / records, members, outsiders, np.concatenate([public, -public]), np.eye(FEATURES)
    )


def _drawn(rng: np.random.Generator, count: int, noise: float) -> Rows:
    rows = rng.normal(size=(count, FEATURES))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(lengths / CLIP, 1.0) if noise else rows


def expected(records: int, noise: float = 0.0) -> float:
    """Return Φ(μ − z): a member's score is higher by μ = √d / √(n + σ²d) deviations of an outsider's."""
    shift = np.sqrt(FEATURES) / np.sqrt(records + noise**2 * FEATURES)
    return float(norm.cdf(shift - norm.isf(RATE)))


@pytest.mark.parametrize(
    ("records", "releases", "within"), [(10, 20, 0.001), (50, 40, 0.06), (200, 20, 0.03)]
)
def test_members_of_a_mean_are_found_at_the_known_rates(records: int, releases: int, within: float) -> None:
    """Rates are 100, 54 and 7 % for 10, 50 and 200 records of 512 features."""
    assert rate(releases, records) == pytest.approx(expected(records), abs=within)


@pytest.mark.full
def test_noise_keeps_the_rate_below_what_epsilon_allows_and_half_of_it_does_not() -> None:
    """Members are found at 0.24 % at ε = 1, which allows 0.27 %, and at 0.52 % with half the noise."""
    allowed = float(allowed_by(1.0, DELTA, np.array([RATE]))[0])
    claimed, weakened = rate(300, 50, NOISE), rate(300, 50, NOISE / 2)
    assert claimed == pytest.approx(expected(50, NOISE), abs=0.0013)
    assert expected(50, NOISE) < allowed < expected(50, NOISE / 2)
    assert weakened > allowed + 0.0013
