"""Every method under every protection with too few sites left: the run stops without a result, and later goes on.

Two of five are left where three are agreed, from PRESENCE on or from VALUES, when some masked values are there already.
Once the coordinator is started again and all are back, the same round has its result, as under `plain`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import PROTECTIONS, Agreement, Method, Protection
from algorithms.pfpl import Weighting
from protoseal.simulation.local_federation import LocalFederation
from protoseal_wire.messages import Phase
from secure_server.round_log import CoordinatorRound
from secure_server.rounds.state import Stage
from tests.conformance.grouped_runs import grouped_agreement
from tests.conformance.plain_answers import check_predictions
from tests.conformance.runs import Record, agreement_for, data_for, recording_federation
from tests.conformance.stepped_federation import SECONDS, Clock, Loss, play, set_deadlines, take_turns

SITES = tuple(f"site-{i}" for i in range(1, 6))
STAYING = SITES[:2]
METHODS = (Method.PFPL, Method.FEDPC, Method.FEDDBP, Method.FEDPLCC)
ROUNDS = 2


@dataclass
class Run:
    """Outcome of a run: stopped or not, the results by then and in the end, and the coordinator's rounds."""

    stopped: bool = False
    early: Record = field(default_factory=dict)
    record: Record = field(default_factory=dict)
    rounds: list[CoordinatorRound] = field(default_factory=list)


def agreement_of(method: Method, protection: Protection) -> Agreement:
    if method is Method.PFPL:
        return agreement_for(protection, Weighting.COMPLEMENT, classes=3, dim=8, rounds=ROUNDS)
    settings: dict[str, Any] = {"fedpc": {"groups": 1}, "norm_bound": 40.0}
    return grouped_agreement(protection, method=method, classes=3, dim=12, rounds=ROUNDS, **settings)


def run(method: Method, protection: Protection, phase: Phase, folder: Path) -> Run:
    agreement, found, clock = agreement_of(method, protection), Run(), Clock()
    data = data_for(agreement, np.ones((len(SITES), 3), dtype=np.bool_))
    losses = [Loss(site, 1, phase) for site in SITES if site not in STAYING]
    with recording_federation(agreement, data, folder, found.record) as federation:
        set_deadlines(federation, folder / "keys.bin", clock)
        found.stopped = stops(federation, clock, losses)
        found.early = dict(found.record)
        if found.stopped:
            set_deadlines(federation, folder / "keys.bin", clock)
            play(federation, clock)
        found.rounds = federation.rounds
    return found


def stops(federation: LocalFederation, clock: Clock, losses: list[Loss]) -> bool:
    """Play up to where the run stops, or to its end."""
    for site in federation.sites:
        site.join()
    while federation.coordinator.state.stage not in (Stage.STOPPED, Stage.FINISHED):
        if not take_turns(federation, losses):
            clock.now += SECONDS + 1.0
            federation.coordinator.tick()
    return federation.coordinator.state.stage is Stage.STOPPED


Runs = Callable[[Method, Protection, Phase], Run]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Each is played once."""
    return cache(
        lambda method, protection, phase: run(method, protection, phase, tmp_path_factory.mktemp("run"))
    )


each_case = pytest.mark.parametrize(
    ("method", "protection", "phase"),
    [
        pytest.param(method, protection, phase, id=f"{method}-{protection}-{phase.name}")
        for method in METHODS
        for protection in PROTECTIONS.values()
        for phase in (Phase.PRESENCE, Phase.VALUES)
    ],
)


@each_case
def test_a_run_with_too_few_left_stops_without_a_result_and_goes_on_with_that_round(
    method: Method, protection: Protection, phase: Phase, runs: Runs
) -> None:
    found, plain = runs(method, protection, phase), runs(method, Protection.PLAIN, phase)
    assert found.stopped
    assert not found.early
    assert [(each.round, each.abandoned) for each in found.rounds] == [(1, False), (2, False)]
    assert sorted(found.record) == [(number, site) for number in (1, 2) for site in SITES]
    for number in (1, 2):
        check_predictions(*((found.record[number, site], plain.record[number, site]) for site in SITES))
