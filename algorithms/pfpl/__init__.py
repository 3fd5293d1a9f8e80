"""PFPL: personalised prototypes for mixed heterogeneity (Zeng et al.; docs/explanation/notation.md).

Each site gets a personal target for every class that it holds (equation 4):

    C̄_i = α C_i + (1 − α) Σ_{m≠i} w_im C_m        over the other holders m of the class,

and trains with cross entropy + λ · ℓ_R(C̄_i, C_i) (equation 5). Only prototypes are exchanged. The server's half
is :mod:`algorithms.pfpl.aggregation` (numpy), the site's :mod:`algorithms.pfpl.loss` (torch).
"""

from algorithms.pfpl.aggregation import Weighting, peer_weights, personalise, sufficient_needs

__all__ = ["Weighting", "peer_weights", "personalise", "sufficient_needs"]
