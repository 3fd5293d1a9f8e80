"""Checks of an assignment to clusters, which a site makes before it adds to the clusters' sums.

The limits: the coordinator decides which rows go together, so it may put a site's row with those of sites that help
it (``min_holders`` has to exceed their number by 2); and rows that it invents for a site that is silent from then on
only make clusters that cannot open.
"""

from __future__ import annotations

import numpy as np

from agreement import Agreement
from algorithms.clustering.kmeans import Labels
from algorithms.fedplcc import most_hiding
from crypto.errors import MalformedError
from crypto.protection import Cohort
from protoseal_wire.assignment import AssignedClusters, clusters_of
from protoseal_wire.messages import AssignedRows, Assignment
from secure_client.errors import Violation


def checked_assignment(
    agreement: Agreement, site: str, cohort: Cohort, sent: Labels, assignment: Assignment
) -> AssignedClusters:
    """Return the clusters, for a ``site`` whose rows are of the classes ``sent`` (M,).

    Raises :class:`Violation` for an assignment that is not acceptable.
    """
    check_own_rows(site, sent, assignment)
    for each in assignment.sites:
        check_classes(each, cohort, agreement)
    try:
        found = clusters_of(assignment)
    except MalformedError as error:
        raise Violation(f"the assignment is refused: {error}") from error
    check_few(found, agreement)
    check_holders(found.holders, agreement, "the assignment")
    return found


def check_own_rows(site: str, sent: Labels, assignment: Assignment) -> None:
    """Check that each own row is there once, in its class: no more, no fewer, no others."""
    own = next((each for each in assignment.sites if each.site == site), None)
    if own is None or not np.array_equal(own.classes, sent):
        raise Violation("the assignment does not have this site's own rows as it sent them")


def check_classes(assigned: AssignedRows, cohort: Cohort, agreement: Agreement) -> None:
    """Check that each site has rows of just its stated classes that are not withheld, and not too many."""
    if assigned.site not in cohort.sites:
        raise Violation(f"the assignment names {assigned.site}, which takes no part in the sum")
    each = np.bincount(assigned.classes, minlength=cohort.classes)
    if ((each > 0) != cohort.holds[cohort.index(assigned.site)]).any():
        raise Violation(f"the assignment has rows of {assigned.site} of other classes than it holds")
    if each.max(initial=0) > agreement.clustering.most_local:
        raise Violation(f"the assignment has more rows of {assigned.site} than are agreed")


def check_few(found: AssignedClusters, agreement: Agreement) -> None:
    """Check that each class has at most the agreed clusters, and that visible sums hide norms (:func:`most_hiding`)."""
    clusters = np.bincount(found.labels)
    if clusters.max(initial=0) > agreement.clustering.most_clusters:
        raise Violation("the assignment has more clusters of a class than are agreed")
    shown = agreement.plan.masked
    rows = np.bincount(found.labels, weights=found.rows.sum(axis=0))
    for k in np.flatnonzero(clusters):
        if shown and clusters[k] > most_hiding(int(rows[k])):
            raise Violation(
                f"the assignment has {clusters[k]} clusters for {rows[k]:.0f} rows of class"
                f" {agreement.classes[k]!r}: their sums would give norms away"
            )


def check_holders(holders: tuple[tuple[str, ...], ...], agreement: Agreement, what: str) -> None:
    """Check the holders of each cluster: a sum over too few sites gives their rows away."""
    fewest = min(map(len, holders), default=agreement.min_holders)
    if fewest < agreement.min_holders:
        raise Violation(
            f"{what}: a cluster has rows of {fewest} sites, at least {agreement.min_holders} are agreed"
        )
