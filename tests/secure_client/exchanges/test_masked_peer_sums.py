"""PFPL's sum at a site: results that it refuses, the row that it subtracts, and a result without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from agreement import Protection
from algorithms.pfpl import Weighting
from crypto.pairwise.member_signatures import sign_survivors
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.messages import SignedSurvivors, SumMembers, SurvivorSignature
from secure_client.errors import Violation
from tests.secure_client.conftest import OpenSites
from tests.support.grouped import EVERYONE
from tests.support.scripted_sums import ScriptedSums, SumAttempt, base_of
from tests.support.small import small_agreement

A, B, C, D = EVERYONE
Float = NDArray[np.float64]


@pytest.fixture
def play(open_sites: OpenSites) -> ScriptedSums:
    opened = open_sites(small_agreement(Protection.MASKED, Weighting.UNIFORM))
    opened.set_up(*EVERYONE)
    return opened


def carried_out(
    play: ScriptedSums, *survivors: str, round_number: int = 1, attempt: int = 1
) -> tuple[SumAttempt, Payload]:
    """Play everything up to RESULT; return the attempt and its honest result."""
    begun = play.attempt(*EVERYONE, round_number=round_number, attempt=attempt)
    return begun, play.result_of(begun.carried_out(survivors), begun, survivors)


def members_of(result: Payload, play: ScriptedSums) -> SumMembers:
    return codec.decode_sum_members(result.blobs[0], play.limits)


def with_members(result: Payload, play: ScriptedSums, **changes: object) -> Payload:
    told = replace(members_of(result, play), **changes)  # type: ignore[arg-type]
    return replace(result, blobs=(codec.encode_sum_members(told),))


def with_signed(result: Payload, play: ScriptedSums, **changes: object) -> Payload:
    signed = replace(members_of(result, play).signed, **changes)  # type: ignore[arg-type]
    return with_members(result, play, signed=signed)


def signed_anew(
    result: Payload, play: ScriptedSums, begun: SumAttempt, listed: tuple[str, ...], round_number: int = 1
) -> Payload:
    """Return the result of a sum of this round and these sites, who all help the coordinator and signed that."""
    binding = replace(begun.binding, group=listed, round=round_number)
    signatures = tuple(
        SurvivorSignature(site, sign_survivors(play.parties[site].credentials, binding, listed))
        for site in listed
    )
    signed = SignedSurvivors(listed, signatures)
    return with_members(result, play, round=round_number, listed=listed, signed=signed)


def targets(play: ScriptedSums, name: str) -> Float:
    stored = play.site(name).journal.get("base")
    assert stored is not None
    return np.asarray(safetensors.numpy.load(stored[1])["rows"])


def expected(play: ScriptedSums, name: str, peers: tuple[str, ...]) -> Float:
    """Return equation 4 for classes that everyone holds, in feature units."""
    rows = {each: play.site(each).learner.values.latest()[0][:2] for each in EVERYONE}
    alpha = play.agreement.own_share
    return np.asarray(alpha * rows[name] + (1.0 - alpha) * np.mean([rows[peer] for peer in peers], axis=0))


def refuses(play: ScriptedSums, result: Payload) -> bool:
    try:
        play.give_result(A, result)
    except Violation:
        return True
    return False


REFUSED: Mapping[str, Callable[[ScriptedSums, Payload], Payload]] = {
    "another scheme": lambda play, result: replace(result, scheme="plain/1"),
    "the sum of another attempt": lambda play, result: with_members(result, play, attempt=2),
    "the sum of another round": lambda play, result: with_members(result, play, round=2),
    "fewer participants than required": lambda play, result: with_members(result, play, listed=(A, B)),
    "other participants than signed": lambda play, result: with_members(result, play, listed=(A, B, C)),
    "a base that nobody signed": lambda play, result: with_members(result, play, base=bytes(32)),
    "another set than signed": lambda play, result: with_signed(result, play, sites=(A, B, D)),
    "too few signatures": lambda play, result: with_signed(
        result, play, signatures=members_of(result, play).signed.signatures[:2]
    ),
    "a holder too many": lambda play, result: replace(
        result, arrays=(result.arrays[0], result.arrays[1] + np.array([0.0, 0.0, 1.0]))
    ),
    "fewer holders than the minimum": lambda play, result: replace(
        result, arrays=(result.arrays[0], np.array([4.0, 4.0, 2.0]))
    ),
    "half a holder": lambda play, result: replace(
        result, arrays=(result.arrays[0], result.arrays[1] - np.array([0.0, 0.0, 0.5]))
    ),
    "a sum beyond its holders' norms": lambda play, result: replace(
        result, arrays=(result.arrays[0] + 9.0, result.arrays[1])
    ),
    "a sum of a class that nobody holds": lambda play, result: replace(
        result, arrays=(result.arrays[0], np.array([4.0, 4.0, 0.0]))
    ),
}


def test_results_that_members_did_not_sign_or_state_are_refused(play: ScriptedSums) -> None:
    _, honest = carried_out(play, *EVERYONE)
    for what, altered in REFUSED.items():
        wrong = altered(play, honest)
        assert refuses(play, wrong), what
        assert play.site(A).journal.get("base") is None, what
    play.give_result(A, honest)
    assert play.site(A).learner.received.base_hash == base_of(honest)


def test_a_member_subtracts_its_row_and_takes_the_mean_of_its_peers(play: ScriptedSums) -> None:
    _, result = carried_out(play, A, B, D)
    for name, peers in ((A, (B, D)), (B, (A, D)), (C, (A, B, D))):
        play.give_result(name, result)
        np.testing.assert_allclose(targets(play, name)[:2], expected(play, name, peers), atol=2.0**-16)


def test_a_restarted_member_subtracts_the_row_of_its_journal(play: ScriptedSums) -> None:
    _, result = carried_out(play, *EVERYONE)
    play.restart(A)
    play.give_result(A, result)
    np.testing.assert_allclose(targets(play, A)[:2], expected(play, A, (B, C, D)), atol=2.0**-16)


def test_a_member_that_catches_up_subtracts_its_row_from_that_attempts_sum(play: ScriptedSums) -> None:
    """D's values are in the sum of the second attempt, and its result reaches D as catch-up."""
    play.attempt(*EVERYONE).share(*EVERYONE)
    _, result = carried_out(play, *EVERYONE, attempt=2)
    own = expected(play, D, (A, B, C))
    for name in (A, B, C):
        play.give_result(name, result, attempt=2)
    play.attempt(*EVERYONE, round_number=2, start={D: (base_of(result), result)})
    np.testing.assert_allclose(targets(play, D)[:2], own, atol=2.0**-16)


