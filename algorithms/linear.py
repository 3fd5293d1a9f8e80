"""All that a server ever computes on prototypes: inner products, and linear combinations of the uploads.

Everything here is float64: vectors at distance 2e-5 come out of a float32 Gram matrix hundreds of times too
far apart. A stack has shape (n, K, d): n sites, K classes, d features.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
_CONVEX = 1e-10
"""Within what norm bounds allow for."""


class Need(StrEnum):
    """What a method can ask of a protection. A protection's offers bear the same values."""

    GRAM = "gram"
    """The inner products themselves; any weights that follow from them."""
    DISTANCE_WEIGHTS = "distance weights"
    """A combination known by name, evaluated without anyone seeing an inner product."""
    SUM = "sum"
    """The sum over a group of sites."""
    CLUSTERING = "clustering"
    """Inner products of what is clustered, whatever becomes of the values themselves."""
    COSINE_WEIGHTS = "cosine weights"
    """Groups' sums, mixed by the cosines of the groups."""


def gram(stack: Float) -> Float:
    """Inner products of the sites' rows, class by class.

    ``stack`` is (n, K, d), the result (K, n, n) with [k, i, m] = ⟨C_i^k, C_m^k⟩.
    Raises ``ValueError`` when the stack has another number of axes.
    """
    by_class = _by_class(stack)
    products: Float = by_class @ by_class.transpose(0, 2, 1)
    return products


def squared_distances(products: Float) -> Float:
    """‖C_i^k − C_m^k‖² for all pairs, from their Gram matrices; both are (K, n, n).

    Never negative, and exactly 0 on the diagonal. The error is a few units in the last place of the
    *norms*: for rows of norm 1 about 1e-15, so that distances (unsquared) below 1e-7 are rounding.
    """
    norms: Float = np.einsum("kii->ki", products)
    return np.asarray(np.maximum(norms[:, :, None] + norms[:, None, :] - 2.0 * products, 0.0))


def combine(weights: Float, stack: Float) -> Float:
    """Σ_m weights[k, i, m] · stack[m, k]: ``weights`` (K, n, n) and ``stack`` (n, K, d) give (n, K, d).

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
        raise ValueError(f"a stack has the axes site, class, feature; got shape {stack.shape}")
    return np.asarray(stack, dtype=np.float64).transpose(1, 0, 2)


def convex(weights: Callable[[Float, Bool], Float]) -> Callable[[Float, Bool], Float]:
    """The same, checked: a holder's weights are not negative and sum to 1, over holders; all others are 0.

    Weights are (K, n, n) of Gram matrices (K, n, n) and ``holds`` (n, K). The result raises ``ValueError`` for others:
    what is not convex could be taken apart, or not travel under a norm bound. The limit: a row that is all on one other
    site is convex, and hands out that site's prototype.
    """

    def checked(products: Float, holds: Bool) -> Float:
        found = np.asarray(weights(products, holds), dtype=np.float64)
        if found.shape != products.shape:
            raise ValueError(f"weights of shape {found.shape} do not fit Gram matrices of {products.shape}")
        among = holds.T[:, :, None] & holds.T[:, None, :]
        if not np.isfinite(found).all() or (found < 0.0).any() or found[~among].any():
            raise ValueError("weights are numbers from 0 up, and 0 where a site does not hold the class")
        if not np.allclose(found.sum(axis=-1), holds.T, rtol=0.0, atol=_CONVEX):
            raise ValueError("a holder's weights sum to 1")
        return found

    return checked
