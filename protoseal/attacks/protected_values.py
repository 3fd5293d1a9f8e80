"""Attacks on the protections themselves, from a recorded run's bytes: masks, rotations and CKKS.

- Values: a protected upload, read as if nothing protected it, has none of the site's numbers.
- Recognition: of two sites' prototypes, the adversary chooses the one that is nearer to what it reads. A rotation
  hides directions, but keeps lengths and inner products.
- Known rows: under one rotation Q, known pairs (x, Q·x) show every other row on their span (Procrustes problem): a
  row y is Σ c_i x_i where Q·y is Σ c_i Q·x_i.
- Key recovery: :mod:`protoseal.attacks.key_recovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from agreement.registry.round_plan import PayloadKind
from crypto.plain import SCHEME as PLAIN
from protoseal.attacks.cases import Case, Measurement, measure_over_clusters
from protoseal.attacks.readings import (
    Adversary,
    LearnedRows,
    add_length_readings,
    group_by_reading,
    readings,
)
from protoseal.attacks.recorded_run import RecordedRun, Rows

EXACT = 1e-5
"""Largest error of a number that was read exactly, in units of the norm bound; questions state it."""
FEWEST_HOLDERS = 3
"""Fewest holders of a class in which rows are known and one is not."""


class Values(Case):
    """Case of reading values: the share of a prototype's numbers that the adversary reads exactly."""

    attack = "reading protected values"
    metric = "share of the numbers of prototypes other than zero that are read exactly"
    chance, margin = 0.0, 0.5
    question = (
        "Can the adversary read the exact values of a site's prototypes (with noise, the noisy values), as numbers to"
        " 1e-5 of the norm bound?"
    )
    ability = (
        "read the exact values of a site's prototypes (as numbers, to 1e-5; with noise, the noisy values)"
    )
    reads_values = True
    not_covered = "Values that are read approximately, and what the prototypes show of records."

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:
        """Compare each reading of each class with the truth; classes are the independent parts."""
        views = {site: readings(run, adversary, site) for site in run.sites}
        return list(_measure_by_class(run, views, _score_exact))


class PrototypeRecognition(Case):
    """Case of comparison: which of two sites' prototypes of a class is the one that was read."""

    attack = "recognition of prototypes"
    metric = "share of pairs of candidates of which the right one is chosen"
    chance, margin = 0.5, 0.2
    question = "Can the adversary confirm that a prototype that was sent is the one it suspects?"
    ability = "confirm a suspicion of which prototype was sent"
    not_covered = "Candidates that differ less than two sites' prototypes of a class do."

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:
        """Choose between the victim's prototype and another site's by cosine, and under a rotation by length."""
        views = {site: add_length_readings(run, readings(run, adversary, site)) for site in run.sites}
        return list(_measure_by_class(run, views, _score_choices))


class KnownRows(Case):
    """Case of known rows under a rotation: the part of an unknown row that known pairs show."""

    attack = "rotation, with known prototypes"
    metric = "share recovered of what the known prototypes' mean leaves open"
    chance, margin = 0.0, 0.5
    question = "Can a coordinator that knows other sites' prototypes read the remaining site's?"
    ability = "read a site's prototypes where it already knows all other sites'"
    reads_values = True
    not_covered = "Prototypes that are known inexactly."
    adversaries = (Adversary.COORDINATOR,)

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:  # noqa: ARG002 (the interface's)
        """Recover each site's row from all other holders' rows."""
        if run.agreement.plan.values is not PayloadKind.ROWS:
            return []
        scores = [
            _score_known_rows(run, number)
            for number in range(len(run.agreement.classes))
            if len(_list_holders(run, number)) >= FEWEST_HOLDERS
        ]
        if not scores:
            return []
        words = "its rotated rows, and all other sites' prototypes" if _is_rotated(run) else "its prototypes"
        return [measure_over_clusters(scores, words)]


# Readings, class by class


Score = Callable[[RecordedRun, Mapping[str, LearnedRows], int], Iterator[float]]
"""Function of a run, what was read of each site, and a class, to scores in [0, 1]."""


