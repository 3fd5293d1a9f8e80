"""Prototypes of all other sites, solved from the combinations that colluding sites of PFPL received in one round.

Let c colluding sites and h others hold a class. The h unknown prototypes determine the squared distances
d_im = ‖C_i − C_m‖² from colluding sites i to the others m, these determine every weight w_im, and so the combination
Σ_m w_im C_m of each colluding site. Its d numbers are known, which are c·d equations in h·d unknowns: from c ≥ h on the
prototypes follow, up to a few solutions. Only results enter, so that no protection prevents it.

Solutions are found by Levenberg–Marquardt from random starts. A solution is implausible if a prototype exceeds the norm
bound, or has a negative number where no prototype of a colluding site has one, as features after a ReLU. Where several
remain, a second round chooses: prototypes move little between rounds.

Limits: the equations do not say whose a prototype is. Random starts can miss solutions, the more so the more sites are
solved for; for more than :data:`MOST_OTHERS` none is tried. Weights ``uniform`` depend on no distance, so that the
equations determine the sum of the others and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-untyped]  # it ships no types

from agreement import Agreement
from algorithms.pfpl import Weighting
from protoseal.attacks.recorded_run import RecordedRun, Rows, cached_in_run

MOST_OTHERS = 3
"""Most sites that are solved for at once."""
_STARTS, _STEPS, _STEP, _SPREAD = 12, 30, 1e-15, 2.0
_ROOT, _LEAST_SQUARES = 1e-9, 1e-3
"""Largest relative error of an equation at a solution: of as many equations as unknowns, and of more equations, where
the rounding of a result remains."""
_ONE_SITE = 1e-6
"""Largest error with more equations of one site: they are nearly alike, so that false solutions come within 1e-3."""
_SAME, _TOO_LONG = 1e-3, 1e-3
"""Relative difference of equal solutions from two starts, and relative excess over the norm bound that is rounding."""
_BELOW_ZERO, _BELOW_ZERO_UNDER_CKKS = 1e-3, 0.05
"""Size of a negative number, relative to the largest, that is rounding, or CKKS noise: solving multiplies that noise
to 1 % where prototypes average few samples. In the runs that were tried, most false solutions were 40 % and more below
zero.
"""


@dataclass(frozen=True)
class ClassSolutions:
    """Solutions (h, d) of one class's equations, all of them and the plausible ones.

    ``combination`` (1, d) is what is known without a solution.
    """

    every: Sequence[Rows] = field(repr=False)
    plausible: Sequence[Rows] = field(repr=False)
    combination: Rows = field(repr=False)

    @property
    def rows(self) -> Rows:
        """Rows of the plausible solutions, (M, d); the combination if there is none."""
        return np.concatenate(self.plausible) if self.plausible else self.combination

    def near(self, earlier: ClassSolutions) -> ClassSolutions:
        """Return these solutions with the plausible one that is nearest to one of an ``earlier`` round."""
        if not earlier.plausible:
            return self
        nearest = sorted(
            self.plausible, key=lambda rows: min(movement(rows, other) for other in earlier.plausible)
        )
        return ClassSolutions(self.every, nearest[:1], self.combination)


@cached_in_run
def solve_class(
    run: RecordedRun, sites: tuple[str, ...], number: int, *, earlier: bool = False
) -> ClassSolutions:
    """Solve the results of colluding ``sites``, of the last round or the one before, for the others with the class.

    One of the sites at least received a result for the class.
    """
    agreement = run.agreement
    received = {
        name: run.earlier[name][-1].received if earlier else run.sites[name].received for name in sites
    }
    holders = [name for name in sites if received[name].has_personal[number]]
    others = [name for name, site in run.sites.items() if name not in sites and number in site.labels]
    own = np.array([received[name].local[number] for name in holders])
    targets = np.array([received[name].personal[number] for name in holders])
    combined = (targets - agreement.own_share * own) / max(1.0 - agreement.own_share, 1e-9)
    if agreement.pfpl.weighting is Weighting.UNIFORM:
        # The combination is the mean of all peers, so that the others' sum follows, and no single term of it.
        peers = len(holders) + len(others) - 1
        mean = (peers * combined[:1] - own[1:].sum(axis=0)) / max(len(others), 1)
        last = [mean] if len(others) == 1 else []
        return ClassSolutions(last, last, mean)
    all_solutions = solve_combinations(agreement, own, combined, len(others)) if others else []
    return ClassSolutions(all_solutions, select_plausible(agreement, own, all_solutions), combined[:1])


def solve_combinations(
    agreement: Agreement, own: Rows, combined: Rows, others: int, *, one_site: bool = False
) -> list[Rows]:
    """Return the prototypes (h, d) of ``others`` sites that solve the equations of weights that depend on distances.

    ``own`` (c, d) are the colluding sites' prototypes of a class, and ``combined`` (c, d) is the combination that each
    received. With ``one_site`` they are c prototypes that one site sent, and what it received for each of them. There
    are several solutions, one, or none, as for fewer equations than others.
    """
    colluders = len(own)
    receivers = min(colluders, others + 1)  # one combination more than unknown rows is enough
    if colluders < others or others > MOST_OTHERS:
        return []
    # All unknown rows lie in the span of the known ones, in which a row has at most 2c coordinates instead of d.
    basis = np.linalg.qr((np.concatenate([own, combined[:receivers]]) - own[0]).T)[0]
    near, results = (own - own[0]) @ basis, (combined[:receivers] - own[0]) @ basis
    between = np.square(near[:receivers, None] - near).sum(axis=-1)
    scale = max(
        float(np.sqrt(between.max())), float(np.linalg.norm(results - near[:receivers], axis=1).max())
    )
    peers = np.zeros((receivers, colluders), bool) if one_site else ~np.eye(receivers, colluders, dtype=bool)
    colluding_peers = int(peers[0].sum())

    def errors(coordinates: Rows) -> Rows:
        """Return by how much the combinations with guessed rows differ from the results, relative to ``scale``."""
        rows = scale * coordinates.reshape(others, -1)
        # The guess fixes every distance, the distances fix the weights, and those the combinations.
        distances = np.square(near[:receivers, None] - rows).sum(axis=-1)
        squares = np.hstack([between[peers].reshape(receivers, colluding_peers), distances])
        weights = distance_weights(agreement, squares)
        of_colluders = np.zeros_like(between)
        of_colluders[peers] = weights[:, :colluding_peers].ravel()
        left = of_colluders @ near + weights[:, colluding_peers:] @ rows - results
        return np.asarray(left.ravel() / scale)

    # The results lie among the unknown rows, which they average, so that starts spread about their mean.
    roots: list[Rows] = []
    middle, spread = results.mean(axis=0) / scale, _SPREAD / np.sqrt(basis.shape[1])
    for draw in np.random.default_rng(0).normal(size=(_STARTS, others, basis.shape[1])):
        start = (middle + spread * draw).ravel()
        end = least_squares(
            errors, start, method="lm", xtol=_STEP, ftol=_STEP, gtol=_STEP, max_nfev=_STEPS * (start.size + 1)
        )
        # As many equations as unknowns are met to rounding; with more, the 32-bit rounding of results remains.
        of_many = _ONE_SITE if one_site else _LEAST_SQUARES
        if np.abs(end.fun).max() <= (_ROOT if receivers == others else of_many):
            rows = scale * end.x.reshape(others, -1) @ basis.T + own[0]
            if all(movement(rows, other) > _SAME * scale for other in roots):
                roots.append(rows)
        if roots and receivers > others:
            break  # more equations than unknowns have one solution
    return roots


def select_plausible(agreement: Agreement, own: Rows, candidates: Sequence[Rows]) -> list[Rows]:
    """Return the solutions that can be prototypes: within the norm bound, and not negative where no own row is."""
    longest = (1.0 + _TOO_LONG) * agreement.norm_bound
    within = [rows for rows in candidates if np.linalg.norm(rows, axis=1).max() <= longest]
    if own.min() < 0.0:
        return within
    below_zero = _BELOW_ZERO_UNDER_CKKS if agreement.protection.ckks_key else _BELOW_ZERO
    return [rows for rows in within if rows.min() >= -below_zero * np.abs(rows).max()]


def movement(rows: Rows, others: Rows) -> float:
    """Return the distance of two solutions, whose rows have no order; infinite for other numbers of rows."""
    if rows.shape != others.shape:
        return float("inf")
    return min(float(np.linalg.norm(rows[list(order)] - others)) for order in permutations(range(len(rows))))


def distance_weights(agreement: Agreement, distances: Rows) -> Rows:
    """Return PFPL's weights (c, m) for c receivers at squared ``distances`` (c, m) from their m peers."""
    total, count = distances.sum(axis=1, keepdims=True), distances.shape[1]
    match agreement.pfpl.weighting:
        case Weighting.DISTANCE:
            return np.asarray(distances / total)
        case Weighting.COMPLEMENT if count > 1:
            return np.asarray((total - distances) / ((count - 1) * total))
        case Weighting.INVERSE:
            near = 1.0 / np.sqrt(distances)
            return np.asarray(near / near.sum(axis=1, keepdims=True))
        case _:
            return np.full_like(distances, 1.0 / count)
