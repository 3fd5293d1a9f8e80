"""FedPLCC: convergent clusters of prototypes (Kuang et al.; docs/explanation/notation.md; numpy).

1. Each site clusters its features class by class and sends the clusters' means with their sample counts
   (:func:`local_clusters`).
2. The server assigns these local prototypes to global clusters from inner products and site names alone
   (:func:`assign`). Clusters of too few sites are merged (:func:`merge_clusters`).
3. The sums behind the clusters' centres (:func:`contribution`, :func:`global_clusters`) can be added under another
   protection. A global prototype's weight is its share W_g of its class's samples.

Models are averaged by N_k/N. The loss is :class:`algorithms.method_losses.FedplccLoss`. FPL and FedPLVM use the
functions with other options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import isqrt
from typing import NamedTuple

import numpy as np

from algorithms.averaging import weighted_mean
from algorithms.finch import CANCELLED, DISTANCE_STEP, LEAST_NORM, finch, finch_rows
from algorithms.gram_matrix import Bool, Float
from algorithms.kmeans import Labels, in_order_of_appearance

WITHHELD = -1
"""Cluster number of a local prototype whose class has too few holders."""


@dataclass(frozen=True)
class LocalClusters:
    """Local prototypes of a site, ordered by class.

    ``rows`` are (M, d) float64, their classes ``labels`` int64 (M,), their numbers of samples ``counts`` (M,). Raises
    ``ValueError`` for shapes that do not fit together, numbers that are not finite, or a prototype of no sample.
    """

    rows: Float = field(repr=False)
    labels: Labels
    counts: Labels = field(repr=False)

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or not self.labels.shape == self.counts.shape == self.rows.shape[:1]:
            raise ValueError(
                f"rows {self.rows.shape}, labels {self.labels.shape}, counts {self.counts.shape} do not fit"
            )
        if not np.isfinite(self.rows).all():
            raise ValueError("a local prototype is not finite")
        if (self.counts < 1).any() or (np.diff(self.labels) < 0).any() or (self.labels < 0).any():
            raise ValueError("local prototypes must be ordered by class and stand for one sample or more")

    def without_zeros(self) -> LocalClusters:
        """Return these prototypes without zeros, except the first of a class that has only zeros.

        A prototype counts as zero if its norm is at most :data:`algorithms.finch.LEAST_NORM`. The classes
        stay the same, and a class of several prototypes has no zero. The limit: a zero prototype hides no other in a
        sum, and neither does one that is slightly longer.
        """
        stays = has_direction(self.rows)
        # A class must not vanish with its zeros: the coordinator would see that it has nothing else.
        _, first = np.unique(self.labels, return_index=True)
        stays[first] |= ~np.isin(self.labels[first], self.labels[stays])
        return LocalClusters(self.rows[stays], self.labels[stays], self.counts[stays])


def has_direction(rows: Float) -> Bool:
    """Return the mask (M,) of the rows (M, d) whose norm is above :data:`algorithms.finch.LEAST_NORM`."""
    return np.asarray(np.linalg.norm(rows, axis=1) > LEAST_NORM)


def local_clusters(
    features: Float,
    labels: Labels,
    classes: int,
    *,
    single: bool = False,
    literal: bool = False,
    most: int | None = None,
) -> LocalClusters:
    """Return a site's local prototypes: the plain means of the clusters that FINCH finds in each class's features.

    ``features`` is (n, d) float64, ``labels`` int64 (n,) in [0, K). Features are clustered by their directions, but
    the means are of the features as they are, so that the mean of a class's prototypes, weighted by ``counts``, is the
    class mean (equation 9: weights are sample counts). ``literal`` is as in :mod:`algorithms.finch`.
    ``single`` makes one prototype per class, its class mean, as FPL does. Zero features of a class share a prototype,
    so that M is at most n/2 + 2K. A class in which FINCH finds more than ``most`` clusters gets one prototype, its
    class mean.

    A prototype is the mean of two samples or more. The limit: if a class has a single nonzero sample, **its prototype
    is that sample's feature vector.** A mean over few samples hides little either; only noise bounds that.

    Raises ``ValueError`` for shapes that do not fit, labels outside [0, K) or features that are not finite.
    """
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(f"features {features.shape} and labels {labels.shape} do not fit together")
    if ((labels < 0) | (labels >= classes)).any():
        raise ValueError(f"labels must be from 0 to {classes - 1}")
    rows, owners, counts = [np.zeros((0, features.shape[1]))], [], []
    for k in np.unique(labels):
        members = np.asarray(features[labels == k], dtype=np.float64)
        parts = _partition(members, single, literal, most)
        sizes = np.bincount(parts)
        # Equation 9: a prototype is the plain mean of its cluster, and its weight the cluster's number of samples.
        rows.append(_cluster_sums(members, parts, len(sizes)) / sizes[:, None])
        owners += [int(k)] * len(sizes)
        counts += sizes.tolist()
    return LocalClusters(
        np.concatenate(rows), np.array(owners, dtype=np.int64), np.array(counts, dtype=np.int64)
    )


@dataclass(frozen=True)
class FinchAssignment:
    """Assignment of local prototypes to G global clusters.

    ``of_row`` has an int64 array for each class with the cluster of each local prototype: a number from 0 to G − 1, or
    :data:`WITHHELD` for the whole class. Clusters are numbered class by class, in the order of their first members.
    ``labels`` int64 (G,) are the clusters' classes, ``sites`` int64 (G,) the numbers of sites with a prototype in them.
    """

    of_row: tuple[Labels, ...]
    labels: Labels
    sites: Labels


def assign(
    gram_by_class: Iterable[Float],
    sites_by_class: Sequence[Labels],
    min_holders: int,
    *,
    literal: bool = False,
    most: int | None = None,
    hiding: bool = False,
) -> FinchAssignment:
    """Assign all sites' local prototypes to global clusters: FINCH in each class (equation 10), then merging.

    For each class k ``gram_by_class`` yields the (m_k, m_k) float64 inner products of its local prototypes, and
    ``sites_by_class`` has each prototype's site, int64 (m_k,). Without ``literal`` (:mod:`algorithms.finch`)
    only cosines matter, so that vectors scaled to length 1, which hide their norms, give the same answer.

    A cluster with prototypes of fewer than ``min_holders`` *sites* is merged into the cluster whose mean is nearest by
    cosine (:func:`merge_clusters`). So are the smallest clusters while a class has more
    than ``most``, or with ``hiding`` more than :func:`most_norm_hiding` allows. A
    class that fewer than min_holders sites hold is withheld; a zero prototype does not make its site a holder.

    So every centre mixes at least min_holders sites. The limits: **the mix is uneven**, since a site with many of a
    cluster's prototypes or samples, or with much longer prototypes, outweighs the others; changes of the centres from
    round to round reveal more; and with min_holders = 1 a centre may be one site's own prototype.

    Raises ``ValueError`` for shapes that do not fit, a matrix that is no Gram matrix, or min_holders below 1.
    """
    if min_holders < 1:
        raise ValueError("min_holders must be at least 1")
    of_row: list[Labels] = []
    labels: list[int] = []
    holders: list[int] = []
    for k, (gram, sites) in enumerate(_pair_by_class(gram_by_class, sites_by_class)):
        # Under masks each sum of G clusters has G·(G + 1)/2 inner products, which are equations for the norms that the
        # directions hide: fewer equations than prototypes leave them open.
        limit = min(most or len(sites), most_norm_hiding(len(sites)) if hiding else len(sites))
        parts, sites_of_cluster = _assign_class(gram, sites, min_holders, limit, literal)
        # Clusters are numbered on over the classes, so that one vector of sums carries all of them.
        of_row.append(np.where(parts == WITHHELD, WITHHELD, parts + len(labels)))
        labels += [k] * len(sites_of_cluster)
        holders += sites_of_cluster
    return FinchAssignment(tuple(of_row), np.array(labels, dtype=np.int64), np.array(holders, dtype=np.int64))


class Contribution(NamedTuple):
    """Contribution of prototypes to G clusters: ``sums`` (G, d), ``members`` (G,) and ``counts`` (G,) float64.

    ``members`` are numbers of prototypes, ``counts`` of samples. Sites' contributions are added field by field.
    """

    sums: Float
    members: Float
    counts: Float


def contribution(local: LocalClusters, cluster_of_row: Labels, clusters: int) -> Contribution:
    """Return a site's contribution to the clusters that :func:`assign` gave its prototypes.

    ``cluster_of_row`` is int64 (M,). Withheld prototypes are in no sum. Raises ``ValueError`` for a cluster that is not
    below ``clusters``.
    """
    if cluster_of_row.shape != local.labels.shape:
        raise ValueError(f"{len(local.labels)} prototypes, but clusters of shape {cluster_of_row.shape}")
    if (cluster_of_row < WITHHELD).any() or (cluster_of_row >= clusters).any():
        raise ValueError(f"clusters must be numbered from 0 to {clusters - 1}")
    is_counted = cluster_of_row != WITHHELD
    parts = cluster_of_row[is_counted]
    counts = local.counts[is_counted].astype(np.float64)
    return Contribution(
        _cluster_sums(local.rows[is_counted], parts, clusters),
        _cluster_sums(np.ones(len(parts)), parts, clusters),
        _cluster_sums(counts, parts, clusters),
    )


@dataclass(frozen=True)
class GlobalClusters:
    """Global prototypes: ``rows`` (G, d), ``labels`` int64 (G,) and ``weights`` (G,), which sum to 1 for each class."""

    rows: Float
    labels: Labels
    weights: Float


def global_clusters(total: Contribution, labels: Labels, *, uniform: bool = False) -> GlobalClusters:
    """Return centres and weights from the sum of all sites' contributions.

    ``labels`` int64 (G,) are those of :func:`assign`. A centre is the plain mean of the cluster's local prototypes. W_g
    is the cluster's share of its class's samples (equation 11). With ``uniform``, as in FPL and FedPLVM, all clusters
    of a class have the same weight, and ``counts`` does not matter.

    Raises ``ValueError`` for shapes that do not fit, or a cluster without members or samples.
    """
    _check_total(total, labels, counted=not uniform)
    # A centre is a mean over local prototypes, not over samples: each prototype counts once.
    rows = weighted_mean(total.sums, total.members)
    # Equation 11. Counts of different sites can be added and are divided once, here; shares could not be added.
    amounts = np.ones(len(labels)) if uniform else total.counts
    of_class = np.bincount(labels, weights=amounts)[labels]
    return GlobalClusters(rows, labels, np.asarray(amounts / of_class, dtype=np.float64))


def most_norm_hiding(rows: int) -> int:
    """Return the largest number of clusters G, at least 1, with G·(G + 1)/2 < ``rows``, a class's prototypes.

    The sums of G clusters have G·(G + 1)/2 inner products, each an equation in the prototypes' unknown norms. The
    limit: fewer equations than unknowns do not prove that nothing leaks, least of all over several rounds.
    """
    return max((isqrt(max(8 * rows - 7, 0)) - 1) // 2, 1)


def merge_clusters(
    gram: Float, labels: Labels, sites: Labels, min_holders: int, most: int, *, literal: bool
) -> tuple[Labels, list[int]]:
    """Merge clusters of one class; return each prototype's cluster, and each cluster's number of sites.

    ``gram`` (m, m) are the prototypes' inner products, ``labels`` and ``sites``, both int64 (m,), their clusters
    0 … J − 1 and their sites. The cluster with the fewest sites (the first on a tie) joins the cluster whose mean is
    nearest by cosine, with distances compared as in FINCH. Merging ends when each cluster has ``min_holders`` sites or
    more and there are at most ``most`` clusters, or when one cluster is left. With ``literal``, means are of vectors as
    they are, not of their directions (:mod:`algorithms.finch`). Clusters are numbered in the order of their first
    members.
    """
    squares = np.einsum("ii->i", gram)
    directed = squares > LEAST_NORM**2
    scale = np.where(directed, 1.0 if literal else 1.0 / np.sqrt(np.where(directed, squares, 1.0)), 0.0)
    number = int(labels.max(initial=-1)) + 1
    # Only sums over clusters are kept, so that merging two takes O(J) time.
    products = _cluster_sums(
        _cluster_sums(gram * scale[:, None] * scale[None, :], labels, number).T, labels, number
    )
    squares = _cluster_sums(squares * scale**2, labels, number)
    sizes = np.bincount(labels, minlength=number).astype(np.float64)
    # A zero prototype is in a cluster, but does not make its site one of the cluster's sites.
    held = np.zeros((number, int(sites.max(initial=-1)) + 1), dtype=np.bool_)
    held[labels[directed], sites[directed]] = True
    holders = held.sum(axis=1)
    alive = np.ones(number, dtype=np.bool_)
    while alive.sum() > 1 and (alive.sum() > most or holders[alive].min() < min_holders):
        small = int(np.where(alive, holders, np.iinfo(np.int64).max).argmin())
        lengths = np.einsum("ii->i", products)
        directed = lengths > CANCELLED * sizes * squares
        scale = np.where(directed, 1.0 / np.sqrt(np.where(directed, lengths, 1.0)), 0.0)
        steps = np.rint((1.0 - products[small] * scale[small] * scale) / DISTANCE_STEP)
        steps[~alive] = np.inf
        steps[small] = np.inf
        # The lower number stays, so that clusters stay in the order of their first members.
        stays, goes = sorted((small, int(steps.argmin())))
        products[stays] += products[goes]
        products[:, stays] += products[:, goes]
        squares[stays] += squares[goes]
        sizes[stays] += sizes[goes]
        held[stays] |= held[goes]
        holders[stays] = held[stays].sum()
        labels = np.where(labels == goes, stays, labels)
        alive[goes] = False
    return in_order_of_appearance(labels), holders[alive].tolist()


def _partition(members: Float, single: bool, literal: bool, most: int | None) -> Labels:
    """Return the clusters of one class's features: a single one, or FINCH's with all zero features in one cluster."""
    if single:
        return np.zeros(len(members), dtype=np.int64)
    parts = finch_rows(members, literal=literal)
    directed = has_direction(members)
    if most is not None and len(np.unique(parts[directed])) > most:
        parts = np.zeros_like(parts)
    # Zero features share a cluster: each alone would be a prototype that says nothing but that it is there.
    return in_order_of_appearance(np.where(directed, parts, WITHHELD))


def _pair_by_class(grams: Iterable[Float], sites: Sequence[Labels]) -> Iterator[tuple[Float, Labels]]:
    for gram, owners in zip_longest(grams, sites):
        if gram is None or owners is None:
            raise ValueError(
                "the numbers of Gram matrices and of site lists must be equal: one of each per class"
            )
        if gram.shape != (len(owners), len(owners)):
            raise ValueError(f"a Gram matrix of shape {gram.shape} does not fit {len(owners)} prototypes")
        yield gram, owners


def _assign_class(
    gram: Float, sites: Labels, min_holders: int, most: int, literal: bool
) -> tuple[Labels, list[int]]:
    """Return each prototype's cluster, from 0, and each cluster's number of sites; no cluster if withheld."""
    # A site cannot make itself a holder by a prototype of zeros, which adds nothing that would hide the others.
    zero = np.einsum("ii->i", gram) <= LEAST_NORM**2
    if len(np.unique(sites[~zero])) < min_holders:
        return np.full(len(sites), WITHHELD, dtype=np.int64), []
    return merge_clusters(gram, finch(gram, literal=literal), sites, min_holders, most, literal=literal)


def _check_total(total: Contribution, labels: Labels, *, counted: bool) -> None:
    shapes = {labels.shape, total.sums.shape[:1], total.members.shape, total.counts.shape}
    if total.sums.ndim != 2 or len(shapes) != 1:
        raise ValueError(f"labels {labels.shape} and contributions of {total.sums.shape} do not fit together")
    if (labels < 0).any():
        raise ValueError("a cluster's class must not be negative")
    if not (total.members > 0).all() or (counted and not (total.counts > 0).all()):
        raise ValueError("a cluster has no members, or its members stand for no samples")


def _cluster_sums(values: Float, labels: Labels, number: int) -> Float:
    """Return sums over the first axis within each of ``number`` clusters."""
    sums = np.zeros((number, *values.shape[1:]))
    np.add.at(sums, labels, values)
    return sums
