"""Every party is stopped and opened again before each of its steps, and the run is the undisturbed one, bit by bit.

What a restart must find again of a masked sum: the groups, the base, the secrets of an attempt, what was sent; of
FedDBP the scores, of Ditto the second model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from agreement import PROTECTIONS, Agreement, Method, Protection
from algorithms.pfpl import Weighting
from protoseal.simulation.local_federation import DirectTransport, make_parties
from protoseal_wire.messages import Finished, Phase, Task
from secure_client.checkpoints.learner_factory import build_checkpointed_learner, build_learner
from secure_client.client_loop import step
from secure_client.data import SiteData
from secure_client.protocol.journal import Journal
from secure_client.protocol.setup import Party, open_journal
from secure_client.session import Session
from secure_server.aggregator import Aggregator
from secure_server.coordinator import Coordinator
from secure_server.rounds.rules_from_agreement import agreed_rules
from secure_server.storage.store import Store
from tests.conformance.clustered_runs import run_clustered
from tests.conformance.grouped_runs import grouped_agreement, run_grouped, two_kinds
from tests.conformance.plain_answers import check_predictions, excess
from tests.conformance.runs import Record, Taken, agreement_for, data_for, holdings, run, taken_from
from tests.support.marks import full_but

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

    def taken(self, party: Party) -> Taken:
        """Return a site's files and predictions after its last step."""
        with self._journal(party) as journal:
            return taken_from(self._files(party), self._agreement, self._data[party.name], journal)

    @property
    def parties(self) -> list[Party]:
        """The sites."""
        return self._parties

    def _files(self, party: Party) -> Path:
        return self._folder / "out" / party.name

    def _journal(self, party: Party) -> Journal:
        return open_journal(
            self._folder / party.name / "journal.sqlite", self._agreement, party, durable=False
        )

    def _one(self, party: Party, *, joins: bool = False) -> Task | None:
        agreement = self._agreement
        with (
            Store.open(
                self._folder / "coordinator.sqlite", agreement.run, agreement.hash(), durable=False
            ) as store,
            self._journal(party) as journal,
        ):
            learner = build_learner(
                agreement, party.name, self._data[party.name], model=agreement.training.model, device="cpu"
            )
            trainee = build_checkpointed_learner(agreement, learner, journal)
            session = Session(agreement, party, trainee, journal)
            transport = DirectTransport(self._coordinator(store), agreement.run, party.name)
            if joins:
                transport.join(session.join_request())
                return None
            task = step(session, transport)
            if trainee.has_trained:
                trainee.save(self._files(party))
            return task

    def _coordinator(self, store: Store) -> Coordinator:
        agreement = self._agreement
        rules = agreed_rules(
            agreement,
            self._data,
            max_attempts=1,
            join_seconds=AGES,
            phase_seconds=dict.fromkeys(Phase, AGES),
        )
        aggregator = Aggregator(agreement, self._folder / "keys.bin")
        return Coordinator(
            agreement=agreement, rules=rules, trust=self._trust, store=store, aggregator=aggregator
        )


def run_forgetfully(agreement: Agreement, data: Mapping[str, SiteData], folder: Path) -> Record:
    """Return the record of the last round."""
    federation = Forgetful(agreement, data, folder)
    federation.run()
    return {(agreement.rounds, party.name): federation.taken(party) for party in federation.parties}


def check_same_bits(got: Record, reference: Record) -> None:
    """Prototypes, and the outputs of every site's model."""
    for key, taken in got.items():
        for one, other in zip(
            vars(taken.prototypes).values(), vars(reference[key].prototypes).values(), strict=True
        ):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(taken.targets, reference[key].targets)
        np.testing.assert_array_equal(taken.margins, reference[key].margins)
        np.testing.assert_array_equal(taken.predictions, reference[key].predictions)


@pytest.mark.parametrize("protection", PROTECTIONS.values())
def test_restarts_between_all_steps_change_nothing(tmp_path: Path, protection: Protection) -> None:
    agreement = agreement_for(protection, Weighting.COMPLEMENT, classes=3, dim=8)
    data = data_for(agreement, holdings(3, 3))
    undisturbed = run(agreement, data, tmp_path / "undisturbed")
    restarted = run_forgetfully(agreement, data, tmp_path / "restarted")
    check_predictions(*((taken, undisturbed[key]) for key, taken in restarted.items()))
    if (
        protection is Protection.PLAIN
    ):  # the others draw noise, or rotations, of their own, and train on the outcome
        check_same_bits(restarted, undisturbed)
    assert excess(agreement, restarted, agreement.rounds) <= 1.0


@pytest.mark.parametrize("protection", full_but([Protection.PLAIN, Protection.MASKED], Protection.MASKED))
@pytest.mark.parametrize(
    ("method", "groups"),
    full_but(
        [
            *((Method.FEDPC, [4, 3]), (Method.FEDDBP, [7]), (Method.FEDBN, [7]), (Method.DITTO, [7])),
            *((Method.FEDPLCC, [7]), (Method.FPL, [7])),
        ],
        (Method.FEDPC, [4, 3]),
    ),
)
def test_restarts_between_all_steps_of_sums_change_no_bit(
    tmp_path: Path, protection: Protection, method: Method, groups: list[int]
) -> None:
    """Masks and rotations are drawn afresh; clusters, and the sums that masks leave, are the same."""
    agreement = grouped_agreement(protection, method=method, classes=3, dim=8, rounds=2)
    data = data_for(agreement, two_kinds()[:7, 1:4])  # four sites of one kind, three of the other
    runs = run_clustered if agreement.clusters else run_grouped
    undisturbed = runs(agreement, data, tmp_path / "undisturbed")
    assert [len(group) for group in undisturbed.groups] == groups
    check_same_bits(run_forgetfully(agreement, data, tmp_path / "restarted"), undisturbed.taken)
