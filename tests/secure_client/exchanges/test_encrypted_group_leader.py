"""A group's leader under `ckks`: when it answers MEANS, to what, and that a sum that cannot be right shows nowhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from agreement import Method, Protection
from agreement.derived.encrypted_sums import EncryptedGroups
from crypto.ckks.group_mixing import MixingSite
from crypto.ckks.secret_key import CkksSecret
from crypto.errors import BoundError, ImplausibleError
from crypto.protection import Payload
from protoseal_wire.messages import Phase
from secure_client.checkpoints.received_results import ReceivedResults
from secure_client.errors import Violation
from secure_client.exchanges.sum_halves import MixedGroupsHalf
from tests.secure_client.conftest import OpenSites
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.scripted_sums import (
    EncryptedAttempt,
    ScriptedSums,
    Vector,
    forged,
    hash_of,
    key_of,
    mixed,
    play_quickly,
)

A, B, C, D = EVERYONE
PAIRS = ((A, B), (C, D))
_FEW = {"min_holders": 2, "min_sites": 2, "allow_fewer_holders_reveals_peers": True, "rounds": 5}
ACKNOWLEDGED = b"\x08\x01R\x00"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    play_quickly(monkeypatch)


@pytest.fixture
def play(open_sites: OpenSites) -> ScriptedSums:
    """Play one group of four."""
    opened = open_sites(grouped_agreement(Protection.CKKS, rounds=5))
    opened.set_up(*EVERYONE)
    return opened


@pytest.fixture
def pairs(open_sites: OpenSites) -> ScriptedSums:
    """Set up two groups of two."""
    opened = open_sites(grouped_agreement(Protection.CKKS, **_FEW))
    opened.set_up(*EVERYONE)
    return opened


def in_pairs(play: ScriptedSums, number: int) -> tuple[EncryptedAttempt, Payload, Payload]:
    """Play an attempt of both groups, up to their sums."""
    begun = EncryptedAttempt(play, *EVERYONE, round_number=number, groups=PAIRS)
    begun.values(*EVERYONE)
    first, second = (begun.sum_over(pair) for pair in PAIRS)
    return begun, first, second


def read(play: ScriptedSums, result: Payload) -> Vector:
    """Decrypt the mixed groups as any site can."""
    return MixingSite(key_of(play), EncryptedGroups(play.agreement).form).unprotect(result)


# Who is asked, and when


@pytest.mark.parametrize("name", [B, C, D])
def test_a_member_that_does_not_lead_refuses_means(play: ScriptedSums, name: str) -> None:
    begun = EncryptedAttempt(play, *EVERYONE)
    total = begun.summed(*EVERYONE)
    with pytest.raises(Violation, match=A):
        begun.means(name, total)


def test_any_member_would_answer_means_without_the_check(
    play: ScriptedSums, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MixedGroupsHalf, "_check_leads", lambda *_: None)
    begun = EncryptedAttempt(play, *EVERYONE)
    assert begun.means(B, begun.summed(*EVERYONE)).blobs


def test_the_first_participant_by_name_leads(play: ScriptedSums) -> None:
    begun = EncryptedAttempt(play, B, C, D)
    total = begun.summed(B, C, D)
    with pytest.raises(Violation, match=B):
        begun.means(C, total)
    assert begun.means(B, total).blobs


def test_means_come_after_values_and_before_the_result(play: ScriptedSums) -> None:
    begun = EncryptedAttempt(play, *EVERYONE)
    begun.values(B, C, D)
    with pytest.raises(Violation, match="before VALUES"):
        begun.means(A, begun.sum_over([B, C, D]))
    begun.values(A)
    (result,) = mixed(play, begun.means(A, begun.sum_over(EVERYONE)))
    begun.give(B, result)
    with pytest.raises(Violation, match="after the result"):
        begun.means(B, begun.sum_over(EVERYONE))


def test_a_leader_reads_one_sum_in_an_attempt_also_over_a_restart(play: ScriptedSums) -> None:
    begun = EncryptedAttempt(play, *EVERYONE)
    total = begun.summed(*EVERYONE)
    given = begun.means(A, total)
    for _ in range(2):
        with pytest.raises(Violation, match="content"):
            begun.means(A, begun.sum_over([A, B, D]))
        play.restart(A)
        assert begun.means(A, total) == given


def test_a_method_without_groups_has_no_means(open_sites: OpenSites) -> None:
    play = open_sites(grouped_agreement(Protection.CKKS, method=Method.FEDDBP))
    play.set_up(*EVERYONE)
    begun = EncryptedAttempt(play, *EVERYONE)
    total = begun.summed(*EVERYONE)
    with pytest.raises(Violation, match="no MEANS"):
        begun.means(A, total)


@pytest.mark.parametrize(
    "change",
    [
        lambda total: replace(total, blobs=()),
        lambda total: replace(total, blobs=total.blobs * 2),
        lambda total: replace(total, arrays=(np.zeros(2),)),
        lambda total: replace(total, scheme="plain/1"),
    ],
    ids=["no ciphertext", "one more", "an array", "another scheme"],
)
def test_a_sum_of_another_form_is_refused(play: ScriptedSums, change: Callable[[Payload], Payload]) -> None:
    begun = EncryptedAttempt(play, *EVERYONE)
    total = begun.summed(*EVERYONE)
    with pytest.raises(Violation, match=r"refused|decode"):
        begun.means(A, change(total))
    assert begun.means(A, total).blobs


# Sums that cannot be right


def another_key(begun: EncryptedAttempt, _: Payload) -> Payload:
    form = begun.sums.form
    return forged(CkksSecret.generate()[0], form, np.zeros(form.length))


def fractional(begun: EncryptedAttempt, total: Payload) -> Payload:
    values = begun.read(total)
    values[-1] = 1.5
    return forged(key_of(begun.play), begun.sums.form, values)


def large_parameter(begun: EncryptedAttempt, total: Payload) -> Payload:
    """Return a parameter that a sum may have and for which means have no room."""
    values, agreement = begun.read(total), begun.play.agreement
    values[agreement.layout.prototypes] = 2 * 1.01 * agreement.averaging.parameter_bound
    return forged(key_of(begun.play), begun.sums.form, values)


def of_one(begun: EncryptedAttempt, _: Payload) -> Payload:
    return begun.sum_over([B])


SPOILT: dict[str, Callable[[EncryptedAttempt, Payload], Payload]] = {
    "under another key": another_key,
    "over 1.5 sites": fractional,
    "of a member alone": of_one,
    "with a large parameter": large_parameter,
}


def check_spoilt(play: ScriptedSums, spoil: Callable[[EncryptedAttempt, Payload], Payload]) -> None:
    """Check the second of two rounds: one group's sum is spoilt, and the other group gets its own means."""
    begun, first, second = in_pairs(play, 1)
    results = mixed(play, begun.means(A, first), begun.means(C, second))
    for pair, result in zip(PAIRS, results, strict=True):
        assert [begun.give(name, result) for name in pair] == [ACKNOWLEDGED] * 2
    before = base_of(play, A)
    begun, first, second = in_pairs(play, 2)
    given, other = begun.means(A, spoil(begun, first)), begun.means(C, second)
    assert len(given.blobs) == len(other.blobs)
    spoilt, alone = mixed(play, given, other)
    form = EncryptedGroups(play.agreement).form
    (reference,) = mixed(play, other)
    error = 2.0 * form.error(form.groups * form.vector.bounds)
    assert (np.abs(read(play, alone) - read(play, reference)) <= error).all()
    for pair, result in zip(PAIRS, (spoilt, alone), strict=True):
        assert [begun.give(name, result) for name in pair] == [ACKNOWLEDGED] * 2
    after = play.attempt(*EVERYONE, round_number=3, groups=PAIRS)
    stated = {statement.site: statement.base for statement in after.active.statements}
    assert stated == {name: hash_of(spoilt if name in PAIRS[0] else alone) for name in EVERYONE}
    assert base_of(play, A) == before
    assert base_of(play, B) == before
    assert base_of(play, C) == base_of(play, D)


