"""Minimum number of holders that a class needs to be aggregated: one rule for every method and every protection."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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
