"""An attack as a case: its question, the data that the adversary has, its measurement, and the verdict.

An attack *succeeds* when it exceeds chance by a stated margin. A failure against a configuration means something only
if the same attack succeeded undefended (``plain``, without noise). Otherwise the attack is too weak to tell.

A new attack is a subclass of :class:`Case`, listed in :mod:`protoseal.attacks.grid`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy.stats import beta, t  # type: ignore[import-untyped]  # it ships no types

from agreement.storage.run_files import Record
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import LabelledImages, Labels, RecordedRun, Rows, cached_in_run

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


class Curve(Record):
    """Line of an ROC: false-positive rates above 0 in ``x``, true-positive rates in ``y``."""

    x: tuple[float, ...]
    y: tuple[float, ...]


class Picture(Record):
    """Images of one reconstruction: a PNG, base64 without a prefix, for each caption."""

    title: str
    images: dict[str, str] = Field(repr=False)


class Measurement(Record):
    """Result of an attack: ``value`` with its 95 % interval, in the unit of the case's metric.

    ``trials`` is the number of independent releases or runs behind the interval. ``reading`` says what the adversary
    computed from, and names the rounds unless it is one. ``details`` are further figures by name.
    """

    value: float
    low: float
    high: float
    trials: int
    reading: str = ""
    details: dict[str, float] = Field(default_factory=dict)
    curves: dict[str, Curve] = Field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()

    @model_validator(mode="after")
    def _contains_value(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"the interval [{self.low}, {self.high}] does not contain {self.value}")
        return self


def judge(measured: Measurement, undefended: Measurement, *, chance: float, margin: float) -> Verdict:
    """Judge ``measured`` beside the same attack ``undefended``; an attack succeeds at ``chance + margin``."""
    success = chance + margin
    # The interval above chance says that the attack works, the margin that it matters: success needs both.
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
    indices = np.arange(clusters)
    if clusters < FEWEST_CLUSTERS:
        without = np.array([statistic(np.delete(indices, i)) for i in indices])
        error = np.sqrt((clusters - 1) / clusters * np.square(without - without.mean()).sum())
        middle, reach = statistic(indices), float(t.ppf(0.975, clusters - 1) * error)
        return max(bounds[0], middle - reach), min(bounds[1], middle + reach)
    rng = np.random.default_rng(seed)
    draws = [statistic(rng.integers(0, clusters, clusters)) for _ in range(resamples)]
    low, high = np.nanquantile(draws, (0.025, 0.975))
    return float(low), float(high)


class Case(ABC):
    """Base of an attack with its metric.

    The attack succeeds at ``chance + margin`` of ``metric``. ``question`` is what the attack answers, in words that a
    reader without cryptography understands, and ``ability`` is what success shows, in words that complete "it can";
    ``not_covered`` says what failure does not show. ``by_design`` is true if the protocol itself tells every member
    what the attack asks, under every protection. A ``thinned`` case runs on sites with few samples of each class
    (:func:`protoseal.attacks.recorded_run.thin_scene`). ``samples`` is the number of samples behind what is
    attacked, where the case fixes it. A case that ``reads_values`` reads what sites released and no more, so that the ε
    of a site's own noise covers its success.
    """

    attack: str
    metric: str
    chance: float
    margin: float
    question: str
    ability: str
    not_covered: str
    by_design: bool = False
    reads_values: bool = False
    thinned: bool = False
    samples: int | None = None
    adversaries: Sequence[Adversary] = tuple(Adversary)

    @property
    def family(self) -> str:
        """Name without the number of samples, for attacks that differ in it alone."""
        return self.attack

    @abstractmethod
    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:
        """Run the attack; return one result for each of the adversary's readings, none if the attack has no input."""

    def reference(self, run: RecordedRun) -> Measurement | None:  # noqa: ARG002 (for a case's own)
        """Return the same attack on the same run undefended, for a case whose defence is no protection and no noise.

        None means that the coordinator of an undefended run (``plain``, without noise) is the reference.
        """
        return None

    def judge(self, measured: Measurement, undefended: Measurement) -> Verdict:
        """Judge a measurement beside the same attack undefended, by the case's chance and margin."""
        return judge(measured, undefended, chance=self.chance, margin=self.margin)


@dataclass(frozen=True)
class Auxiliary:
    """Samples besides the victim's training samples.

    ``outsiders`` are of the victim's own distribution, in no prototype, and score an attack. ``public`` are the
    adversary's own: of the same task, disjoint from the outsiders.
    """

    outsiders: LabelledImages
    public: LabelledImages


@cached_in_run
def divide_test_samples(run: RecordedRun, victim: str) -> Auxiliary:
    """Divide the sites' test samples: half of the victim's as outsiders; all others that equal none of them as public.

    Both halves have as equal numbers of each class as possible.
    """
    test, rng = run.sites[victim].test, np.random.default_rng(0)
    order = rng.permutation(len(test))
    # Sorted by class, every second sample divides each class in half.
    order = order[np.argsort(test.labels[order], kind="stable")]
    outsiders = test.take(order[::2])
    held_out = {image.numpy().tobytes() for image in outsiders.inputs}
    parts = [test.take(order[1::2]), *(site.test for name, site in run.sites.items() if name != victim)]
    seen: set[bytes] = set()
    public = []
    for part in parts:
        contents = [image.numpy().tobytes() for image in part.inputs]
        fresh = [i for i, content in enumerate(contents) if content not in held_out and content not in seen]
        seen.update(contents)
        public.append(part.take(np.array(fresh, dtype=np.int64)))
    return Auxiliary(outsiders, concatenate_images(public))


def concatenate_images(parts: Sequence[LabelledImages]) -> LabelledImages:
    """Return the samples of all parts, one after the other."""
    return LabelledImages(
        torch.cat([part.inputs for part in parts]), np.concatenate([part.labels for part in parts])
    )


def measure_over_clusters(
    scores: Sequence[Rows], reading: str, details: Mapping[str, float] | None = None
) -> Measurement:
    """Return the mean of all clusters' scores in [0, 1], each (n,), with an interval by resampling whole clusters."""
    value = float(np.concatenate(scores).mean())

    def mean(chosen: Labels) -> float:
        return float(np.concatenate([scores[i] for i in chosen]).mean())

    # Ties alone mean that the reading does not depend on the site: chance, without any doubt.
    exact = set(np.concatenate(scores).tolist()) == {0.5}
    low, high = (0.5, 0.5) if exact else clustered_interval(mean, len(scores))
    return Measurement(
        value=value,
        low=min(low, value),
        high=max(high, value),
        trials=len(scores),
        reading=reading,
        details=dict(details or {}),
    )


def measure_share(right: NDArray[np.bool_], reading: str) -> Measurement:
    """Return the share of true values (n,) with its exact interval."""
    value, low, high = share_interval(right)
    return Measurement(value=value, low=low, high=high, trials=len(right), reading=reading)


def share_interval(right: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return the share of true values (n,) with the exact 95 % interval of Clopper and Pearson (1934)."""
    hits, misses = int(right.sum()), int((~right).sum())
    low = float(beta.ppf(0.025, hits, misses + 1)) if hits else 0.0
    high = float(beta.ppf(0.975, hits + 1, misses)) if misses else 1.0
    return hits / (hits + misses), low, high