@pytest.mark.parametrize(("round_number", "attempt"), [(9, 1), (1, 2)])
def test_a_site_without_values_of_the_attempt_in_its_journal_subtracts_nothing(
    play: ScriptedSums, round_number: int, attempt: int
) -> None:
    """The set names the site, whose journal has the term of another attempt, as after a journal was put back."""
    _, result = carried_out(play, *EVERYONE)
    journal = play.site(A).journal
    stored = journal.get("term of the last sum")
    assert stored is not None
    kept = safetensors.numpy.load(stored[1]) | {"attempt": np.array([attempt])}
    journal.put("term of the last sum", round_number, safetensors.numpy.save(kept))
    play.give_result(A, result)
    np.testing.assert_allclose(targets(play, A)[:2], expected(play, A, EVERYONE), atol=2.0**-16)


def test_a_class_that_a_site_does_not_hold_gives_it_no_target(play: ScriptedSums) -> None:
    _, result = carried_out(play, *EVERYONE)
    play.give_result(C, result)
    assert result.arrays[1].tolist() == [4.0, 4.0, 3.0]
    assert play.site(C).learner.predictor.prototypes().has_personal.tolist() == [True, True, False]
    np.testing.assert_allclose(targets(play, C)[2], play.site(C).learner.values.latest()[0][2], atol=1e-15)


def test_an_implausible_mean_is_shortened_and_not_refused(play: ScriptedSums) -> None:
    """The site's row decides how long the mean of its peers is, so a refusal would say something about it."""
    _, honest = carried_out(play, *EVERYONE)
    rows = play.site(A).learner.values.latest()[0]
    longest = -rows / np.linalg.norm(rows, axis=1, keepdims=True) * play.agreement.norm_bound
    crafted = longest * honest.arrays[1][:, None]
    play.give_result(A, replace(honest, arrays=(crafted.ravel(), honest.arrays[1])))
    peers = (targets(play, A) - play.agreement.own_share * rows) / (1.0 - play.agreement.own_share)
    np.testing.assert_allclose(np.linalg.norm(peers, axis=1), play.agreement.norm_bound, rtol=1e-4)


