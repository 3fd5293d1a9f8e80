"""PFPL: sites that vanish in each phase of a round. The others get what `plain` gives to those whose values came.

A site goes silent, or answers and the answer is lost; it is back in the round after, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from agreement import Agreement, Protection
from algorithms.pfpl import Weighting
from protoseal.simulation.local_federation import DirectTransport, LocalSite
from protoseal_wire.messages import Phase, PhaseKey
from secure_server.coordinator import Coordinator
from secure_server.round_log import CoordinatorRound
from tests.conformance.plain_answers import Stack, check_predictions, excess_over, inputs_from
from tests.conformance.runs import Bool, Record, agreement_for, data_for, holdings, recording_federation
from tests.conformance.stepped_federation import Clock, Loss, play, set_deadlines
from tests.support.marks import full_but

EVERYONE = tuple(f"site-{i}" for i in range(1, 8))
LOST: Mapping[Phase, str] = {Phase.PRESENCE: "site-7", Phase.VALUES: "site-1", Phase.RESULT: "site-4"}
"""One in each round, in this order. Under a group's secret it was site-1 who made it."""
PHASES = tuple(LOST)
AFTER = len(PHASES) + 1
"""The round after all losses."""
PLAIN, MASKED, CKKS = Protection.PLAIN, Protection.MASKED, Protection.CKKS


@dataclass(frozen=True)
class Case:
    """A protection, and how each of :data:`LOST` is lost. With another weighting and shape for those lost for good."""

    protection: Protection
    answer_lost: bool
    for_good: bool

    def agreement(self) -> Agreement:
        """More features than a ciphertext holds (256 here), or few."""
        if self.for_good:
            return agreement_for(self.protection, Weighting.DISTANCE, classes=3, dim=300, rounds=AFTER)
        return agreement_for(self.protection, Weighting.COMPLEMENT, classes=5, dim=8, rounds=AFTER)

    def losses(self) -> list[Loss]:
        """Return the losses; a site that is lost for good answers no later PRESENCE either."""
        first = [Loss(LOST[each], i, each, self.answer_lost) for i, each in enumerate(PHASES, start=1)]
        later = [
            Loss(each.site, i, Phase.PRESENCE) for each in first for i in range(each.round + 1, AFTER + 1)
        ]
        return [*first, *later] if self.for_good else first

    def contributors(self, number: int) -> tuple[str, ...]:
        """Return the sites whose values are combined in a round."""
        gone = {LOST[phase] for phase in PHASES[: number - 1] if self.for_good}
        now = {LOST[phase] for phase in PHASES[number - 1 : number] if phase is not Phase.RESULT}
        return tuple(site for site in EVERYONE if site not in gone | now)

    def given(self, number: int) -> set[str]:
        """Return the sites that have the result of a round, whether or not the coordinator knows."""
        missed = {LOST[phase] for phase in PHASES[number - 1 : number] if not self.answer_lost}
        return set(self.contributors(number)) - missed

    def __str__(self) -> str:
        return "-".join(
            [
                self.protection.name,
                "answer_lost" if self.answer_lost else "silent",
                "for_good" if self.for_good else "back",
            ]
        )


@dataclass
class Run:
    """Prototypes and classes that sites put in, by (round, attempt, site), and the results."""

    agreement: Agreement
    put: dict[tuple[int, int, str], tuple[Stack, Bool]] = field(default_factory=dict)
    record: Record = field(default_factory=dict)
    rounds: list[CoordinatorRound] = field(default_factory=list)

    def excess(self, number: int, *, without: str = "") -> float:
        """Return the excess of a round's result over the values that came, or over all of them but one site's."""
        attempt = self.rounds[number - 1].attempt
        put = {site: each for (*at, site), each in self.put.items() if at == [number, attempt]}
        inputs = inputs_from(self.agreement, {site: each for site, each in put.items() if site != without})
        got = {site: taken.targets for (i, site), taken in self.record.items() if i == number}
        got.pop(without, None)
        return excess_over(self.agreement, inputs, got)


class Tap(DirectTransport):
    """A site's calls, with a note of what it put in."""

    def __init__(self, coordinator: Coordinator, site: LocalSite, run: Run) -> None:
        super().__init__(coordinator, run.agreement.run, site.name)
        self._at, self._put = site, run.put

    def upload(self, key: PhaseKey, content: bytes) -> None:
        """See :class:`DirectTransport`."""
        super().upload(key, content)
        if key.phase is Phase.VALUES:
            rows, counts = self._at.trainee.train_round(key.round)
            self._put[key.round, key.attempt, self._at.name] = (rows, counts > 0)


