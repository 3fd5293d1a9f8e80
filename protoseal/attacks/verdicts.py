"""Measurements of an attack, and the verdicts that follow from them.

An attack *succeeds* when it exceeds chance by a stated margin. Its failure against a configuration means something
only if the same attack succeeded undefended (``plain``, without noise); otherwise the attack is too weak to tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t  # type: ignore[import-untyped]  # it ships no types

FEWEST_CLUSTERS = 8
"""Fewest independent releases or runs that a bootstrap resamples."""
FEWEST_FOR_STUDENT = 3
"""Fewest independent releases or runs over which any interval is estimated."""


class Verdict(StrEnum):
    """Outcome of one attack on one configuration."""

    DEFENDED = "defended"
    """The attack succeeds undefended; here its interval excludes success."""
    NOT_DEFENDED = "not defended"
    """The attack is above chance beyond its interval, and succeeds by the margin."""
    NOISY_VALUES = "noisy values alone"
    """The attack reads what a site released, which carries noise of the site's own: ε covers it."""
    TOO_WEAK = "attack too weak to tell"
    """The attack succeeds neither here nor undefended, or its interval includes both success and failure."""


class Interval(Protocol):
    """A value with its interval."""

    @property
    def value(self) -> float:
        """Return the value."""
        ...

    @property
    def low(self) -> float:
        """Return the interval's lower end."""
        ...

    @property
    def high(self) -> float:
        """Return the interval's upper end."""
        ...


@dataclass(frozen=True)
class Picture:
    """Images of one reconstruction, each (H, W) or (H, W, 3) in [0, 1], by their caption."""

    title: str
    images: Mapping[str, NDArray[np.float64]] = field(repr=False)


@dataclass(frozen=True)
class Measured:
    """Result of an attack: ``value`` with its 95 % interval, in the unit of the case's metric.

    ``trials`` is the number of independent releases or runs behind the interval. ``details`` are further figures by
    name, and ``curves`` are lines (x, y) by name. ``basis`` says what the adversary computed from, and names the rounds
    unless it is one.
    """

    value: float
    low: float
    high: float
    trials: int
    basis: str = ""
    details: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"the interval [{self.low}, {self.high}] does not contain {self.value}")


def verdict_of(measured: Interval, undefended: Interval, *, chance: float, margin: float) -> Verdict:
    """Judge ``measured`` beside the same attack ``undefended``; an attack succeeds at ``chance + margin``."""
    success = chance + margin
    if measured.low > chance and measured.value >= success:
        return Verdict.NOT_DEFENDED
    if undefended.low <= chance or undefended.value < success:
        return Verdict.TOO_WEAK
    return Verdict.DEFENDED if measured.high < success else Verdict.TOO_WEAK


def clustered_interval(
    statistic: Any,
    clusters: int,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    seed: int = 0,
    resamples: int = 400,
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of ``statistic``, a function of cluster indices, over ``clusters`` clusters.

    Whole clusters (all records of one release) are drawn together, because records of a release share its noise. From
    three to :data:`FEWEST_CLUSTERS` clusters the interval is Student's, by the jackknife; with fewer it is ``bounds``,
    the statistic's own range.
    """
    if clusters < FEWEST_FOR_STUDENT:
        return bounds
    every = np.arange(clusters)
    if clusters < FEWEST_CLUSTERS:
        without = np.array([statistic(np.delete(every, i)) for i in every])
        error = np.sqrt((clusters - 1) / clusters * np.square(without - without.mean()).sum())
        middle, reach = statistic(every), float(t.ppf(0.975, clusters - 1) * error)
        return max(bounds[0], middle - reach), min(bounds[1], middle + reach)
    rng = np.random.default_rng(seed)
    draws = [statistic(rng.integers(0, clusters, clusters)) for _ in range(resamples)]
    low, high = np.nanquantile(draws, (0.025, 0.975))
    return float(low), float(high)
