"""Amount of noise in a sum, drawn at every site of simulated groups: with no site lost, and with the most.

Two thousand coordinates and more, held to exact tails: a false alarm is below 1e-11, 5e-10 for all of them together.
Neither two thirds of the noise nor half as much again passes.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

from agreement import Agreement, Method, Noise, PrivacySection
from crypto.pairwise.attempt import threshold
from secure_client.privacy.budget import BudgetSection
from secure_client.privacy.cost import simulated_budget
from secure_client.privacy.releases import Releases
from tests.support.grouped import grouped_agreement

CLASSES, DIM, NOISE, CLIP, WEIGHT = 80, 100, 2.5, 3.0, 1.2
FALSE_ALARM = 1e-11
GROUPS = [(3, 0), (3, 1), (5, 0), (5, 1), (5, 2), (8, 3), (10, 1)]
"""Sites that are listed, and of these so many that may collude."""
each_group = pytest.mark.parametrize(("listed", "colluding"), GROUPS)


def agreement(colluding: int) -> Agreement:
    privacy = PrivacySection(
        clip=CLIP,
        noise_multiplier=NOISE,
        count_weight=WEIGHT,
        noise=Noise.DISTRIBUTED,
        colluding=colluding,
    )
    return grouped_agreement(
        method=Method.FEDPROTO,
        averaging={},
        privacy=privacy,
        dim=DIM,
        rounds=1,
        classes=tuple(str(k) for k in range(CLASSES)),
    )


def terms(folder: Path, agreed: Agreement, sites: int, listed: int) -> NDArray[np.float64]:
    """Return the noise that ``sites`` without a record add, in units of a feature, (sites, K·(d + 1))."""
    found, none = [], [(np.zeros((0, DIM)), np.zeros(0, dtype=np.int64))]
    for number in range(sites):
        (folder / str(number)).mkdir()
        budget: BudgetSection = simulated_budget(agreed, f"site-{number}", folder / str(number))
        assert agreed.privacy is not None
        releases = Releases(agreed, agreed.privacy, budget)
        vectors, weights = releases.sum_term(none, listed, releases.draw_share(1))
        found.append(np.concatenate([vectors.ravel(), weights]))
    return np.array(found) * agreed.noisy_sum(listed).grid.step


def holds(noise: NDArray[np.float64], sigma: float) -> bool:
    """Return True if the noise (N,) has that standard deviation, by chi squared."""
    found = float(np.sum(np.square(noise))) / sigma**2
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], noise.size)
    return bool(low < found < high)


AGREED_SIGMA = NOISE * math.hypot(CLIP, WEIGHT)


@each_group
def test_fewest_survivors_with_all_colluders_have_the_agreed_noise(
    tmp_path: Path, listed: int, colluding: int
) -> None:
    """Those who collude know their own, or add none: what covers the others is what the others added."""
    honest = threshold(listed) - colluding
    noise = terms(tmp_path, agreement(colluding), honest, listed).sum(axis=0)
    assert holds(noise, AGREED_SIGMA)
    for wrong in (2 / 3, 3 / 2):
        assert not holds(noise, wrong * AGREED_SIGMA)


@each_group
def test_all_listed_sites_have_more_by_the_reserve(tmp_path: Path, listed: int, colluding: int) -> None:
    everyone = terms(tmp_path, agreement(colluding), listed, listed).sum(axis=0)
    more = math.sqrt(listed / (threshold(listed) - colluding))
    assert holds(everyone, more * AGREED_SIGMA)
    for wrong in (2 / 3, 3 / 2):
        assert not holds(everyone, wrong * more * AGREED_SIGMA)


def test_below_the_threshold_is_less(tmp_path: Path) -> None:
    """Two honest ones in the place of three: √⅔ of the noise, which is why such a sum does not open."""
    noise = terms(tmp_path, agreement(1), 2, 5).sum(axis=0)
    assert holds(noise, math.sqrt(2 / 3) * AGREED_SIGMA)
    assert not holds(noise, AGREED_SIGMA)


def test_sites_draw_independently(tmp_path: Path) -> None:
    """No two are correlated, nor is a site with itself in another attempt: |r| below 6.9/√N, and 0.08."""
    agreed = agreement(1)
    (tmp_path / "again").mkdir()
    first = terms(tmp_path, agreed, 4, 5)
    again = terms(tmp_path / "again", agreed, 1, 5)
    every = np.corrcoef(np.concatenate([first, again]))
    assert np.abs(every - np.eye(5)).max() < 6.9 / math.sqrt(first.shape[1]) < 0.08


def test_counts_have_noise_like_features(tmp_path: Path) -> None:
    """The test draws many groups, since each has only eighty counts."""
    agreed, counts = agreement(1), []
    for group in range(25):
        (tmp_path / str(group)).mkdir()
        counts.append(terms(tmp_path / str(group), agreed, 3, 5).sum(axis=0)[CLASSES * DIM :])
    drawn = np.concatenate(counts)
    assert holds(drawn, AGREED_SIGMA)
    assert not holds(drawn, 2 / 3 * AGREED_SIGMA)
    assert not holds(drawn, 3 / 2 * AGREED_SIGMA)
