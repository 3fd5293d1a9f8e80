"""Poisoning and backdoors by one site in five, one at least, and what each costs the honest sites.

Every attack runs twice: on the configuration, and on the same without what holds poison off
(:func:`protoseal.attacks.poisoned_run.unguarded`). The difference to the run in which no site is
malicious is paired by seed and honest site.

Limit: a few seeds show large losses alone. A loss below the margin is no proof of robustness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from scipy.stats import t  # type: ignore[import-untyped]  # it ships no types

from agreement import Traits
from protoseal.attacks.adversaries import Adversary
from protoseal.attacks.case import Case, joined
from protoseal.attacks.poisoned_run import Ended, Poison, poisoned, unguarded
from protoseal.attacks.recorded_run import LabelledImages, Labels, RecordedRun, Rows
from protoseal.attacks.verdicts import Measured
from protoseal.simulation.config import SimulationConfig

TARGET = 0
"""Class for which the backdoor's images are to be taken."""
BOOST = -1000.0
"""Factor of a scaled upload, which is then shortened to the agreed bounds: bounds decide how much it does."""
_CLAIM = 10**6


# Behaviour of malicious sites


def flipped(images: LabelledImages, classes: int) -> LabelledImages:
    """Give each sample the label of the class opposite to its own."""
    return LabelledImages(images.inputs, classes - 1 - images.labels)


