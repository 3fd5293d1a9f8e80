"""Assignment of all sites' local prototypes to clusters by FINCH, from their cosines, which every protection shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from agreement import Agreement
from agreement.aggregation.means import cluster_means
from agreement.payload_forms import result_form
from algorithms.clustering.kmeans import Labels
from algorithms.fedplcc import Assignment, Contribution, assign
from algorithms.gram_matrix import Bool, Float
from crypto.errors import MalformedError
from crypto.protection import Payload
from crypto.prototype_row_checks import whole_numbers
from protoseal_wire.codec import Limits
from secure_server.exchanges.base import Attempt, repeated_sum


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
    each = np.bincount(labels, minlength=len(holds))
    if ((each > 0) != holds).any():
        raise MalformedError("the classes of local prototypes differ from the classes that the site stated")
    if each.max(initial=0) > most:
        raise MalformedError(f"{each.max()} local prototypes of one class; at most {most} are agreed")


def assign_clusters(agreement: Agreement, local: Mapping[str, LocalPrototypes]) -> ClusterAssignment:
    """Cluster every site's rows by their inner products.

    A class has at most the agreed number of clusters, and under masks at most as many as hide norms. A class is
    withheld if fewer than ``min_holders`` sites have a row that is not zero, which only ``plain`` shows. Memory grows
    with the square of a class's rows over all sites, and time with their cube; a site can add at most
    ``most_prototypes`` rows of each class.
    """
    sites, own = sorted(local), agreement.clustering
    classes = range(len(agreement.classes))
    owners = [
        np.repeat(np.arange(len(sites)), [int((local[site].labels == k).sum()) for site in sites])
        for k in classes
    ]
    found = assign(
        (
            _gram(np.concatenate([local[site].rows[local[site].labels == k] for site in sites]))
            for k in classes
        ),
        owners,
        agreement.min_holders,
        literal=own.literal,
        most=own.most_clusters,
        hiding=agreement.plan.masked,
    )
    return ClusterAssignment(
        found.labels, {site: _of_site(number, owners, found) for number, site in enumerate(sites)}
    )


def result_of(
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
    last = repeated_sum(agreement, attempt, group, result_form(agreement), limits)
    if last is None:
        return result
    return replace(result, arrays=(*last.arrays[:3], result.arrays[3]))


def _of_site(number: int, owners: list[Labels], found: Assignment) -> Labels:
    """Return the clusters of a site's rows, which are ordered by class at every site."""
    parts = [of_row[own == number] for own, of_row in zip(owners, found.of_row, strict=True)]
    return np.concatenate(parts)


def _gram(rows: Float) -> Float:
    products = rows @ rows.T
    return np.asarray((products + products.T) / 2.0)
