"""A member that spoils its group's sum: the group has no result, the others have theirs, and the run says so."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agreement import Protection
from crypto.errors import MalformedError
from crypto.protection import Cohort
from protoseal_wire import codec
from protoseal_wire.messages import Phase, ReleasedShares, Stopped
from secure_server.exchanges import secure_aggregation
from secure_server.exchanges.group_results import GroupSum, check_means
from secure_server.rounds.state import RoundStage
from tests.secure_server.conftest import Identities
from tests.secure_server.exchanges.fedpc_play import Play, check_results, expected, playing
from tests.secure_server.scripted_sites import CLASSES, DIM, FAR, NEAR, ScriptedSite, Vector, fedpc_agreement

ALL = (*NEAR, *FAR)
LOG = "protoseal.coordinator"


def releases_wrong_shares(play: Play, *names: str) -> None:
    """Well-formed ones, of everyone's secrets but its own."""
    for name in names:
        play.sites[name].twist[Phase.UNMASK] = wrong_shares(play.sites[name])


def wrong_shares(site: ScriptedSite) -> Callable[[bytes], bytes]:
    def twisted(honest: bytes) -> bytes:
        released = codec.decode_released_shares(honest, site.limits).shares
        wrong = (
            share if share.owner == site.name else replace(share, share=b"\0" + secrets.token_bytes(32))
            for share in released
        )
        return codec.encode_released_shares(ReleasedShares(tuple(wrong)))

    return twisted


def is_honest_again(play: Play, *names: str) -> None:
    for name in names:
        play.sites[name].twist.clear()


def test_the_other_group_has_its_result_as_if_there_were_no_other(masked: Play) -> None:
    masked.go_to(RoundStage.PRESENCE, 1)
    releases_wrong_shares(masked, "c")
    masked.go_to(RoundStage.FINISHED)
    for number in (1, 2):
        check_results(masked, number, expected(masked.agreement, number, FAR), FAR)
    assert [(each.sites, each.without, each.abandoned) for each in masked.rounds] == [(ALL, NEAR, False)] * 2
    assert masked.state.failures == 0


def test_nobody_of_the_group_is_asked_for_a_result(masked: Play) -> None:
    masked.go_to(RoundStage.PRESENCE, 1)
    releases_wrong_shares(masked, "c")
    masked.go_to(RoundStage.RESULT, 1)
    assert (masked.state.excluded_from_result, masked.state.step_sites) == (NEAR, FAR)
    assert [masked.store.result(masked.state.result_key, name) is None for name in ALL] == [True] * 4 + [
        False
    ] * 4


def test_the_group_goes_on_from_the_last_result_it_had(identities: Identities, tmp_path: Path) -> None:
    """One member missed that one: it catches up over the round that came to nothing."""
    with playing(fedpc_agreement(Protection.MASKED, rounds=3), *identities, tmp_path) as play:
        play.join()
        play.go_to(RoundStage.RESULT, 1)
        play.go_to(RoundStage.PRESENCE, 2, without=("d",))
        last = {name: hashlib.sha256(play.sites[name].results[1]).digest() for name in ("a", "w")}
        releases_wrong_shares(play, "c")
        play.go_to(RoundStage.PRESENCE, 3)
        is_honest_again(play, "c")
        play.restart()
        play.go_to(RoundStage.FINISHED)
        starts = {name: play.sites[name].starts[-1] for name in ALL}
        assert {starts[name].base for name in NEAR} == {last["a"]}
        assert (
            {starts[name].base for name in FAR}
            == {hashlib.sha256(play.sites["w"].results[2]).digest()}
            != {last["w"]}
        )
        assert play.sites["d"].starts[1].catch_up is None
        assert play.sites["d"].starts[2].catch_up is not None
        check_results(play, 2, expected(play.agreement, 2, FAR), FAR)
        check_results(play, 3, expected(play.agreement, 3, ALL), ALL)


def test_where_no_group_has_a_result_the_round_is_abandoned(masked: Play) -> None:
    masked.go_to(RoundStage.PRESENCE, 1)
    releases_wrong_shares(masked, "c", "y")
    masked.go_to(RoundStage.PRESENCE, 2)
    assert masked.state.reason == (
        "round 1, attempt 1: the aggregation failed; see the coordinator's log; "
        "the round is abandoned, without a result"
    )
    is_honest_again(masked, "c", "y")
    masked.go_to(RoundStage.FINISHED)
    assert [(each.round, each.abandoned, each.without) for each in masked.rounds] == [
        (1, True, ()),
        (2, False, ()),
    ]
    check_results(masked, 2, expected(masked.agreement, 2, ALL), ALL)


