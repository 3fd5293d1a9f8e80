"""Readings of the results that sites received, and of the sums that the coordinator and a group's leader open.

Colluding sites subtract their own part from the mean of a sum or of a cluster. Under FedPC the coordinator opens each
group's mean (``plain``, ``masked``), and a group's leader its own group's (``ckks``). Other sites receive a mixture of
the groups' means (:mod:`protoseal.evaluation.attacks.group_means`). Under FedPLCC every site is sent the assignment of
all sites' rows to clusters, except under ``plain``.

Limits: colluding sites subtract nothing

- under FedPC with several groups, from a mixture that they cannot solve: one site that does not lead the victim's
  group knows neither the weights ρ nor the other groups' means;
- under FedPLCC and ``plain``, since no site is told which rows are in a cluster, nor how many of them are the victim's;
- under FedPLCC with sample-weighted centres, since the sample counts that a site sends are not recorded.

There is no reading of prototypes under shared noise, which sites add to a sum in parts. A coordinator of FedPLCC does
not solve cosines and inner products of clusters' sums for norms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from agreement import Agreement, Family
from algorithms.pfpl import Weighting
from protoseal.evaluation.attacks.group_means import means_known_to
from protoseal.evaluation.attacks.opened_sums import (
    assignment_of,
    clusters_in,
    group_of,
    groups_of,
    holds_in,
    means_in,
)
from protoseal.evaluation.attacks.recorded_run import Labels, RecordedRun, Rows
from protoseal_wire.cluster_assignment import clusters_of
from protoseal_wire.messages import AssignedRows

_HALVINGS = 60
_LESS = ", less the colluding sites' own prototypes"


@dataclass(frozen=True)
class Learned:
    """Vectors for the victim's prototypes: ``rows`` (M, d) in feature units, of classes ``labels`` (M,).

    ``reading`` says in words what the vectors are. ``initial`` is true if they are features of the initial model, not
    of the model of the last round.
    """

    reading: str
    rows: Rows = field(repr=False)
    labels: Labels = field(repr=False)
    initial: bool = False

    def of_class(self, number: int) -> Rows:
        """Return the rows of one class, (m, d)."""
        return np.asarray(self.rows[self.labels == number])


def result_readings(run: RecordedRun, victim: str, sites: Sequence[str]) -> Iterator[Learned]:
    """Yield what colluding ``sites`` learn from their results and their own prototypes."""
    match run.agreement.method.traits.family:
        case Family.PEERS:
            yield _others_combination(run, victim, sites)
        case Family.CLUSTERS:
            yield from cluster_readings(run, victim, sites)
        case _:
            yield from mean_readings(run, victim, sites)


# Sums over sites, or over groups of sites


def mean_readings(
    run: RecordedRun, victim: str, sites: Sequence[str], *, coordinator: bool = False
) -> Iterator[Learned]:
    """Yield the mean over the holders of each class in the victim's sum, less the prototypes of colluding ``sites``."""
    agreement = run.agreement
    if not agreement.layout.classes or agreement.distributed_noise:
        return
    group, means = group_of(run, victim), means_known_to(run, victim, sites, coordinator=coordinator)
    known = [] if means is None else sorted(set(sites) & set(group))
    found = means or means_in(run, sites[0], run.result(sites[0])[1])
    sent = np.intersect1d(np.flatnonzero(holds_in(run, group)[group.index(victim)]), run.sites[victim].labels)
    shared = sent[found.has[sent]]
    left = [_mean_without(run, group, known, int(k), found.rows[k]) for k in shared]
    words = "a mixture of all groups' means" if means is None else _name_of_mean(run)
    yield Learned(words + (_LESS if known else ""), np.array(left).reshape(-1, agreement.dim), shared)


def _name_of_mean(run: RecordedRun) -> str:
    return "the mean over sites" if len(groups_of(run)) == 1 else "the mean over its group's sites"


def _mean_without(
    run: RecordedRun, group: Sequence[str], known: Sequence[str], number: int, mean: Rows
) -> Rows:
    """Return the mean (d,) of one class over the group's holders, less the ``known`` ones."""
    holders = [name for name in group if number in run.sites[name].labels]
    mine = [run.sites[name].received.local[number] for name in known if name in holders]
    return np.asarray((len(holders) * mean - np.sum(mine, axis=0)) / (len(holders) - len(mine)))


# Sums over clusters