def base_of(play: ScriptedSums, name: str) -> tuple[bytes, bytes]:
    base = play.site(name).learner.received.base
    assert base is not None
    return base.rows.tobytes(), base.averaged.tobytes()


@pytest.mark.parametrize("case", SPOILT)
def test_a_sum_that_cannot_be_right_is_answered_by_means_without_effect(
    pairs: ScriptedSums, case: str
) -> None:
    check_spoilt(pairs, SPOILT[case])


def raising(method: MixedGroupsHalf, _key: object, groups: EncryptedGroups, payload: Payload) -> object:
    return groups.parts(method._sums.open_sum(payload))


def loud(groups: EncryptedGroups) -> tuple[Vector, Vector]:
    return np.ones(groups.form.components), np.ones(groups.form.vector.length)


@pytest.mark.parametrize(
    ("owner", "name", "double", "spoil", "shows"),
    [
        (MixedGroupsHalf, "_direction_and_vector", raising, fractional, ImplausibleError),
        (EncryptedGroups, "nothing", loud, fractional, AssertionError),
        (ReceivedResults, "keep_base", lambda *_: None, fractional, AssertionError),
    ],
    ids=["raising", "mixing in something", "stating the old base"],
)
def test_a_leader_that_lets_it_show_is_noticed(
    pairs: ScriptedSums,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    double: object,
    spoil: Callable[[EncryptedAttempt, Payload], Payload],
    shows: type[Exception],
) -> None:
    monkeypatch.setattr(owner, name, double)
    with pytest.raises(shows):
        check_spoilt(pairs, spoil)


