"""All interleavings of four sites and a fault at the real round machine."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from protoseal_wire.messages import PhaseKey
from secure_server.rounds import machine as rounds
from secure_server.rounds import transitions
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import State
from tests.states.phases import Explorer


def test_every_order_of_a_fault_at_four_sites_ends_well() -> None:
    found = Explorer(4, 1).explore()
    assert found.complete
    assert not found.problems, found.problems
    assert found.states > 3000


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("sites", "faults", "rounds"), [(4, 2, 1), (4, 1, 2), (5, 1, 1)])
def test_every_order_of_more_ends_well(sites: int, faults: int, rounds: int) -> None:
    found = Explorer(sites, faults, rounds_=rounds).explore()
    assert found.complete
    assert not found.problems, found.problems


def test_a_machine_that_attempts_a_round_again_after_unmask_is_found() -> None:
    with patch.object(transitions, "_sum_may_be_open", lambda rules, state: False):
        two_sums = "two sums of a round may open"
        assert two_sums in Explorer(4, 1).explore(until=two_sums).problems


def test_a_machine_that_asks_who_left_an_attempt_for_more_of_it_is_found() -> None:
    joined = rounds._apply_join

    def wrong(rules: Rules, state: State, site: str, left: PhaseKey | None) -> State:
        return joined(rules, state, site, None)

    with patch.object(rounds, "_apply_join", wrong):
        refused = "refused: the secrets are erased"
        assert refused in Explorer(4, 1).explore(until=refused).problems
