"""Plans of faults over every kind of run: no promise is broken, and each weakened double shows."""

from __future__ import annotations

import itertools

import pytest

from tests.states.doubles import DOUBLES
from tests.states.faults import FaultPlan, Kind, draw_plan
from tests.states.federations import FEDERATIONS, casts_of
from tests.states.play import play
from tests.states.walk import walk
from tests.support.marks import full_but

_SLOW = {"ckks": 2, "ckks-sums": 2, "two-groups": 2, "two-runs": 2}
_PLANS, _PLANS_OF_A_DOUBLE = 4, 25
_LONGER = 4
"""Factor by which `make test-all` plays more plans, of another seed. ``python -m tests.states`` plays more still."""
_SLOW_DOUBLES = {
    "forgets survivors",
    "forgets uploads",
    "keeps no result",
    "locks nothing",
    "refuses a second attempt",
    "repeats signed rounds",
}
_SITES = ("clinic-a", "clinic-b", "clinic-c", "clinic-d")


@pytest.mark.parametrize("federation", FEDERATIONS)
def test_walk_breaks_no_promise(federation: str) -> None:
    report = walk(federation, 1, plans=_SLOW.get(federation, _PLANS))
    assert not report.found, str(report)
    assert report.missed < report.faults.total()


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("federation", FEDERATIONS)
def test_long_walk_breaks_no_promise(federation: str) -> None:
    report = walk(federation, 2, plans=_LONGER * _SLOW.get(federation, _PLANS))
    assert not report.found, str(report)


@pytest.mark.parametrize("name", full_but(DOUBLES, *(DOUBLES.keys() - _SLOW_DOUBLES)))
def test_walk_finds_each_weakened_double(name: str) -> None:
    double = DOUBLES[name]
    with double.weakened():
        found = walk(
            double.federation, 1, first=double.first, plans=_PLANS_OF_A_DOUBLE, until=double.breaks
        ).found
    assert found.keys() & set(double.breaks)


def test_plan_follows_from_its_number_and_is_read_back() -> None:
    plans = [draw_plan(number, _SITES) for number in range(500)]
    assert plans == [draw_plan(number, _SITES) for number in range(500)]
    assert plans == [FaultPlan.parse(str(plan)) for plan in plans]
    drawn = {fault.kind for fault in itertools.chain.from_iterable(plan.faults for plan in plans)}
    assert drawn == set(Kind)


def test_plan_replayed_takes_the_same_turns() -> None:
    plan = draw_plan(11, _SITES)
    one, other = (play(casts_of("plain"), plan) for _ in range(2))
    assert (one.stage, one.turns, one.states) == (other.stage, other.turns, other.states)
