"""FedPC: personalisation by clusters of prototypes (Liu et al.; docs/explanation/notation.md).

Once, before training, sites with similar prototypes form groups. In each round the prototypes P_j and the extractors
θ_j are averaged over a group's members, and groups are then mixed by the cosine ρ of their prototypes (equations 5
to 8):

    P_j ← Σ_k ρ_jk P_k        θ_j ← Σ_k ρ_jk θ_k

Each site trains with (1 − γ) · CE + γ · Σ_k ‖P_i^k − P_j^k‖₂ (equation 4) and keeps its own classifier. The
server's half is :mod:`algorithms.fedpc.clustering` and :mod:`algorithms.fedpc.aggregation` (numpy), the site's
:mod:`algorithms.fedpc.loss` (torch).
"""

from algorithms.fedpc.aggregation import Groups, means_within_groups, mix_groups, similarity_weights
from algorithms.fedpc.clustering import cluster

__all__ = ["Groups", "cluster", "means_within_groups", "mix_groups", "similarity_weights"]
