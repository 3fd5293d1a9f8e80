"""Means from sums over sites, for every method's server, and which classes have enough holders for one (numpy).

A sum may come from a masked exchange in which nobody sees the summands. Besides the sum only its number of sites or
its total weight is needed. The functions take one group of sites, or several groups as leading axes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from algorithms.gram_matrix import Bool, Float

Counts = NDArray[np.int64]


def prototype_means(sums: Float, holders: Counts, min_holders: int) -> tuple[NDArray[np.float64], Bool]:
    """Return the plain mean over each class's holders, (…, K, d), and the mask ``has`` (…, K) of classes with a mean.

    ``sums`` (…, K, d) are over the holders of each class, and ``holders`` (…, K) are the numbers of holders. A class
    with fewer than ``min_holders`` holders is withheld: ``has`` is False and the row zero, whatever the sum. So every
    row is a mean over at least ``min_holders`` sites; with 1, a row may be one site's prototype. The limit: this
    bounds one answer. Two rounds reveal a site's unchanged prototype if their holders differ by that site; only noise
    bounds that.

    Raises ``ValueError`` for shapes that do not fit, a negative number of holders, or min_holders below 1.
    """
    if sums.ndim < 2 or holders.shape != sums.shape[:-1]:
        raise ValueError(f"sums {sums.shape} and holders {holders.shape} do not fit together")
    if min_holders < 1:
        raise ValueError("min_holders must be at least 1")
    if (holders < 0).any():
        raise ValueError("a class's number of holders must not be negative")
    # Withheld whatever the sum is: with two holders each one's answer is the other's prototype.
    has = np.asarray(holders >= min_holders)
    means = sums / np.maximum(holders, 1)[..., None]
    return np.where(has[..., None], means, 0.0), has


def weighted_mean(weighted_sum: Float, total_weight: float | Float | Counts) -> NDArray[np.float64]:
    """Return Σ_i w_i·v_i / Σ_i w_i from the two sums: ``weighted_sum`` (…, L) and ``total_weight`` (…).

    A plain mean weighs each site by 1, FedAvg by the site's number of samples. The number of sites is not visible in
    the sums; the caller must check that there were enough.

    Raises ``ValueError`` for shapes that do not fit, or a total weight that is not above 0 or not finite.
    """
    total = np.asarray(total_weight, dtype=np.float64)
    if weighted_sum.ndim < 1 or total.shape != weighted_sum.shape[:-1]:
        raise ValueError(f"sums {weighted_sum.shape} and total weights {total.shape} do not fit together")
    # An infinite total would divide every sum to 0, which looks like a result.
    if not (np.isfinite(total) & (total > 0.0)).all():
        raise ValueError("a mean's total weight must be above 0 and finite")
    return np.asarray(weighted_sum / total[..., None], dtype=np.float64)


def active_classes(presence: NDArray[np.bool_], min_holders: int) -> NDArray[np.bool_]:
    """Return the mask (K,) of the classes that at least ``min_holders`` sites hold, from ``presence`` (n, K).

    ``min_holders`` counts sites, including the receiver of an answer: with 3, an answer mixes at least two peers.
    The limit: the rule bounds *one* answer. Over several rounds in which the peers' prototypes do not change, a site
    can solve for a single peer's prototype; only noise bounds that. With 1, an answer may be one peer's prototype.

    Raises ``ValueError`` unless presence is a bool matrix and min_holders at least 1.
    """
    if presence.ndim != 2 or presence.dtype != np.bool_:
        raise ValueError("presence must be a bool matrix: a row for each site, a column for each class")
    if min_holders < 1:
        raise ValueError("min_holders must be at least 1")
    return np.asarray(presence.sum(axis=0) >= min_holders)
