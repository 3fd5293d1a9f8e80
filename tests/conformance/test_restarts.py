"""Every party is stopped and opened again before each of its steps, and the run is the undisturbed one, bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from algorithms.pfpl import Weighting
from protoseal.config import Agreement, Protection
from protoseal.federation import DirectTransport, make_parties
from protoseal_wire.messages import Finished, Phase, Task
from secure_client.build import build_learner
from secure_client.data import SiteData
from secure_client.runner import step
from secure_client.session import Session
from secure_client.setup import Party, open_journal
from secure_client.trainee import Trainee
from secure_server.aggregate import Aggregator
from secure_server.coordinator import Coordinator
from secure_server.rounds import Rules
from secure_server.store import Store
from tests.conformance.expected import check_predictions, excess
from tests.conformance.runs import Record, agreement_for, data_for, holdings, run, taken_from

TURNS, AGES = 60, 1e9


class Forgetful:
    """A federation whose parties know nothing from one step to the next but what is in their files."""

    def __init__(self, agreement: Agreement, data: Mapping[str, SiteData], folder: Path) -> None:
        self._agreement, self._data, self._folder = agreement, data, folder
        self._parties, self._trust = make_parties(folder / "identities", agreement, sorted(data))

    def run(self) -> None:
        for party in self._parties:
            self._one(party, joins=True)
        for _ in range(TURNS):
            tasks = [self._one(party) for party in self._parties]
            if all(isinstance(task, Finished) for task in tasks):
                return
        raise AssertionError(f"not finished after {TURNS} turns")

    def files_of(self, site: str) -> Path:
        """Where a site saved after its last step."""
        return self._folder / "out" / site

    def _one(self, party: Party, *, joins: bool = False) -> Task | None:
        agreement = self._agreement
        with (
            Store.open(self._folder / "coordinator.sqlite", agreement.run, agreement.hash()) as store,
            open_journal(self._folder / party.name / "journal.sqlite", agreement, party) as journal,
        ):
            learner = build_learner(
                agreement, party.name, self._data[party.name], model=agreement.training.model, device="cpu"
            )
            trainee = Trainee(learner, journal, agreement.norm_bound)
            session = Session(agreement, party, trainee, journal)
            transport = DirectTransport(self._coordinator(store), agreement.run, party.name)
            if joins:
                transport.join(session.join_request())
                return None
            task = step(session, transport)
            if trainee.has_trained:
                trainee.save(self.files_of(party.name))
            return task

    def _coordinator(self, store: Store) -> Coordinator:
        agreement = self._agreement
        rules = Rules(
            run=agreement.run,
            roster=tuple(sorted(self._data)),
            min_sites=agreement.min_sites,
            rounds=agreement.rounds,
            max_attempts=1,
            needs_secret=agreement.needs_group_secret,
            join_seconds=AGES,
            phase_seconds=dict.fromkeys(Phase, AGES),
        )
        aggregator = Aggregator(agreement, self._folder / "keys.bin")
        return Coordinator(
            agreement=agreement, rules=rules, trust=self._trust, store=store, aggregator=aggregator
        )


def run_forgetfully(agreement: Agreement, data: Mapping[str, SiteData], folder: Path) -> Record:
    """The record of the last round."""
    federation = Forgetful(agreement, data, folder)
    federation.run()
    return {
        (agreement.rounds, site): taken_from(federation.files_of(site), agreement, data[site])
        for site in data
    }


@pytest.mark.parametrize("protection", list(Protection))
def test_restarts_between_all_steps_change_nothing(tmp_path: Path, protection: Protection) -> None:
    agreement = agreement_for(protection, Weighting.COMPLEMENT, classes=3, dim=8)
    data = data_for(agreement, holdings(3, 3))
    undisturbed = run(agreement, data, tmp_path / "undisturbed")
    restarted = run_forgetfully(agreement, data, tmp_path / "restarted")
    for key, taken in restarted.items():
        check_predictions(taken, undisturbed[key])
        if protection is Protection.PLAIN:  # ckks adds noise of its own, and after round 1 they train on it
            np.testing.assert_array_equal(taken.prototypes.personal, undisturbed[key].prototypes.personal)
    assert excess(agreement, restarted, agreement.rounds, Weighting.COMPLEMENT) <= 1.0