def triggered(images: LabelledImages) -> LabelledImages:
    """Return the images of other classes than the target with a bright corner, labelled as the target.

    Of records that are no images, the last quarter of the features takes the place of the corner.
    """
    other = images.take(np.flatnonzero(images.labels != TARGET))
    inputs, size = other.inputs.clone(), max(1, images.inputs.shape[-1] // 4)
    corner = inputs[..., -size:, -size:] if inputs.ndim > 2 else inputs[:, -size:]
    corner.fill_(float(images.inputs.max()))
    return LabelledImages(inputs, np.full_like(other.labels, TARGET))


def with_backdoor(images: LabelledImages, classes: int) -> LabelledImages:  # noqa: ARG001 (the interface's argument)
    """Return the images, and triggered ones besides."""
    return joined([images, triggered(images)])


def shifted(rows: Rows, labels: Labels, sites: int) -> Rows:
    """Shift each prototype towards the next class, so far that the mean over equal sites arrives there."""
    following = {int(k): rows[labels == k].mean(axis=0) for k in np.unique(labels)}
    classes = max(following) + 1
    towards = np.array([following.get((int(k) + 1) % classes, following[int(k)]) for k in labels])
    return np.asarray(rows + sites * (towards - rows))


def multiplied(factor: float, samples: int = 1) -> Poison:
    """Return the behaviour of a site that multiplies its prototypes, and its change of the model, by ``factor``."""
    return Poison(rows=lambda rows, labels, sites: rows * factor, factor=factor, samples=samples)


# Cases


HONEST = Poison()


class EndedRuns:
    """Runs with and without poison, each made once for all cases and protections that share it."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, int, Poison], Ended] = {}

    def of(self, config: SimulationConfig, seed: int, poison: Poison = HONEST) -> Ended:
        """Return the results of the sites that are honest in a poisoned run."""
        key = (config.model_dump_json(exclude={"out", "seeds"}), seed, poison)
        if key not in self._ended:
            self._ended[key] = poisoned(config, seed, poison, triggered)
        return self._ended[key]


@dataclass(frozen=True)
class Poisoning(Case):
    """Case of one kind of poison, measured as the mean accuracy that honest sites lose.

    ``backdoor`` measures instead how many more triggered test images the honest sites take for the target.
    ``applies`` is false for methods that give the poison no way out. The reference is the same poison, unguarded.

    Each run stands for ``repeats`` seeds, over which the interval is.
    """

    attack: str
    question: str
    ability: str
    poison: Poison
    metric: str = "accuracy lost, honest sites' mean beyond a run without poison"
    backdoor: bool = False
    applies: Callable[[Traits], bool] = lambda traits: True
    repeats: int = 4
    runs: EndedRuns = field(default_factory=EndedRuns, repr=False, compare=False)
    chance: float = 0.0
    margin: float = 0.05
    not_covered: str = (
        "More malicious sites, sites that adapt to the others' values or act over many rounds, and losses below the"
        " margin."
    )
    adversaries: Sequence[Adversary] = (Adversary.PEER,)

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measured]:
        """Measure the attack against the run's configuration; nothing if it does not apply."""
        if adversary not in self.adversaries or not self.applies(run.agreement.method.traits):
            return ()
        return (self._measured(run.config, run.seed, "poison in all rounds, within the agreed bounds"),)

    def reference(self, run: RecordedRun) -> Measured | None:
        """Measure the attack where nothing holds it off; None if it does not apply."""
        if not self.applies(run.agreement.method.traits):
            return None
        return self._measured(unguarded(run.config), run.seed, "poison in all rounds, unguarded")

    def _measured(self, config: SimulationConfig, seed: int, basis: str) -> Measured:
        seeds = range(seed * self.repeats, (seed + 1) * self.repeats)
        pairs = [(self.runs.of(config, each), self.runs.of(config, each, self.poison)) for each in seeds]
        lost = np.array([_lost(clean.accuracy, dirty.accuracy) for clean, dirty in pairs])
        gained = -np.array([_lost(clean.triggered, dirty.triggered) for clean, dirty in pairs])
        gains = gained if self.backdoor else lost
        low, high = _interval(gains)
        value = float(gains.mean())
        return Measured(
            value=value,
            low=min(low, value),
            high=max(high, value),
            trials=len(gains),
            basis=basis,
            details={
                "accuracy without poison": _mean(clean.accuracy for clean, _ in pairs),
                "accuracy lost": float(lost.mean()),
                "triggered images taken for the target": _mean(dirty.triggered for _, dirty in pairs),
            },
        )


def _lost(clean: Mapping[str, float], dirty: Mapping[str, float]) -> list[float]:
    return [clean[name] - dirty[name] for name in sorted(clean)]


def _mean(figures: Iterable[Mapping[str, float]]) -> float:
    return float(np.mean([list(each.values()) for each in figures]))


def _interval(gains: Rows) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean of (seeds, sites), over seeds: sites of one seed share its poison."""
    of_seeds = gains.mean(axis=1)
    if len(of_seeds) < 2:
        return -1.0, 1.0
    reach = float(t.ppf(0.975, len(of_seeds) - 1) * of_seeds.std(ddof=1) / np.sqrt(len(of_seeds)))
    return float(of_seeds.mean()) - reach, float(of_seeds.mean()) + reach


def poisoning_cases(repeats: int = 4) -> tuple[Poisoning, ...]:
    """Return all cases, which share their runs."""
    make = partial(Poisoning, repeats=repeats, runs=EndedRuns())
    words, able = "Do honest sites lose accuracy if ", "make honest sites less accurate by "
    return (
        make(
            "label flip",
            words + "malicious sites train with wrong labels?",
            able + "training with wrong labels",
            Poison(data=flipped),
        ),
        make(
            "sign flip",
            words + "malicious sites upload the opposite of what they learnt?",
            able + "uploading the opposite of what malicious sites learnt",
            multiplied(-1.0),
        ),
        make(
            "scaled upload",
            words + "malicious sites upload the opposite of what they learnt, as large as bounds allow?",
            able + "uploading the opposite of what malicious sites learnt, as large as bounds allow",
            multiplied(BOOST),
        ),
        make(
            "prototype shift",
            words + "malicious sites move their prototypes to other classes?",
            able + "moving prototypes to other classes",
            Poison(rows=shifted),
            applies=lambda traits: traits.prototypes,
        ),
        make(
            "inflated sample count",
            words + "malicious sites upload the opposite of what they learnt, and claim very many samples?",
            able + "uploading the opposite of what malicious sites learnt, and claiming very many samples",
            multiplied(-1.0, _CLAIM),
            applies=lambda traits: traits.weighted,
        ),
        make(
            "backdoor",
            "Do honest sites take marked images for another class if malicious sites train with such marks?",
            "make honest sites take marked images for another class by training with such marks",
            Poison(data=with_backdoor),
            metric="marked images taken for the target, honest sites' mean beyond a run without poison",
            backdoor=True,
        ),
    )
