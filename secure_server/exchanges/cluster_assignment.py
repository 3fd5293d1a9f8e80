"""Assignment of all sites' local prototypes to clusters by FINCH, from their cosines, which every protection shows.

Under ``plain`` the coordinator has the prototypes. Otherwise sites send DIRECTIONS: prototypes scaled to length 1 and
rotated by a secret matrix, so that only inner products can be read. The coordinator sees the cosines between prototypes
of a class, and how many of them each site has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from agreement import Agreement
from agreement.derived.cohorts import group_cohort
from agreement.derived.means import cluster_means
from agreement.derived.payload_shapes import directions_shape, result_shape
from algorithms.fedplcc import WITHHELD, Contribution, FinchAssignment, assign
from algorithms.gram_matrix import Bool, Float
from algorithms.kmeans import Labels
from crypto.errors import MalformedError, UnknownSchemeError
from crypto.protection import NORM_SLACK, Payload, whole_numbers
from crypto.rotation import SCHEME
from protoseal_wire import codec
from protoseal_wire.cluster_assignment import AssignedClusters, read_clusters
from protoseal_wire.codec import Limits
from protoseal_wire.messages import AssignedRows, Assignment, Phase
from secure_server.exchanges.exchange import Attempt, AttemptCache, ExchangeParts, repeated_sum


@dataclass(frozen=True)
class LocalPrototypes:
    """Local prototypes of one site, or their directions, as received: ``rows`` (M, d) of classes ``labels`` (M,)."""

    rows: Float
    labels: Labels


@dataclass(frozen=True)
class ClusterAssignment:
    """G clusters of classes ``labels`` (G,), and for each site the cluster of each of its rows, in their order."""

    labels: Labels
    of_site: Mapping[str, Labels]


def check_labels(numbers: Float, holds: Bool, most: int) -> None:
    """Check the classes (M,) of a site's local prototypes.

    Raises :class:`MalformedError` unless the classes are in order, with 1 to ``most`` prototypes for each class that
    the site ``holds`` (K,) and none for other classes.
    """
    labels = whole_numbers(numbers, len(holds))
    if (np.diff(labels) < 0).any():
        raise MalformedError("local prototypes are not ordered by class")
    per_class = np.bincount(labels, minlength=len(holds))
    if ((per_class > 0) != holds).any():
        raise MalformedError("the classes of local prototypes differ from the classes that the site stated")
    if per_class.max(initial=0) > most:
        raise MalformedError(f"{per_class.max()} local prototypes of one class; at most {most} are agreed")


def assign_clusters(agreement: Agreement, local: Mapping[str, LocalPrototypes]) -> ClusterAssignment:
    """Cluster every site's rows by their inner products.

    A class has at most the agreed number of clusters, and under masks at most as many as hide norms. A class is
    withheld if fewer than ``min_holders`` sites have a row that is not zero, which only ``plain`` shows. Memory grows
    with the square of a class's rows over all sites, and time with their cube; a site can add at most
    ``most_prototypes`` rows of each class.
    """
    sites, clustering = sorted(local), agreement.clustering
    classes = range(len(agreement.classes))
    owners = [
        np.repeat(np.arange(len(sites)), [int((local[site].labels == k).sum()) for site in sites])
        for k in classes
    ]
    assignment = assign(
        (
            _gram(np.concatenate([local[site].rows[local[site].labels == k] for site in sites]))
            for k in classes
        ),
        owners,
        agreement.min_holders,
        literal=clustering.literal,
        most=clustering.most_clusters,
        hiding=agreement.plan.masked,
    )
    return ClusterAssignment(
        assignment.labels,
        {site: _site_clusters(number, owners, assignment) for number, site in enumerate(sites)},
    )


def clusters_result(
    agreement: Agreement, total: Contribution, labels: Labels, model: Float, scheme: str
) -> Payload:
    """Return the result for every site: centres, classes and weights of clusters, and the mean of models.

    ``model`` is the sum (p + q + 1,) of models times samples, and of samples.
    """
    clusters, mean = cluster_means(agreement, total, labels, model)
    return Payload(scheme, arrays=(clusters.rows, labels.astype(np.float64), clusters.weights, mean))


def with_last_clusters(agreement: Agreement, attempt: Attempt, result: Payload, limits: Limits) -> Payload:
    """Return a result with the last clusters, in a round whose sums have no prototypes; otherwise the same result."""
    (group,) = attempt.groups
    last = repeated_sum(agreement, attempt, group, result_shape(agreement), limits)
    if last is None:
        return result
    return replace(result, arrays=(*last.arrays[:3], result.arrays[3]))


def _site_clusters(number: int, owners: list[Labels], assignment: FinchAssignment) -> Labels:
    """Return the clusters of a site's rows, which are ordered by class at every site."""
    parts = [of_row[owner == number] for owner, of_row in zip(owners, assignment.of_row, strict=True)]
    return np.concatenate(parts)


