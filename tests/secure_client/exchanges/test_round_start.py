"""Start of a grouped round at a site: the groups that it saw first, and one result for all members."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agreement import Protection
from crypto.protection import Payload
from protoseal_wire.messages import Phase, PhaseKey, RoundStart
from secure_client.errors import Violation
from secure_client.exchanges.exchange import PresenceBase
from tests.secure_client.conftest import OpenSites
from tests.support.grouped import EVERYONE, PARAMETERS, grouped_agreement
from tests.support.scripted_sums import ScriptedSums, base_of
from tests.support.small import small_agreement

A, B, C, D = EVERYONE
Groups = tuple[tuple[str, ...], ...]
LENGTH = 24 + PARAMETERS


@pytest.fixture
def play(open_sites: OpenSites) -> ScriptedSums:
    opened = open_sites(grouped_agreement(rounds=9))
    opened.set_up(*EVERYONE)
    return opened


def some_result(fill: float = 0.1) -> Payload:
    return Payload("pairwise/1", arrays=(np.full(LENGTH, fill), np.ones(3)))


# Groups


@pytest.mark.parametrize(
    ("groups", "refusal"),
    [
        (((B, C, D),), "no group"),
        ((), "no group"),
        (((A, B, "clinic-z"),), "clinic-z"),
        (((A, B), (C, D)), "agreed 3"),
        (((A, B, C), (D,)), "agreed 3"),
        (((A, B, C), (A, C, D)), "PRESENCE"),
        (((A, A, B),), "PRESENCE"),
    ],
)
def test_groups_that_are_no_partition_or_too_small_are_refused(
    play: ScriptedSums, groups: Groups, refusal: str
) -> None:
    with pytest.raises(Violation, match=refusal):
        _begin(play, A, groups)
    assert play.site(A).journal.stored_answer(PhaseKey("run-1", 1, 1, Phase.PRESENCE)) is None
    _begin(play, A, (EVERYONE,))  # nothing of them is kept


def test_a_site_in_two_groups_is_refused_also_where_the_message_would_allow_it(play: ScriptedSums) -> None:
    starts = play.site(A).session._exchange._starts  # type: ignore[attr-defined]
    with pytest.raises(Violation, match="groups"):
        starts._check_partition(((A, B, C), (A, C, D)))


def test_groups_are_the_first_ones_for_the_whole_run(play: ScriptedSums) -> None:
    _begin(play, A, ((A, B, C),))
    play.restart(A)
    for number, groups in enumerate([((A, B, D),), (EVERYONE,), ((A, B, C), (D,)), ()], start=2):
        with pytest.raises(Violation, match="groups"):
            _begin(play, A, groups, round_number=number)
    _begin(play, A, ((A, B, C),), round_number=2)


def test_only_the_own_groups_members_are_in_its_sum(play: ScriptedSums) -> None:
    begun = play.attempt(A, B, C, groups=((A, B, C),))
    expected = np.sum([play.vector(name, begun) for name in (A, B, C)], axis=0)
    assert (np.abs(begun.carried_out((A, B, C)) - expected) <= play.rounding(3)).all()


def test_too_few_members_of_the_group_take_part(play: ScriptedSums) -> None:
    begun = play.attempt(*EVERYONE)
    two = replace(begun.active, statements=begun.active.statements[:2])
    with pytest.raises(Violation, match="required 3"):
        begun.share(A, active=two)


def test_enough_sites_but_too_few_of_the_own_group(open_sites: OpenSites) -> None:
    play = open_sites(grouped_agreement())
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    for name in EVERYONE:  # as if all had been put in groups of two
        play.site(name).journal.put("groups", 1, b'[["clinic-a", "clinic-b"], ["clinic-c", "clinic-d"]]')
    with pytest.raises(Violation, match=r"^2 "):
        begun.share(A)


def test_a_member_that_states_no_keys_has_no_part_in_a_masked_sum(
    play: ScriptedSums, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = play.site(D).session._exchange
    monkeypatch.setattr(method, "presence", lambda _: PresenceBase())
    begun = play.attempt(*EVERYONE)
    with pytest.raises(Violation, match="clinic-d"):
        begun.share(A)


def _begin(play: ScriptedSums, name: str, groups: Groups, *, round_number: int = 1) -> None:
    start = RoundStart(groups, play.site(name).learner.received.base_hash)
    play.presence(name, round_number=round_number, start=start)


# Bases


def test_a_site_that_missed_a_result_catches_up_and_sums_with_the_others(play: ScriptedSums) -> None:
    result = play.play_sum(*EVERYONE, dropped=[C])
    assert play.site(C).learner.received.base_hash == b""
    begun = play.attempt(*EVERYONE, round_number=2, start={C: (base_of(result), result)})
    assert {each.base for each in begun.active.statements} == {base_of(result)}
    play.restart(C)
    assert play.site(C).learner.received.base_hash == base_of(result)
    expected = np.sum([play.vector(name, begun) for name in EVERYONE], axis=0)
    assert (np.abs(begun.carried_out(EVERYONE) - expected) <= play.rounding(4)).all()


def test_a_result_to_catch_up_with_that_a_site_has_already_changes_nothing(play: ScriptedSums) -> None:
    result = play.play_sum(*EVERYONE)
    base = base_of(result)
    before = play.site(A).journal.get("base")
    play.attempt(A, round_number=2, start={A: (base, result)})  # its acknowledgement was lost
    assert play.site(A).journal.get("base") == before


def test_a_start_that_a_site_was_not_given_is_refused(play: ScriptedSums) -> None:
    with pytest.raises(Violation, match="not received"):
        play.attempt(A, start={A: (base_of(some_result()), None)})
    play.play_sum(*EVERYONE)
    with pytest.raises(Violation, match="not received"):
        play.attempt(A, round_number=2, start={A: (b"", None)})


def test_start_with_crafted_result_before_first_sum_is_refused(play: ScriptedSums) -> None:
    crafted = some_result()
    with pytest.raises(Violation):
        play.attempt(A, start={A: (base_of(crafted), crafted)})
    assert play.site(A).learner.received.base_hash == b""


def test_start_with_second_result_of_a_round_is_refused(play: ScriptedSums) -> None:
    first = play.play_sum(*EVERYONE)
    second = some_result()
    with pytest.raises(Violation):
        play.attempt(A, round_number=2, start={A: (base_of(second), second)})
    assert play.site(A).learner.received.base_hash == base_of(first)


def test_later_attempt_drops_the_vector_of_an_earlier_one(play: ScriptedSums) -> None:
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    sent = PhaseKey("run-1", 1, 1, Phase.VALUES)
    assert play.site(A).journal.stored_answer(sent)
    play.attempt(*EVERYONE, attempt=2)
    assert play.site(A).journal.stored_answer(sent) == b""


@pytest.mark.parametrize("round_number", [1, 2])
def test_a_result_to_catch_up_with_is_the_one_that_is_named(play: ScriptedSums, round_number: int) -> None:
    result = play.play_sum(*EVERYONE) if round_number == 2 else some_result()
    start = {A: (base_of(result), some_result(0.2))}
    with pytest.raises(Violation, match="hash"):
        play.attempt(A, round_number=round_number, start=start)


def test_a_round_has_one_start(play: ScriptedSums) -> None:
    result = play.play_sum(*EVERYONE)
    play.attempt(A, round_number=2)
    play.restart(A)
    other = some_result()
    with pytest.raises(Violation, match="another result"):
        play.attempt(A, round_number=2, attempt=2, start={A: (base_of(other), other)})
    play.attempt(A, round_number=2, attempt=2, start={A: (base_of(result), None)})
    play.attempt(A, round_number=3, start={A: (base_of(other), other)})


@pytest.mark.parametrize(
    ("result", "refusal"),
    [
        (replace(some_result(), scheme="plain/1"), "plain/1"),
        (replace(some_result(), arrays=(np.full(LENGTH, 0.1), np.full(3, 0.5))), "presence flag"),
        (replace(some_result(), arrays=(np.full(LENGTH, 0.8), np.ones(3))), "norm"),
        (replace(some_result(), arrays=(np.full(LENGTH - 1, 0.1), np.ones(3))), "decode"),
        (Payload("pairwise/1", arrays=(np.full(LENGTH, 0.1),)), "decode"),
    ],
)
def test_a_result_of_another_form_is_refused(play: ScriptedSums, result: Payload, refusal: str) -> None:
    play.attempt(*EVERYONE)
    with pytest.raises(Violation, match=refusal):
        play.give_result(A, result)
    assert play.site(A).learner.received.base_hash == b""


def test_a_prototype_at_the_bound_is_taken(play: ScriptedSums) -> None:
    """2 is the norm bound, and d is 8: a sum in fixed point may be off by half of 2^-16 in each component."""
    play.attempt(*EVERYONE)
    vector = np.zeros(LENGTH)
    vector[:8] = 2.0 / np.sqrt(8) + 2.0**-18
    play.give_result(A, Payload("pairwise/1", arrays=(vector, np.ones(3))))
    assert play.site(A).learner.received.base_hash != b""


@pytest.mark.parametrize("start", [{"groups": (EVERYONE,)}, {"base": bytes(32)}])
def test_where_there_are_no_groups_a_round_begins_without(
    open_sites: OpenSites, start: dict[str, Groups]
) -> None:
    play = open_sites(small_agreement(Protection.PLAIN))
    play.set_up(*EVERYONE)
    with pytest.raises(Violation, match="round 1"):
        play.presence(A, start=RoundStart(**start))  # type: ignore[arg-type]


def test_under_plain_the_same_rules_hold(open_sites: OpenSites) -> None:
    play = open_sites(grouped_agreement(Protection.PLAIN))
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    assert begun.public == {}
    for name in EVERYONE:
        (vector,) = play.values(name, begun.active).arrays
        np.testing.assert_array_equal(vector, play.vector(name, begun))
    result = replace(some_result(), scheme="plain/1")
    for name in EVERYONE:
        play.give_result(
            name, replace(result, arrays=(np.zeros(LENGTH), np.ones(3))) if name == D else result
        )
    second = play.attempt(*EVERYONE, round_number=2)
    with pytest.raises(Violation, match="members"):
        play.values(A, second.active, round_number=2)
