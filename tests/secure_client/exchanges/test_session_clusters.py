"""A site whose prototypes are clustered: order and restarts of its steps, what it refuses of a result, its bounds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, Protection
from agreement.derived.payload_shapes import values_shape
from agreement.schema.layout import counted_samples
from algorithms.fedplcc import LocalClusters
from crypto.pairwise.masks import SCHEME
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey, RoundStart
from secure_client.errors import Violation
from secure_client.privacy.bounds import PrototypeBounds
from tests.support.grouped import EVERYONE
from tests.support.scripted_clusters import ClusterAttempt, ScriptedClusters, clustered_agreement
from tests.support.scripted_coordinator import Cast

A, B, C, D = EVERYONE
Open = Callable[[Agreement], ScriptedClusters]


@pytest.fixture
def opened(tmp_path: Path, cast: Cast) -> Iterator[Open]:
    """Set up sites of a new run of FedPLCC."""
    with ExitStack() as stack:

        def made(agreement: Agreement) -> ScriptedClusters:
            play = stack.enter_context(ScriptedClusters(tmp_path, agreement, cast))
            play.set_up(*EVERYONE)
            return play

        yield made


@pytest.fixture
def play(opened: Open) -> ScriptedClusters:
    return opened(clustered_agreement())


def key(phase: Phase) -> PhaseKey:
    return PhaseKey("run-1", 1, 1, phase)


# Steps


def test_a_site_that_restarts_at_every_step_gives_the_same_bytes(play: ScriptedClusters) -> None:
    attempt = play.begun(*EVERYONE)
    assert_same_after_a_restart(play)
    attempt.tell(attempt.honest, *EVERYONE)
    assert_same_after_a_restart(play)
    attempt.mask(*EVERYONE)
    assert_same_after_a_restart(play)
    attempt.released |= attempt.release(EVERYONE, attempt.sign(EVERYONE, *EVERYONE), *EVERYONE)
    assert_same_after_a_restart(play)
    number = len(attempt.clusters.labels)
    sums = attempt.sum(EVERYONE, attempt.released)[: number * 8].reshape(number, 8)
    np.testing.assert_allclose(sums, sum(attempt.put(name) for name in EVERYONE), atol=1e-9)


def assert_same_after_a_restart(play: ScriptedClusters) -> None:
    last = play.last
    assert last is not None
    answer = play.site(last.site).journal.stored_answer(last.key)
    local = play.local(last.site)
    play.restart(last.site)
    assert play.site(last.site).session.answer(last.key, last.content) == answer
    for name, each in vars(play.local(last.site)).items():
        np.testing.assert_array_equal(each, getattr(local, name))


def skips_directions(attempt: ClusterAttempt) -> None:
    attempt.tell(attempt.by_first({}), A)


def skips_shares(attempt: ClusterAttempt) -> None:
    attempt.ask_directions(A)
    attempt.told[A] = attempt.honest
    attempt.mask(A)


def asks_directions_again(attempt: ClusterAttempt) -> None:
    attempt.ask_directions(A)
    attempt.active = replace(attempt.active, statements=attempt.active.statements[:3])
    attempt.ask_directions(A)


@pytest.mark.parametrize(
    ("ask", "refusal"),
    [
        (skips_directions, "DIRECTIONS"),
        (skips_shares, "SHARES"),
        (asks_directions_again, "content"),
    ],
)
def test_steps_out_of_order_are_refused(
    play: ScriptedClusters, ask: Callable[[ClusterAttempt], None], refusal: str
) -> None:
    started = play.attempt(*EVERYONE)
    attempt = ClusterAttempt(play, started.active, EVERYONE, 1, 1)
    for name in (B, C, D):
        attempt.ask_directions(name)
    with pytest.raises(Violation, match=refusal):
        ask(attempt)


def test_directions_are_no_step_of_plain(opened: Open) -> None:
    play = opened(clustered_agreement(protection=Protection.PLAIN))
    attempt = ClusterAttempt(play, play.attempt(*EVERYONE).active, EVERYONE, 1, 1)
    with pytest.raises(Violation, match="DIRECTIONS"):
        attempt.ask_directions(A)


def test_an_assignment_among_too_few_sites_is_refused(play: ScriptedClusters) -> None:
    """Two of four never sent any: the rest cannot make clusters of three sites."""
    attempt = ClusterAttempt(play, play.attempt(*EVERYONE).active, EVERYONE, 1, 1)
    for name in (A, B):
        attempt.ask_directions(name)
    with pytest.raises(Violation, match="2 sites"):
        attempt.tell(attempt.by_first({}), A)


# Results


def result(play: ScriptedClusters) -> Payload:
    """Return an honest coordinator's result: two clusters of class 0, one of class 1."""
    rows = np.zeros((3, play.agreement.dim))
    rows[:, 0] = 1.0
    weights = np.array([0.25, 0.75, 1.0])
    model = play.site(A).learner.values.averaged_part()
    return Payload(SCHEME, (rows, np.array([0.0, 0.0, 1.0]), weights, model))