def test_a_leader_that_does_not_look_for_room_is_noticed(
    pairs: ScriptedSums, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its refusal to encrypt would tell the coordinator that a number in the sum is beyond a bound."""
    monkeypatch.setattr("agreement.derived.encrypted_sums._check_model", lambda *_: None)
    monkeypatch.setattr(
        EncryptedGroups,
        "parts",
        lambda _, means: (
            np.maximum(means.rows.ravel(), 0.0),
            np.concatenate([means.rows.ravel(), means.model, means.has.astype(np.float64), [1.0]]),
        ),
    )
    with pytest.raises(BoundError):
        check_spoilt(pairs, large_parameter)


def test_room_is_looked_for_by_itself_as_well(pairs: ScriptedSums, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agreement.derived.encrypted_sums._check_model", lambda *_: None)
    begun, first, _ = in_pairs(pairs, 1)
    groups = EncryptedGroups(pairs.agreement)
    with pytest.raises(ImplausibleError):
        groups.parts(begun.sums.means(begun.sums.opened(begun.read(large_parameter(begun, first)))))


# Results of groups


@pytest.mark.parametrize("spoil", ["another key", "over no groups", "a long prototype", "a large parameter"])
def test_a_mixed_result_that_cannot_be_right_is_acknowledged_and_not_used(
    play: ScriptedSums, spoil: str
) -> None:
    begun = EncryptedAttempt(play, *EVERYONE)
    total = begun.summed(*EVERYONE)
    means = begun.means(A, total)
    groups = EncryptedGroups(play.agreement)
    secret = CkksSecret.generate()[0] if spoil == "another key" else key_of(play)
    direction, vector = groups.parts(begun.sums.means(begun.sums.opened(begun.read(total))))
    bounds = groups.form.vector.bounds
    if spoil == "over no groups":
        vector[-1] = 0.0
    if spoil == "a long prototype":
        vector[: play.agreement.dim] = bounds[: play.agreement.dim]
    if spoil == "a large parameter":  # a third of a group, of parameters that a whole one may have
        vector[groups.form.components :] *= 0.6
        vector[groups.form.components] = bounds[groups.form.components]
    (bad,) = mixed(play, MixingSite(secret, groups.form).protect(direction, vector))
    own = play.site(A).learner.values.averaged_part()
    assert [begun.give(name, bad) for name in EVERYONE] == [ACKNOWLEDGED] * 4
    assert hash_of(bad) == play.site(A).learner.received.base_hash != hash_of(means)
    base = play.site(A).learner.received.base
    assert base is not None
    np.testing.assert_array_equal(base.averaged, own)
    assert base.guide() is None
    with pytest.raises(Violation, match="content"):
        play.ask(A, Phase.RESULT, b"another")
