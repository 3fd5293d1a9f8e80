"""A site of FedPLCC under `ckks`: sums of clusters that cannot be right are acknowledged like others, and not used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from crypto.ckks.secret_key import CkksSecret
from crypto.errors import ImplausibleError
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.checkpoints.received_results import ReceivedResults
from secure_client.errors import Violation
from secure_client.exchanges.clusters import ClusterExchange
from tests.support.grouped import EVERYONE
from tests.support.scripted_clusters import EncryptedClusterAttempt, ScriptedClusters, encrypted_clusters
from tests.support.scripted_coordinator import Cast
from tests.support.scripted_sums import Vector, forged, hash_of, key_of, play_quickly

A, B, C, D = EVERYONE
ACKNOWLEDGED = b"\x08\x01R\x00"
Change = Callable[[EncryptedClusterAttempt, Vector], None]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    play_quickly(monkeypatch)


@pytest.fixture
def play(tmp_path: Path, cast: Cast) -> Iterator[ScriptedClusters]:
    with ScriptedClusters(tmp_path, encrypted_clusters(), cast) as opened:
        opened.set_up(*EVERYONE)
        yield opened


def summed(play: ScriptedClusters, number: int) -> EncryptedClusterAttempt:
    """Play a round of everyone, up to its sum."""
    begun = EncryptedClusterAttempt(play, *EVERYONE, round_number=number)
    begun.tell(begun.honest, *EVERYONE)
    return begun


def kept(play: ScriptedClusters, name: str) -> list[bytes]:
    base = play.site(name).learner.received.base
    assert base is not None
    return [*(base.received[name].tobytes() for name in sorted(base.received)), base.averaged.tobytes()]


def few_rows(begun: EncryptedClusterAttempt, values: Vector) -> None:
    values[begun.rows_at] = 2.0


def half_a_row(begun: EncryptedClusterAttempt, values: Vector) -> None:
    values[begun.rows_at] += 0.5


def no_samples(begun: EncryptedClusterAttempt, values: Vector) -> None:
    values[begun.counts_at] = 0.0


def few_sites(_: EncryptedClusterAttempt, values: Vector) -> None:
    values[-1] = 2.0


def long_centre(begun: EncryptedClusterAttempt, values: Vector) -> None:
    dim = begun.play.agreement.dim
    values[:dim] = 1.01 * begun.play.agreement.norm_bound * values[begun.rows_at] / dim**0.5


def large_parameter(begun: EncryptedClusterAttempt, values: Vector) -> None:
    bound = begun.play.agreement.averaging.parameter_bound
    values[begun.model_at] = 1.01 * bound * values[-2]


CHANGES: dict[str, Change] = {
    "a cluster of two rows": few_rows,
    "half a row": half_a_row,
    "a cluster without samples": no_samples,
    "over two sites": few_sites,
    "a long centre": long_centre,
    "a large parameter": large_parameter,
}


def check_kept(play: ScriptedClusters, change: Change) -> None:
    """Check the second of three rounds; raise ``AssertionError`` if the site's use of the result shows."""
    begun = summed(play, 1)
    assert [begun.give(name, begun.total(EVERYONE)) for name in EVERYONE] == [ACKNOWLEDGED] * 4
    before = {name: kept(play, name) for name in EVERYONE}
    begun = summed(play, 2)
    values = begun.read(begun.total(EVERYONE))
    change(begun, values)
    bad = begun.result(forged(key_of(play), begun.form, values))
    assert [begun.give(name, bad) for name in EVERYONE] == [ACKNOWLEDGED] * 4
    play.restart(A)
    after = summed(play, 3)
    assert {statement.base for statement in after.active.statements} == {hash_of(bad)}
    assert {name: kept(play, name) for name in EVERYONE} == before


@pytest.mark.parametrize("case", CHANGES)
def test_a_sum_that_cannot_be_right_is_acknowledged_and_not_used(play: ScriptedClusters, case: str) -> None:
    check_kept(play, CHANGES[case])


