"""A site whose prototypes are clustered, after its masked values: no second sum, no secrets, no other clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crypto.pairwise.masks import SCHEME
from crypto.protection import Payload
from secure_client.errors import Violation
from tests.support.grouped import EVERYONE, TEN
from tests.support.scripted_clusters import ClusterAttempt, ScriptedClusters, clustered_agreement
from tests.support.scripted_coordinator import Cast

A = EVERYONE[0]
Change = Callable[[Payload], Payload]


@pytest.fixture
def play(tmp_path: Path, cast: Cast) -> Iterator[ScriptedClusters]:
    with ExitStack() as stack:
        data = {name: cast.data[EVERYONE[at % len(EVERYONE)]] for at, name in enumerate(TEN)}
        yield stack.enter_context(ScriptedClusters(tmp_path, clustered_agreement(), replace(cast, data=data)))


def among(play: ScriptedClusters, sites: tuple[str, ...], *, attempt: int) -> ClusterAttempt:
    """PRESENCE of some of the ten sites."""
    started = play.attempt(*sites, attempt=attempt, groups=(TEN,))
    return ClusterAttempt(play, started.active, TEN, 1, attempt)


def masked(play: ScriptedClusters, sites: tuple[str, ...]) -> ClusterAttempt:
    """Return an attempt whose masked values have been sent, and nothing released."""
    play.set_up(*sites)
    attempt = among(play, sites, attempt=1) if sites == TEN else play.begun(*sites)
    for name in sites if sites == TEN else ():
        attempt.ask_directions(name)
    attempt.tell(attempt.honest, *sites)
    attempt.mask(*sites)
    return attempt


def test_no_second_sum_without_most_sites_of_the_first(play: ScriptedClusters) -> None:
    masked(play, TEN)
    few = among(play, TEN[7:], attempt=2)
    with pytest.raises(Violation, match=r"3 of the 10 .* 7"):
        few.ask_directions(TEN[7])
    among(play, TEN[:7], attempt=3).ask_directions(A)


def secrets_kept(play: ScriptedClusters) -> int:
    rows = play.site(A).journal._db.execute("SELECT name FROM secrets WHERE name LIKE '% of round %'")
    return len(rows.fetchall())


def result(attempt: ClusterAttempt) -> Payload:
    """Return a result of the assigned clusters, with centres of length 1."""
    labels = attempt.clusters.labels
    rows = np.zeros((len(labels), attempt.play.agreement.dim))
    rows[:, 0] = 1.0
    weights = 1.0 / np.bincount(labels)[labels]
    model = attempt.play.site(A).learner.values.averaged_part()
    return Payload(SCHEME, (rows, labels.astype(np.float64), weights, model))


def test_session_secrets_are_erased_with_the_result(play: ScriptedClusters) -> None:
    """The secrets go too at a site that was not asked to release anything."""
    attempt = masked(play, EVERYONE)
    assert secrets_kept(play) == 2
    play.give_result(A, result(attempt))
    assert secrets_kept(play) == 0


def one_less(given: Payload) -> Payload:
    """Merge the clusters of the class that has most into one."""
    rows, labels, weights, model = given.arrays
    own = labels == np.bincount(labels.astype(np.int64)).argmax()
    first = int(np.flatnonzero(own)[0])
    kept = ~own | (np.arange(len(labels)) == first)
    joined = np.where(own, 1.0, weights)
    return replace(given, arrays=(rows[kept], labels[kept], joined[kept], model))


def a_class_less(given: Payload) -> Payload:
    rows, labels, weights, model = given.arrays
    kept = labels != labels[-1]
    return replace(given, arrays=(rows[kept], labels[kept], weights[kept], model))


@pytest.mark.parametrize("change", [one_less, a_class_less])
def test_a_result_of_other_clusters_than_were_assigned_is_refused(
    play: ScriptedClusters, change: Change
) -> None:
    attempt = masked(play, EVERYONE)
    given = result(attempt)
    assert len(change(given).arrays[1]) < len(given.arrays[1])
    with pytest.raises(Violation, match="assignment"):
        play.give_result(A, change(given))
    assert play.site(A).learner.received.base_hash == b""
    play.give_result(A, given)
