"""Progress log for the operator: the groups, the drop-outs and their phases, and rounds without a result."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agreement import FedpcSection, Protection
from agreement.registry.round_plan import MASKED_SUM as STEPS
from protoseal_wire.messages import Phase
from secure_server.rounds.rules import build_rules
from secure_server.rounds.state import RoundStage
from tests.secure_server.conftest import Identities
from tests.secure_server.exchanges.fedpc_play import Play, playing
from tests.secure_server.scripted_sites import NEAR, fedpc_agreement
from tests.support.small import small_agreement

LOG = "protoseal.coordinator"


class Lines:
    """The coordinator's log, as far as it has come."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __contains__(self, line: str) -> bool:
        return line in [record.message for record in self._caplog.records if record.name == LOG]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    with caplog.at_level(logging.INFO, LOG):
        yield Lines(caplog)


def test_log_groups_once_formed(masked: Play, lines: Lines) -> None:
    masked.go_to(RoundStage.PRESENCE, 0)
    masked.go_to(RoundStage.PRESENCE, 1, without=("x",))
    assert "group 1: a, b, c, d, x" in lines
    assert "group 2: w, y, z" in lines
    assert "sites absent from the clustering join the largest group: x" in lines


@pytest.mark.parametrize(
    ("groups", "min_holders", "said"),
    [
        (2, 3, None),
        (
            2,
            5,
            "groups = 2 is agreed, but 1 formed from 8 sites, because each group needs min_holders = 5 sites or"
            " more; a single group",
        ),
        (3, 3, "groups = 3 is agreed, but 2 formed from 8 sites, because each group needs min_holders = 3"),
    ],
)
def test_log_fewer_groups_than_agreed_warns(
    *,
    groups: int,
    min_holders: int,
    said: str | None,
    tmp_path: Path,
    identities: Identities,
    caplog: pytest.LogCaptureFixture,
) -> None:
    agreement = fedpc_agreement(
        Protection.MASKED, fedpc=FedpcSection(groups=groups), min_holders=min_holders, min_sites=min_holders
    )
    with caplog.at_level(logging.INFO, LOG), playing(agreement, *identities, tmp_path) as play:
        play.join()
        play.go_to(RoundStage.PRESENCE, 1)
    warned = [line for line in caplog.messages if line.startswith("groups = ")]
    assert len(warned) == (said is not None)
    assert all(line.startswith(str(said)) for line in warned)


def test_log_drop_out_names_site_and_step(masked: Play, lines: Lines) -> None:
    masked.go_to(RoundStage.VALUES, 1)
    masked.go_to(RoundStage.SURVIVORS, 1, without=("d",))
    assert "round 1: d dropped out in VALUES" in lines


def test_log_small_group_names_sites_that_sit_out(masked: Play, lines: Lines) -> None:
    masked.go_to(RoundStage.PRESENCE, 1)
    masked.go_to(RoundStage.SHARES, 1, without=("a", "b"))
    assert "round 1: c, d sit out, because too few members of their group are present" in lines
    assert "round 1: continuing without a, b" in lines


def test_log_abandoned_last_round_at_the_end(masked: Play, lines: Lines) -> None:
    masked.go_to(RoundStage.UNMASK, 2)
    masked.go_to(RoundStage.FINISHED, without=("b", "c"))
    why = "round 2, attempt 1: no released shares from b, c; the round is abandoned, without a result"
    assert f"the run is over: {why}" in lines
    assert (masked.rounds[-1].round, masked.rounds[-1].abandoned) == (2, True)


def test_log_restart_of_stopped_run_names_the_reason(masked: Play, lines: Lines) -> None:
    for number in (1, 2):
        masked.go_to(RoundStage.UNMASK, number)
        masked.late()
    assert masked.state.stage is RoundStage.STOPPED
    masked.restart()
    assert f"the run is over: {masked.state.reason}" in lines
    assert masked.state.reason.startswith("no round of the run had a result")


def test_log_abandoned_round_warns(masked: Play, lines: Lines) -> None:
    masked.go_to(RoundStage.UNMASK, 1)
    masked.go_to(RoundStage.PRESENCE, 2, without=("b", "c"))
    assert (
        "round 1, attempt 1: no released shares from b, c; the round is abandoned, without a result" in lines
    )
    assert masked.rounds[0].sites == (*NEAR, "w", "x", "y", "z")


class TestAgreedRules:
    def test_rules_masked_sums(self) -> None:
        rules = build_rules(
            fedpc_agreement(Protection.MASKED),
            ("w", "a", "d"),
            max_attempts=2,
            join_seconds=1.0,
            phase_seconds=dict.fromkeys(Phase, 1.0),
        )
        assert (rules.roster, rules.needs_secret, rules.min_group_size(3)) == (("a", "d", "w"), True, 3)
        assert (rules.first_round, rules.steps(0), rules.steps(1)) == (0, (Phase.VALUES,), STEPS)

    def test_rules_smallest_group_of_plain_and_masked_sums(
        self, tmp_path: Path, identities: Identities
    ) -> None:
        few = {"min_holders": 1, "min_sites": 2, "allow_fewer_holders_reveals_peers": True}
        smallest = []
        for protection in (Protection.PLAIN, Protection.MASKED):
            agreement = fedpc_agreement(protection, **few)
            with playing(agreement, *identities, tmp_path / protection.name) as play:
                smallest.append(play.coordinator._rules.min_group_size(4))
        assert smallest == [1, 2], "a mask is between two"

    def test_rules_pfpl(self) -> None:
        rules = build_rules(
            small_agreement(),
            ("a", "b", "c"),
            max_attempts=2,
            join_seconds=1.0,
            phase_seconds=dict.fromkeys(Phase, 1.0),
        )
        assert rules == replace(rules, first_round=1, round_steps=(Phase.VALUES,), needs_secret=False)