def cluster_readings(run: RecordedRun, victim: str, sites: Sequence[str]) -> Iterator[Learned]:
    """Yield the means of the clusters with a row of the victim, less the rows of colluding ``sites``.

    Without sites, the clusters are the coordinator's. Without an assignment, all clusters are read as they are.
    """
    site = sites[0] if sites else victim
    clusters, _ = clusters_in(run, site, run.result(site)[1])
    assignment = assignment_of(run)
    if assignment is None:
        yield Learned("the clusters of all sites", clusters.rows, clusters.labels)
        return
    assigned = clusters_of(assignment)
    counts, has = assigned.rows.sum(axis=0), assigned.rows[assigned.sites.index(victim)] > 0
    sums = counts[:, None] * clusters.rows
    known = [] if run.agreement.clustering.weighted_centres else sites
    for each in assignment.sites:
        if each.site in known:
            np.subtract.at(sums, each.clusters, sent_rows(run, each))
            counts = counts - np.bincount(each.clusters, minlength=len(counts))
    words = "the clusters with its prototypes" + (_LESS if known else "")
    yield Learned(words, sums[has] / counts[has, None], clusters.labels[has])


def sent_rows(run: RecordedRun, assigned: AssignedRows) -> Rows:
    """Return the site's local prototypes (M, d) as assigned: those of classes that are not withheld."""
    site = run.sites[assigned.site]
    return np.asarray(site.rows[np.isin(site.labels, assigned.classes)])


# Combinations of peers


def _others_combination(run: RecordedRun, victim: str, sites: Sequence[str]) -> Learned:
    """Return the combination of peers that a site received; several sites solve theirs for the victim's prototypes."""
    received = {name: set(np.flatnonzero(run.sites[name].received.has_personal).tolist()) for name in sites}
    shared = np.array(
        [k for k in np.unique(run.sites[victim].labels) if any(k in each for each in received.values())]
    )
    if len(sites) == 1:
        combined = np.array([_combined(run, sites[0], int(k)) for k in shared])
        return Learned(
            "the combination of its peers that it received", combined.reshape(-1, run.agreement.dim), shared
        )
    holders = {int(k): [name for name in sites if k in received[name]] for k in shared}
    solved = np.array([_solved(run, names, k) for k, names in holders.items()]).reshape(-1, run.agreement.dim)
    return Learned("the victim's prototypes, solved from the sites' results", solved, shared)


def _combined(run: RecordedRun, site: str, number: int) -> Rows:
    """Return Σ_m w_im C_m (d,) of one class, which follows from a site's target and its own prototype."""
    own, alpha = run.sites[site].received, run.agreement.own_share
    return np.asarray((own.personal[number] - alpha * own.local[number]) / max(1.0 - alpha, 1e-9))


def _solved(run: RecordedRun, holders: list[str], number: int) -> Rows:
    """Solve the combinations of all ``holders`` but one for that one's prototype (d,) of class ``number``.

    With t = d_iv the only unknown, one site's combination gives C_v(t), and ‖C_i − C_v(t)‖² = t determines t up to a
    few roots; the other sites' combinations choose the root.
    """
    rows = {name: run.sites[name].received.local[number] for name in holders}
    weigh, first = _weights_of(run.agreement), holders[0]
    combined = {name: _combined(run, name, number) for name in holders}

    def of(site: str, victim_row: Rows) -> Rows:
        peers = np.array([*(rows[name] for name in holders if name != site), victim_row])
        return np.asarray(weigh(np.square(peers - rows[site]).sum(axis=1)) @ peers)

    def candidate(t: float) -> Rows:
        known = np.array([rows[name] for name in holders[1:]]).reshape(-1, run.agreement.dim)
        w = weigh(np.append(np.square(known - rows[first]).sum(axis=1), t))
        return np.asarray((combined[first] - w[:-1] @ known) / max(w[-1], 1e-12))

    def off(t: float) -> float:
        return float(np.square(rows[first] - candidate(t)).sum() - t)

    grid = np.geomspace(1e-6, 1.0, 400) * (2.0 * run.agreement.norm_bound) ** 2
    values = np.array([off(t) for t in grid])
    roots = [_root(off, float(grid[i]), float(grid[i + 1])) for i in np.flatnonzero(np.diff(np.sign(values)))]
    found = [candidate(t) for t in roots] or [candidate(float(grid[np.abs(values).argmin()]))]
    return min(
        found, key=lambda row: sum(float(np.square(of(name, row) - combined[name]).sum()) for name in holders)
    )


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return a root between two points where the function has different signs, by bisection."""
    rises = function(low) < 0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if (function(middle) < 0) == rises else (low, middle)
    return (low + high) / 2


def _weights_of(agreement: Agreement) -> Callable[[Rows], Rows]:
    """Return PFPL's weights (m,) as a function of squared distances (m,), for a receiver with m peers."""

    def weights(distances: Rows) -> Rows:
        total, count = distances.sum(), len(distances)
        match agreement.pfpl.weighting:
            case Weighting.DISTANCE:
                return np.asarray(distances / total)
            case Weighting.COMPLEMENT:
                return np.asarray((total - distances) / ((count - 1) * total)) if count > 1 else np.ones(1)
            case Weighting.INVERSE:
                near = 1.0 / np.sqrt(distances)
                return np.asarray(near / near.sum())
            case _:
                return np.full(count, 1.0 / count)

    return weights