def _gram(rows: Float) -> Float:
    products = rows @ rows.T
    return np.asarray((products + products.T) / 2.0)


@dataclass(frozen=True)
class EncodedAssignment:
    """Assignment of one attempt, as encoded for every site, and its outcome."""

    content: bytes
    clusters: AssignedClusters


class DirectionsStep:
    """DIRECTIONS at the coordinator, and the assignment that follows from all sites' directions.

    The assignment follows from the stored uploads, and is the same after a restart on the same machine. It is
    computed once for an attempt, in time and memory that grow with the square of a class's prototypes.
    """

    def __init__(self, parts: ExchangeParts) -> None:
        self._agreement = parts.agreement
        self._limits = parts.limits
        self._assignment = AttemptCache[EncodedAssignment]()

    def assignment(self, attempt: Attempt) -> EncodedAssignment:
        """Return the assignment. Two threads that ask at once may both compute it, with equal results."""
        senders = attempt.survivors[Phase.DIRECTIONS]
        return self._assignment.of((attempt.key, senders), lambda: self._assign(attempt, senders))

    def _assign(self, attempt: Attempt, senders: tuple[str, ...]) -> EncodedAssignment:
        local = {site: self._read(attempt.answer(Phase.DIRECTIONS, site)) for site in senders}
        clusters = assign_clusters(self._agreement, local)
        # Quorums see to it, since directions are never zero.
        if any((numbers == WITHHELD).any() for numbers in clusters.of_site.values()):
            raise ValueError("a class has directions of fewer than min_holders sites")
        assignment = Assignment(
            tuple(AssignedRows(site, local[site].labels, clusters.of_site[site]) for site in sorted(local))
        )
        return EncodedAssignment(codec.encode_assignment(assignment), read_clusters(assignment))

    def check(self, attempt: Attempt, site: str, content: bytes) -> None:
        """Raise :class:`MalformedError` unless a site's upload is rotated rows of length 1 and their classes."""
        rows, classes = self._decode(content)
        cohort = group_cohort(attempt.active, attempt.group_of(site), self._agreement)
        check_labels(classes, cohort.held_by(site), self._agreement.clustering.most_local)
        norms = np.linalg.norm(rows, axis=1)
        if (np.abs(norms - 1.0) > NORM_SLACK).any():
            raise MalformedError("a direction does not have length 1")

    def _read(self, content: bytes) -> LocalPrototypes:
        """Return the rotated rows and classes of an upload that was checked."""
        rows, classes = self._decode(content)
        return LocalPrototypes(rows, classes.astype(np.int64))

    def _decode(self, content: bytes) -> tuple[Float, Float]:
        payload = codec.decode_payload(content, self._limits, directions_shape(self._agreement))
        if payload.scheme != SCHEME:
            raise UnknownSchemeError(f"expected a payload of scheme {SCHEME!r}, not {payload.scheme!r}")
        rows, classes = payload.arrays
        return rows, classes
