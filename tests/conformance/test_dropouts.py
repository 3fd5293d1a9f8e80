"""A site that vanishes in the middle of a round: the others go on without it, under `ckks` as under `plain`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from algorithms.pfpl import Weighting
from protoseal.config import Agreement, Protection
from protoseal.federation import DirectTransport, LocalFederation, LocalSite
from protoseal_wire.messages import Finished, Phase
from secure_server.aggregate import Aggregator
from secure_server.coordinator import Coordinator
from secure_server.rounds import Rules, Stage
from tests.conformance.expected import check_predictions, excess
from tests.conformance.runs import Record, agreement_for, data_for, holdings, recording_federation, run

SECONDS, TURNS = 10.0, 50


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def set_deadlines(federation: LocalFederation, keys: Path, clock: Clock) -> None:
    """Put a coordinator with deadlines by ``clock`` and a second attempt in the place of the patient one."""
    agreement = federation.agreement
    federation.coordinator = Coordinator(
        agreement=agreement,
        rules=Rules(
            run=agreement.run,
            roster=tuple(site.name for site in federation.sites),
            min_sites=agreement.min_sites,
            rounds=agreement.rounds,
            max_attempts=2,
            needs_secret=agreement.needs_group_secret,
            join_seconds=SECONDS,
            phase_seconds=dict.fromkeys(Phase, SECONDS),
        ),
        trust=federation.parties[0].trust,
        store=federation.store,
        aggregator=Aggregator(agreement, keys),
        clock=clock,
        on_round=federation.rounds.append,
    )
    for site in federation.sites:
        site.transport = DirectTransport(federation.coordinator, agreement.run, site.name)


def take_turns(federation: LocalFederation, sites: Sequence[LocalSite], until: Stage) -> None:
    """Step the sites in turn until the run is at ``until``; fails if it does not get there."""
    for _ in range(TURNS):
        for site in sites:
            if federation.coordinator.state.stage is until:
                return
            site.step()
    raise AssertionError(f"at {federation.coordinator.state.stage.name} after {TURNS} turns")


def lose_a_site(agreement: Agreement, sites: int, folder: Path) -> tuple[Record, LocalFederation]:
    """Run it, the last site vanishing after it answered PRESENCE of round 1."""
    record: Record = {}
    data = data_for(agreement, holdings(sites, len(agreement.classes)))
    clock = Clock()
    with recording_federation(agreement, data, folder, record) as federation:
        set_deadlines(federation, folder / "keys.bin", clock)
        for site in federation.sites:
            site.join()
        take_turns(federation, federation.sites, Stage.VALUES)
        staying = federation.sites[:-1]
        for site in staying:
            site.step()
        assert federation.coordinator.state.stage is Stage.VALUES  # everyone waits for the last
        clock.now += SECONDS + 1.0
        federation.coordinator.tick()
        take_turns(federation, staying, Stage.FINISHED)
        assert all(isinstance(site.step(), Finished) for site in staying)
    return record, federation


def test_the_others_get_what_plain_gives_without_it(tmp_path: Path) -> None:
    agreement = agreement_for(Protection.CKKS, Weighting.COMPLEMENT, classes=3, dim=8)
    record, federation = lose_a_site(agreement, 4, tmp_path)
    plain = Agreement.model_validate({**dict(agreement), "protection": Protection.PLAIN})
    data = data_for(plain, holdings(4, 3))
    del data["site-4"]
    without = run(plain, data, tmp_path)
    assert [(each.round, each.attempt, each.sites) for each in federation.rounds] == [
        (1, 2, ("site-1", "site-2", "site-3")),
        (2, 1, ("site-1", "site-2", "site-3")),
    ]
    assert sorted(record) == sorted(without)
    for number in (1, 2):
        assert excess(agreement, record, number, Weighting.COMPLEMENT) <= 1.0
    for key, taken in record.items():
        check_predictions(taken, without[key])
        if key[0] == 1:
            np.testing.assert_array_equal(taken.prototypes.local, without[key].prototypes.local)


def test_the_lost_site_would_have_made_a_difference(tmp_path: Path) -> None:
    agreement = agreement_for(Protection.PLAIN, Weighting.COMPLEMENT, classes=3, dim=8, rounds=1)
    data = data_for(agreement, holdings(4, 3))
    complete, without = (
        run(agreement, data, tmp_path),
        run(agreement, {name: data[name] for name in ("site-1", "site-2", "site-3")}, tmp_path),
    )
    first = (1, "site-1")
    gap = np.abs(complete[first].prototypes.personal - without[first].prototypes.personal)
    assert gap[0].max() > 0.01