def raising(exchange: ClusterExchange, number: int, base: bytes, payload: Payload) -> object:
    """Take a result, but let an implausible decryption end the session."""
    result = exchange._half.read_result(payload)
    exchange._learner.received.take_clusters(number, base, result.clusters, result.averaged)
    return np.isin(np.arange(len(exchange._agreement.classes)), result.clusters.labels)


@pytest.mark.parametrize(
    ("owner", "name", "double", "shows"),
    [
        (ClusterExchange, "_take", raising, ImplausibleError),
        (ReceivedResults, "keep_base", lambda *_: None, AssertionError),
    ],
    ids=["raising", "stating the old base"],
)
def test_a_site_that_lets_it_show_is_noticed(
    play: ScriptedClusters,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    double: object,
    shows: type[Exception],
) -> None:
    monkeypatch.setattr(owner, name, double)
    with pytest.raises(shows):
        check_kept(play, half_a_row)


def test_before_any_result_a_site_trains_on_towards_no_clusters(play: ScriptedClusters) -> None:
    begun = summed(play, 1)
    bad = begun.result(forged(CkksSecret.generate()[0], begun.form, np.zeros(begun.form.length)))
    own = play.site(A).learner.values.averaged_part()
    assert [begun.give(name, bad) for name in EVERYONE] == [ACKNOWLEDGED] * 4
    base = play.site(A).learner.received.base
    assert base is not None
    np.testing.assert_array_equal(base.averaged, own)
    assert base.guide() is None
    after = summed(play, 2)
    total = after.total(EVERYONE)
    assert [after.give(name, total) for name in EVERYONE] == [ACKNOWLEDGED] * 4
    play.restart(A)
    assert len({hash_of(total), *(play.site(name).learner.received.base_hash for name in EVERYONE)}) == 1


# What the coordinator can see as well


def labelled(labels: list[float]) -> Callable[[Payload], Payload]:
    return lambda total: Payload(total.scheme, (np.array(labels),), total.blobs)


@pytest.mark.parametrize(
    "change",
    [
        labelled([0.0, 1.0]),
        labelled([0.0, 1.0, 1.0]),
        labelled([2.0, 1.0, 0.0]),
        labelled([0.0, 1.0, 1.5]),
        labelled([0.0, 1.0, 7.0]),
        lambda total: Payload(total.scheme, (), total.blobs),
        lambda total: Payload(total.scheme, total.arrays, total.blobs * 2),
        lambda total: Payload("plain/1", total.arrays, total.blobs),
    ],
    ids=["a cluster less", "other classes", "no order", "half", "no class", "no array", "one more", "plain"],
)
def test_a_result_of_another_form_or_of_other_clusters_is_refused(
    play: ScriptedClusters, change: Callable[[Payload], Payload]
) -> None:
    begun = EncryptedClusterAttempt(play, *EVERYONE)
    begun.tell(begun.by_first({}), *EVERYONE)
    total = begun.total(EVERYONE)
    with pytest.raises(Violation):
        begun.give(A, change(total))
    assert play.site(A).learner.received.base_hash == b""
    assert begun.give(A, total) == ACKNOWLEDGED


def test_steps_come_in_order_and_once(play: ScriptedClusters) -> None:
    begun = play.attempt(*EVERYONE)
    with pytest.raises(Violation, match="DIRECTIONS"):
        begun.ask(A, Phase.VALUES, b"")
    attempt = EncryptedClusterAttempt(play, *EVERYONE, number=2)
    attempt.tell(attempt.by_first({}), A)
    given, turned = attempt.uploads[A], attempt.directions[A]
    play.restart(A)
    attempt.tell(attempt.by_first({}), A)
    attempt.ask_directions(A)
    assert attempt.uploads[A] == given
    assert codec.encode_payload(attempt.directions[A]) == codec.encode_payload(turned)
    with pytest.raises(Violation, match="content"):
        attempt.tell(attempt.by_first(dict.fromkeys(EVERYONE, True)), A)
