"""FedDBP's personalised global prototypes (equations 9 and 10), made at the site (numpy).

In print the server makes them, and is sent every site's scores for it. Only the site's own prototypes and scores and
the mean over all enter, so that the site can do it as well: the outcome is the same and the scores never leave it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from algorithms.linear import Bool, Float


def fuse(
    own: Float,
    has_own: Bool,
    scores: Float,
    mean: Float,
    has: Bool,
    *,
    eta: float,
    top: int,
    personal: bool = True,
) -> tuple[NDArray[np.float64], Bool]:
    """A site's targets: rows float64 (K, d), zero where there is none, and ``present`` (K,).

    ``own`` (K, d) are the site's prototypes, of the classes that it has (``has_own`` (K,)); ``scores`` (K, d), not
    negative, their channels' Fisher scores; ``mean`` (K, d) the prototypes over all holders, of the classes that
    enough sites hold (``has`` (K,)). Of such a class that the site has itself, the ``top`` channels with the highest
    scores (all when there are fewer; the lower channel on a tie) become η·own + (1 − η)·mean. All others are the
    mean's, as are all channels of a class that the site does not have. ``personal=False`` is the ablation: the mean
    everywhere. A class without a mean is not present, though the site may have it.

    Rows of classes not had are never read. Raises ``ValueError`` for shapes that do not fit, η outside [0, 1], top
    below 0, or scores of a class of the site that are negative or not finite.
    """
    _check(own, has_own, scores, mean, has)
    _check_settings(eta, top)
    if (~(np.isfinite(scores) & (scores >= 0.0)) & has_own[:, None]).any():
        raise ValueError("a Fisher score is finite and not negative")
    kept = top_channels(scores, top) & (has & has_own)[:, None] & personal
    common = np.where(has[:, None], mean, 0.0)
    return np.where(kept, eta * np.where(kept, own, 0.0) + (1.0 - eta) * common, common), has.copy()


def top_channels(scores: Float, top: int) -> Bool:
    """T_c (equation 9), bool (K, d): each row's ``top`` highest scores, or all; the lower channel on a tie."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    chosen = np.zeros(scores.shape, dtype=np.bool_)
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen


def _check(own: Float, has_own: Bool, scores: Float, mean: Float, has: Bool) -> None:
    if own.ndim != 2 or not own.shape == scores.shape == mean.shape:
        raise ValueError(f"own {own.shape}, scores {scores.shape} and mean {mean.shape} do not fit together")
    for known in (has_own, has):
        if known.shape != own.shape[:1] or known.dtype != np.bool_:
            raise ValueError(f"of {len(own)} classes each is had or not: a bool each, not {known.shape}")


def _check_settings(eta: float, top: int) -> None:
    if not 0.0 <= eta <= 1.0:
        raise ValueError(f"eta is between 0 and 1, not {eta}")
    if top < 0:
        raise ValueError(f"top is a number of channels from 0 up, not {top}")
