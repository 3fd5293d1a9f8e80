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


def test_four_sites_every_order_of_one_fault_ends() -> None:
    found = Explorer(4, 1).explore()
    assert found.complete
    assert not found.problems, found.problems
    assert found.states > 3000


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("sites", "faults", "rounds"), [(4, 2, 1), (4, 1, 2), (5, 1, 1)])
def test_more_sites_faults_or_rounds_every_order_ends(sites: int, faults: int, rounds: int) -> None:
    found = Explorer(sites, faults, rounds_=rounds).explore()
    assert found.complete
    assert not found.problems, found.problems


def test_exploration_finds_an_attempt_after_unmask() -> None:
    with patch.object(transitions, "_sum_may_be_open", lambda rules, state: False):
        two_sums = "two sums of a round may open"
        assert two_sums in Explorer(4, 1).explore(until=two_sums).problems


def test_exploration_finds_a_request_to_a_site_that_left() -> None:
    joined = rounds._apply_join

    def wrong(rules: Rules, state: State, site: str, left: PhaseKey | None) -> State:
        return joined(rules, state, site, None)

    with patch.object(rounds, "_apply_join", wrong):
        refused = "refused: the secrets are erased"
        assert refused in Explorer(4, 1).explore(until=refused).problems
