"""The server's half of PFPL: from inner products to the weights w_im of a site's peers (equation 4)."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from algorithms.linear import Bool, Float, Need, squared_distances


class Weighting(StrEnum):
    """A peer's weight from its distance d_im = ‖C_i − C_m‖²; D_i = Σ_m d_im over the cnt holders."""

    DISTANCE = "distance"
    """w = d_im/D_i, as printed: a *farther* peer weighs more, against what the paper's prose asks for."""
    COMPLEMENT = "complement"
    """w = (D_i − d_im)/((cnt − 2)·D_i): a nearer peer weighs more, and the weights stay linear in d."""
    INVERSE = "inverse"
    """w ∝ 1/√d_im: a nearer peer weighs more; not linear in d, so it needs the Gram matrix."""
    UNIFORM = "uniform"
    """w = 1/(cnt − 1): the control that looks at no distance."""


def served_by(weighting: Weighting, *, squared: bool = True) -> frozenset[Need]:
    """The needs of which a protection has to offer *one* to compute these weights.

    Raises ``ValueError`` for an unsquared weighting other than ``distance``.
    """
    _check_squared(weighting, squared)
    if weighting is Weighting.INVERSE or not squared:
        return frozenset({Need.GRAM})
    return frozenset({Need.GRAM, Need.DISTANCE_WEIGHTS})


def peer_weights(
    gram: Float, holds: Bool, weighting: Weighting, *, squared: bool = True, tau: float
) -> NDArray[np.float64]:
    """w_im of equation 4: row i of class k says what site i receives; shape (K, n, n), float64.

    ``gram`` is (K, n, n) with [k, i, m] = ⟨C_i^k, C_m^k⟩; ``holds`` is bool (n, K), with an empty column
    for a withheld class. A holder's row is not negative, sums to 1 and has nothing on the diagonal, unless
    there is no peer to listen to: then it is e_i, so that Σ_m w_im C_m = C_i and the target is C_i whatever
    α is. That is so without peers, and when all peers agree with site i: D_i ≤ ``tau`` > 0, in the units of
    the Gram matrix. ``uniform`` never looks at D_i, nor does ``complement`` with a single peer, which gets
    weight 1. ``inverse`` takes a distance below tau for tau. The rows of sites without the class are zero.
    ``squared=False`` is the other printed form of ``distance``, w ∝ ‖C_i − C_m‖.

    Raises ``ValueError`` for shapes that do not fit, tau ≤ 0, or squared=False with another weighting.
    """
    _check_squared(weighting, squared)
    _check_shapes(gram, holds, tau)
    peers = _peers(holds)
    distances = np.where(peers, squared_distances(gram), 0.0)
    total = distances.sum(axis=-1, keepdims=True)
    peer_count = peers.sum(axis=-1, keepdims=True)
    agree = (total <= tau) & (peer_count >= _peers_to_compare(weighting))
    alone = (peer_count == 0) | agree
    scores = np.where(peers, _scores(distances, peers, weighting, squared, tau), 0.0)
    return _rows(scores, alone, holds)


def personalise(own: Float, peers: Float, alpha: float) -> NDArray[np.float64]:
    """C̄_i = α C_i + (1 − α) Σ_m w_im C_m at the site (equation 4); all arrays are (K, d).

    Raises ``ValueError`` unless 0 ≤ alpha ≤ 1 and the shapes are equal.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is between 0 and 1, not {alpha}")
    if own.shape != peers.shape:
        raise ValueError(f"own prototypes {own.shape} and the peers' {peers.shape} differ in shape")
    return np.asarray(alpha * own + (1.0 - alpha) * peers, dtype=np.float64)


def _check_squared(weighting: Weighting, squared: bool) -> None:
    if not squared and weighting is not Weighting.DISTANCE:
        raise ValueError(f"squared=False is a form of 'distance'; {weighting.value!r} has none")


def _check_shapes(gram: Float, holds: Bool, tau: float) -> None:
    if holds.ndim != 2 or holds.dtype != np.bool_:
        raise ValueError("holds is a bool matrix: a row for each site, a column for each class")
    n, classes = holds.shape
    if gram.shape != (classes, n, n):
        raise ValueError(f"Gram matrices of shape {gram.shape} do not fit {n} sites and {classes} classes")
    if not tau > 0.0:
        raise ValueError(f"tau is above 0, not {tau}")


def _peers(holds: Bool) -> Bool:
    """[k, i, m]: sites i and m both hold class k and are not the same; (K, n, n)."""
    by_class = holds.T
    both = by_class[:, :, None] & by_class[:, None, :]
    return np.asarray(both & ~np.eye(len(holds), dtype=np.bool_))


def _peers_to_compare(weighting: Weighting) -> float:
    """From how many peers on the weighting looks at distances at all."""
    return {Weighting.UNIFORM: np.inf, Weighting.COMPLEMENT: 2}.get(weighting, 1)


def _scores(distances: Float, peers: Bool, weighting: Weighting, squared: bool, tau: float) -> Float:
    """Weights before normalisation, (K, n, n). What stands where m is no peer of i means nothing."""
    match weighting:
        case Weighting.DISTANCE:
            return distances if squared else np.sqrt(distances)
        case Weighting.COMPLEMENT:
            return _complement_scores(distances, peers)
        case Weighting.INVERSE:
            return np.asarray(1.0 / np.sqrt(np.maximum(distances, tau)))
        case Weighting.UNIFORM:
            return np.ones_like(distances)


def _complement_scores(distances: Float, peers: Bool) -> Float:
    """D_i − d_im; for a single peer that is 0 and so is the divisor: it scores 1."""
    rest = distances.sum(axis=-1, keepdims=True) - distances
    single = peers.sum(axis=-1, keepdims=True) == 1
    return np.where(single, 1.0, rest)


def _rows(scores: Float, alone: Bool, holds: Bool) -> Float:
    """Scores normalised row by row; e_i for a holder that is alone, zeros for a site without the class."""
    totals = scores.sum(axis=-1, keepdims=True)
    own = np.eye(len(holds)) * holds.T[:, :, None]
    return np.where(alone, own, scores / np.where(totals > 0.0, totals, 1.0))
