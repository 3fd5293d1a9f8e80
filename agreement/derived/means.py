"""Means from a sum over sites: at the coordinator, which adds up, and at a site that decrypts a sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreement.derived.payload_shapes import longest_mean
from agreement.schema.agreement import Agreement
from algorithms.averaging import Counts, prototype_means, weighted_mean
from algorithms.fedplcc import Contribution, GlobalClusters, global_clusters
from algorithms.gram_matrix import Bool, Float
from algorithms.kmeans import Labels
from crypto.errors import MalformedError


@dataclass(frozen=True)
class Means:
    """Prototypes ``rows`` (K, d), those of classes that the sum ``has`` (K,), and the averaged part ``model`` (p + q,).

    Where no prototypes are summed, ``rows`` is (0, d) and ``has`` is all False.
    """

    rows: NDArray[np.float64]
    has: Bool
    model: NDArray[np.float64]


def check_total(agreement: Agreement, total: Float, holders: Counts, members: int) -> None:
    """Raise :class:`MalformedError` for a sum that no ``members`` within their bounds add up to.

    ``total`` is (L,) as the layout says; ``holders`` (K,) is the number of members that added a row for each class.
    The limit: one member's longer row among shorter ones goes unnoticed.
    """
    layout = agreement.layout
    if layout.weighted:
        check_samples(float(total[-1]), members, agreement.averaging.most_samples)
    if not layout.classes:
        return
    if layout.noisy:  # noisy means are shortened to the norm bound, so no length is implausible
        return
    rows, _ = layout.split(total)
    counted = holders >= agreement.min_holders
    longest = np.linalg.norm(rows[counted] / holders[counted, None], axis=1).max(initial=0.0)
    if not longest <= longest_mean(agreement):  # NaN is refused too
        raise MalformedError(
            f"a mean prototype has norm {longest:.9g}: a member exceeded norm_bound = {agreement.norm_bound:g}"
        )


def means_of(agreement: Agreement, total: Float, holders: Counts, members: int) -> Means:
    """Return prototypes averaged over holders, and models over samples or members. Arguments: see :func:`check_total`.

    Raises ``ValueError`` for fewer members than ``min_holders``.
    """
    layout = agreement.layout
    if members < agreement.min_holders:
        raise ValueError(
            f"a sum has {members} sites; at least min_holders = {agreement.min_holders} are needed"
        )
    rows, model = layout.split(total)
    weight = float(total[-1]) if layout.weighted else float(members)
    has = np.zeros(len(agreement.classes), dtype=np.bool_)
    if layout.classes:
        rows, has = prototype_means(rows, holders, agreement.min_holders)
    return Means(rows, has, weighted_mean(model, weight))


def noisy_rows(
    agreement: Agreement, total: Float, members: int, listed: int
) -> tuple[NDArray[np.float64], Bool]:
    """Return prototypes (K, d) from a sum with shared noise of ``members`` of the ``listed`` sites, and which exist.

    The prototypes are projected onto the bounds that are agreed for every site's own (FedPC: no negative component;
    no norm above the bound), which costs no privacy: the sites cannot do it, as none of them sees its noisy
    prototypes.
    """
    vectors, weights = agreement.layout.noisy_parts(total)
    rows, has = agreement.noisy_sum(listed).means(vectors, weights, members)
    if agreement.method.is_grouped:
        rows = np.maximum(rows, 0.0)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, agreement.norm_bound / np.maximum(norms, agreement.norm_bound)), has


def cluster_means(
    agreement: Agreement, total: Contribution, labels: Labels, model: Float
) -> tuple[GlobalClusters, NDArray[np.float64]]:
    """Return clusters of classes ``labels`` (G,), and the mean of models (p + q,).

    ``total`` is the sum of sites' contributions to the clusters, ``model`` (p + q + 1,) of models times samples, and
    of samples. Raises :class:`MalformedError` for a centre that no sites within the norm bound have. The limit: one
    longer row among shorter ones goes unnoticed in a sum.
    """
    clusters = global_clusters(total, labels, uniform=agreement.clustering.uniform)
    longest = float(np.linalg.norm(clusters.rows, axis=1).max(initial=0.0))
    if not longest <= longest_mean(agreement):  # NaN is refused too
        raise MalformedError(
            f"a cluster's centre has norm {longest:.9g}: a site exceeded norm_bound = {agreement.norm_bound:g}"
        )
    _, parameters = agreement.layout.split(model)
    return clusters, weighted_mean(parameters, float(model[-1]))


def check_samples(weight: float, members: int, most: int) -> None:
    """Raise :class:`MalformedError` if the members, with ``most`` samples each, cannot have that many samples."""
    # The sum of whole numbers is exact in fixed point.
    if not members <= weight <= members * most:
        raise MalformedError(
            f"{members} members have {weight:g} samples together; each may count at most {most}"
        )
