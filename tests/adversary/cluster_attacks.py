"""Attacks on clusters of prototypes: whose rows a cluster is said to have, who is told what, who is left of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from algorithms.kmeans import Labels
from protoseal_wire.messages import AssignedRows, Assignment, Phase
from tests.adversary.attack import BROADCAST, AnyAttack, Plays
from tests.support.grouped import EVERYONE
from tests.support.scripted_clusters import ClusterAttempt, ScriptedClusters, clustered_agreement
from tests.support.scripted_sums import Vector

A, B, C, D = EVERYONE
WITHOUT_C = (A, B, D)


@dataclass(frozen=True)
class ClusterAttack(AnyAttack[ScriptedClusters]):
    """Attack on a run of FedPLCC whose agreement has ``changes``."""

    changes: dict[str, Any] = field(default_factory=dict)

    def open(self, plays: Plays) -> ScriptedClusters:
        """See :class:`AnyAttack`."""
        return plays.clusters(clustered_agreement(**self.changes))


def begun(play: ScriptedClusters) -> ClusterAttempt:
    play.set_up(*EVERYONE)
    return play.begun(*EVERYONE)


def assert_is(found: Vector, secret: Vector) -> None:
    """The gain: one site's prototype, or a sum of fewer than are agreed."""
    assert np.linalg.norm(secret) > 0.1
    np.testing.assert_allclose(found, secret, rtol=0.0, atol=1e-9)


def isolated_row(play: ScriptedClusters) -> None:
    """One site's prototype is a cluster by itself: the cluster's sum is that prototype."""
    attempt = begun(play)
    attempt.tell(attempt.by_first({A: True}), *EVERYONE)
    assert_is(attempt.summed(EVERYONE)[0], play.local(A).rows[0])


def isolated_by_different_assignments(play: ScriptedClusters) -> None:
    """The coordinator tells each site of three others in the first cluster, and all but clinic-a that its own row is
    elsewhere.
    """
    attempt = begun(play)
    everyone = dict.fromkeys(EVERYONE, True)
    attempt.tell(attempt.by_first(everyone), A)
    for name in (B, C, D):
        attempt.tell(attempt.by_first({**everyone, name: False}), name)
    assert_is(attempt.summed(EVERYONE)[0], play.local(A).rows[0])


def row_in_a_cluster_of_another_class(play: ScriptedClusters) -> None:
    """The coordinator puts a prototype with those of another class, whose sum without it an earlier round has nearly
    told.
    """
    attempt = begun(play)

    def moved(clusters: Labels) -> Labels:
        return np.where(np.arange(len(clusters)) == 0, 1, clusters)

    attempt.tell(replace_clusters(attempt.by_first({}), A, moved), *EVERYONE)
    of_class_1 = sum(rows_of(play, name, 1).sum(axis=0) for name in EVERYONE)
    assert_is(attempt.summed(EVERYONE)[1] - of_class_1, play.local(A).rows[0])


def rows_called_by_another_class(play: ScriptedClusters) -> None:
    """The coordinator assigns two sites' first prototypes of class 2 to class 0, as company for clinic-a's row."""
    attempt = begun(play)
    called = attempt.by_first({A: True})
    for name in (B, D):
        called = Assignment(
            tuple(_first_of_2_called_0(each) if each.site == name else each for each in called.sites)
        )
    attempt.tell(called, *EVERYONE)
    strange = rows_of(play, B, 2)[0] + rows_of(play, D, 2)[0]
    assert_is(attempt.summed(EVERYONE)[0] - strange, play.local(A).rows[0])


def rows_of(play: ScriptedClusters, name: str, number: int) -> Vector:
    """Return a site's local prototypes of one class."""
    local = play.local(name)
    return np.asarray(local.rows[local.labels == number])


def too_few_survive(play: ScriptedClusters) -> None:
    """The coordinator opens a cluster of three sites without one of them; class 0 as a whole has enough left."""
    attempt = begun(play)
    attempt.tell(attempt.by_first({A: True, B: True, C: True}), *EVERYONE)
    secret = play.local(A).rows[0] + play.local(B).rows[0]
    assert_is(attempt.summed(WITHOUT_C)[0], secret)


def stranger_for_company(play: ScriptedClusters) -> None:
    """A site that is in no sum of the run counts for the minimum of a cluster of two."""
    attempt = begun(play)
    two = attempt.by_first({A: True, B: True})
    own = next(each for each in two.sites if each.site == A)
    stranger = replace(own, site="clinic-z")
    attempt.tell(Assignment((*two.sites, stranger)), *EVERYONE)
    assert_is(attempt.summed(EVERYONE)[0], play.local(A).rows[0] + play.local(B).rows[0])


def replace_clusters(assignment: Assignment, site: str, change: Callable[[Labels], Labels]) -> Assignment:
    """Return the assignment with other clusters for one site's rows."""
    return Assignment(
        tuple(
            replace(each, clusters=change(each.clusters)) if each.site == site else each
            for each in assignment.sites
        )
    )


def _first_of_2_called_0(rows: AssignedRows) -> AssignedRows:
    first = int(np.flatnonzero(rows.classes == 2)[0])
    classes, clusters = rows.classes.copy(), rows.clusters.copy()
    classes[first], clusters[first] = 0, 0
    return replace(rows, classes=classes, clusters=clusters)


_ASSIGNED = "secure_client.protocol.assignment_checks."
_HOLDERS = (
    "secure_client.protocol.secure_aggregation.SecureAggregation.survivors: "
    "check_holders(staying, self._agreement, 'the survivors')"
)
CLUSTER_ATTACKS: dict[str, ClusterAttack] = {
    "puts a site's prototype in a cluster of its own": ClusterAttack(
        (_ASSIGNED + "check_holders", _HOLDERS), A, Phase.SHARES, isolated_row
    ),
    "tells sites of different assignments": ClusterAttack(
        (BROADCAST,), A, Phase.VALUES, isolated_by_different_assignments
    ),
    "mixes classes in a cluster": ClusterAttack(
        ("protoseal_wire.cluster_assignment.check_one_class",),
        A,
        Phase.SHARES,
        row_in_a_cluster_of_another_class,
    ),
    "calls rows by another class": ClusterAttack(
        (_ASSIGNED + "check_own_rows",), B, Phase.SHARES, rows_called_by_another_class
    ),
    "opens a cluster of which too few are left": ClusterAttack(
        (_HOLDERS,), A, Phase.SURVIVORS, too_few_survive
    ),
    "counts a site that takes no part": ClusterAttack(
        (_ASSIGNED + "check_classes", _HOLDERS), A, Phase.SHARES, stranger_for_company
    ),
}
"""Attacks by what the coordinator does."""
