"""From sums over sites to means: what every method's server does with what was added up (numpy).

A sum may come from a masked exchange, where nobody has seen its summands: all that is needed beside it is over how
many sites, or with what total weight, it was taken. Both functions take one group of sites or several, as leading
axes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from algorithms.linear import Bool, Float

Counts = NDArray[np.int64]


def prototype_means(sums: Float, holders: Counts, min_holders: int) -> tuple[NDArray[np.float64], Bool]:
    """The plain mean over each class's holders, and whether there is one: rows (…, K, d) and has (…, K).

    ``sums`` is (…, K, d), over the holders of each class, and ``holders`` (…, K) says how many they are. A class with
    fewer than ``min_holders`` of them is withheld: ``has`` is False and its row zero, whatever its sum. So every row
    is a mean over at least ``min_holders`` sites; with 1 it may be one site's own. That bounds one answer: two
    rounds whose holders differ by a site that has not moved give it away, and only noise bounds that.

    Raises ``ValueError`` for shapes that do not fit, a negative number of holders, or min_holders below 1.
    """
    if sums.ndim < 2 or holders.shape != sums.shape[:-1]:
        raise ValueError(f"sums {sums.shape} and holders {holders.shape} do not fit together")
    if min_holders < 1:
        raise ValueError("min_holders is at least 1")
    if (holders < 0).any():
        raise ValueError("a class has no holders or some number of them")
    has = np.asarray(holders >= min_holders)
    means = sums / np.maximum(holders, 1)[..., None]
    return np.where(has[..., None], means, 0.0), has


def weighted_mean(weighted_sum: Float, total_weight: float | Float | Counts) -> NDArray[np.float64]:
    """Σ_i w_i·v_i / Σ_i w_i, from the two sums: ``weighted_sum`` (…, L) and ``total_weight`` (…).

    A plain mean has a weight of 1 for each site, and FedAvg's the site's number of samples. It says nothing of how
    many sites had a weight: whether there were enough is the caller's to see.

    Raises ``ValueError`` for shapes that do not fit, or a total weight that is not above 0 or not finite.
    """
    total = np.asarray(total_weight, dtype=np.float64)
    if weighted_sum.ndim < 1 or total.shape != weighted_sum.shape[:-1]:
        raise ValueError(f"sums {weighted_sum.shape} and total weights {total.shape} do not fit together")
    if not (np.isfinite(total) & (total > 0.0)).all():
        raise ValueError("a mean has a total weight above 0")
    return np.asarray(weighted_sum / total[..., None], dtype=np.float64)
