"""FedPLCC: convergent clusters of prototypes (Kuang et al.; docs/explanation/notation.md).

Each site clusters its features class by class (:mod:`algorithms.clustering.finch`) and sends the clusters' means with
their sample counts. The server clusters these means again, and averages the models by N_k/N. A global prototype's
weight is its share W_g of its class's samples, in a contrast with all clusters and in a correction towards the nearest
clusters of large weight:

    L = CE + λ1·L_contra + λ2·L_corr                                                                  (equation 4)

Clustering is in :mod:`algorithms.fedplcc.aggregation` (numpy), which FPL and FedPLVM use with other options; the loss
is in :mod:`algorithms.fedplcc.loss` (torch).
"""

from algorithms.fedplcc.aggregation import (
    WITHHELD,
    Contribution,
    FinchAssignment,
    GlobalClusters,
    LocalClusters,
    assign,
    contribution,
    global_clusters,
    has_direction,
    local_clusters,
)
from algorithms.fedplcc.cluster_merging import most_norm_hiding

__all__ = [
    "WITHHELD",
    "Contribution",
    "FinchAssignment",
    "GlobalClusters",
    "LocalClusters",
    "assign",
    "contribution",
    "global_clusters",
    "has_direction",
    "local_clusters",
    "most_norm_hiding",
]
