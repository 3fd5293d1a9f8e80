"""Attacks on the rounds: who is said to take part, what is asked twice, and what is sent back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from tenseal import sealapi

from agreement import Protection
from algorithms.pfpl import Weighting
from crypto.ckks.serialization import dump, load
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.class_presence import verify_presence
from protoseal_wire.messages import ActiveList, Phase, PhaseKey, PresenceStatement, RoundStart
from tests.adversary.attack import (
    ATTEMPT_OPEN,
    HELD_BY,
    JOURNAL_LOOKUP,
    JOURNAL_ONCE,
    ORDER,
    PARTICIPANTS,
    PRESENCE_FIELDS,
    Attack,
)
from tests.support.scripted_coordinator import Rows, ScriptedCoordinator

A, B, C, D = "clinic-a", "clinic-b", "clinic-c", "clinic-d"
_EXACT = 1e-9


def _without(active: ActiveList, *names: str) -> ActiveList:
    return ActiveList(tuple(each for each in active.statements if each.site not in names))


def _swapped(active: ActiveList, statement: PresenceStatement) -> ActiveList:
    """Return the list with another statement for the same site."""
    return ActiveList((*_without(active, statement.site).statements, statement))


def _assert_is(found: Rows, secret: Rows) -> None:
    """The gain: one single site's prototypes, which no honest answer holds."""
    assert np.linalg.norm(secret, axis=1).min() > 0.1
    np.testing.assert_allclose(found, secret, atol=_EXACT)


# Who takes part


def forged_holder(play: ScriptedCoordinator) -> None:
    """The coordinator claims three holders of a class that two sites hold: each answer is the other's prototype."""
    play.set_up(A, B, C)
    active = play.begin(A, B, C)
    own = next(each for each in active.statements if each.site == C)
    assert not own.holds[2]
    forged = _swapped(active, replace(own, holds=np.array([True, True, True])))
    values = {name: play.values(name, forged) for name in (A, B)}
    values[C] = play.values(C, active)
    play.give_result(A, play.combine(values, forged)[A])
    _assert_is(2 * play.peers_received(A)[2:], play.rows(B)[2:])  # the mean of clinic-b's and nothing


def replayed_attempt(play: ScriptedCoordinator) -> None:
    """Two sites are gone; their presence of the previous attempt stands in for them."""
    play.set_up(A, B, C, D)
    before = play.begin(A, B, C, D)
    now = play.begin(A, B, attempt=2)
    mixed = ActiveList((*now.statements, *_without(before, A, B).statements))
    assert play.values(A, mixed, attempt=2).arrays[0].any()


def replayed_round(play: ScriptedCoordinator) -> None:
    """Two sites are gone; their presence of an earlier round stands in for them."""
    play.set_up(A, B, C)
    before = play.begin(A, B, C)
    play.combine(play.all_values(before), before)
    now = play.begin(A, B, round_number=2)
    mixed = ActiveList((*now.statements, *_without(before, A, B).statements))
    assert play.values(A, mixed, round_number=2).arrays[0].any()


def left_out(play: ScriptedCoordinator) -> None:
    """The coordinator asks a site for values among participants without that site."""
    play.set_up(A, B, C, D)
    active = play.begin(A, B, C, D)
    assert play.values(A, _without(active, A)).arrays[0].any()


def repeated_participant(play: ScriptedCoordinator) -> None:
    """The coordinator lists one peer twice: two sites count as three, and the answer is the peer's prototype."""
    play.set_up(A, B, C)
    active = play.begin(A, B, C)
    by_site = {each.site: each for each in active.statements}
    twice = ActiveList((by_site[A], by_site[B], by_site[B]))
    values = {name: play.values(name, twice) for name in (A, B)}
    play.give_result(A, play.combine(values, twice)[A])
    _assert_is(play.peers_received(A), play.rows(B))


def too_few(play: ScriptedCoordinator) -> None:
    """The coordinator lists as many participants as the agreement demands, but fewer than the site's own file."""
    play.insist(A, 4)
    play.set_up(A, B, C, D)
    active = play.begin(A, B, C, D)
    assert play.values(A, _without(active, D)).arrays[0].any()


# What is asked twice


def _two_lists(play: ScriptedCoordinator, *, restart: bool) -> None:
    play.set_up(A, B, C, D)
    active = play.begin(A, B, C, D)
    first = play.values(A, active).arrays[0]
    if restart:
        play.restart(A)
    second = play.values(A, _without(active, D)).arrays[0]
    np.testing.assert_array_equal(first[:2], second[:2])
    assert first[2].any()
    assert not second[2].any()  # two answers over the same inputs