def test_a_result_becomes_the_base_and_what_features_are_drawn_to(play: ScriptedClusters) -> None:
    play.attempt(*EVERYONE)
    given = result(play)
    play.give_result(A, given)
    learner = play.site(A).learner
    base, guide = learner.received.base_hash, learner.received.guide
    assert len(base) == 32
    play.restart(A)
    again = play.site(A).learner.received
    assert again.base_hash == base
    for name, each in vars(guide).items():
        assert bool((getattr(again.guide, name) == each).all())
    np.testing.assert_array_equal(again.base.rows, given.arrays[0])  # type: ignore[union-attr]


def changed(index: int, change: Callable[[np.ndarray[Any, Any]], Any]) -> Callable[[Payload], Payload]:
    def applied(given: Payload) -> Payload:
        arrays = list(given.arrays)
        arrays[index] = np.asarray(change(arrays[index].copy()), dtype=np.float64)
        return replace(given, arrays=tuple(arrays))

    return applied


RESULTS: dict[str, tuple[Callable[[Payload], Payload], str]] = {
    "another scheme": (lambda given: replace(given, scheme="plain/1"), "plain/1"),
    "a centre that is too long": (changed(0, lambda rows: rows * 2.1), "norm"),
    "no such class": (changed(1, lambda labels: labels + 2), "labels"),
    "half a class": (changed(1, lambda labels: labels + 0.5), "labels"),
    "classes out of order": (changed(1, lambda labels: labels[::-1]), "ordered"),
    "a weight of nothing": (changed(2, lambda _: [0.0, 1.0, 1.0]), "weight"),
    "weights that are not shares": (changed(2, lambda _: [0.5, 0.75, 1.0]), "sum"),
    "a model that is cut short": (changed(3, lambda model: model[:-1]), "decode"),
    "a row more than weights": (changed(2, lambda _: [0.25, 0.75]), "decode"),
}


@pytest.mark.parametrize("case", RESULTS)
def test_a_result_that_cannot_be_right_is_refused(play: ScriptedClusters, case: str) -> None:
    play.attempt(*EVERYONE)
    change, refusal = RESULTS[case]
    with pytest.raises(Violation, match=refusal):
        play.give_result(A, change(result(play)))
    assert play.site(A).learner.received.base_hash == b""
    play.give_result(A, result(play))


def test_more_clusters_than_are_agreed_are_refused(opened: Open) -> None:
    play = opened(clustered_agreement(fedplcc={"most_clusters": 3}))
    play.attempt(*EVERYONE)
    given = result(play)
    many = Payload(SCHEME, (np.zeros((4, 8)), np.zeros(4), np.full(4, 0.25), given.arrays[3]))
    with pytest.raises(Violation, match="clusters"):
        play.give_result(A, many)


