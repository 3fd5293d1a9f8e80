"""Readings of the results that sites received, and of the sums that the coordinator and a group's leader open.

Colluding sites subtract their own part from the mean of a sum or of a cluster. Under FedPC the coordinator opens each
group's mean (``plain``, ``masked``), and a group's leader its own group's (``ckks``). Other sites receive a mixture of
the groups' means (:mod:`protoseal.attacks.group_means`). Under FedPLCC every site is sent the assignment of
all sites' rows to clusters, except under ``plain``. Under PFPL several sites solve their results for the others
(:mod:`protoseal.attacks.solved_combinations`).

Limits: colluding sites subtract nothing

- under FedPC with several groups, from a mixture that they cannot solve: without a site of each group they know neither
  the weights ρ nor the other groups' means, unless one of them leads the victim's group;
- under FedPLCC and ``plain``, since no site is told which rows are in a cluster, nor how many of them are the victim's;
- under FedPLCC with sample-weighted centres, since the sample counts that a site sends are not recorded.

There is no reading of prototypes under shared noise, which sites add to a sum in parts. A coordinator of FedPLCC does
not solve cosines and inner products of clusters' sums for norms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from agreement import Family
from algorithms.pfpl import Weighting
from protoseal.attacks.group_means import means_known_to
from protoseal.attacks.opened_sums import assignment_of, clusters_in, group_of, groups_of, holds_in, means_in
from protoseal.attacks.recorded_run import Labels, RecordedRun, Rows
from protoseal.attacks.solved_combinations import ClassSolutions, class_solutions
from protoseal_wire.cluster_assignment import clusters_of
from protoseal_wire.messages import AssignedRows

_LESS = ", less the colluding sites' own prototypes"


@dataclass(frozen=True)
class Learned:
    """Vectors for the victim's prototypes: ``rows`` (M, d) in feature units, of classes ``labels`` (M,).

    ``reading`` says in words what the vectors are. ``initial`` is true if they are features of the initial model, not
    of the model of the last round. ``details`` are figures on the reading by name.
    """

    reading: str
    rows: Rows = field(repr=False)
    labels: Labels = field(repr=False)
    initial: bool = False
    details: Mapping[str, float] = field(default_factory=dict)

    def of_class(self, number: int) -> Rows:
        """Return the rows of one class, (m, d)."""
        return np.asarray(self.rows[self.labels == number])


def result_readings(run: RecordedRun, victim: str, sites: Sequence[str]) -> Iterator[Learned]:
    """Yield what colluding ``sites`` learn from their results and their own prototypes."""
    match run.agreement.method.traits.family:
        case Family.PEERS:
            yield from _combination_readings(run, victim, sites)
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
    colluders = sorted(set(sites) & set(group)) if means else []
    mean = means[0] if means else means_in(run, sites[0], run.result(sites[0])[1])
    sent = np.intersect1d(np.flatnonzero(holds_in(run, group)[group.index(victim)]), run.sites[victim].labels)
    shared = sent[mean.has[sent]]
    left = [_mean_without(run, group, colluders, int(k), mean.rows[k]) for k in shared]
    words = (_name_of_mean(run) if means else "a mixture of all groups' means") + (_LESS if colluders else "")
    details = {"solutions of the groups' mixtures": float(len(means))} if len(groups_of(run)) > 1 else {}
    yield Learned(words, np.array(left).reshape(-1, agreement.dim), shared, details=details)


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


def _combination_readings(run: RecordedRun, victim: str, sites: Sequence[str]) -> Iterator[Learned]:
    """Yield the combination of peers that a site received, or the prototypes that several sites solve theirs for.

    The equations do not say whose a solved row is, so that a class has the rows of all sites that were solved for. A
    class without a solution has the combination of peers. A second round is read where it chooses among solutions.
    """
    shared = [
        int(k)
        for k in np.unique(run.sites[victim].labels)
        if any(run.sites[name].received.has_personal[k] for name in sites)
    ]
    solved = {k: class_solutions(run, tuple(sites), k) for k in shared}
    if len(sites) == 1:
        yield _of_classes(run, "the combination of its peers that it received", solved)
    elif run.agreement.pfpl.weighting is Weighting.UNIFORM:
        yield _of_classes(run, "the mean over sites" + _LESS, solved)
    else:
        yield _with_numbers(_of_classes(run, "prototypes solved from the sites' results", solved), solved)
    if all(run.earlier.values()) and any(len(each.plausible) > 1 for each in solved.values()):
        before = {k: class_solutions(run, tuple(sites), k, earlier=True) for k in shared}
        chosen = {k: each.near(before[k]) for k, each in solved.items()}
        words = "prototypes solved from two rounds of the sites' results"
        yield _with_numbers(_of_classes(run, words, chosen), chosen)


def _of_classes(run: RecordedRun, reading: str, solved: Mapping[int, ClassSolutions]) -> Learned:
    rows = [each.rows for each in solved.values()]
    labels = np.repeat(np.array([*solved], dtype=np.int64), [len(each) for each in rows])
    return Learned(reading, np.concatenate([np.empty((0, run.agreement.dim)), *rows]), labels)


def _with_numbers(learned: Learned, solved: Mapping[int, ClassSolutions]) -> Learned:
    """Return the reading with the mean numbers of solutions of a class's equations."""
    numbers = {
        "solutions of a class": [len(each.every) for each in solved.values()],
        "plausible solutions of a class": [len(each.plausible) for each in solved.values()],
    }
    details = {name: float(np.mean(each)) for name, each in numbers.items() if each}
    return replace(learned, details=details)
