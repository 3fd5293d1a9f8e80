"""FINCH and the losses over clusters read literally, one number at a time: slow, in plain lists, sharing no code.

For data without ties: nearest neighbours are compared as they are, without rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.algorithms.plain_lists import Vector, inner, mean

Partition = list[int]


def norm(a: Sequence[float]) -> float:
    return math.sqrt(inner(a, a))


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    return inner(a, b) / (norm(a) * norm(b))


def unit(vector: Sequence[float]) -> Vector:
    return [value / norm(vector) for value in vector]


def nearest(vectors: Sequence[Sequence[float]], i: int) -> int:
    best, found = -math.inf, -1
    for j in range(len(vectors)):
        if j != i and cosine(vectors[i], vectors[j]) > best:
            best, found = cosine(vectors[i], vectors[j]), j
    return found


def first_neighbour_graph(vectors: Sequence[Sequence[float]]) -> list[set[int]]:
    """Return the graph with an edge i–j iff j = κ_i, i = κ_j or κ_i = κ_j."""
    kappa = [nearest(vectors, i) for i in range(len(vectors))]
    edges: list[set[int]] = [set() for _ in vectors]
    for i in range(len(vectors)):
        for j in range(len(vectors)):
            if i != j and (j == kappa[i] or i == kappa[j] or kappa[i] == kappa[j]):
                edges[i].add(j)
    return edges


def components(edges: list[set[int]]) -> Partition:
    """Return the components by breadth-first search, numbered in the order of their first members."""
    labels = [-1] * len(edges)
    number = 0
    for start in range(len(edges)):
        if labels[start] != -1:
            continue
        queue = [start]
        labels[start] = number
        while queue:
            for other in sorted(edges[queue.pop(0)]):
                if labels[other] == -1:
                    labels[other] = number
                    queue.append(other)
        number += 1
    return labels


def means_of(vectors: Sequence[Sequence[float]], labels: Partition) -> list[Vector]:
    return [mean([vectors[i] for i in range(len(vectors)) if labels[i] == g]) for g in range(max(labels) + 1)]


def levels(vectors: Sequence[Sequence[float]], *, literal: bool = False) -> list[Partition]:
    """Return every partition of two or more vectors, none of them zero."""
    points = [list(vector) if literal else unit(vector) for vector in vectors]
    found = [components(first_neighbour_graph(points))]
    while max(found[-1]) > 0:
        upper = components(first_neighbour_graph(means_of(points, found[-1])))
        found.append([upper[label] for label in found[-1]])
    return found


def coarsest(found: list[Partition]) -> Partition:
    """Return the coarsest partition with at least two clusters, or the first."""
    for level in reversed(found):
        if max(level) > 0:
            return level
    return found[0]


def merged(
    vectors: Sequence[Sequence[float]],
    labels: Partition,
    sites: Sequence[int],
    min_holders: int,
    most: int = 1 << 30,
) -> Partition:
    """Join the cluster with the fewest sites to the nearest while a cluster is below ``min_holders`` or there are too
    many.
    """
    order = list(dict.fromkeys(labels))
    labels = [order.index(label) for label in labels]
    units = [unit(vector) for vector in vectors]
    while True:
        holders = [{s for s, g in zip(sites, labels, strict=True) if g == c} for c in range(max(labels) + 1)]
        sizes = [len(each) for each in holders]
        if len(sizes) == 1 or (min(sizes) >= min_holders and len(sizes) <= most):
            return labels
        small = sizes.index(min(sizes))
        target = nearest(means_of(units, labels), small)
        labels = [target if label == small else label for label in labels]
        order = list(dict.fromkeys(labels))
        labels = [order.index(label) for label in labels]


def sparse(z: Sequence[float], g: Sequence[float], alpha: float) -> float:
    """Return s_α (equation 7), the cosine at least 1e-6 unless α is 1."""
    value = cosine(z, g)
    return value if alpha == 1.0 else math.pow(max(value, 1e-6), alpha)


def contrast(
    z: Vector, y: int, rows: list[Vector], labels: list[int], weights: list[float], alpha: float, tau: float
) -> float:
    """Compute equation 6 for a class with clusters."""
    above = below = 0.0
    for g, label, weight in zip(rows, labels, weights, strict=True):
        term = math.exp(sparse(z, g, alpha) / tau) * weight
        below += term
        if label == y:
            above += term
    return -math.log(above / below)


def correction(
    z: Vector, y: int, rows: list[Vector], labels: list[int], weights: list[float], alpha: float, share: float
) -> float:
    """Compute equation 8."""
    values = [
        sparse(z, g, alpha) * w for g, label, w in zip(rows, labels, weights, strict=True) if label == y
    ]
    values.sort(reverse=True)
    total = 0.0
    for value in values[: math.ceil(share * len(values))]:
        total += value
    return -total


def centre(y: int, rows: list[Vector], labels: list[int]) -> Vector:
    """Return the plain mean of a class's clusters."""
    return mean([g for g, label in zip(rows, labels, strict=True) if label == y])
