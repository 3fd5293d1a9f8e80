"""Which class a model's outputs are nearest to: prediction by prototype, for every method (torch)."""

from __future__ import annotations

from torch import Tensor

from algorithms.alignment import units
from algorithms.prototypes import Clusters, Guide, Targets, nearest_prototype
from algorithms.terms import Outputs


def by_prototype(outputs: Outputs, guide: Guide) -> Tensor:
    """A class for each sample, int64 (B,), from what the site received.

    One prototype a class: argmin_c ‖z_b − P^c‖₂ over the classes that have one; of a model with a decision branch
    (FedDBP) argmin_c ‖ẑ_b^d − P̂^c‖₂, both of norm 1. Several prototypes a class: that of the cluster with the
    largest cosine. On a tie the lower class, or the class of the earlier cluster. A vector of zeros is at cosine 0
    to all, and stays one when it is normalised. Raises ``ValueError`` when there is no prototype.
    """
    match guide:
        case Clusters():
            return _nearest_cluster(outputs.features, guide)
        case Targets() if outputs.decision is None:
            return nearest_prototype(outputs.features, guide)
        case Targets():
            return nearest_prototype(units(outputs.decision), Targets(units(guide.rows), guide.present))


def _nearest_cluster(features: Tensor, clusters: Clusters) -> Tensor:
    if not len(clusters.labels):
        raise ValueError("no class has a prototype")
    products = features @ units(clusters.rows).T  # cosines times a sample's own norm
    return clusters.labels[products.argmax(dim=1)]