def test_a_run_without_any_result_stops_and_stays_so(masked: Play) -> None:
    masked.go_to(RoundStage.PRESENCE, 1)
    releases_wrong_shares(masked, "c", "y")
    masked.go_to(RoundStage.STOPPED)
    assert [(each.round, each.abandoned) for each in masked.rounds] == [(1, True), (2, True)]
    for _ in range(2):
        reason = masked.state.reason
        assert reason.startswith("no round of the run had a result; the last failure: round 2, attempt 1: ")
        assert [masked.sites[name].task() for name in ALL] == [Stopped(reason)] * 8
        assert masked.coordinator.finished
        masked.restart()
    assert len(masked.rounds) == 2


def test_log_names_the_members_and_the_reason_of_a_spoilt_group(
    masked: Play, caplog: pytest.LogCaptureFixture
) -> None:
    masked.go_to(RoundStage.PRESENCE, 1)
    releases_wrong_shares(masked, "c")
    with caplog.at_level(logging.ERROR, LOG):
        masked.go_to(RoundStage.RESULT, 1)
    assert [record.message for record in caplog.records] == [
        "round 1: no result for the group of a, b, c, d: a secret of a: "
        "the shares of a secret contradict each other: at least one of them is wrong"
    ]


def test_a_maker_of_bad_shares_is_told(masked: Play, caplog: pytest.LogCaptureFixture) -> None:
    """The others leave out what did not open; its own share alone does not give its secret."""
    masked.go_to(RoundStage.PRESENCE, 1)
    for name in "abd":
        site = masked.sites[name]
        site.twist[Phase.UNMASK] = leaves_out("c", site)
    with caplog.at_level(logging.ERROR, LOG):
        masked.go_to(RoundStage.RESULT, 1)
    assert "round 1: suspicion: c: no other site that answered could open a share of c's secrets" in [
        record.message for record in caplog.records
    ]


def leaves_out(owner: str, site: ScriptedSite) -> Callable[[bytes], bytes]:
    def twisted(honest: bytes) -> bytes:
        released = codec.decode_released_shares(honest, site.limits).shares
        return codec.encode_released_shares(
            ReleasedShares(tuple(share for share in released if share.owner != owner))
        )

    return twisted


class TestLongRows:
    """Each component within its bound in fixed point, the row twice as long as the norm bound."""

    @pytest.fixture
    def play(self, masked: Play) -> Play:
        masked.go_to(RoundStage.PRESENCE, 1)
        site = masked.sites["c"]
        honest = site.vector

        def vector(number: int) -> Vector:
            values = honest(number)
            rows = values[: CLASSES * DIM]
            rows[rows > 0.0] = masked.agreement.norm_bound
            return values

        site.vector = vector  # type: ignore[method-assign]  # the one site's own
        return masked

    def test_cost_their_group_its_result(self, play: Play, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.ERROR, LOG):
            play.go_to(RoundStage.FINISHED)
        check_results(play, 1, expected(play.agreement, 1, FAR), FAR)
        assert "exceeded norm_bound = 2" in caplog.text
        assert [each.without for each in play.rounds] == [NEAR] * 2

    def test_would_be_published_without_the_check(self, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(secure_aggregation, "check_means", lambda *_: None)
        play.go_to(RoundStage.FINISHED)
        assert play.sites["a"].results
        with pytest.raises(AssertionError, match="tolerance"):
            check_results(play, 1, expected(play.agreement, 1, ALL), ALL)


class TestLongestMean:
    """Means of three members with rows of exactly the bound, however fixed point rounds them."""

    def sum_of(self, play: Play, row: Vector) -> GroupSum:
        cohort = Cohort(("a", "b", "c"), np.ones((3, CLASSES), dtype=np.bool_), DIM)
        total = np.zeros(play.agreement.layout.length)
        total[: CLASSES * DIM] = np.tile(3.0 * row, CLASSES)
        return GroupSum(cohort, cohort.sites, total)

    def test_lets_honest_ones_pass(self, masked: Play) -> None:
        row = np.full(DIM, masked.agreement.norm_bound / np.sqrt(DIM))
        check_means(masked.agreement, self.sum_of(masked, row + 2.0**-17))

    def test_lets_no_longer_ones_pass(self, masked: Play) -> None:
        row = np.full(DIM, masked.agreement.norm_bound / np.sqrt(DIM))
        with pytest.raises(MalformedError, match="norm_bound"):
            check_means(masked.agreement, self.sum_of(masked, row + 2.0**-16))

    def test_looks_at_no_class_that_is_withheld(self, masked: Play) -> None:
        long = self.sum_of(masked, np.full(DIM, 100.0))
        few = replace(long, cohort=replace(long.cohort, holds=np.zeros((3, CLASSES), dtype=np.bool_)))
        check_means(masked.agreement, few)
