"""Membership inference on prototypes, which tells whether a record is among those that a prototype averages.

A member pulls its prototype towards itself by 1/n. With features of a class about N(μ, Σ), the log likelihood ratio of
"the candidate is one of n" against "it is not" is, up to a constant,

    (f − μ)ᵀ Σ⁻¹ (C − μ) − (f − μ)ᵀ Σ⁻¹ (f − μ) / 2n,

whose first term is the tracing score of Dwork et al. (2015, *Robust traceability from trace amounts*). μ and Σ come
from the adversary's public samples. Scores are standardised by the scores of public samples, never by those of the
outsiders that they are compared with: that would show a violation of ε that is none. Where rows are rotated, their
lengths and inner products are read as well (:mod:`protoseal.attacks.rotated_rows`).

Limit: the adversary has the victim's own feature extractor and the number of samples. Both help it; a run of PFPL
sends neither. Everyone has the extractor where features are frozen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf

from protoseal.attacks.cases import (
    Auxiliary,
    Case,
    Curve,
    Measurement,
    clustered_interval,
    divide_test_samples,
)
from protoseal.attacks.readings import Adversary, LearnedRows, readings, round_zero_readings
from protoseal.attacks.recorded_run import Labels, RecordedRun, Rows, compute_features
from protoseal.attacks.rotated_rows import FEWEST, rotated_readings
from secure_client.privacy.cost import SIMULATED_DELTA

RATES = np.geomspace(1e-3, 1.0, 40)
"""False-positive rates of the curve."""


@dataclass(frozen=True)
class Scores:
    """Scores of one release, for the members (m,) and the outsiders (n,) of its class."""

    members: Rows
    outsiders: Rows

    def joined(self, other: Scores | None) -> Scores:
        """Return these scores together with others of the same release."""
        if other is None:
            return self
        pairs = ((self.members, other.members), (self.outsiders, other.outsiders))
        return Scores(*map(np.concatenate, pairs))


class PrototypeMembership(Case):
    """Case of membership inference from prototypes, by log likelihood ratios."""

    metric = "area under the ROC curve"
    chance, margin = 0.5, 0.1
    question = "Can the adversary tell whether a given record was used?"
    ability = "tell whether a given record was used"
    not_covered = (
        "Records that the adversary chose or planted, what the feature extractor itself remembers of its training"
        " records, and adversaries that have all records of a class but one: exact values tell them the last one."
    )

    def __init__(self, samples: int | None = None) -> None:
        """Attack prototypes of exactly ``samples`` records, or by default of as many as the configuration gives."""
        self.samples, self.thinned = samples, samples is not None
        few = f", {samples} sample{'s' * (samples != 1)}" if self.thinned else ""
        self.attack = f"{self.family}{few}"

    @property
    def family(self) -> str:
        """See :class:`Case`."""
        return "membership inference on prototypes"

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:
        """Score every site's training samples and outsiders, for each reading of the adversary's view."""
        by_reading_and_release: dict[str, dict[bytes, Scores]] = {}
        for victim in run.sites:
            for reading, release, scores in self._scores(run, adversary, victim):
                releases = by_reading_and_release.setdefault(reading, {})
                releases[release] = scores.joined(releases.get(release))
        by_reading = {
            reading: list(releases.values()) for reading, releases in by_reading_and_release.items()
        }
        return [
            measure_scores(reading, scores, run.epsilon) for reading, scores in by_reading.items() if scores
        ]

    def _scores(
        self, run: RecordedRun, adversary: Adversary, victim: str
    ) -> Iterator[tuple[str, bytes, Scores]]:
        """Yield each reading with the rows of a class, and their scores: sites of one mean have the same rows."""
        samples, train = divide_test_samples(run, victim), run.sites[victim].train
        wanted = {
            int(k)
            for k, count in zip(*np.unique(train.labels, return_counts=True), strict=True)
            if self.samples in (None, count) and (samples.outsiders.labels == k).any()
        }
        for learned in (*readings(run, adversary, victim), *round_zero_readings(run, adversary, victim)):
            for number, scores in _score_reading(run, victim, learned, samples, wanted):
                yield learned.reading, learned.of_class(number).tobytes(), scores
        for rotated in rotated_readings(run, adversary, victim):
            for number in sorted(wanted & rotated.classes):
                parts = (train.of_class(number).inputs, samples.outsiders.of_class(number).inputs)
                yield (
                    rotated.reading,
                    rotated.release(number),
                    Scores(*(rotated.ratios(number, part) for part in parts)),
                )


def _score_reading(
    run: RecordedRun, victim: str, learned: LearnedRows, samples: Auxiliary, wanted: set[int]
) -> Iterator[tuple[int, Scores]]:
    """Yield the ``wanted`` classes that the reading has, with the scores of their rows."""
    site = run.sites[victim]
    model = run.initial if learned.initial and run.initial is not None else site.model
    features = {
        name: compute_features(model, part.inputs)
        for name, part in (("in", site.train), ("out", samples.outsiders), ("public", samples.public))
    }
    precision = _inverse_covariance(features["public"], samples.public.labels)
    for k in wanted.intersection(learned.labels.tolist()):
        of_class = {
            "in": features["in"][site.train.labels == k],
            "out": features["out"][samples.outsiders.labels == k],
            "public": features["public"][samples.public.labels == k],
        }
        if len(of_class["public"]) >= FEWEST:
            rows = learned.of_class(k)
            yield k, score_release(rows, of_class["in"], of_class["out"], of_class["public"], precision)


def _inverse_covariance(features: Rows, labels: Labels) -> Rows:
    """Return the inverse of the classes' common covariance (d, d), shrunk as Ledoit and Wolf (2004) do."""
    centred = features - np.array([features[labels == k].mean(axis=0) for k in labels])
    return np.asarray(np.linalg.pinv(ledoit_wolf(centred, assume_centered=True)[0]))


