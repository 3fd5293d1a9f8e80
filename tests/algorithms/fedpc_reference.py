"""FedPC read literally from the paper, one number at a time: slow, in plain lists, sharing no code with what is tested.

Equation numbers are the paper's. Where the project departs from print (docs/explanation/notation.md) a comment says so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from tests.algorithms.plain_lists import Matrix, Vector, distance, inner, mean


def concatenated(prototypes: Matrix, holds: Sequence[bool]) -> Vector:
    """Return a site's or a group's vector [K·d], with zeros for the classes that it lacks."""
    vector: Vector = []
    for row, held in zip(prototypes, holds, strict=True):
        vector += [value if held else 0.0 for value in row]
    return vector


def intra(
    prototypes: Sequence[Matrix], holds: Sequence[Sequence[bool]], members: Iterable[int], min_holders: int
) -> tuple[Matrix, list[bool]]:
    """Compute IntraAgg of algorithm 1 for one group: plain means over the members that have the class.

    Not in print: a class with fewer than ``min_holders`` of them is withheld.
    """
    members = list(members)
    rows: Matrix = []
    has: list[bool] = []
    for k in range(len(prototypes[0])):
        holders = [i for i in members if holds[i][k]]
        has.append(len(holders) >= min_holders)
        rows.append(mean([prototypes[i][k] for i in holders]) if has[-1] else [0.0] * len(prototypes[0][k]))
    return rows, has


def cosine(a: Vector, b: Vector) -> float:
    """Return the cosine, 0 where a vector has no direction."""
    if inner(a, a) == 0.0 or inner(b, b) == 0.0:
        return 0.0
    return inner(a, b) / (math.sqrt(inner(a, a)) * math.sqrt(inner(b, b)))


def rho(vectors: Matrix) -> Matrix:
    """Compute equations 5 and 6; not in print: cosines below 0 count as 0, a row of zeros becomes the group itself."""
    weights: Matrix = []
    for j, own in enumerate(vectors):
        similar = [max(0.0, cosine(own, other)) for other in vectors]
        total = sum(similar)
        if total == 0.0:
            weights.append([1.0 if k == j else 0.0 for k in range(len(vectors))])
        else:
            weights.append([value / total for value in similar])
    return weights


def inter_prototypes(
    rows: Sequence[Matrix], has: Sequence[Sequence[bool]], weights: Matrix, *, literal: bool
) -> tuple[list[Matrix], list[list[bool]]]:
    """Compute equation 7, class by class. Printed (``literal``): a group without the class counts with zeros."""
    mixed: list[Matrix] = []
    known: list[list[bool]] = []
    for j in range(len(rows)):
        mixed.append([])
        known.append([])
        for k in range(len(rows[0])):
            total, share = [0.0] * len(rows[0][0]), 0.0
            for m in range(len(rows)):
                if has[m][k]:
                    share += weights[j][m]
                    total = [t + weights[j][m] * value for t, value in zip(total, rows[m][k], strict=True)]
            known[j].append(share > 0.0)
            if share > 0.0 and not literal:
                total = [value / share for value in total]
            mixed[j].append(total)
    return mixed, known


def inter_theta(theta: Matrix, weights: Matrix) -> Matrix:
    """Compute equation 8."""
    mixed: Matrix = []
    for row in weights:
        total = [0.0] * len(theta[0])
        for weight, other in zip(row, theta, strict=True):
            total = [t + weight * value for t, value in zip(total, other, strict=True)]
        mixed.append(total)
    return mixed


def prototype_loss(features: Matrix, labels: Sequence[int], rows: Matrix, present: Sequence[bool]) -> float:
    """Compute equation 3: the distance of each class's mean from its target, summed over classes."""
    total = 0.0
    for k in sorted(set(labels)):
        if present[k]:
            own = mean([z for z, y in zip(features, labels, strict=True) if y == k])
            total += distance(own, rows[k])
    return total


def mean_square_loss(features: Matrix, labels: Sequence[int], rows: Matrix, present: Sequence[bool]) -> float:
    """Compute equation 3 with squares for norms and samples for class means, as a mean over samples and channels."""
    squares = [
        (value - target) ** 2
        for z, y in zip(features, labels, strict=True)
        if present[y]
        for value, target in zip(z, rows[y], strict=True)
    ]
    return sum(squares) / len(squares) if squares else 0.0


def cross_entropy(logits: Matrix, labels: Sequence[int]) -> float:
    total = 0.0
    for row, y in zip(logits, labels, strict=True):
        top = max(row)
        total += top + math.log(sum(math.exp(value - top) for value in row)) - row[y]
    return total / len(labels)


def inertia(points: Matrix, labels: Sequence[int]) -> float:
    total = 0.0
    for cluster in set(labels):
        members = [point for point, label in zip(points, labels, strict=True) if label == cluster]
        centre = mean(members)
        total += sum(distance(point, centre) ** 2 for point in members)
    return total


def least_inertia(points: Matrix, clusters: int) -> float:
    """Search every partition of the points into exactly that many clusters. Exponential: for nine points or so."""
    best = math.inf
    for labels in itertools.product(range(clusters), repeat=len(points)):
        in_order = all(label <= max(labels[:at], default=-1) + 1 for at, label in enumerate(labels))
        if in_order and max(labels) == clusters - 1:
            best = min(best, inertia(points, labels))
    return best


def merged(points: Matrix, labels: Sequence[int], min_holders: int) -> list[int]:
    """Join the smallest group below the minimum to the nearest, again and again; the paper does not print this step."""
    groups = [[i for i, other in enumerate(labels) if other == label] for label in dict.fromkeys(labels)]
    while len(groups) > 1:
        small = min(groups, key=len)
        if len(small) >= min_holders:
            break
        centre = mean([points[i] for i in small])
        others = [group for group in groups if group is not small]
        nearest = min(others, key=lambda group: distance(centre, mean([points[i] for i in group])))
        groups = [group for group in others if group is not nearest] + [sorted(nearest + small)]
        groups.sort(key=lambda group: group[0])
    answer = [0] * len(points)
    for number, group in enumerate(groups):
        for i in group:
            answer[i] = number
    return answer
