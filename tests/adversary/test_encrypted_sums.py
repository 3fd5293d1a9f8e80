"""Encrypted sums attacked: each attack succeeds against a double weakened by one line, and fails on the code as it is.

Who reads here is a site, which has the key: a member of a group, its leader. What the coordinator can do alone is to
choose what sites decrypt. What a coordinator and one site that helps it can read together is everything, and stated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from agreement import Method, Protection
from agreement.derived import encrypted_sums
from agreement.derived.encrypted_sums import DecryptedSum, EncryptedSum
from agreement.derived.means import Means, means_of
from agreement.derived.payload_shapes import limits_of, sums_shape
from crypto.ckks.sums import SummingSite
from protoseal_wire import codec
from protoseal_wire.messages import Assignment, Phase, Work
from secure_client.errors import Violation
from secure_server.rounds import transitions
from tests.adversary.attack import Plays
from tests.adversary.cluster_attacks import replace_clusters, rows_of
from tests.conformance.drop_outs import Loss
from tests.conformance.federations import data_for, grouped_agreement, two_kinds
from tests.conformance.transcripts import Tap, Transcript, record_into
from tests.support import grouped
from tests.support.grouped import EVERYONE
from tests.support.scripted_clusters import EncryptedClusterAttempt, ScriptedClusters, encrypted_clusters
from tests.support.scripted_coordinator import Cast
from tests.support.scripted_sums import EncryptedAttempt, ScriptedSums, Vector, hash_of, play_quickly
from tests.support.small import DIM

A, B, C, D = EVERYONE


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    play_quickly(monkeypatch)


# Two sums of one round


@dataclass
class LeadersBook(Transcript):
    """Transcript with the sums that leaders read, by (round, attempt, site)."""

    read: dict[tuple[int, int, str], Vector] = field(default_factory=dict)


class LeadersTap(Tap):
    """Decrypts each sum as its leader can."""

    _book: LeadersBook

    def download(self, work: Work) -> bytes:
        content = super().download(work)
        if work.key.phase is Phase.MEANS:
            agreement = self._book.agreement
            payload = codec.decode_payload(content, limits_of(agreement), sums_shape(agreement))
            key, form = self._at.session._setup.ckks_key(), EncryptedSum(agreement).form
            values = SummingSite(key, form).unprotect(payload, agreement.max_sites)
            self._book.read[work.key.round, work.key.attempt, self._at.name] = values
        return content


LEADER, VICTIM, OTHER_LEADER = "site-1", "site-3", "site-2"


def two_sums(folder: Path) -> LeadersBook:
    """The second group's leader is lost when means are asked, and with it a member of the first group."""
    agreement = grouped_agreement(Protection.CKKS, classes=6, dim=12, rounds=2, norm_bound=40.0)
    losses = [Loss(site, 1, Phase.MEANS) for site in (OTHER_LEADER, VICTIM)]
    return record_into(LeadersBook(agreement), LeadersTap, data_for(agreement, two_kinds()), folder, losses)


def sums_of_round_1(transcript: LeadersBook) -> list[Vector]:
    return [values for (number, _, site), values in transcript.read.items() if (number, site) == (1, LEADER)]


