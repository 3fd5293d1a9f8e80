"""The server's half of FedPC: means within a group, and groups weighed by how alike they are (equations 5 to 8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from algorithms.averaging import Counts, prototype_means, weighted_mean
from algorithms.linear import Bool, Float


@dataclass(frozen=True)
class Groups:
    """What J groups have: ``rows`` (J, K, d), ``has`` bool (J, K), ``theta`` (J, P); rows not had are zero.

    Raises ``ValueError`` for shapes that do not fit together.
    """

    rows: Float
    has: Bool
    theta: Float

    def __post_init__(self) -> None:
        if self.rows.ndim != 3 or self.has.shape != self.rows.shape[:2] or self.has.dtype != np.bool_:
            raise ValueError(f"rows {self.rows.shape} and has {self.has.shape} do not fit together")
        if self.theta.ndim != 2 or len(self.theta) != len(self.rows):
            raise ValueError(f"theta {self.theta.shape} does not fit {len(self.rows)} groups")


def within(sums_rows: Float, holders: Counts, sums_theta: Float, members: Counts, min_holders: int) -> Groups:
    """Unweighted means inside each group: P_j^k over the members that hold class k, θ_j over all members.

    ``sums_rows`` is (J, K, d), ``holders`` (J, K), ``sums_theta`` (J, P) and ``members`` (J,): sums over a
    group's members, and over how many. A class with fewer than ``min_holders`` holders in a group is withheld
    there, with the limit that :func:`algorithms.averaging.prototype_means` states; θ_j is a mean over as many
    sites or more, with the same limit.

    Raises ``ValueError`` for shapes that do not fit, a group of fewer than ``min_holders`` members, a class with
    more holders than members, or min_holders below 1.
    """
    _check_counts(sums_rows, holders, members, min_holders)
    rows, has = prototype_means(sums_rows, holders, min_holders)
    return Groups(rows, has, weighted_mean(sums_theta, members))


def similarity_weights(rows: Float) -> NDArray[np.float64]:
    """ρ_j^k of equations 5 and 6, (J, J): row j says how much each group counts for group j.

    ``rows`` is (J, K, d); cosines are those of the groups' concatenated vectors [K·d], zeros for classes that
    they do not have. A cosine below 0 counts as 0 (prototypes are ≥ 0, so only rounding is), and a group
    without anything, whose cosines are all 0, listens to itself alone. So each row is not negative and sums
    to 1; with one group it is 1, exactly.
    """
    vectors = np.asarray(rows, dtype=np.float64).reshape(len(rows), -1)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(norms > 0.0, norms, 1.0)
    cosines = np.maximum(units @ units.T, 0.0)
    cosines[np.diag_indices_from(cosines)] = 1.0
    return np.asarray(cosines / cosines.sum(axis=1, keepdims=True))


def between(groups: Groups, *, literal_absent: bool = False, tau: float = 0.0) -> Groups:
    """Each group's prototypes and extractor after equations 7 and 8, with one ρ for both.

    A class is mixed over the groups that have it, their weights divided by their sum, so that a group without
    it does not pull it towards zero; ``literal_absent`` leaves out the division, as printed. A group gets a
    class that it has not itself from those that have it; ``has`` is False, and the row zero, where the groups that
    have it have no weight above ``tau`` together: on ciphertexts a smaller one cannot be told from 0, and would be
    divided by. θ is mixed over all groups.
    """
    weights = similarity_weights(groups.rows)
    shares = weights @ groups.has
    has = np.asarray(shares > tau)
    mixed = np.einsum("jm,mkd->jkd", weights, np.where(groups.has[:, :, None], groups.rows, 0.0))
    mixed[~has] = 0.0
    divisors = np.ones_like(shares) if literal_absent else np.where(has, shares, 1.0)
    return Groups(mixed / divisors[:, :, None], has, weights @ groups.theta)


def _check_counts(sums_rows: Float, holders: Counts, members: Counts, min_holders: int) -> None:
    if sums_rows.ndim != 3 or holders.shape != sums_rows.shape[:2] or members.shape != holders.shape[:1]:
        raise ValueError(
            f"sums {sums_rows.shape}, holders {holders.shape} and members {members.shape} do not fit together"
        )
    if min_holders < 1:
        raise ValueError("min_holders is at least 1")
    if (members < min_holders).any():
        raise ValueError(f"a group of fewer than min_holders = {min_holders} members has no aggregate")
    if (holders < 0).any() or (holders > members[:, None]).any():
        raise ValueError("a class is held by none of a group's members, by all, or by some number between")
