"""PFPL at the server: personalised prototypes for mixed heterogeneity (Zeng et al.; numpy).

Each site gets a personal target for every class that it holds (equation 4):

    C̄_i = α C_i + (1 − α) Σ_{m≠i} w_im C_m        over the other holders m of the class,

and trains with cross entropy + λ · ℓ_R(C̄_i, C_i) (equation 5, :class:`algorithms.method_losses.PfplLoss`). Only
prototypes are exchanged (docs/explanation/notation.md). The weights w_im follow from inner products alone;
:func:`sufficient_needs` says what a protection must offer.

Limit: half of a class's holders or more that pool the results of one round can solve these for all other holders'
prototypes, unless the weighting is ``uniform``. No protection of uploads prevents it.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from algorithms.gram_matrix import Bool, Float, Need, squared_distances


class Weighting(StrEnum):
    """Rule for a peer's weight from its distance d_im = ‖C_i − C_m‖²; D_i = Σ_m d_im over the cnt holders."""

    DISTANCE = "distance"
    """Weight w = d_im/D_i, as printed: a *farther* peer weighs more, which contradicts the paper's prose."""
    COMPLEMENT = "complement"
    """Weight w = (D_i − d_im)/((cnt − 2)·D_i): a nearer peer weighs more, and the weights stay linear in d."""
    INVERSE = "inverse"
    """Weight w ∝ 1/√d_im: a nearer peer weighs more; not linear in d, so the Gram matrix is needed."""
    UNIFORM = "uniform"
    """Weight w = 1/(cnt − 1): the control that ignores distances."""


def sufficient_needs(weighting: Weighting) -> frozenset[Need]:
    """Return the needs of which a protection must offer at least *one* to compute these weights."""
    if weighting is Weighting.INVERSE:
        return frozenset({Need.GRAM})
    return frozenset({Need.GRAM, Need.DISTANCE_WEIGHTS})


def peer_weights(gram: Float, holds: Bool, weighting: Weighting, *, tau: float) -> NDArray[np.float64]:
    """Return w_im of equation 4, float64 (K, n, n): row i of class k weighs the prototypes that site i receives.

    ``gram`` is (K, n, n) with [k, i, m] = ⟨C_i^k, C_m^k⟩; ``holds`` is bool (n, K), with an empty column for a
    withheld class. A holder's row is not negative, sums to 1 and is 0 on the diagonal. Exception: the row is e_i, so
    that the target is C_i for every α, if site i has no peers or all peers agree with site i (D_i ≤ ``tau`` > 0, in
    the units of the Gram matrix). ``uniform`` ignores D_i, and so does ``complement`` with a single peer, which gets
    weight 1. ``inverse`` raises distances below tau to tau. The rows of sites without the class are zero.

    Raises ``ValueError`` for shapes that do not fit, or tau ≤ 0.
    """
    if holds.ndim != 2 or holds.dtype != np.bool_:
        raise ValueError("holds must be a bool matrix: a row for each site, a column for each class")
    n, classes = holds.shape
    if gram.shape != (classes, n, n):
        raise ValueError(f"Gram matrices of shape {gram.shape} do not fit {n} sites and {classes} classes")
    if not tau > 0.0:
        raise ValueError(f"tau must be above 0, not {tau}")
    # Equation 4 over the holders of each class: d_im, D_i and the number of peers, cnt − 1. Print sums over m ∈ M^(k),
    # which may include i; i's own share is α, so i is left out here.
    by_class = holds.T
    peers = by_class[:, :, None] & by_class[:, None, :] & ~np.eye(n, dtype=np.bool_)
    peer_count = peers.sum(axis=-1, keepdims=True)
    distances = np.where(peers, squared_distances(gram), 0.0)
    total = distances.sum(axis=-1, keepdims=True)
    fewest_to_compare: float = 1
    match weighting:
        case Weighting.DISTANCE:
            scores = distances
        case Weighting.COMPLEMENT:
            # With a single peer, D_i − d_im and its divisor are both 0: that peer gets weight 1.
            scores = np.where(peer_count == 1, 1.0, total - distances)
            fewest_to_compare = 2
        case Weighting.INVERSE:
            # The floor bounds the weight of a peer that happens to be equal, which would otherwise take all of it.
            scores = 1.0 / np.sqrt(np.maximum(distances, tau))
        case Weighting.UNIFORM:
            scores = np.ones_like(distances)
            fewest_to_compare = np.inf
    # Below tau D_i is rounding, or the error of a ciphertext, and its quotients would be arbitrary peers' prototypes.
    alone = (peer_count == 0) | ((total <= tau) & (peer_count >= fewest_to_compare))
    scores = np.where(peers, scores, 0.0)
    sums = scores.sum(axis=-1, keepdims=True)
    itself = np.eye(n) * by_class[:, :, None]
    return np.where(alone, itself, scores / np.where(sums > 0.0, sums, 1.0))


def personalise(own: Float, peers: Float, alpha: float) -> NDArray[np.float64]:
    """Return the site's targets C̄_i = α C_i + (1 − α) Σ_m w_im C_m (equation 4); all arrays are (K, d).

    Raises ``ValueError`` unless 0 ≤ alpha ≤ 1 and the shapes are equal.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha must be between 0 and 1, not {alpha}")
    if own.shape != peers.shape:
        raise ValueError(f"own prototypes {own.shape} and the peers' {peers.shape} differ in shape")
    # Equation 4; the sum over peers is given as ``peers``.
    return np.asarray(alpha * own + (1.0 - alpha) * peers, dtype=np.float64)
