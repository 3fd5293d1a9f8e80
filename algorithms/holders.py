"""Which classes have enough holders to be aggregated: one rule for every method and every protection."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def active_classes(presence: NDArray[np.bool_], min_holders: int) -> NDArray[np.bool_]:
    """Classes that at least ``min_holders`` sites hold; ``presence`` is (n, K), the result (K,).

    ``min_holders`` counts sites, the receiver of an answer included: with 3, an answer mixes at least two
    peers. It bounds *one* answer. Over rounds with unmoving peers a site can solve for a single one of
    them; only noise bounds that. With 1, what a site receives may be one peer's prototype itself.

    Raises ``ValueError`` unless presence is a bool matrix and min_holders at least 1.
    """
    if presence.ndim != 2 or presence.dtype != np.bool_:
        raise ValueError("presence is a bool matrix: a row for each site, a column for each class")
    if min_holders < 1:
        raise ValueError("min_holders is at least 1")
    return np.asarray(presence.sum(axis=0) >= min_holders)