def test_a_site_that_never_trained_takes_no_targets(play: ScriptedSums) -> None:
    begun = play.attempt(A, B, C)
    result = play.result_of(begun.carried_out((A, B, C)), begun, (A, B, C))
    for name in (A, B, C):
        play.give_result(name, result)
    play.attempt(*EVERYONE, round_number=2, start={D: (base_of(result), result)})
    assert play.site(D).learner.received.base_hash == base_of(result)
    assert not play.site(D).learner.predictor.prototypes().has_personal.any()


def test_a_result_of_a_later_round_is_no_base(play: ScriptedSums) -> None:
    begun, result = carried_out(play, A, B, D)
    ahead = signed_anew(result, play, begun, (A, B, D), round_number=2)
    with pytest.raises(Violation):
        play.attempt(C, round_number=2, start={C: (base_of(ahead), ahead)})


def test_result_that_replays_the_sum_of_the_round_before_is_refused(play: ScriptedSums) -> None:
    _, first = carried_out(play, *EVERYONE)
    for name in EVERYONE:
        play.give_result(name, first)
    _, second = carried_out(play, *EVERYONE, round_number=2)
    with pytest.raises(Violation):
        play.give_result(A, first, round_number=2)
    play.give_result(A, second, round_number=2)
    assert play.site(A).learner.received.base_hash == base_of(second)


def test_result_signed_by_helpers_for_fewer_participants_than_the_site_knows_is_refused(
    play: ScriptedSums,
) -> None:
    begun, honest = carried_out(play, A, B, D)
    with pytest.raises(Violation):
        play.give_result(A, signed_anew(honest, play, begun, (A, B, D)))
    play.give_result(A, honest)


@pytest.mark.parametrize("fault", ["holders", "participants"])
def test_result_to_catch_up_with_over_too_few_sites_is_refused(play: ScriptedSums, fault: str) -> None:
    begun = play.attempt(A, B, C)
    honest = play.result_of(begun.carried_out((A, B, C)), begun, (A, B, C))
    if fault == "holders":
        few = replace(honest, arrays=(honest.arrays[0], np.array([2.0, 2.0, 0.0])))
    else:
        nothing = replace(honest, arrays=(np.zeros_like(honest.arrays[0]), np.zeros(3)))
        few = signed_anew(nothing, play, begun, (A, B))
    with pytest.raises(Violation):
        play.attempt(D, round_number=2, start={D: (base_of(few), few)})
    assert play.site(D).learner.received.base_hash == b""


@pytest.mark.parametrize("fault", ["holders", "participants"])
def test_member_refuses_to_catch_up_with_another_sum_than_its_attempts(
    play: ScriptedSums, fault: str
) -> None:
    """C made shares and missed the result, so that its journal has the attempt's list."""
    begun, honest = carried_out(play, *(EVERYONE if fault == "holders" else (A, B, D)))
    if fault == "holders":
        wrong = REFUSED["a holder too many"](play, honest)
    else:
        wrong = signed_anew(honest, play, begun, (A, B, D))
    with pytest.raises(Violation):
        play.attempt(C, round_number=2, start={C: (base_of(wrong), wrong)})
    play.attempt(C, round_number=2, start={C: (base_of(honest), honest)})


def test_signatures_of_sharers_do_not_belong_to_a_result(play: ScriptedSums) -> None:
    _, result = carried_out(play, *EVERYONE)
    signed: SignedSurvivors = members_of(result, play).signed
    altered = with_signed(result, play, sharers=signed.signatures)
    with pytest.raises(Violation):
        play.give_result(A, altered)


def test_sites_hold_no_secret_of_the_group(play: ScriptedSums) -> None:
    """The set-up ends with the roster, and the journals have the names of the sites' own keys alone."""
    carried_out(play, *EVERYONE)
    for name in EVERYONE:
        kept = play.site(name).journal._db.execute("SELECT name FROM secrets").fetchall()
        assert {row[0].partition(" of ")[0] for row in kept} == {"channel key", "signing key", "statement"}
