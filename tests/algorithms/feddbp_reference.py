"""FedDBP read literally from the paper, a number at a time: slow, in plain lists, sharing no code with what is tested.

Equation numbers are the paper's. Where the project departs from print (docs/explanation/notation.md) a comment says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tests.algorithms.plain_lists import Matrix, Vector, distance


def normalised(vector: Sequence[float]) -> Vector:
    """Return a vector scaled to length 1; a vector of zeros has no direction and stays as it is."""
    squares = 0.0
    for value in vector:
        squares += value * value
    return [value / math.sqrt(squares) if squares else 0.0 for value in vector]


def cross_entropy(logits: Matrix, labels: Sequence[int]) -> float:
    total = 0.0
    for row, y in zip(logits, labels, strict=True):
        total -= log_probability(row, y)
    return total / len(labels)


def log_probability(logits: Vector, y: int) -> float:
    top = max(logits)
    return logits[y] - top - math.log(sum(math.exp(value - top) for value in logits))


def shared_loss(
    features: Matrix, labels: Sequence[int], rows: Matrix, present: Sequence[bool], *, literal: bool
) -> float:
    """Compute equation 3 over the samples with a target: the mean over channels, or as printed their sum."""
    total, samples = 0.0, 0
    for z, y in zip(features, labels, strict=True):
        if present[y]:
            samples += 1
            squares = distance(z, rows[y]) ** 2
            total += squares if literal else squares / len(z)
    return total / samples if samples else 0.0


def boundary(features: Matrix, labels: Sequence[int], rows: Matrix, present: Sequence[bool]) -> float:
    """Return m, halfway between the mean distance of positives and that of negatives in the batch."""
    positives: Vector = []
    negatives: Vector = []
    for z, y in zip(features, labels, strict=True):
        if present[y]:
            for c, row in enumerate(rows):
                if present[c]:
                    (positives if c == y else negatives).append(distance(normalised(z), normalised(row)))
    mean_of_positives = sum(positives) / len(positives) if positives else 0.0
    mean_of_negatives = sum(negatives) / len(negatives) if negatives else 0.0
    return (mean_of_positives + mean_of_negatives) / 2


def decision_loss(
    features: Matrix,
    labels: Sequence[int],
    rows: Matrix,
    present: Sequence[bool],
    *,
    tau: float,
    hard: bool,
    literal: bool,
    m: float,
) -> float:
    """Compute equations 4 (without ``hard``) and 5 with 6, over the samples and classes that have a target.

    Print (``literal``) has no logarithm. Equation 6 as printed has a minus before the maximum, and so counts every
    negative; not in print is the sum over the hard negatives alone, those nearer than m, without it.
    """
    total, samples = 0.0, 0
    for z, y in zip(features, labels, strict=True):
        if not present[y]:
            continue
        samples += 1
        d = {c: distance(normalised(z), normalised(rows[c])) for c in range(len(rows)) if present[c]}
        below = sum(math.exp(-each / tau) for each in d.values())
        for c, each in d.items():
            if hard and c != y and literal:
                below += math.exp(-max(0.0, m - each) / tau)
            elif hard and c != y and each < m:
                below += math.exp((m - each) / tau)
        ratio = math.exp(-d[y] / tau) / below
        total -= ratio if literal else math.log(ratio)
    return total / samples if samples else 0.0


def linear_scores(
    features: Matrix, labels: Sequence[int], weight: Matrix, bias: Vector, classes: int
) -> Matrix:
    """Compute equation 8 for a linear classifier: ∂ log p(y)/∂z_j = Σ_c (1[c = y] − p_c) · w_cj."""
    sums, counts = [[0.0] * len(features[0]) for _ in range(classes)], [0] * classes
    for z, y in zip(features, labels, strict=True):
        logits = [
            b + sum(w * value for w, value in zip(row, z, strict=True))
            for row, b in zip(weight, bias, strict=True)
        ]
        counts[y] += 1
        for j in range(len(z)):
            slope = 0.0
            for c in range(classes):
                slope += ((c == y) - math.exp(log_probability(logits, c))) * weight[c][j]
            sums[y][j] += slope**2
    return [
        [value / count if count else 0.0 for value in row] for row, count in zip(sums, counts, strict=True)
    ]


def scores_by_differences(
    features: Matrix, labels: Sequence[int], logits_of: Callable[[Vector], Vector], classes: int, step: float
) -> Matrix:
    """Compute equation 8 with central differences for the derivative."""
    sums, counts = [[0.0] * len(features[0]) for _ in range(classes)], [0] * classes
    for z, y in zip(features, labels, strict=True):
        counts[y] += 1
        for j in range(len(z)):
            above, below = list(z), list(z)
            above[j] += step
            below[j] -= step
            change = log_probability(logits_of(above), y) - log_probability(logits_of(below), y)
            sums[y][j] += (change / (2 * step)) ** 2
    return [
        [value / count if count else 0.0 for value in row] for row, count in zip(sums, counts, strict=True)
    ]


def global_prototypes(
    prototypes: Sequence[Matrix], holds: Sequence[Sequence[bool]], min_holders: int
) -> tuple[Matrix, list[bool]]:
    """Return p^c, the mean over sites that have class c. Not in print: withheld below ``min_holders`` of them."""
    rows: Matrix = []
    has: list[bool] = []
    for c in range(len(holds[0])):
        total, holders = [0.0] * len(prototypes[0][c]), 0
        for site, held in zip(prototypes, holds, strict=True):
            if held[c]:
                holders += 1
                total = [t + value for t, value in zip(total, site[c], strict=True)]
        has.append(holders >= min_holders)
        rows.append([value / holders if has[-1] else 0.0 for value in total])
    return rows, has


def fused(
    own: Matrix,
    has_own: Sequence[bool],
    scores: Matrix,
    mean: Matrix,
    has: Sequence[bool],
    eta: float,
    top: int,
) -> Matrix:
    """Compute equations 9 and 10; a class without a global prototype gets zeros."""
    rows: Matrix = []
    for c in range(len(has)):
        row = list(mean[c]) if has[c] else [0.0] * len(mean[c])
        if has[c] and has_own[c]:
            ranked = sorted(range(len(row)), key=lambda j, c=c: (-scores[c][j], j))  # type: ignore[misc]
            for j in ranked[:top]:
                row[j] = eta * own[c][j] + (1 - eta) * mean[c][j]
        rows.append(row)
    return rows


def nearest(vector: Vector, rows: Matrix, present: Sequence[bool], *, direction: bool) -> int:
    """Return the class of the nearest prototype, by direction alone or not; a tie goes to the lower class."""
    best, found = math.inf, -1
    for c, row in enumerate(rows):
        if present[c]:
            d = distance(normalised(vector), normalised(row)) if direction else distance(vector, row)
            if d < best:
                best, found = d, c
    return found
