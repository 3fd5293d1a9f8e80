"""A coordinator that is started again on what its store holds, after the last round."""

from __future__ import annotations

from pathlib import Path

from protoseal.simulation.local_federation import LocalFederation, make_parties
from protoseal_wire.messages import PROTOCOL_VERSION, Finished, TaskRequest
from secure_server.aggregator import Aggregator
from secure_server.coordinator import Coordinator
from tests.secure_server.clock import Clock
from tests.secure_server.rounds.small_rules import rules_of
from tests.support.small import HOLDINGS, small_agreement, small_data


def test_started_again_after_the_end_it_tells_the_sites_and_ends(tmp_path: Path) -> None:
    agreement, clock = small_agreement(rounds=1), Clock()
    _, trust = make_parties(tmp_path, agreement, [])
    with LocalFederation(agreement, small_data(agreement)) as federation:
        federation.run()

        def again() -> Coordinator:
            return Coordinator(
                agreement=agreement,
                rules=rules_of(agreement, max_attempts=1),
                trust=trust,
                store=federation.store,
                aggregator=Aggregator(agreement, tmp_path / "keys"),
                clock=clock,
            )

        ended = [again().finished]
        asked = again()
        for site in HOLDINGS:
            ended.append(asked.finished)
            assert isinstance(asked.next_task(site, TaskRequest(PROTOCOL_VERSION, agreement.run)), Finished)
        assert [*ended, asked.finished] == [False] * 5 + [True]

        patient = again()
        clock.now += 31.0  # and nobody came
        assert patient.finished
