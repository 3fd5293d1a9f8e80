"""Every method under every protection with too few sites left: the run stops without a result, and later resumes.

Two of five are left where three are agreed, in round 1 from PRESENCE on, and in round 2 from VALUES on, when some
masked values are there already. Once the coordinator is started again and all are back, the same round has its result,
as under `plain`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, Method, Protection
from algorithms.pfpl import Weighting
from protoseal.simulation.local_federation import LocalFederation
from protoseal_wire.messages import Phase
from secure_server.round_log import CoordinatorRound
from secure_server.rounds.state import RoundStage
from tests.conformance.drop_outs import SECONDS, Clock, Loss, play, set_deadlines, take_turns
from tests.conformance.federations import agreement_for, data_for, grouped_agreement
from tests.conformance.transcripts import Record, check_predictions, recording_federation
from tests.support.served import served_pairs

SITES = tuple(f"site-{i}" for i in range(1, 6))
METHODS = (Method.PFPL, Method.FEDPC, Method.FEDDBP, Method.FEDPLCC)
LOST_IN = {1: Phase.PRESENCE, 2: Phase.VALUES}
"""Phase of each round from which on three sites answer nothing."""


@dataclass
class StoppedRun:
    """A run that stopped in each round: results at each stop and in the end, and the coordinator's rounds."""

    results_at_stop: dict[int, set[tuple[int, str]]] = field(default_factory=dict)
    record: Record = field(default_factory=dict)
    rounds: list[CoordinatorRound] = field(default_factory=list)


def agreed(method: Method, protection: Protection) -> Agreement:
    """Return the agreement of two rounds on a method."""
    if method is Method.PFPL:
        return agreement_for(protection, Weighting.COMPLEMENT, classes=3, dim=8, rounds=len(LOST_IN))
    settings: dict[str, Any] = {"fedpc": {"groups": 1}, "norm_bound": 40.0}
    return grouped_agreement(protection, method=method, classes=3, dim=12, rounds=len(LOST_IN), **settings)


def run(method: Method, protection: Protection, folder: Path) -> StoppedRun:
    """Play a run that stops in each round, and is started again with all sites."""
    agreement, stopped, clock = agreed(method, protection), StoppedRun(), Clock()
    data = data_for(agreement, np.ones((len(SITES), 3), dtype=np.bool_))
    with recording_federation(agreement, data, folder, stopped.record) as federation:
        for number, phase in LOST_IN.items():
            set_deadlines(federation, folder / "keys.bin", clock)
            play_to_stop(federation, clock, [Loss(site, number, phase) for site in SITES[2:]])
            stopped.results_at_stop[number] = set(stopped.record)
        set_deadlines(federation, folder / "keys.bin", clock)
        play(federation, clock)
        stopped.rounds = federation.rounds
    return stopped


def play_to_stop(federation: LocalFederation, clock: Clock, losses: list[Loss]) -> None:
    """Play up to where the run stops; ``AssertionError`` for a run that finishes."""
    for site in federation.sites:
        site.join()
    while (stage := federation.coordinator.state.stage) is not RoundStage.STOPPED:
        assert stage is not RoundStage.FINISHED
        if not take_turns(federation, losses):
            clock.now += SECONDS + 1.0
            federation.coordinator.tick()


Runs = Callable[[Method, Protection], StoppedRun]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Each run is played once."""
    return cache(lambda method, protection: run(method, protection, tmp_path_factory.mktemp("run")))


@pytest.mark.parametrize(("method", "protection"), served_pairs(METHODS))
def test_run_of_too_few_sites_stops_without_a_result_and_resumes_that_round(
    method: Method, protection: Protection, runs: Runs
) -> None:
    stopped, plain = runs(method, protection), runs(method, Protection.PLAIN)
    assert {number: {at for at, _ in results} for number, results in stopped.results_at_stop.items()} == {
        1: set(),
        2: {1},
    }
    assert [(each.round, each.abandoned) for each in stopped.rounds] == [(1, False), (2, False)]
    assert sorted(stopped.record) == [(number, site) for number in LOST_IN for site in SITES]
    for number in LOST_IN:
        check_predictions(*((stopped.record[number, site], plain.record[number, site]) for site in SITES))
