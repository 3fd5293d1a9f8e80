"""Assignments to clusters and results of them, as a hostile coordinator sends them: one sum, of the rows as sent.

An assignment cannot put a row in two clusters: it has one number for each row. Attacks with doubles are played by
``test_hostile_coordinator.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from protoseal_wire.messages import Assignment
from secure_client.errors import ConflictingRequest, Violation
from secure_client.exchanges import cluster_directions
from tests.adversary.attack import Plays, assert_nothing_answered, assert_raised_in
from tests.adversary.cluster_attacks import begun, replace_clusters
from tests.support.grouped import EVERYONE
from tests.support.scripted_clusters import ScriptedClusters, clustered_agreement

A, B, C, D = EVERYONE
_OWN_ROWS = "secure_client.protocol.assignment_checks.check_own_rows"
_CLUSTERS = "protoseal_wire.cluster_assignment.read_clusters"


def test_cluster_attempt_honest_opens_the_sums(plays: Plays) -> None:
    play = plays.clusters(clustered_agreement())
    attempt = begun(play)
    attempt.tell(attempt.honest, *EVERYONE)
    expected = np.sum([attempt.put(name) for name in EVERYONE], axis=0)
    assert min(map(len, attempt.clusters.holders)) >= 3
    np.testing.assert_allclose(attempt.summed(EVERYONE), expected, rtol=0.0, atol=1e-9)


def _counted_twice(assignment: Assignment) -> Assignment:
    own = next(each for each in assignment.sites if each.site == A)
    twice = type(own)(A, np.insert(own.classes, 0, 0), np.insert(own.clusters, 0, own.clusters[0]))
    return Assignment(tuple(twice if each.site == A else each for each in assignment.sites))


def _left_out(assignment: Assignment) -> Assignment:
    own = next(each for each in assignment.sites if each.site == A)
    fewer = type(own)(A, own.classes[1:], own.clusters[1:])
    return Assignment(tuple(fewer if each.site == A else each for each in assignment.sites))


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (_counted_twice, _OWN_ROWS),
        (_left_out, _OWN_ROWS),
        (lambda told: Assignment(told.sites[1:]), _OWN_ROWS),
        (lambda told: replace_clusters(told, A, lambda clusters: clusters + 1), _CLUSTERS),
        (lambda told: replace_clusters(told, A, lambda clusters: clusters * 0), _CLUSTERS),
    ],
    ids=["a row twice", "a row less", "without the site", "a gap", "all in one"],
)
def test_cluster_assignment_of_other_rows_is_refused(
    plays: Plays, change: Callable[[Assignment], Assignment], check: str
) -> None:
    attempt = begun(plays.clusters(clustered_agreement()))
    with pytest.raises(Violation) as refused:
        attempt.tell(change(attempt.by_first({})), A)
    assert_raised_in(refused.value, check)
    assert_nothing_answered(attempt.play)


def test_cluster_assignment_second_in_one_attempt_is_refused(plays: Plays) -> None:
    attempt = begun(plays.clusters(clustered_agreement()))
    attempt.tell(attempt.by_first({}), A)
    with pytest.raises(ConflictingRequest):
        attempt.tell(attempt.by_first(dict.fromkeys(EVERYONE, True)), A)


def _grams(play: ScriptedClusters, attempt: int) -> list[np.ndarray]:
    """Return each site's rotated rows of an attempt; attempts come one after the other."""
    turned = play.begun(*EVERYONE, attempt=attempt)
    return [turned.directions[name].arrays[0] for name in EVERYONE]


def test_each_attempt_turns_by_a_rotation_of_its_own_and_shows_the_same_cosines(
    plays: Plays, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = plays.clusters(clustered_agreement())
    play.set_up(*EVERYONE)
    first, second = (np.concatenate(_grams(play, attempt)) for attempt in (1, 2))
    classes = np.concatenate([play.local(name).labels for name in EVERYONE])
    same = classes[:, None] == classes[None, :]
    np.testing.assert_allclose((first @ first.T)[same], (second @ second.T)[same], atol=1e-12)
    assert np.abs(first - second).max() > 0.1
    units = np.concatenate([play.local(name).rows for name in EVERYONE])
    units = units / np.linalg.norm(units, axis=1, keepdims=True)
    np.testing.assert_allclose((first @ first.T)[same], (units @ units.T)[same], atol=1e-12)
    assert np.abs((first @ first.T)[~same] - (units @ units.T)[~same]).max() > 0.1
    # The power of the check: a context without the attempt.
    monkeypatch.setattr(cluster_directions, "rotation_context", lambda *_: b"the same in every attempt")
    third, fourth = (np.concatenate(_grams(play, attempt)) for attempt in (3, 4))
    np.testing.assert_array_equal(third, fourth)
