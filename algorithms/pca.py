"""Principal component scores from inner products alone: what PCA of the vectors would give, without the vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from algorithms.linear import Float

ROUNDING = 1e-13
"""Squared distances below this share of the largest squared norm are float64's rounding of inner products.

As a distance: 3e-7 of the largest norm. Two vectors nearer to each other than that count as equal."""

_INDEFINITE = 1e-10
"""An asymmetry or a negative eigenvalue beyond this share, for each vector, is no rounding."""


def principal_scores(gram: Float, dimension: int) -> NDArray[np.float64]:
    """Scores of n vectors on their first principal components, (n, dimension) float64.

    ``gram`` is (n, n), the vectors' inner products. Its double centring H·G·H has the scores' inner products,
    so its eigenvectors scaled by the roots of their eigenvalues are the scores, in falling order of variance
    and each column up to its sign (columns of equal variance: up to a rotation). Components beyond the
    vectors' rank, and those whose variance is rounding (:data:`ROUNDING`), are zero.

    Raises ``ValueError`` for a matrix that is no Gram matrix up to rounding (:func:`check_gram`) or a
    dimension outside [0, n].
    """
    check_gram(gram)
    n = len(gram)
    if not 0 <= dimension <= n:
        raise ValueError(f"{n} vectors have at most {n} components, not {dimension}")
    values, vectors = np.linalg.eigh(_double_centred(gram))
    variances = np.where(values > n * resolution(gram), values, 0.0)
    scores = vectors * np.sqrt(variances)
    return np.ascontiguousarray(scores[:, ::-1][:, :dimension])


def resolution(gram: Float) -> float:
    """The squared distance at or below which two of these vectors count as equal."""
    return ROUNDING * float(np.einsum("ii->i", gram).max())


def check_gram(gram: Float) -> None:
    """Raise ``ValueError`` unless ``gram`` can be the inner products of one vector or more, in float64.

    That is: square, finite, symmetric, and without negative eigenvalues, the last two up to rounding.
    """
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not len(gram):
        raise ValueError(f"a Gram matrix is square, with a row for each vector; got shape {gram.shape}")
    if gram.dtype != np.float64 or not np.isfinite(gram).all():
        raise ValueError("a Gram matrix is float64 and finite")
    slack = _INDEFINITE * len(gram) * float(np.abs(np.einsum("ii->i", gram)).max())
    if np.abs(gram - gram.T).max() > slack:
        raise ValueError("a Gram matrix is symmetric; this one is not")
    if np.linalg.eigvalsh(gram).min() < -slack:
        raise ValueError("a Gram matrix has no negative eigenvalue; this one has, so no vectors have it")


def _double_centred(gram: Float) -> Float:
    """H·G·H with H = I − 11ᵀ/n: the inner products of the vectors less their mean; symmetric to the bit."""
    symmetric = (gram + gram.T) / 2.0
    means = symmetric.mean(axis=0)
    return np.asarray(symmetric - (means[:, None] + means[None, :]) + means.mean())
