"""Means of the victim's sum as an adversary has them: received, opened, decrypted by a group's leader, or solved for.

With several groups (FedPC), a site receives a mixture of their means. All sites but the victim know the means of every
group but the victim's, and every group's result. With c = cos(P_k, P_j), the result of another group k is
Σ_l cos(P_k, P_l)·P_l / Σ_l cos(P_k, P_l), in which c and the victim's P_j alone are unknown. This gives P_j as a
function of 1/c, a line, and then c itself as a root of a polynomial.

With one extractor for two groups, the one result is the plain mean of both groups' means.

Limits: no solution is attempted with one extractor for more groups, for a victim that is alone in its group, or with
shared noise, whose part in the other groups' means is unknown. One site solves for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np

from agreement.aggregation.means import Means
from algorithms.averaging import prototype_means
from algorithms.fedpc.aggregation import Groups, mix_groups, similarity_weights
from algorithms.gram_matrix import Bool
from protoseal.evaluation.attacks.opened_sums import (
    coordinator_means,
    group_of,
    groups_of,
    holds_in,
    leader_means,
    means_in,
)
from protoseal.evaluation.attacks.recorded_run import RecordedRun, Rows

_ROUNDING = 1e-3
"""Tolerance of roots: below 1, and relative to the root in the imaginary part."""


def means_known_to(
    run: RecordedRun, victim: str, sites: Sequence[str], *, coordinator: bool = False
) -> Means | None:
    """Return the means of the sum with the victim's values, None if ``sites`` (and the coordinator) have a mixture.

    For a method that sums in groups or over all sites. Under ``ckks`` the coordinator needs a site.
    """
    group, encrypted = group_of(run, victim), run.agreement.protection.ckks_key
    if len(groups_of(run)) == 1:
        site = sites[0] if sites else victim
        return means_in(run, site, run.result(site)[1])
    if coordinator and not encrypted:
        return coordinator_means(run, group)
    if encrypted and min(group) in sites:
        return leader_means(run, group)
    return solved_means(run, victim) if set(sites) == set(run.sites) - {victim} else None


@lru_cache(maxsize=64)
def solved_means(run: RecordedRun, victim: str) -> Means | None:
    """Return the means of the victim's group, as all other sites together solve for them; None if they cannot."""
    agreement, groups = run.agreement, groups_of(run)
    if agreement.distributed_noise or group_of(run, victim) == (victim,):
        return None
    hidden = next(index for index, group in enumerate(groups) if victim in group)
    if agreement.fedpc.one_extractor:
        return _other_of_two(run, victim, groups[1 - hidden]) if len(groups) == 2 else None
    results = [_result_of(run, group, victim) for group in groups]
    known = {index: _own_means(run, group) for index, group in enumerate(groups) if index != hidden}
    has = _has(run, groups[hidden])
    candidates = [
        rows for index in known for rows in _candidates(run, known, index, results[index].rows, has)
    ]
    return min(
        (_completed(hidden, rows, has, known, results) for rows in candidates),
        key=lambda found: _residual(run, found, known, results),
        default=None,
    )


def _other_of_two(run: RecordedRun, victim: str, known_group: tuple[str, ...]) -> Means:
    """Return the means of the victim's group from one result for two groups, which weighs both equally."""
    own, has = _own_means(run, known_group), _has(run, group_of(run, victim))
    result = _result_of(run, known_group, victim)
    halved = own.has | run.agreement.fedpc.literal_absent
    rows = np.where(halved[:, None], 2.0 * result.rows - own.rows, result.rows)
    return Means(rows * has[:, None], has, 2.0 * result.model - own.model)


def _result_of(run: RecordedRun, group: tuple[str, ...], victim: str) -> Means:
    site = next(site for site in group if site != victim)
    return means_in(run, site, run.result(site)[1])


def _has(run: RecordedRun, group: tuple[str, ...]) -> Bool:
    """Return the classes (K,) that the group has."""
    return np.asarray(holds_in(run, group).sum(axis=0) >= run.agreement.min_holders)


def _own_means(run: RecordedRun, group: tuple[str, ...]) -> Means:
    """Return the means of a group whose members all collude."""
    holds = holds_in(run, group)
    rows = np.array([run.sites[site].received.local for site in group]) * holds[:, :, None]
    means, has = prototype_means(rows.sum(axis=0), holds.sum(axis=0), run.agreement.min_holders)
    return Means(means, has, np.mean([run.sites[site].averaged for site in group], axis=0))


def _candidates(
    run: RecordedRun, known: Mapping[int, Means], index: int, result: Rows, has: Bool
) -> Iterator[Rows]:
    """Yield prototypes (K, d) of classes that the hidden group ``has`` (K,), from the result (K, d) of a known group.

    With t = 1/c, P_j is R + t·V on the hidden group's classes, and c = cos(P_k, P_j) a polynomial of degree 4 in t.
    """
    own = known[index].rows[has].ravel()
    total = np.linalg.norm(known[index].rows)
    if not total:
        return
    weights, weighted = _known_part(run, known, index)
    base = np.where(has[:, None], result, 0.0)
    slope = np.where(has[:, None], weights[:, None] * result - weighted, 0.0)
    r, v = base[has].ravel(), slope[has].ravel()
    a, b = own @ r / total, own @ v / total
    for root in np.roots([b * b, 2 * a * b, a * a - v @ v, -2 * r @ v, -r @ r]):
        if root.real > 1.0 - _ROUNDING and abs(root.imag) < _ROUNDING * root.real:
            yield base + root.real * slope


def _known_part(run: RecordedRun, known: Mapping[int, Means], index: int) -> tuple[Rows, Rows]:
    """Return the known groups' part of a group's mixture: weights (K,) of each class, and weighted rows (K, d)."""
    rows, has = (
        np.array([each.rows for each in known.values()]),
        np.array([each.has for each in known.values()]),
    )
    weights = similarity_weights(rows)[list(known).index(index)]
    cosines = weights / weights[list(known).index(index)]
    divisors = np.full(has.shape[1], cosines.sum()) if run.agreement.fedpc.literal_absent else cosines @ has
    return np.asarray(divisors), np.einsum("l,lkd->kd", cosines, rows)


def _completed(hidden: int, rows: Rows, has: Bool, known: Mapping[int, Means], results: list[Means]) -> Means:
    """Return the means with the model that follows once all groups' prototypes, and so their weights, are known."""
    of_all = [known[index].rows if index in known else rows for index in range(len(results))]
    weights = similarity_weights(np.array(of_all))[hidden]
    others = np.sum([weights[index] * each.model for index, each in known.items()], axis=0)
    return Means(rows, has, (results[hidden].model - others) / weights[hidden])


def _residual(run: RecordedRun, found: Means, known: Mapping[int, Means], results: list[Means]) -> float:
    """Return the squared distance of the groups' mixtures of prototypes from their results."""
    means = [known.get(index, found) for index in range(len(results))]
    groups = Groups(
        np.array([each.rows for each in means]),
        np.array([each.has for each in means]),
        np.array([each.model for each in means]),
    )
    fedpc, tau = run.agreement.fedpc, run.agreement.agreement_threshold
    mixed = mix_groups(groups, literal_absent=fedpc.literal_absent, tau=tau)
    return float(np.square(mixed.rows - np.array([each.rows for each in results])).sum())
