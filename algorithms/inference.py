"""Prediction by nearest prototype, for every method (torch)."""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.losses import Outputs, units
from algorithms.prototypes import Clusters, Guide, Targets


def by_prototype(outputs: Outputs, guide: Guide) -> Tensor:
    """Return a class for each sample, int64 (B,), from the prototypes that the site received.

    With one prototype per class the class is argmin_c ‖z_b − P^c‖₂ over the classes that have a prototype; for a model
    with a decision branch (FedDBP) argmin_c ‖ẑ_b^d − P̂^c‖₂, both scaled to norm 1. With several prototypes per class
    it is the class of the cluster with the largest cosine. On a tie the lower class, or the class of the earlier
    cluster, wins. A zero vector has cosine 0 to all, and stays zero when scaled. Raises ``ValueError`` if there is no
    prototype.
    """
    match guide:
        case Clusters():
            if not len(guide.labels):
                raise ValueError("no class has a prototype")
            # Cosines times the sample's norm, which does not change the largest.
            products = outputs.features @ units(guide.rows).T
            return guide.labels[products.argmax(dim=1)]
        case Targets() if outputs.decision is None:
            return nearest_prototype(outputs.features, guide)
        case Targets():
            return nearest_prototype(units(outputs.decision), Targets(units(guide.rows), guide.present))


def nearest_prototype(features: Tensor, targets: Targets) -> Tensor:
    """Return argmin_k ‖z_b − C̄^k‖₂ over the classes present, int64 (B,); the lower class on a tie.

    ``features`` is (B, d). Raises ``ValueError`` if no class is present.
    """
    if not bool(targets.present.any()):
        raise ValueError("no class has a prototype")
    distances = torch.cdist(features, targets.rows, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.masked_fill(~targets.present, float("inf")).argmin(dim=1)