def _measure_by_class(
    run: RecordedRun, views: Mapping[str, Sequence[LearnedRows]], score: Score
) -> Iterator[Measurement]:
    """Yield the mean score for each reading, with classes as the independent parts."""
    for reading, learned in group_by_reading(views).items():
        scores = [np.array(list(score(run, learned, number))) for number in range(len(run.agreement.classes))]
        if any(len(of_class) for of_class in scores):
            names = dict.fromkeys(name for reading in learned.values() for name in reading.details)
            details = {
                name: float(np.mean([reading.details[name] for reading in learned.values()]))
                for name in names
            }
            yield measure_over_clusters([of_class for of_class in scores if len(of_class)], reading, details)


def _score_exact(run: RecordedRun, learned: Mapping[str, LearnedRows], number: int) -> Iterator[float]:
    """Yield the share of numbers read exactly, for each site with the class, each prototype by the nearest row read."""
    for site, reading in learned.items():
        share = exact_share(reading.of_class(number), _true_rows(run, site, number), run.agreement.norm_bound)
        if share is not None:
            yield share


def exact_share(rows: Rows, truth: Rows, bound: float) -> float | None:
    """Return the share of the numbers of ``truth`` (m, d) that the nearest of ``rows`` have; None if there are none.

    Numbers near zero do not count: features that are zero at every site would be read from any result.
    """
    # Twice the error: a guess of 0 must not count as exact.
    counted = np.abs(truth) > 2.0 * EXACT * bound
    if not len(rows) or not counted.any():
        return None
    nearest = rows[[int(np.linalg.norm(rows - row, axis=1).argmin()) for row in truth]]
    return float((np.abs(nearest - truth) <= EXACT * bound)[counted].mean())


def _score_choices(run: RecordedRun, learned: Mapping[str, LearnedRows], number: int) -> Iterator[float]:
    """Yield for each ordered pair of sites 1 if the first site's prototype is chosen, 0 if not, and ½ for a tie."""
    holders = [site for site in _list_holders(run, number) if site in learned]
    truth = {site: _true_rows(run, site, number).mean(axis=0) for site in holders}
    for site, other in permutations(truth, 2):
        rows = learned[site].of_class(number)
        if len(rows):
            one, two = (_nearness(rows.mean(axis=0), truth[candidate]) for candidate in (site, other))
            yield (float(np.sign(one - two)) + 1.0) / 2.0


def _nearness(read: NDArray[np.float64], candidate: NDArray[np.float64]) -> float:
    """Return the cosine of a read row and a candidate, or for a length minus the difference of lengths."""
    length = float(np.linalg.norm(candidate))
    if len(read) == 1:
        return -abs(float(read[0]) - length)
    return float(read @ candidate) / max(length * float(np.linalg.norm(read)), 1e-12)


def _true_rows(run: RecordedRun, site: str, number: int) -> Rows:
    return np.asarray(run.sites[site].rows[run.sites[site].labels == number])


def _list_holders(run: RecordedRun, number: int) -> list[str]:
    return [site for site in run.sites if len(_true_rows(run, site, number))]


# Known rows


def _is_rotated(run: RecordedRun) -> bool:
    return any(run.payload(site).scheme != PLAIN for site in run.sites)


def _score_known_rows(run: RecordedRun, number: int) -> Rows:
    """Return for each holder of a class (n,) what is recovered of its row, as a share of what the others' mean leaves.

    All other holders' rows are known.
    """
    holders = _list_holders(run, number)
    truth = np.concatenate([_true_rows(run, site, number) for site in holders])
    uploads = [run.payload(site).arrays[0][number] for site in holders]
    sent, rotated = np.array(uploads) * run.agreement.norm_bound, _is_rotated(run)
    scores = []
    for victim, row in enumerate(truth):
        others = np.delete(np.arange(len(holders)), victim)
        solved = solve_unknown_row(truth[others], sent[others], sent[victim]) if rotated else sent[victim]
        left = float(np.square(row - solved).sum())
        left_by_mean = float(np.square(row - truth[others].mean(axis=0)).sum())
        scores.append(1.0 - left / max(left_by_mean, 1e-12))
    return np.array(scores)


def solve_unknown_row(known: Rows, rotated: Rows, sent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a row (d,) as far as known rows (m, d) and the same ``rotated`` show it, from the row as it was ``sent``.

    The result is the orthogonal projection of the row on the known rows' span: the row itself if m ≥ d, in general,
    or if it lies in the span.
    """
    combination, *_ = np.linalg.lstsq(rotated.T, sent, rcond=None)
    return np.asarray(combination @ known)