def two_lists(play: ScriptedCoordinator) -> None:
    """The coordinator asks for VALUES twice, with two lists of participants."""
    _two_lists(play, restart=False)


def two_lists_over_a_restart(play: ScriptedCoordinator) -> None:
    """The coordinator asks for VALUES twice; the site's process restarts in between."""
    _two_lists(play, restart=True)


def _two_results(play: ScriptedCoordinator, *, restart: bool) -> None:
    play.set_up(A, B, C, D)
    active = play.begin(A, B, C, D)
    values = play.all_values(active)
    play.give_result(A, play.combine(values, active)[A])
    first = play.peers_received(A)
    if restart:
        play.restart(A)
    nothing = Payload(values[D].scheme, (np.zeros_like(values[D].arrays[0]),))
    play.give_result(A, play.combine({**values, D: nothing}, active)[A])
    _assert_is(3 * (first - play.peers_received(A))[:2], play.rows(D)[:2])


def two_results(play: ScriptedCoordinator) -> None:
    """The coordinator sends RESULT twice, once without one peer: the difference is that peer's prototype."""
    _two_results(play, restart=False)


def two_results_over_a_restart(play: ScriptedCoordinator) -> None:
    """The coordinator sends RESULT twice; the site's process restarts in between."""
    _two_results(play, restart=True)


def _difference(first: Rows, second: Rows) -> Rows:
    """clinic-d's rows of classes 0 and 1, from the means over B, C, D and over B, C."""
    return np.asarray((3 * first - 2 * second)[:2])


def attempt_after_result(play: ScriptedCoordinator) -> None:
    """The coordinator repeats a round after its result, without one site: the difference is that site's prototype."""
    play.set_up(A, B, C, D)
    play.play_round(A, B, C, D)
    first = play.peers_received(A)
    play.play_round(A, B, C, attempt=2)
    _assert_is(_difference(first, play.peers_received(A)), play.rows(D)[:2])


def earlier_round(play: ScriptedCoordinator) -> None:
    """The coordinator asks for a skipped round after a later one: the same prototypes leave under two names."""
    play.set_up(A, B, C, D)
    play.play_round(A, B, C, D, round_number=2)
    first = play.peers_received(A, 2)
    play.play_round(A, B, C, round_number=1)
    _assert_is(_difference(first, play.peers_received(A, 2)), play.rows(D, 2)[:2])


def two_open_attempts(play: ScriptedCoordinator) -> None:
    """Two attempts of a round are begun, and then both are carried on."""
    play.set_up(A, B, C, D)
    one, two = play.begin(A, B, C, D), play.begin(A, B, C, attempt=2)
    values = play.all_values(one)
    play.give_result(A, play.combine(values, one)[A])
    first = play.peers_received(A)
    values = play.all_values(two, attempt=2)
    play.give_result(A, play.combine(values, two)[A], attempt=2)
    _assert_is(_difference(first, play.peers_received(A)), play.rows(D)[:2])


def more_rounds(play: ScriptedCoordinator) -> None:
    """The coordinator asks for a round beyond the last agreed one."""
    play.set_up(A, B, C)
    beyond = play.agreement.rounds + 1
    play.play_round(A, B, C, round_number=beyond)
    assert play.peers_received(A, beyond).any()


def another_run(play: ScriptedCoordinator) -> None:
    """The coordinator asks for a site's signature for a run that the site does not take part in."""
    play.set_up(A, B, C)
    start = codec.encode_round_start(RoundStart())
    answer = play.ask(A, Phase.PRESENCE, start, run="run-2")
    roster = play.site(A).session._setup.roster()
    statement = codec.decode_presence(answer, play.limits)
    verify_presence(roster.members[A], statement, PhaseKey("run-2", 1, 1, Phase.PRESENCE), roster.hash)


# What is sent back


def _encrypted_round(play: ScriptedCoordinator) -> tuple[Mapping[str, Payload], Mapping[str, Payload]]:
    play.set_up(A, B, C, D)
    active = play.begin(A, B, C, D)
    values = play.all_values(active)
    return values, play.combine(values, active)