def run_with(agreement: Agreement, losses: list[Loss], folder: Path) -> Run:
    run, clock = Run(agreement), Clock()
    data = data_for(agreement, holdings(len(EVERYONE), len(agreement.classes)))
    with recording_federation(agreement, data, folder, run.record) as federation:
        set_deadlines(federation, folder / "keys.bin", clock)
        for site in federation.sites:
            site.transport = Tap(federation.coordinator, site, run)
        play(federation, clock, losses)
        run.rounds = federation.rounds
    return run


Runs = Callable[[Case], Run]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Each case is run once."""
    return cache(lambda case: run_with(case.agreement(), case.losses(), tmp_path_factory.mktemp("run")))


CHEAP = [
    Case(each, lost, gone) for each in (PLAIN, MASKED) for lost in (False, True) for gone in (False, True)
]
CASES = [
    *CHEAP,
    Case(CKKS, answer_lost=False, for_good=False),
    Case(CKKS, answer_lost=True, for_good=True),
]
KEPT = [
    Case(PLAIN, answer_lost=False, for_good=False),
    Case(MASKED, answer_lost=False, for_good=False),
    Case(MASKED, answer_lost=True, for_good=True),
    Case(CKKS, answer_lost=False, for_good=False),
]

each_case = pytest.mark.parametrize("case", full_but(CASES, *KEPT), ids=str)
each_phase = pytest.mark.parametrize(
    ("number", "phase"), [pytest.param(i, each, id=each.name) for i, each in enumerate(PHASES, start=1)]
)


@each_case
@each_phase
def test_survivors_get_the_plain_result_without_the_lost_site(
    case: Case, number: int, phase: Phase, runs: Runs
) -> None:
    run = runs(case)
    reported = run.rounds[number - 1]
    repeated = phase is Phase.VALUES  # which everyone who takes part must send
    assert (reported.round, reported.attempt, reported.abandoned) == (number, 1 + repeated, False)
    assert reported.sites == case.contributors(number)
    assert {site for i, site in run.record if i == number} == case.given(number)
    assert run.excess(number) <= 1.0
    assert run.excess(number, without="site-2") > 20.0  # it would show if one's values were missing


@each_case
def test_returned_sites_take_part_in_the_last_round(case: Case, runs: Runs) -> None:
    run = runs(case)
    left = set(EVERYONE) - (set(LOST.values()) if case.for_good else set())
    assert (run.rounds[-1].round, run.rounds[-1].attempt) == (AFTER, 1)
    assert set(run.rounds[-1].sites) == {site for i, site in run.record if i == AFTER} == left
    assert run.excess(AFTER) <= 1.0


@pytest.mark.parametrize(
    "case", full_but([each for each in CASES if each.protection is not PLAIN], *KEPT[1:]), ids=str
)
def test_predictions_are_those_of_the_same_losses_under_plain(case: Case, runs: Runs) -> None:
    run, plain = runs(case), runs(replace(case, protection=PLAIN))
    assert sorted(run.record) == sorted(plain.record)
    for key, taken in run.record.items():
        if key[0] == 1:  # the protections had the same numbers to work on
            np.testing.assert_array_equal(taken.prototypes.local, plain.record[key].prototypes.local)
    for number in range(1, AFTER + 1):
        keys = [key for key in run.record if key[0] == number]
        check_predictions(*((run.record[key], plain.record[key]) for key in keys))


@pytest.mark.parametrize("answer_lost", [False, True])
def test_survivors_see_no_trace_of_a_site_lost_early(answer_lost: bool, runs: Runs, tmp_path: Path) -> None:
    """A failed attempt under `plain` leaves nothing behind, bit for bit."""
    case = Case(PLAIN, answer_lost, for_good=True)
    earlier = [
        replace(each, phase=Phase.PRESENCE, answer_lost=False) if each.phase is Phase.VALUES else each
        for each in case.losses()
    ]
    undisturbed = run_with(case.agreement(), earlier, tmp_path)
    assert [each.attempt for each in undisturbed.rounds] == [1] * AFTER
    got = runs(case).record
    assert sorted(got) == sorted(undisturbed.record)
    for key, taken in got.items():
        np.testing.assert_array_equal(taken.targets, undisturbed.record[key].targets)
        np.testing.assert_array_equal(taken.margins, undisturbed.record[key].margins)
