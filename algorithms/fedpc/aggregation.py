"""Aggregation of FedPC: means within groups, and mixing of groups by their similarity (equations 5 to 8; numpy)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from algorithms.averaging import Counts, prototype_means, weighted_mean
from algorithms.gram_matrix import Bool, Float


@dataclass(frozen=True)
class Groups:
    """Prototypes and extractors of J groups: ``rows`` (J, K, d), zero where ``has`` (J, K) is False; ``theta`` (J, P).

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


def means_within_groups(
    sums_rows: Float, holders: Counts, sums_theta: Float, members: Counts, min_holders: int
) -> Groups:
    """Return unweighted means within each group: P_j^k over the members that hold class k, θ_j over all members.

    ``sums_rows`` (J, K, d) and ``sums_theta`` (J, P) are sums over a group's members; ``holders`` (J, K) and
    ``members`` (J,) are the numbers of sites in them. A class with fewer than ``min_holders`` holders in a group is
    withheld in that group. θ_j is a mean over at least min_holders sites too. Both have the limit that
    :func:`algorithms.averaging.prototype_means` states.

    Raises ``ValueError`` for shapes that do not fit, a group of fewer than ``min_holders`` members, a class with
    more holders than members, or min_holders below 1.
    """
    _check_counts(sums_rows, holders, members, min_holders)
    rows, has = prototype_means(sums_rows, holders, min_holders)
    return Groups(rows, has, weighted_mean(sums_theta, members))


def similarity_weights(rows: Float) -> NDArray[np.float64]:
    """Return ρ_j^k of equations 5 and 6, (J, J): row j holds each group's weight for group j.

    ``rows`` is (J, K, d); the cosines are between the groups' concatenated vectors [K·d], with zeros for absent
    classes. A cosine below 0 counts as 0 (prototypes are ≥ 0, so only rounding makes one negative). A group without
    prototypes, whose cosines are all 0, gets weight 1 for itself. So each row is not negative and sums to 1; with one
    group it is exactly 1.
    """
    vectors = np.asarray(rows, dtype=np.float64).reshape(len(rows), -1)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(norms > 0.0, norms, 1.0)
    # Equation 5. A negative weight would subtract one group's extractor from another's.
    cosines = np.maximum(units @ units.T, 0.0)
    cosines[np.diag_indices_from(cosines)] = 1.0
    return np.asarray(cosines / cosines.sum(axis=1, keepdims=True))  # equation 6: rows sum to 1


def mix_groups(groups: Groups, *, literal: bool = False, tau: float = 0.0) -> Groups:
    """Return each group's prototypes and extractor after equations 7 and 8, with one ρ for both.

    A class is mixed over the groups that have the class, with their weights divided by the weights' sum, so that groups
    without the class do not pull it towards zero; ``literal`` omits the division, as printed. A group without a
    class thus gets the class from other groups. ``has`` is False and the row zero if the weights of the groups that
    have the class sum to at most ``tau``: under encryption a smaller divisor cannot be distinguished from 0. θ is
    mixed over all groups.
    """
    # One ρ for prototypes and extractors: a site's features and its targets then belong to the same mixture.
    weights = similarity_weights(groups.rows)
    shares = weights @ groups.has
    has = np.asarray(shares > tau)
    # Equation 7; rows of absent classes are never read, since they may hold anything.
    mixed = np.einsum("jm,mkd->jkd", weights, np.where(groups.has[:, :, None], groups.rows, 0.0))
    mixed[~has] = 0.0
    divisors = np.ones_like(shares) if literal else np.where(has, shares, 1.0)
    return Groups(mixed / divisors[:, :, None], has, weights @ groups.theta)  # equation 8


def _check_counts(sums_rows: Float, holders: Counts, members: Counts, min_holders: int) -> None:
    if sums_rows.ndim != 3 or holders.shape != sums_rows.shape[:2] or members.shape != holders.shape[:1]:
        raise ValueError(
            f"sums {sums_rows.shape}, holders {holders.shape} and members {members.shape} do not fit together"
        )
    if min_holders < 1:
        raise ValueError("min_holders must be at least 1")
    if (members < min_holders).any():
        raise ValueError(f"a group has fewer than min_holders = {min_holders} members: merge it with another")
    if (holders < 0).any() or (holders > members[:, None]).any():
        raise ValueError("a class's holders must number between 0 and the group's members")
