"""Attacks on what masked sums start from: the groups, and the result that every member trains from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agreement import Method
from crypto.protection import Payload
from protoseal_wire.messages import Phase
from tests.adversary.attack import BINDING_FIELDS, GROUPS_UNCHANGED
from tests.adversary.masked_attacks import MaskedAttack, assert_is
from tests.support.grouped import EVERYONE, PARAMETERS
from tests.support.scripted_sums import ScriptedSums, SumAttempt, base_of
from tests.support.small import DIM, short_training

A, B, C, D = EVERYONE
WITHOUT_C = (A, B, D)
_BIAS = -1.0
_DECAYED = 1e-5
"""Bound on the change by weight decay of a model that nothing else moves."""


def other_groups(play: ScriptedSums) -> None:
    """The coordinator leaves one site out of a group in a later round, at sites whose models hardly move."""
    play.set_up(*EVERYONE)
    first = play.attempt(*EVERYONE)
    everyone = first.carried_out(EVERYONE)
    second = play.attempt(*WITHOUT_C, round_number=2, groups=(WITHOUT_C,))
    difference = everyone - second.carried_out(WITHOUT_C)
    np.testing.assert_allclose(difference, play.vector(C, first), atol=1e-5)


def small_group(play: ScriptedSums) -> None:
    """The coordinator tells two sites that they are a group, where three are agreed for every sum."""
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE, groups=((A, B), (C, D)))
    expected = play.vector(A, begun) + play.vector(B, begun)
    assert_is(play, begun.carried_out((A, B)), expected, 2)


def left_out(play: ScriptedSums) -> None:
    """The coordinator makes a group of three where all four sites are one: one site's share of every sum shows."""
    play.set_up(*EVERYONE)
    begun = play.attempt(*WITHOUT_C, groups=(WITHOUT_C,))
    expected = np.sum([play.vector(name, begun) for name in WITHOUT_C], axis=0)
    assert_is(play, begun.carried_out(WITHOUT_C), expected, 3)


def _planted(result: Payload) -> Payload:
    """Return a result with a model of the coordinator's choice."""
    vector, has = result.arrays
    return replace(result, arrays=(np.where(np.arange(vector.size) < 3 * 8, vector, 0.25), has))


def _dead(result: Payload) -> Payload:
    """Return a result whose model gives zeros for every sample, so that training has nothing to move it by."""
    vector, has = result.arrays
    model = np.concatenate([np.zeros(PARAMETERS - DIM), np.full(DIM, _BIAS)])
    return replace(result, arrays=(np.concatenate([vector[:-PARAMETERS], model]), has))


def _begin_dead(play: ScriptedSums, start_of_d: str) -> SumAttempt:
    """Everyone but clinic-d trains from the dead model, or has it as its base and is caught up with it."""
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    result = play.result_of(begun.carried_out(EVERYONE), begun, EVERYONE)
    for name in (A, B, C):
        play.give_result(name, _dead(result))
    if start_of_d == "result":
        play.give_result(D, result)
        return play.attempt(*EVERYONE, round_number=2)
    return play.attempt(*EVERYONE, round_number=2, start={D: (base_of(_dead(result)), result)})


def _assert_model_of_d(play: ScriptedSums, begun: SumAttempt) -> None:
    """Check that the sum alone gives clinic-d's trained model: the others' models are as the coordinator sent them."""
    dead = np.concatenate([np.zeros(PARAMETERS - DIM), np.full(DIM, _BIAS)])
    found = begun.carried_out(EVERYONE)[-PARAMETERS:] - 3.0 * dead
    own, others = play.vector(D, begun)[-PARAMETERS:], play.vector(A, begun)[-PARAMETERS:]
    np.testing.assert_allclose(others, dead, rtol=0.0, atol=_DECAYED)
    assert np.abs(own).max() > 0.1
    assert (np.abs(found - own) <= 3.0 * _DECAYED + play.rounding(4)[-PARAMETERS:]).all()


def other_result(play: ScriptedSums) -> None:
    """The coordinator gives all members but one a model that does not move (Pasquini et al. 2021): the sum is the
    victim's.
    """
    _assert_model_of_d(play, _begin_dead(play, "result"))


def other_catch_up(play: ScriptedSums) -> None:
    """The coordinator gives the victim another result and passes it off as the one that all others have."""
    _assert_model_of_d(play, _begin_dead(play, "catch-up"))


def two_starts_of_a_round(play: ScriptedSums) -> None:
    """The coordinator begins a round again from another result: the site trains twice in it, on the same data."""
    play.set_up(*EVERYONE)
    result = play.play_sum(*EVERYONE)
    first = play.attempt(A, round_number=2)
    before = play.vector(A, first)
    other = _planted(result)
    second = play.attempt(A, round_number=2, attempt=2, start={A: (base_of(other), other)})
    assert np.abs(play.vector(A, second) - before).max() > 0.1


_START, _MEMBERS = (
    "secure_client.exchanges.groups.RoundStartCheck.",
    "secure_client.exchanges.groups.GroupMembers.",
)
_ENOUGH = "secure_client.protocol.secure_aggregation.SecureAggregation._check_enough"
_STILL = {
    "training": short_training("tests.support.tiny_models:build_relu", lr=1e-9),
}

START_ATTACKS: dict[str, MaskedAttack] = {
    "changes the groups": MaskedAttack((GROUPS_UNCHANGED,), A, Phase.PRESENCE, other_groups, _STILL),
    "makes a group of two": MaskedAttack(
        (_START + "_check_sizes", _MEMBERS + "_check_enough_members", _ENOUGH), A, Phase.PRESENCE, small_group
    ),
    "makes a group of some where all are one": MaskedAttack(
        (_START + "_check_everyone",), A, Phase.PRESENCE, left_out, {"method": Method.FEDDBP}
    ),
    "gives one member another result": MaskedAttack(
        (_MEMBERS + "_check_members_share_base", BINDING_FIELDS), A, Phase.SHARES, other_result
    ),
    "gives another result to catch up with": MaskedAttack(
        (_START + "_check_hash",), D, Phase.PRESENCE, other_catch_up
    ),
    "begins a round again from another result": MaskedAttack(
        (_START + "_check_same_base", _START + "_check_result_missed"),
        A,
        Phase.PRESENCE,
        two_starts_of_a_round,
    ),
}
"""Attacks by what the coordinator does."""
