"""Means of the victim's sum as an adversary has them: received, opened, decrypted by a group's leader, or solved for.

With J groups (FedPC), a site receives a mixture of their means. One site of each group together have all J mixtures,
which are J equations in J means: only the J·(J − 1)/2 cosines that weigh them are unknown, and these follow from the
means. Least squares from random starts finds the cosines, and so each group's prototypes and model. Then the other
members of the victim's group subtract their own: for a group of g sites, g + J − 2 colluding sites read the last one.

With one extractor for two groups, the one result is the plain mean of both groups' means.

Limits: of several solutions, the one that fits best is taken. No solution is attempted with one extractor for more
groups, for a victim that is alone in its group, or with shared noise. One site solves for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-untyped]  # it ships no types

from agreement import Agreement
from agreement.aggregation.means import Means
from algorithms.averaging import prototype_means
from algorithms.fedpc.aggregation import Groups, mix_groups
from algorithms.gram_matrix import Bool
from protoseal.attacks.opened_sums import (
    coordinator_means,
    group_of,
    groups_of,
    holds_in,
    leader_means,
    means_in,
)
from protoseal.attacks.recorded_run import RecordedRun, Rows

_STARTS, _STEP = 12, 1e-14
_ROOT, _SAME = 1e-4, 1e-3
"""Largest relative error of a mixture at a solution, which leaves room for CKKS, and difference of equal cosines."""


def means_known_to(
    run: RecordedRun, victim: str, sites: Sequence[str], *, coordinator: bool = False
) -> tuple[Means, ...]:
    """Return the means of the sum with the victim's values; none if ``sites`` (and the coordinator) have a mixture.

    For a method that sums in groups or over all sites. Several are solutions of the same equations, the best first.
    Under ``ckks`` the coordinator needs a site.
    """
    group, encrypted = group_of(run, victim), run.agreement.protection.ckks_key
    if len(groups_of(run)) == 1:
        site = sites[0] if sites else victim
        return (means_in(run, site, run.result(site)[1]),)
    if coordinator and not encrypted:
        return (coordinator_means(run, group),)
    if encrypted and min(group) in sites:
        return (leader_means(run, group),)
    return solved_means(run, victim, tuple(sites))


@lru_cache(maxsize=64)
def solved_means(run: RecordedRun, victim: str, sites: tuple[str, ...]) -> tuple[Means, ...]:
    """Return the means of the victim's group that ``sites`` solve their results for; none without one of each group."""
    agreement, groups = run.agreement, groups_of(run)
    receivers = [next((site for site in group if site in sites), "") for group in groups]
    if agreement.distributed_noise or not all(receivers):
        return ()
    hidden = next(index for index, group in enumerate(groups) if victim in group)
    if agreement.fedpc.one_extractor:
        solvable = len(groups) == 2 and set(groups[1 - hidden]) <= set(sites)
        return (_other_of_two(run, victim, groups[1 - hidden]),) if solvable else ()
    results = [means_in(run, site, run.result(site)[1]) for site in receivers]
    mixed = Groups(
        np.array([result.rows for result in results]),
        np.array([result.has for result in results]),
        np.array([result.model for result in results]),
    )
    has = np.array([_has(run, group) for group in groups])
    return tuple(
        Means(solution.rows[hidden], solution.has[hidden], solution.theta[hidden])
        for solution in _unmixed(agreement, mixed, has)
    )


def _unmixed(agreement: Agreement, mixed: Groups, has: Bool) -> list[Groups]:
    """Return the groups' means that have these mixtures, one for each solution, the best first.

    ``mixed`` are the J groups' mixtures; ``has`` (J, K) says which classes each group has.
    """
    upper = np.triu_indices(len(has), 1)
    literal, scale = agreement.fedpc.literal_absent, float(np.abs(mixed.rows).max()) or 1.0

    def means(cosines: Rows, theta: Rows) -> Groups:
        # The cosines fix the weights of the mixtures, and then the means solve linear equations.
        weights = np.eye(len(has))
        weights[upper] = weights.T[upper] = cosines
        weights /= weights.sum(axis=1, keepdims=True)
        rows = np.zeros(mixed.rows.shape)
        for k in range(has.shape[1]):
            shares = weights[np.ix_(mixed.has[:, k], has[:, k])]
            divisors = 1.0 if literal else shares.sum(axis=1, keepdims=True)
            rows[has[:, k], k] = np.linalg.lstsq(
                shares / divisors, mixed.rows[mixed.has[:, k], k], rcond=None
            )[0]
        return Groups(rows, has, np.asarray(np.linalg.lstsq(weights, theta, rcond=None)[0], np.float64))

    def errors(cosines: Rows) -> Rows:
        # At a solution the means have the cosines that were guessed, and so mix to the same results again.
        without_models = means(cosines, np.zeros((len(has), 1)))
        again = mix_groups(without_models, literal_absent=literal, tau=agreement.agreement_threshold)
        return np.asarray((again.rows - mixed.rows).ravel() / scale)

    ends: list[tuple[float, Rows]] = []
    for start in np.random.default_rng(0).uniform(size=(_STARTS, len(upper[0]))):
        end = least_squares(errors, start, bounds=(0, 1), xtol=_STEP, ftol=_STEP, gtol=_STEP)
        error = float(np.abs(end.fun).max())
        if error <= _ROOT and all(np.abs(end.x - other).max() > _SAME for _, other in ends):
            ends.append((error, end.x))
    return [means(cosines, mixed.theta) for _, cosines in sorted(ends, key=lambda each: each[0])]


def _other_of_two(run: RecordedRun, victim: str, known_group: tuple[str, ...]) -> Means:
    """Return the means of the victim's group from one result for two groups, which weighs both equally."""
    own, has = _own_means(run, known_group), _has(run, group_of(run, victim))
    result = means_in(run, known_group[0], run.result(known_group[0])[1])
    halved = own.has | run.agreement.fedpc.literal_absent
    rows = np.where(halved[:, None], 2.0 * result.rows - own.rows, result.rows)
    return Means(rows * has[:, None], has, 2.0 * result.model - own.model)


def _has(run: RecordedRun, group: tuple[str, ...]) -> Bool:
    """Return the classes (K,) that the group has."""
    return np.asarray(holds_in(run, group).sum(axis=0) >= run.agreement.min_holders)


def _own_means(run: RecordedRun, group: tuple[str, ...]) -> Means:
    """Return the means of a group whose members all collude."""
    holds = holds_in(run, group)
    rows = np.array([run.sites[site].received.local for site in group]) * holds[:, :, None]
    means, has = prototype_means(rows.sum(axis=0), holds.sum(axis=0), run.agreement.min_holders)
    return Means(means, has, np.mean([run.sites[site].averaged for site in group], axis=0))
