"""Aggregation of PFPL: the weights w_im of a site's peers, from inner products (equation 4; numpy).

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
    _check_shapes(gram, holds, tau)
    # Equation 4 over the holders of each class: d_im, D_i and the number of peers, cnt − 1. Print sums over m ∈ M^(k),
    # which may include i; i's own share is α, so i is left out here.
    peers = _peers(holds)
    distances = np.where(peers, squared_distances(gram), 0.0)
    total = distances.sum(axis=-1, keepdims=True)
    peer_count = peers.sum(axis=-1, keepdims=True)
    # Below tau D_i is rounding, or the error of a ciphertext, and its quotients would be arbitrary peers' prototypes.
    agree = (total <= tau) & (peer_count >= _peers_to_compare(weighting))
    alone = (peer_count == 0) | agree
    scores = np.where(peers, _scores(distances, peers, weighting, tau), 0.0)
    return _rows(scores, alone, holds)


def personalise(own: Float, peers: Float, alpha: float) -> NDArray[np.float64]:
    """Return the site's targets C̄_i = α C_i + (1 − α) Σ_m w_im C_m (equation 4); all arrays are (K, d).

    Raises ``ValueError`` unless 0 ≤ alpha ≤ 1 and the shapes are equal.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha must be between 0 and 1, not {alpha}")
    if own.shape != peers.shape:
        raise ValueError(f"own prototypes {own.shape} and the peers' {peers.shape} differ in shape")
    return np.asarray(alpha * own + (1.0 - alpha) * peers, dtype=np.float64)


def _check_shapes(gram: Float, holds: Bool, tau: float) -> None:
    if holds.ndim != 2 or holds.dtype != np.bool_:
        raise ValueError("holds must be a bool matrix: a row for each site, a column for each class")
    n, classes = holds.shape
    if gram.shape != (classes, n, n):
        raise ValueError(f"Gram matrices of shape {gram.shape} do not fit {n} sites and {classes} classes")
    if not tau > 0.0:
        raise ValueError(f"tau must be above 0, not {tau}")


def _peers(holds: Bool) -> Bool:
    """Return the mask (K, n, n) that is True at [k, i, m] if i ≠ m and both sites hold class k."""
    by_class = holds.T
    both = by_class[:, :, None] & by_class[:, None, :]
    return np.asarray(both & ~np.eye(len(holds), dtype=np.bool_))


def _peers_to_compare(weighting: Weighting) -> float:
    """Return the least number of peers with which the weighting depends on distances."""
    return {Weighting.UNIFORM: np.inf, Weighting.COMPLEMENT: 2}.get(weighting, 1)


def _scores(distances: Float, peers: Bool, weighting: Weighting, tau: float) -> Float:
    """Return weights before normalisation, (K, n, n); entries where m is no peer of i are meaningless."""
    match weighting:
        case Weighting.DISTANCE:
            return distances
        case Weighting.COMPLEMENT:
            return _complement_scores(distances, peers)
        case Weighting.INVERSE:
            # The floor bounds the weight of a peer that happens to be equal, which would otherwise take all of it.
            return np.asarray(1.0 / np.sqrt(np.maximum(distances, tau)))
        case Weighting.UNIFORM:
            return np.ones_like(distances)


def _complement_scores(distances: Float, peers: Bool) -> Float:
    """Return D_i − d_im, but 1 for a single peer, where both D_i − d_im and its divisor are 0."""
    rest = distances.sum(axis=-1, keepdims=True) - distances
    single = peers.sum(axis=-1, keepdims=True) == 1
    return np.where(single, 1.0, rest)


def _rows(scores: Float, alone: Bool, holds: Bool) -> Float:
    """Normalise the scores row by row; a holder that is alone gets e_i, a site without the class gets zeros."""
    totals = scores.sum(axis=-1, keepdims=True)
    own = np.eye(len(holds)) * holds.T[:, :, None]
    return np.where(alone, own, scores / np.where(totals > 0.0, totals, 1.0))
