"""Checks of an assignment to clusters, which a site makes before it adds to the clusters' sums.

Limits: the coordinator decides which rows form a cluster, so it may put a site's row with the rows of its helpers
(``min_holders`` must exceed their number by 2). Rows that the coordinator invents for a site that then stays silent
only produce clusters that cannot open.
"""

from __future__ import annotations

import numpy as np

from agreement import Agreement
from algorithms.fedplcc import most_norm_hiding
from algorithms.kmeans import Labels
from crypto.errors import MalformedError
from crypto.protection import Cohort
from protoseal_wire.cluster_assignment import AssignedClusters, read_clusters
from protoseal_wire.messages import AssignedRows, Assignment
from secure_client.errors import Violation


def check_assignment(
    agreement: Agreement, site: str, cohort: Cohort, sent: Labels, assignment: Assignment
) -> AssignedClusters:
    """Check an assignment and return its clusters; the rows of ``site`` are of the classes ``sent`` (M,).

    Raises :class:`Violation` for an unacceptable assignment.
    """
    check_own_rows(site, sent, assignment)
    for assigned in assignment.sites:
        check_classes(assigned, cohort, agreement)
    try:
        clusters = read_clusters(assignment)
    except MalformedError as error:
        raise Violation(f"the assignment is refused: {error}") from error
    check_few(clusters, agreement)
    check_holders(clusters.holders, agreement, "the assignment")
    return clusters


def check_own_rows(site: str, sent: Labels, assignment: Assignment) -> None:
    """Check that the assignment has each own row exactly once, in its class, and no other row of this site."""
    assigned = next((rows for rows in assignment.sites if rows.site == site), None)
    if assigned is None or not np.array_equal(assigned.classes, sent):
        raise Violation("the assignment has other rows of this site than the site sent")


def check_classes(assigned: AssignedRows, cohort: Cohort, agreement: Agreement) -> None:
    """Check that each site has rows of exactly its stated, not withheld classes, and not too many."""
    if assigned.site not in cohort.sites:
        raise Violation(f"the assignment names {assigned.site}, which is not in the sum")
    per_class = np.bincount(assigned.classes, minlength=cohort.classes)
    if ((per_class > 0) != cohort.held_by(assigned.site)).any():
        raise Violation(f"the assignment has rows of {assigned.site} in classes that the site does not hold")
    if per_class.max(initial=0) > agreement.clustering.most_local:
        raise Violation(f"the assignment has more rows of {assigned.site} than agreed")


def check_few(assigned: AssignedClusters, agreement: Agreement) -> None:
    """Check that each class has at most the agreed clusters, and that sums hide norms (:func:`most_norm_hiding`)."""
    clusters = np.bincount(assigned.labels)
    if clusters.max(initial=0) > agreement.clustering.most_clusters:
        raise Violation("the assignment has more clusters of a class than agreed")
    shown = agreement.plan.masked
    rows = np.bincount(assigned.labels, weights=assigned.rows.sum(axis=0))
    for k in np.flatnonzero(clusters):
        if shown and clusters[k] > most_norm_hiding(int(rows[k])):
            raise Violation(
                f"the assignment has {clusters[k]} clusters for {rows[k]:.0f} rows of class "
                f"{agreement.classes[k]!r}: their sums would reveal norms"
            )


def check_holders(holders: tuple[tuple[str, ...], ...], agreement: Agreement, what: str) -> None:
    """Check the number of holders of each cluster: a sum over too few sites reveals their rows."""
    fewest = min(map(len, holders), default=agreement.min_holders)
    if fewest < agreement.min_holders:
        raise Violation(
            f"{what}: a cluster has rows of {fewest} sites, fewer than min_holders = {agreement.min_holders}"
        )
