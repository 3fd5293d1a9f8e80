"""FedPC's rounds at the coordinator, under ``plain`` and ``masked``: groups, bases, catching up, who drops out when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agreement import FedpcSection, Protection
from protoseal_wire import codec
from protoseal_wire.messages import Finished
from secure_server.rounds import transitions
from secure_server.rounds.state import RoundStage
from tests.secure_server.conftest import Identities
from tests.secure_server.exchanges.fedpc_play import Play, check_results, expected, playing
from tests.secure_server.scripted_sites import FAR, NEAR, fedpc_agreement

ALL = (*NEAR, *FAR)
BOTH = [Protection.PLAIN, Protection.MASKED]


@pytest.fixture
def play(request: pytest.FixtureRequest, identities: Identities, tmp_path: Path) -> Iterator[Play]:
    agreement = fedpc_agreement(request.param)
    with playing(agreement, *identities, tmp_path) as begun:
        begun.join()
        yield begun


masked = pytest.mark.parametrize("play", [Protection.MASKED], indirect=True)
both = pytest.mark.parametrize("play", BOTH, indirect=True)


def without(*names: str) -> tuple[str, ...]:
    return tuple(name for name in ALL if name not in names)


@both
def test_a_run_groups_sites_once_and_gives_each_its_groups_result(play: Play) -> None:
    play.go_to(RoundStage.FINISHED)
    assert all(isinstance(site.task(), Finished) for site in play.sites.values())
    for number in (1, 2):
        check_results(play, number, expected(play.agreement, number, ALL), ALL)
    assert play.state.groups == (NEAR, FAR)
    assert [(each.round, each.sites, each.groups) for each in play.rounds] == [
        (number, ALL, (NEAR, FAR)) for number in (1, 2)
    ]
    assert all(each.withheld == ("2",) and not each.abandoned for each in play.rounds)


@both
def test_a_round_starts_from_the_result_of_the_one_before(play: Play) -> None:
    play.go_to(RoundStage.FINISHED)
    for name, site in play.sites.items():
        clustering, first, second = site.starts
        assert (clustering.groups, clustering.base) == ((), b"")
        assert (first.groups, first.base, first.catch_up) == ((NEAR, FAR), b"", None)
        result = hashlib.sha256(site.results[1]).digest()
        assert (second.base, second.catch_up) == (result, None), f"{name} said that it has it"


@both
def test_a_group_that_is_too_small_sits_out_and_catches_up(play: Play) -> None:
    play.go_to(RoundStage.RESULT, 1)
    play.go_to(RoundStage.PRESENCE, 2)
    play.go_to(RoundStage.FINISHED, without=("a", "b"))
    staying = (*FAR,)
    check_results(play, 2, expected(play.agreement, 2, staying), staying)
    assert (play.rounds[-1].sites, play.rounds[-1].groups) == (FAR, (FAR,))


@both
def test_a_site_that_was_away_is_given_what_its_group_had(play: Play) -> None:
    play.go_to(RoundStage.PRESENCE, 1)
    play.go_to(RoundStage.PRESENCE, 2, without=("d",))
    assert 1 not in play.sites["d"].results
    play.go_to(RoundStage.FINISHED)
    start = play.sites["d"].starts[-1]
    assert start.catch_up is not None
    assert start.base == hashlib.sha256(codec.encode_payload(start.catch_up)).digest()
    assert start.base == play.sites["a"].starts[-1].base
    check_results(play, 1, expected(play.agreement, 1, without("d")), ALL)
    check_results(play, 2, expected(play.agreement, 2, ALL), ALL)


@both
def test_a_member_that_missed_the_clustering_joins_the_largest_group(play: Play) -> None:
    play.go_to(RoundStage.PRESENCE, 0)
    play.go_to(RoundStage.PRESENCE, 1, without=("x",))
    assert play.state.groups == (("a", "b", "c", "d", "x"), ("w", "y", "z"))
    play.go_to(RoundStage.FINISHED)
    groups = play.state.groups
    check_results(play, 1, expected(play.agreement, 1, ALL, groups=groups), ALL)


@masked
@pytest.mark.parametrize(
    "stage", [RoundStage.SHARES, RoundStage.VALUES, RoundStage.SURVIVORS, RoundStage.UNMASK]
)
def test_one_of_each_group_may_drop_out_in_any_step(play: Play, stage: RoundStage) -> None:
    play.go_to(stage, 1)
    play.go_to(RoundStage.PRESENCE, 2, without=("d", "z"))
    in_the_sum = ALL if stage in (RoundStage.SURVIVORS, RoundStage.UNMASK) else without("d", "z")
    results = expected(play.agreement, 1, in_the_sum, there=ALL)
    check_results(play, 1, results, without("d", "z"))
    assert play.state.failures == 0
    assert [(each.attempt, each.sites) for each in play.rounds] == [(1, ALL)]
    play.step("d", "z")  # they are there again before the others have trained
    play.go_to(RoundStage.FINISHED)
    check_results(play, 1, results, ALL)
    check_results(play, 2, expected(play.agreement, 2, ALL), ALL)
    assert play.sites["d"].starts[-1].catch_up is not None


@masked
def test_a_site_that_dropped_out_and_is_back_gets_the_result_in_its_own_round(play: Play) -> None:
    play.go_to(RoundStage.VALUES, 1)
    play.go_to(RoundStage.RESULT, 1, without=("d",))
    play.go_to(RoundStage.FINISHED)
    check_results(play, 1, expected(play.agreement, 1, without("d"), there=ALL), ALL)
    assert play.sites["d"].starts[-1].catch_up is None


@masked
def test_different_sites_may_drop_out_in_different_steps(play: Play) -> None:
    """A site that dropped out stays out of the sum and gets the result, even if the site is back at once."""
    play.go_to(RoundStage.SHARES, 1)
    play.go_to(RoundStage.VALUES, 1, without=("d",))
    play.go_to(RoundStage.SURVIVORS, 1, without=("z",))
    play.go_to(RoundStage.PRESENCE, 2)
    check_results(play, 1, expected(play.agreement, 1, without("d", "z"), there=ALL), ALL)


@masked
def test_too_few_before_unmask_repeat_the_round(play: Play) -> None:
    play.go_to(RoundStage.VALUES, 1)
    play.go_to(RoundStage.PRESENCE, 1, without=("b", "c"))
    assert (play.state.attempt, play.state.failures) == (2, 0), "it taught us whom to leave out"
    assert play.state.benched == {"b", "c"}
    play.go_to(RoundStage.RESULT, 1)
    assert play.state.participants == FAR, "those left of the other group are too few"
    play.go_to(RoundStage.FINISHED)
    check_results(play, 1, expected(play.agreement, 1, FAR), FAR)
    check_results(play, 2, expected(play.agreement, 2, ALL), ALL)


@masked
def test_a_site_that_sent_values_is_asked_again_only_with_enough_of_the_same_sites(play: Play) -> None:
    """Five in the group, two lost after their values; three would be enough for a group of its own."""
    play.go_to(RoundStage.PRESENCE, 0)
    play.go_to(RoundStage.PRESENCE, 1, without=("x",))
    five = ("a", "b", "c", "d", "x")
    play.go_to(RoundStage.SURVIVORS, 1)
    play.go_to(RoundStage.PRESENCE, 1, without=("c", "x"))
    assert (play.state.attempt, play.state.benched) == (2, frozenset("cx"))
    play.restart()  # forgets who is benched, and nothing else
    play.go_to(RoundStage.RESULT, 1, without=("c", "x"))
    assert play.state.participants == ("w", "y", "z")
    play.go_to(RoundStage.FINISHED)
    groups = play.state.groups
    check_results(play, 2, expected(play.agreement, 2, ALL, groups=groups), ALL)
    assert five in groups


def test_a_round_that_nobody_may_go_on_with_is_abandoned_and_reported(
    identities: Identities, tmp_path: Path
) -> None:
    """One group of eight: the five that are left are too few of those who sent values, in this round alone."""
    one = FedpcSection(groups=1)
    with playing(fedpc_agreement(Protection.MASKED, fedpc=one, rounds=3), *identities, tmp_path) as play:
        play.join()
        play.go_to(RoundStage.SURVIVORS, 2)
        play.go_to(RoundStage.PRESENCE, 3, without=("b", "c", "x"))
        assert play.state.reason == (
            "round 2, attempt 2: too few of the sites that were asked for values before are present; missing: b, c, x; "
            "the round is abandoned, without a result"
        )
        assert [(each.round, each.attempt, each.sites, each.abandoned) for each in play.rounds] == [
            (1, 1, ALL, False),
            (2, 2, (), True),
        ]
        five = without("b", "c", "x")
        play.go_to(RoundStage.FINISHED, without=("b", "c", "x"))
        check_results(play, 3, expected(play.agreement, 3, five, groups=(tuple(sorted(ALL)),)), five)


@masked
def test_a_coordinator_that_asked_them_would_meet_a_refusal(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.go_to(RoundStage.PRESENCE, 0)
    play.go_to(RoundStage.PRESENCE, 1, without=("x",))
    play.go_to(RoundStage.SURVIVORS, 1)
    monkeypatch.setattr(
        transitions, "_commit_asked_sites", lambda state: replace(state, unmask_commitments=())
    )
    play.coordinator._state = replace(play.state, unmask_commitments=())
    play.go_to(RoundStage.PRESENCE, 1, without=("c", "x"))
    with pytest.raises(AssertionError, match="refuse"):
        play.go_to(RoundStage.RESULT, 1, without=("c", "x"))


@masked
def test_a_class_must_keep_its_holders(play: Play) -> None:
    """The second class has three holders in a group of four: without one of them its sum would be of two."""
    play.go_to(RoundStage.SHARES, 1)
    play.go_to(RoundStage.PRESENCE, 1, without=("b",))
    assert (play.state.attempt, play.state.reason) == (2, "round 1, attempt 1: no shares from b")
    play.go_to(RoundStage.FINISHED)
    check_results(play, 1, expected(play.agreement, 1, without("b")), ALL)
    assert play.rounds[0].withheld == ("2",), "the other group has the second class"


@masked
def test_too_few_in_unmask_abandon_the_round(play: Play) -> None:
    play.go_to(RoundStage.UNMASK, 1)
    play.go_to(RoundStage.PRESENCE, 2, without=("b", "c"))
    assert (play.state.attempt, play.state.failures) == (1, 1)
    assert play.state.benched == {"b", "c"}
    assert play.state.reason == (
        "round 1, attempt 1: no released shares from b, c; the round is abandoned, without a result"
    )
    assert [(each.round, each.abandoned) for each in play.rounds] == [(1, True)]
    play.go_to(RoundStage.FINISHED)
    check_results(play, 2, expected(play.agreement, 2, FAR), FAR)
    assert all(site.starts[-1].base == b"" for site in play.sites.values())
    assert all(1 not in site.results for site in play.sites.values())


@masked
def test_an_abandoned_last_round_ends_the_run(play: Play) -> None:
    play.go_to(RoundStage.UNMASK, 2)
    play.go_to(RoundStage.FINISHED, without=("b", "c"))
    check_results(play, 1, expected(play.agreement, 1, ALL), ALL)
    assert [(each.round, each.abandoned) for each in play.rounds] == [(1, False), (2, True)]