def test_a_catch_up_is_taken_for_the_round_before(play: ScriptedClusters) -> None:
    play.attempt(*EVERYONE)
    given = result(play)
    for name in (A, B, C):
        play.give_result(name, given)
    base = play.site(A).learner.received.base_hash
    begun = play.attempt(*EVERYONE, round_number=2, start={D: (base, given)})
    assert {each.base for each in begun.active.statements} == {base}
    other = replace(given, arrays=(given.arrays[0] / 2.0, *given.arrays[1:]))
    with pytest.raises(Violation, match="hash"):
        play.presence(D, round_number=2, attempt=2, start=RoundStart((EVERYONE,), base, other))


# Bounds


def test_prototypes_beyond_the_norm_bound_are_shortened_with_a_word(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    play = opened(clustered_agreement(norm_bound=0.05))
    with caplog.at_level(logging.WARNING, logger="protoseal.site"):
        play.attempt(A)
    rows = play.local(A).rows
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 0.05, rtol=1e-9)
    assert f"{len(rows)} prototypes were longer than norm_bound = 0.05" in caplog.text
    assert play.site(A).learner.values.require_last().shortened_share == 1.0


def test_a_site_with_too_many_prototypes_of_a_class_has_their_mean(opened: Open) -> None:
    play = opened(clustered_agreement(fedplcc={"most_prototypes": 1}))
    play.attempt(A)
    local = play.local(A)
    assert local.labels.tolist() == sorted(set(local.labels.tolist()))
    means, _ = play.site(A).learner.train_round(1)
    np.testing.assert_allclose(local.rows, means[local.labels], atol=1e-5)


def test_a_class_with_too_many_prototypes_is_sent_as_its_mean() -> None:
    """FINCH keeps to the number, but zeros, where they are kept, come on top."""
    rows = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 0.0], [0.0, 6.0]])
    local = LocalClusters(rows, np.array([0, 1, 1, 2]), np.array([5, 1, 3, 2]))
    few = PrototypeBounds(10.0, most_of_class=1).limit_per_class(local)
    assert few.labels.tolist() == [0, 1, 2]
    assert few.counts.tolist() == [5, 4, 2]
    np.testing.assert_allclose(few.rows, [[1.0, 0.0], [0.5, 0.0], [0.0, 6.0]])
    assert PrototypeBounds(10.0, most_of_class=2).limit_per_class(local) is local


@pytest.mark.parametrize(
    ("counts", "most", "sent"),
    [
        ([3, 4, 5], 12, [3, 4, 5]),
        ([3, 4, 5], 11, [2, 3, 4]),
        ([1, 1, 98], 10, [1, 1, 9]),
    ],
)
def test_too_many_samples_are_counted_in_proportion(counts: list[int], most: int, sent: list[int]) -> None:
    found = counted_samples(np.array(counts, dtype=np.int64), most)
    assert found.tolist() == sent
    assert found.sum() <= most + len(counts)


def test_a_site_with_more_samples_than_agreed_counts_as_one_with_so_many(opened: Open) -> None:
    agreement = clustered_agreement(protection=Protection.PLAIN)
    averaging = agreement.averaging.model_copy(update={"most_samples": 4})
    play = opened(agreement.model_copy(update={"averaging": averaging}))
    active = play.attempt(*EVERYONE).active
    answer = play.ask(A, Phase.VALUES, codec.encode_active_list(active))
    _, _, samples, vector = codec.decode_payload(answer, play.limits, values_shape(play.agreement, 1)).arrays
    assert vector[-1] == 4.0
    assert samples.tolist() == [1.0] * len(samples)


def test_rows_of_a_class_that_is_withheld_are_not_sent(play: ScriptedClusters) -> None:
    """Two sites hold class 2 without clinic-d."""
    started = play.attempt(A, B, C)
    attempt = ClusterAttempt(play, started.active, EVERYONE, 1, 1)
    attempt.ask_directions(A)
    assert set(attempt.directions[A].arrays[1]) == {0.0, 1.0}
    assert 2 in play.local(A).labels
