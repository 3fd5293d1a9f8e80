"""A coordinator that attacks clusters: each attack succeeds against a double, and fails against the code as it is.

As in ``test_masked_coordinator.py``. A row that is in two clusters no assignment can say: it has one number a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from agreement import Agreement
from crypto.errors import CryptoError
from protoseal_wire.messages import Assignment
from secure_client.errors import Violation
from secure_client.exchanges import cluster_directions
from tests.adversary.attack import assert_nothing_answered, assert_refused, by_layer, weaken, weaken_all_but
from tests.adversary.cluster_attacks import CLUSTER_ATTACKS, begun, replace_clusters
from tests.support.grouped import EVERYONE
from tests.support.scripted_clusters import ScriptedClusters, clustered_agreement
from tests.support.scripted_coordinator import Cast

A, B, C, D = EVERYONE
Open = Callable[[Agreement], ScriptedClusters]


@pytest.fixture
def opened(tmp_path: Path, cast: Cast) -> Iterator[Open]:
    """Sites of a new run of FedPLCC under masks."""
    with ExitStack() as stack:
        yield lambda agreement: stack.enter_context(ScriptedClusters(tmp_path, agreement, cast))


@pytest.mark.parametrize("name", CLUSTER_ATTACKS)
def test_attack_succeeds_against_the_double(name: str, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = CLUSTER_ATTACKS[name]
    for layer in attack.layers:
        weaken(layer, monkeypatch)
    attack.play(opened(clustered_agreement(**attack.changes)))


@pytest.mark.parametrize("name", CLUSTER_ATTACKS)
def test_attack_is_refused(name: str, opened: Open) -> None:
    attack = CLUSTER_ATTACKS[name]
    assert_refused(attack, opened(clustered_agreement(**attack.changes)))


@pytest.mark.parametrize(("name", "layer"), by_layer(CLUSTER_ATTACKS))
def test_each_layer_holds_by_itself(
    name: str, layer: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = CLUSTER_ATTACKS[name]
    weaken_all_but(layer, attack, monkeypatch)
    play = opened(clustered_agreement(**attack.changes))
    with pytest.raises((Violation, CryptoError)):
        attack.play(play)
    assert_nothing_answered(play)


def test_cluster_attempt_honest_opens_the_sums(opened: Open) -> None:
    play = opened(clustered_agreement())
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
    ("change", "refusal"),
    [
        (_counted_twice, "other rows of this site"),
        (_left_out, "other rows of this site"),
        (lambda told: Assignment(told.sites[1:]), "other rows of this site"),
        (lambda told: replace_clusters(told, A, lambda clusters: clusters + 1), "has no rows|two classes"),
        (lambda told: replace_clusters(told, A, lambda clusters: clusters * 0), "two classes"),
    ],
    ids=["a row twice", "a row less", "without the site", "a gap", "all in one"],
)
def test_cluster_assignment_of_other_rows_is_refused(
    opened: Open, change: Callable[[Assignment], Assignment], refusal: str
) -> None:
    attempt = begun(opened(clustered_agreement()))
    with pytest.raises(Violation, match=refusal):
        attempt.tell(change(attempt.by_first({})), A)
    assert_nothing_answered(attempt.play)


def test_cluster_assignment_second_in_one_attempt_is_refused(opened: Open) -> None:
    attempt = begun(opened(clustered_agreement()))
    attempt.tell(attempt.by_first({}), A)
    with pytest.raises(Violation, match="again with different content"):
        attempt.tell(attempt.by_first(dict.fromkeys(EVERYONE, True)), A)


def _grams(play: ScriptedClusters, attempt: int) -> list[np.ndarray]:
    """Return each site's rotated rows of an attempt; attempts come one after the other."""
    turned = play.begun(*EVERYONE, attempt=attempt)
    return [turned.directions[name].arrays[0] for name in EVERYONE]


def test_each_attempt_turns_by_a_rotation_of_its_own_and_shows_the_same_cosines(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = opened(clustered_agreement())
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