def score_release(rows: Rows, members: Rows, outsiders: Rows, public: Rows, precision: Rows) -> Scores:
    """Score members and outsiders (·, d) against a class's rows (m, d), each by the row that fits it best."""
    mean, count = public.mean(axis=0), len(members)

    def ratio(features: Rows) -> Rows:
        centred = features - mean
        weighed = centred @ precision
        own = (weighed * centred).sum(axis=1, keepdims=True)
        return np.asarray(weighed @ (rows - mean).T - own * len(rows) / (2 * count))

    # By public samples, never by the outsiders: that would make each outsider's score depend on the others, and show
    # a violation of ε that is none.
    base = ratio(public)
    centre, spread = base.mean(axis=0), base.std(axis=0).clip(1e-12)
    standard = [((ratio(features) - centre) / spread).max(axis=1) for features in (members, outsiders)]
    return Scores(*standard)


def measure_scores(reading: str, scores: Sequence[Scores], epsilon: float | None = None) -> Measurement:
    """Return the area under the ROC curve, with rates and curves; whole releases are resampled.

    With ``epsilon`` the curve that it allows is beside.
    """
    members = [release.members for release in scores]
    outsiders = [release.outsiders for release in scores]

    def area(chosen: NDArray[Any]) -> float:
        return auc(
            np.concatenate([members[i] for i in chosen]), np.concatenate([outsiders[i] for i in chosen])
        )

    releases = np.arange(len(scores))
    low, high = clustered_interval(area, len(scores))
    value, inside, outside = area(releases), np.concatenate(members), np.concatenate(outsiders)
    curves = {"ROC": Curve(x=tuple(RATES), y=tuple(roc(inside, outside, RATES)))}
    if epsilon is not None:
        allowed = tuple(allowed_rates(epsilon, SIMULATED_DELTA, RATES))
        curves["allowed by ε"] = Curve(x=tuple(RATES), y=allowed)
    return Measurement(
        value=value,
        low=min(low, value),
        high=max(high, value),
        trials=len(scores),
        reading=reading,
        details={
            "TPR at 0.1 % FPR": true_positive_rate(inside, outside, 0.001),
            "TPR at 1 % FPR": true_positive_rate(inside, outside, 0.01),
            "members": float(len(inside)),
            "outsiders": float(len(outside)),
        },
        curves=curves,
    )


Float = NDArray[np.float64]


def auc(members: Float, outsiders: Float) -> float:
    """Return the area under the ROC curve: the chance that a member scores above an outsider, ties as half."""
    if not len(members) or not len(outsiders):
        return float("nan")
    ordered = np.sort(outsiders)
    below = np.searchsorted(ordered, members, "left")
    ties = np.searchsorted(ordered, members, "right") - below
    return float((below + ties / 2).mean() / len(outsiders))


def true_positive_rate(members: Float, outsiders: Float, false_positive_rate: float) -> float:
    """Return the share of members above the threshold that at most that share of outsiders exceeds."""
    allowed = int(np.floor(false_positive_rate * len(outsiders)))
    threshold = np.sort(outsiders)[::-1][allowed] if allowed < len(outsiders) else -np.inf
    return float((members > threshold).mean())


def roc(members: Float, outsiders: Float, rates: Float) -> Float:
    """Return the true-positive rates at false-positive ``rates`` (n,)."""
    return np.array([true_positive_rate(members, outsiders, rate) for rate in rates])


def allowed_rates(epsilon: float, delta: float, rates: Float) -> Float:
    """Return the largest true-positive rates that (ε, δ) allows at false-positive ``rates`` (Kairouz et al. 2015)."""
    above = np.exp(epsilon) * rates + delta
    other = 1.0 - np.exp(-epsilon) * (1.0 - delta - rates)
    return np.asarray(np.clip(np.minimum(above, other), 0.0, 1.0))
