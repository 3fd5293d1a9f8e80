"""Principal component scores from inner products: the scores that PCA of the vectors would give (numpy)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from algorithms.gram_matrix import Float

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
    values, vectors = np.linalg.eigh(_double_centred(gram))
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


def _double_centred(gram: Float) -> Float:
    """Return H·G·H with H = I − 11ᵀ/n, the inner products of the centred vectors; symmetric to the bit."""
    symmetric = (gram + gram.T) / 2.0
    means = symmetric.mean(axis=0)
    return np.asarray(symmetric - (means[:, None] + means[None, :]) + means.mean())
