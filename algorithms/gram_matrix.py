"""Inner products of uploads, and what a server computes from them: distances, combinations, principal components.

Linear combinations and inner products are the only operations that a server applies to prototypes. All arrays are
float64: a float32 Gram matrix gives vectors at distance 2e-5 a distance hundreds of times too large. A stack has shape
(n, K, d): n sites, K classes, d features.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bool", "Float"]

Float = NDArray[np.float64]
"""Array of float64."""
Bool = NDArray[np.bool_]
"""Array of truth values."""
_CONVEX = 1e-10
"""Tolerance of a weight row's sum; norm bounds leave room for it."""


class Need(StrEnum):
    """Operation that a method needs and a protection can offer; a protection's offers have the same values."""

    GRAM = "gram"
    """Inner products in the clear, from which any weights can be computed."""
    DISTANCE_WEIGHTS = "distance weights"
    """Combination by distance weights, evaluated without revealing an inner product to anyone."""
    SUM = "sum"
    """Sum over a group of sites."""
    CLUSTERING = "clustering"
    """Inner products of the vectors to be clustered; the values may be summed under another protection."""
    COSINE_WEIGHTS = "cosine weights"
    """Sums over groups of sites, mixed by the cosines between the groups."""


def gram(stack: Float) -> Float:
    """Return the inner products of the sites' rows, class by class.

    ``stack`` is (n, K, d), the result (K, n, n) with [k, i, m] = ⟨C_i^k, C_m^k⟩.
    Raises ``ValueError`` for a stack with another number of axes.
    """
    by_class = _by_class(stack)
    products: Float = by_class @ by_class.transpose(0, 2, 1)
    return products


def squared_distances(products: Float) -> Float:
    """Return ‖C_i^k − C_m^k‖² for all pairs from their Gram matrices, both (K, n, n).

    The result is never negative, and exactly 0 on the diagonal. The error is a few units in the last place of the
    *norms*: for rows of norm 1 about 1e-15, so that distances (unsquared) below 1e-7 are rounding.
    """
    norms: Float = np.einsum("kii->ki", products)
    return np.asarray(np.maximum(norms[:, :, None] + norms[:, None, :] - 2.0 * products, 0.0))


def combine(weights: Float, stack: Float) -> Float:
    """Return Σ_m weights[k, i, m] · stack[m, k], (n, K, d), for ``weights`` (K, n, n) and ``stack`` (n, K, d).

    Raises ``ValueError`` when the shapes do not fit.
    """
    by_class = _by_class(stack)
    classes, n, _ = by_class.shape
    if weights.shape != (classes, n, n):
        raise ValueError(f"weights of shape {weights.shape} do not fit a stack of shape {stack.shape}")
    combined: Float = weights @ by_class
    return combined.transpose(1, 0, 2)


def _by_class(stack: Float) -> Float:
    if stack.ndim != 3:
        raise ValueError(f"a stack must have the axes site, class, feature; got shape {stack.shape}")
    return np.asarray(stack, dtype=np.float64).transpose(1, 0, 2)


def convex(weights: Callable[[Float, Bool], Float]) -> Callable[[Float, Bool], Float]:
    """Wrap ``weights`` with a check that its result is convex, and return the wrapped function.

    The function maps Gram matrices (K, n, n) and ``holds`` (n, K) to weights (K, n, n). A holder's weights must not be
    negative and must sum to 1 over the holders; all other weights must be 0. Otherwise the wrapped function raises
    ``ValueError``: combinations that are not convex could be solved for single prototypes, or exceed the norm bound.
    The limit: a row with all its weight on one other site is convex, and reveals that site's prototype.
    """

    def checked_weights(products: Float, holds: Bool) -> Float:
        # Checked at each call, since weights come from a third party's code and depend on what sites upload.
        result = np.asarray(weights(products, holds), dtype=np.float64)
        if result.shape != products.shape:
            raise ValueError(f"weights of shape {result.shape} do not fit Gram matrices of {products.shape}")
        among = holds.T[:, :, None] & holds.T[:, None, :]
        if not np.isfinite(result).all() or (result < 0.0).any() or result[~among].any():
            raise ValueError("weights must be finite, at least 0, and 0 where a site does not hold the class")
        if not np.allclose(result.sum(axis=-1), holds.T, rtol=0.0, atol=_CONVEX):
            raise ValueError("a holder's weights must sum to 1")
        return result

    return checked_weights


ROUNDING = 1e-13
"""Share of the largest squared norm below which a squared distance is rounding of float64 inner products.

As a distance this is 3e-7 of the largest norm. Vectors nearer to each other than that count as equal.
"""

_INDEFINITE = 1e-10
"""Largest share, for each vector, by which rounding explains an asymmetry or a negative eigenvalue."""


def principal_scores(gram: Float, dimension: int) -> NDArray[np.float64]:
    """Return the scores of n vectors on their first principal components, (n, dimension) float64.

    ``gram`` is (n, n), the vectors' inner products. Its double centring H·G·H holds the scores' inner products, so
    the scores are the eigenvectors of H·G·H scaled by the roots of their eigenvalues. Columns stand in falling order
    of variance, each up to its sign (columns of equal variance: up to a rotation). Components beyond the vectors'
    rank, and components whose variance is rounding (:data:`ROUNDING`), are zero.

    Raises ``ValueError`` for a matrix that is no Gram matrix up to rounding (:func:`check_gram`) or a
    dimension outside [0, n].
    """
    check_gram(gram)
    n = len(gram)
    if not 0 <= dimension <= n:
        raise ValueError(f"dimension must be from 0 to {n}, the number of vectors, not {dimension}")
    # H·G·H with H = I − 11ᵀ/n are the inner products of the centred vectors; symmetric to the bit, as eigh assumes.
    symmetric = (gram + gram.T) / 2.0
    means = symmetric.mean(axis=0)
    centred = symmetric - (means[:, None] + means[None, :]) + means.mean()
    values, vectors = np.linalg.eigh(centred)
    variances = np.where(values > n * resolution(gram), values, 0.0)
    scores = vectors * np.sqrt(variances)
    return np.ascontiguousarray(scores[:, ::-1][:, :dimension])


def resolution(gram: Float) -> float:
    """Return the squared distance at or below which two vectors with this Gram matrix count as equal."""
    return ROUNDING * float(np.einsum("ii->i", gram).max())


def check_gram(gram: Float) -> None:
    """Raise ``ValueError`` unless ``gram`` can be the inner products of one vector or more, in float64.

    A Gram matrix is square, finite, symmetric, and without negative eigenvalues, the last two up to rounding.
    """
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not len(gram):
        raise ValueError(f"a Gram matrix must be square, with a row for each vector; got shape {gram.shape}")
    if gram.dtype != np.float64 or not np.isfinite(gram).all():
        raise ValueError("a Gram matrix must be float64 and finite")
    slack = _INDEFINITE * len(gram) * float(np.abs(np.einsum("ii->i", gram)).max())
    if np.abs(gram - gram.T).max() > slack:
        raise ValueError("a Gram matrix must be symmetric")
    if np.linalg.eigvalsh(gram).min() < -slack:
        raise ValueError("a Gram matrix must not have a negative eigenvalue")