def test_a_leader_with_two_sums_of_a_round_would_have_a_members_vector(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Against a coordinator that attempts the round again: everyone's sum less that without one member."""
    monkeypatch.setattr(transitions, "_sum_may_be_open", lambda *_: False)
    transcript = two_sums(tmp_path)
    everyone, without = sums_of_round_1(transcript)
    put = transcript.put[1, 1, VICTIM]
    # Classes that three of the group have without it as well.
    rows = (everyone - without)[: put.rows.size].reshape(put.rows.shape)[:3]
    assert np.linalg.norm(put.rows[:3]) > 1.0
    np.testing.assert_allclose(rows, put.rows[:3], rtol=0.0, atol=1e-7)
    model = slice(put.rows.size, put.rows.size + len(put.averaged))
    errors = EncryptedSum(transcript.agreement).form.error(2 * len(two_kinds()))[model]
    assert (np.abs((everyone - without)[model] - put.averaged) <= errors).all()


def test_a_leader_reads_one_sum_of_a_round(tmp_path: Path) -> None:
    transcript = two_sums(tmp_path)
    assert transcript.summary()[0] == (1, 1, True)
    assert len(sums_of_round_1(transcript)) == 1


# Classes of one holder


def alone(play: ScriptedSums) -> tuple[Vector, Vector]:
    """Class 2, which clinic-a alone has: what anybody reads of it in the sum, and the prototype."""
    play.set_up(*EVERYONE)
    begun = EncryptedAttempt(play, *EVERYONE)
    total = begun.read(begun.summed(*EVERYONE))
    return total[2 * DIM : 3 * DIM], play.site(A).learner.train_round(1)[0][2]


@pytest.mark.parametrize("method", [Method.FEDDBP, Method.FEDPC])
def test_a_class_of_one_holder_would_be_open_to_every_member(
    plays: Plays, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    monkeypatch.setattr("agreement.derived.cohorts.active_classes", lambda presence, _: presence)
    agreement = grouped.grouped_agreement(Protection.CKKS, method=method)
    found, secret = alone(plays.sums(agreement, {B: C, D: C}))
    assert np.linalg.norm(secret) > 0.1
    np.testing.assert_allclose(found, secret, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("method", [Method.FEDDBP, Method.FEDPC])
def test_a_class_of_one_holder_is_zeros_before_it_is_encrypted(plays: Plays, method: Method) -> None:
    agreement = grouped.grouped_agreement(Protection.CKKS, method=method)
    found, secret = alone(plays.sums(agreement, {B: C, D: C}))
    assert np.linalg.norm(secret) > 0.1
    np.testing.assert_allclose(found, 0.0, atol=1e-9)


# One site's values in place of a sum


def given_for_the_sum(play: ScriptedSums) -> tuple[Vector, Vector, Vector | None]:
    """Return what clinic-a trains from when clinic-b's values pass for the sum, clinic-b's values, and clinic-a's own
    base.
    """
    play.set_up(*EVERYONE)
    begun = EncryptedAttempt(play, *EVERYONE)
    begun.values(*EVERYONE)
    bad = begun.uploads[B]
    assert begun.give(A, bad) == b"\x08\x01R\x00"
    base = play.site(A).learner.received.base
    assert base is not None
    assert base.hash == hash_of(bad)
    rows = play.site(B).learner.train_round(1)[0]
    read = begun.read(bad)
    assert read[-4:].round().tolist() == [1.0, 1.0, 1.0, 1.0]
    return read[: rows.size].reshape(rows.shape), rows, base.rows if base.received else None


def without_the_minimum(sums: EncryptedSum, opened: DecryptedSum) -> Means:
    return means_of(sums._agreement.model_copy(update={"min_holders": 1}), *vars(opened).values())


def fedproto(plays: Plays) -> ScriptedSums:
    agreement = grouped.grouped_agreement(Protection.CKKS, method=Method.FEDPROTO)
    return plays.sums(agreement)


def test_one_sites_values_for_the_sum_would_be_what_others_train_towards(
    plays: Plays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EncryptedSum, "means", without_the_minimum)
    _, secret, targets = given_for_the_sum(fedproto(plays))
    assert targets is not None
    np.testing.assert_allclose(targets, secret, rtol=0.0, atol=1e-9)


def test_a_sum_of_one_site_says_so_and_is_not_used(plays: Plays) -> None:
    """The stated limit: a site whose operator looks can read it, since it has the key."""
    read, secret, targets = given_for_the_sum(fedproto(plays))
    assert targets is None
    np.testing.assert_allclose(read, secret, rtol=0.0, atol=1e-9)


def test_the_stated_limit_a_coordinator_can_make_one_site_count_as_three(plays: Plays) -> None:
    """Ciphertexts are added without a key: counts tell an upload that came by mistake, and nobody who means it."""
    play = fedproto(plays)
    play.set_up(*EVERYONE)
    begun = EncryptedAttempt(play, *EVERYONE)
    begun.values(*EVERYONE)
    begun.give(A, begun.sum_over([B, B, B]))
    base = play.site(A).learner.received.base
    assert base is not None
    assert base.received
    np.testing.assert_allclose(base.rows, play.site(B).learner.train_round(1)[0], rtol=0.0, atol=1e-9)


# Clusters


@pytest.fixture
def play(tmp_path: Path, cast: Cast) -> Iterator[ScriptedClusters]:
    with ScriptedClusters(tmp_path, encrypted_clusters(), cast) as opened:
        opened.set_up(*EVERYONE)
        yield opened


def first_cluster(begun: EncryptedClusterAttempt, assignment: Assignment) -> Vector:
    """Return the first cluster's sum as any site reads it when everyone went along with the assignment."""
    begun.tell(assignment, *EVERYONE)
    return begun.read(begun.total(EVERYONE))[:DIM]


def test_a_row_in_a_cluster_of_its_own_would_be_open_to_every_site(
    play: ScriptedClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secure_client.protocol.assignment_checks.check_holders", lambda *_: None)
    begun = EncryptedClusterAttempt(play, *EVERYONE)
    found = first_cluster(begun, begun.by_first({A: True}))
    np.testing.assert_allclose(found, play.local(A).rows[0], rtol=0.0, atol=1e-9)


def test_a_row_in_a_cluster_of_its_own_is_refused_by_everyone(play: ScriptedClusters) -> None:
    begun = EncryptedClusterAttempt(play, *EVERYONE)
    for name in EVERYONE:
        with pytest.raises(Violation, match="min_holders = 3"):
            begun.tell(begun.by_first({A: True}), name)


def test_a_row_among_those_of_another_class_would_show_and_is_refused(
    play: ScriptedClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' rows of that class, whose sum is nearly known from a round before, keep it company."""
    begun = EncryptedClusterAttempt(play, *EVERYONE)
    moved = replace_clusters(
        begun.by_first({}), A, lambda clusters: np.where(np.arange(len(clusters)) == 0, 1, clusters)
    )
    with pytest.raises(Violation, match="two classes"):
        begun.tell(moved, A)
    monkeypatch.setattr("protoseal_wire.cluster_assignment.check_one_class", lambda *_: None)
    begun.tell(moved, *EVERYONE)
    of_class_1 = sum(rows_of(play, name, 1).sum(axis=0) for name in EVERYONE)
    found = begun.read(begun.total(EVERYONE))[DIM : 2 * DIM] - of_class_1
    np.testing.assert_allclose(found, play.local(A).rows[0], rtol=0.0, atol=1e-9)


def different_assignments(play: ScriptedClusters) -> tuple[EncryptedClusterAttempt, Vector]:
    """Each site but clinic-a is told that its first row is elsewhere: alone in its cluster clinic-a's remains."""
    begun = EncryptedClusterAttempt(play, *EVERYONE)
    everyone = dict.fromkeys(EVERYONE, True)
    begun.tell(begun.by_first(everyone), A)
    for name in (B, C, D):
        begun.tell(begun.by_first({**everyone, name: False}), name)
    return begun, begun.read(begun.total(EVERYONE))


def test_a_row_left_alone_by_different_assignments_is_refused_by_its_count(play: ScriptedClusters) -> None:
    """The stated limit, as above: no mask binds sites to one assignment, so a site that looks can read the row."""
    begun, read = different_assignments(play)
    np.testing.assert_allclose(read[:DIM], play.local(A).rows[0], rtol=0.0, atol=1e-9)
    assert round(read[begun.rows_at]) == 1
    for name in (C, A):
        assert begun.give(name, begun.total(EVERYONE)) == b"\x08\x01R\x00"
        base = play.site(name).learner.received.base
        assert base is not None
        assert base.guide() is None


def test_without_the_count_check_sites_would_train_towards_a_lone_row(
    play: ScriptedClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, _ = different_assignments(play)
    monkeypatch.setattr(encrypted_sums, "whole_counts", at_least_three)
    begun.give(C, begun.total(EVERYONE))
    base = play.site(C).learner.received.base
    assert base is not None
    np.testing.assert_allclose(base.rows[0] * 3.0, play.local(A).rows[0], rtol=0.0, atol=1e-9)


def at_least_three(values: Sequence[float], _errors: Vector) -> Vector:
    """Return the counts as if every sum were of three or more."""
    return np.maximum(np.rint(values), 3.0).astype(np.int64)
