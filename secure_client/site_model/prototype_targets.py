"""Targets that a model's features are compared with, made from arrays of prototypes (torch)."""

from __future__ import annotations

from algorithms.prototypes import Clusters, Guide, Targets
from secure_client.output.site_files import SitePrototypes


def deciding_guide(prototypes: SitePrototypes) -> Guide | None:
    """Return :func:`inference_guide`, or None where no class has a prototype, as noisy counts may have it."""
    found = inference_guide(prototypes)
    there = found.present.any() if isinstance(found, Targets) else len(found.labels)
    return found if there else None


def inference_guide(prototypes: SitePrototypes) -> Guide:
    """Return the guide that classifies samples by prototype: all clusters, if any, else one row a class."""
    if prototypes.clusters is None:
        return Targets.of(*prototypes.for_inference())
    return Clusters.of(*prototypes.clusters_for_inference())