def other_scale(play: ScriptedCoordinator) -> None:
    """The coordinator overwrites the numerators' scale: the site reads half of its peers' values."""
    _, results = _encrypted_round(play)
    numerators, denominator = results[A].blobs
    ciphertext = load(sealapi.Ciphertext(), numerators)
    ciphertext.scale *= 2.0
    play.give_result(A, replace(results[A], blobs=(dump(ciphertext), denominator)))
    halved = play.peers_received(A)[:2]
    play.give_result(B, results[B])  # an honest answer, to compare with
    honest = play.peers_received(B)[:2]
    ratio = np.linalg.norm(halved, axis=1) / np.linalg.norm(honest, axis=1)
    assert (ratio < 0.7).all()


def other_level(play: ScriptedCoordinator) -> None:
    """The coordinator returns the site's own correction as the denominator: the site believes that all its peers agree
    with it.
    """
    values, results = _encrypted_round(play)
    (numerators, _), correction = results[A].blobs, values[A].blobs[-1]
    play.give_result(A, replace(results[A], blobs=(numerators, correction)))
    np.testing.assert_allclose(play.peers_received(A), play.rows(A), atol=_EXACT)
    play.give_result(B, results[B])
    assert np.abs(play.peers_received(B) - play.rows(B)).max() > 0.01


_CKKS = (Protection.CKKS, Weighting.COMPLEMENT)
_NAMES = (
    "protoseal_wire.class_presence.verify_active_list: "
    "len({statement.site for statement in active.statements}) != len(active.statements)"
)
_READ = "crypto.ckks.serialization.read_ciphertext: "
_SCALE = _READ + "ciphertext.scale != shape.scale"
_ANY_FORM = (_READ + "list(ciphertext.parms_id()) != level_id(shape.level)", _SCALE)
"""Checks that refuse another level, which has another scale too."""
_FRESH = (
    ORDER + "_check_presence: last is not None and (key.round, key.attempt) <= (last.round, last.attempt)"
)
_ONE_RESULT = ORDER + "_check_presence: result is not None and key.round <= result.round"
_AGREED_ROUND = (
    ORDER + "_check_presence: not first_round(self._agreement) <= key.round <= self._agreement.rounds"
)
_OWN_PRESENCE = PARTICIPANTS + "verify_list: self._journal.stored_answer(begun) not in statements"
_ENOUGH_SITES = PARTICIPANTS + "verify_list: len(active.statements) < least"

ROUND_ATTACKS: dict[str, Attack] = {
    "claims a holder that did not sign": Attack(
        ("protoseal_wire.class_presence.verify_presence",), A, Phase.VALUES, forged_holder
    ),
    "replays presence of another attempt": Attack((PRESENCE_FIELDS,), A, Phase.VALUES, replayed_attempt),
    "replays presence of another round": Attack((PRESENCE_FIELDS,), A, Phase.VALUES, replayed_round),
    "leaves the site out": Attack((_OWN_PRESENCE, HELD_BY), A, Phase.VALUES, left_out),
    "lists a participant twice": Attack(
        (_NAMES, "crypto.protection.Cohort.__post_init__"), A, Phase.VALUES, repeated_participant
    ),
    "asks among too few": Attack((_ENOUGH_SITES,), A, Phase.VALUES, too_few),
    "asks for values twice": Attack((JOURNAL_LOOKUP, JOURNAL_ONCE), A, Phase.VALUES, two_lists),
    "asks for values twice over a restart": Attack(
        (JOURNAL_LOOKUP, JOURNAL_ONCE), A, Phase.VALUES, two_lists_over_a_restart
    ),
    "sends two results": Attack((JOURNAL_LOOKUP, JOURNAL_ONCE), A, Phase.RESULT, two_results),
    "sends two results over a restart": Attack(
        (JOURNAL_LOOKUP, JOURNAL_ONCE), A, Phase.RESULT, two_results_over_a_restart
    ),
    "attempts a round again after its result": Attack(
        (_ONE_RESULT,), A, Phase.PRESENCE, attempt_after_result
    ),
    "goes back to an earlier round": Attack(
        (_FRESH, _ONE_RESULT, ATTEMPT_OPEN), A, Phase.PRESENCE, earlier_round
    ),
    "carries on two attempts": Attack((ATTEMPT_OPEN,), A, Phase.VALUES, two_open_attempts),
    "asks for more rounds": Attack((_AGREED_ROUND,), A, Phase.PRESENCE, more_rounds),
    "asks for another run": Attack((ORDER + "check_run",), A, Phase.PRESENCE, another_run),
    "sends another scale": Attack((_SCALE,), A, Phase.RESULT, other_scale, *_CKKS),
    "sends another level": Attack(_ANY_FORM, A, Phase.RESULT, other_level, *_CKKS),
}
"""Attacks by what the coordinator does."""
