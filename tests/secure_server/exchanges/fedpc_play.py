"""A coordinator with deadlines and the scripted sites of a FedPC run, and what its rounds must come to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, Protection
from agreement.derived.payload_shapes import result_shape
from algorithms.fedpc import means_within_groups, mix_groups
from crypto.pki import TrustAnchor
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.protocol.setup import Party
from secure_server.aggregator import Aggregator
from secure_server.coordinator import Coordinator
from secure_server.round_log import CoordinatorRound
from secure_server.rounds.rules import build_rules
from secure_server.rounds.state import PHASE_OF_STAGE, RoundStage, State
from secure_server.store import Store
from tests.secure_server.scripted_sites import (
    CLASSES,
    DIM,
    FAR,
    NEAR,
    Clock,
    ScriptedSite,
    Vector,
    extractor_of,
    holds_of,
    prototypes_of,
)

SECONDS = 60.0

Result = tuple[Vector, Vector]
"""A group's vector (L,) and which classes it has (K,)."""


@dataclass
class Play:
    """A run in play."""

    agreement: Agreement
    parties: Mapping[str, Party]
    trust: TrustAnchor
    store: Store
    keys: Path
    max_attempts: int = 3
    clock: Clock = field(default_factory=Clock)
    rounds: list[CoordinatorRound] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.coordinator = self.new_coordinator()
        self.sites = {
            name: ScriptedSite(party, self.agreement, self.coordinator)
            for name, party in self.parties.items()
        }

    def new_coordinator(self, **options: Any) -> Coordinator:
        return Coordinator(
            agreement=self.agreement,
            rules=build_rules(
                self.agreement,
                self.parties,
                max_attempts=self.max_attempts,
                join_seconds=SECONDS,
                phase_seconds=dict.fromkeys(Phase, SECONDS),
            ),
            trust=self.trust,
            store=self.store,
            aggregator=Aggregator(self.agreement, self.keys),
            clock=self.clock,
            on_round=self.rounds.append,
            **options,
        )

    def restart(self) -> None:
        """Kill the coordinator's process and start it again."""
        self.coordinator = self.new_coordinator()
        for site in self.sites.values():
            site.coordinator = self.coordinator

    @property
    def state(self) -> State:
        return self.coordinator.state

    def join(self) -> None:
        for site in self.sites.values():
            site.join()

    def go_to(self, stage: RoundStage, number: int | None = None, without: Collection[str] = ()) -> None:
        """Let all but ``without`` take turns until the run is there; when all of them wait, time passes."""
        for _ in range(60):
            before = self.state
            for name, site in self.sites.items():
                if self.state.stage is stage and number in (None, self.state.round):
                    return
                if name not in without:
                    site.step()
            if self.state == before:
                self.late()
        raise AssertionError(f"at {self.state}")

    def step(self, *names: str) -> None:
        for name in names:
            self.sites[name].step()

    def result(self, name: str, number: int) -> bytes | None:
        """Return the group's result of a round that the site received, in that round or later."""
        site = self.sites[name]
        given = {other.results[number] for other in self.sites.values() if number in other.results}
        return site.results.get(number) or next((each for each in site.caught_up if each in given), None)

    def late(self) -> None:
        """Let the current phase's time run out."""
        self.clock.now += SECONDS
        self.coordinator.tick()

    def content(self, site: str, key_phase: Phase) -> tuple[Any, bytes]:
        """Return a site's current key and its honest answer."""
        key = self.state.key(key_phase)
        return key, self.sites[site].answer(key, self.sites[site].download(key))


@contextmanager
def playing(
    agreement: Agreement, parties: Mapping[str, Party], trust: TrustAnchor, folder: Path, **options: Any
) -> Iterator[Play]:
    """Yield a new run."""
    path = folder / "coordinator.sqlite"
    with Store.open(path, agreement.run, agreement.hash(), durable=False) as store:  # nothing cuts the power
        yield Play(agreement, parties, trust, store, folder / "keys", **options)


def expected(
    agreement: Agreement,
    number: int,
    summed: Collection[str],
    there: Collection[str] | None = None,
    groups: Collection[tuple[str, ...]] = (NEAR, FAR),
) -> dict[str, Result]:
    """Compute the result of each member of a group from the vectors of the sites in ``summed``.

    ``there`` stated their presence: all of ``summed``, and more if some dropped out later.
    """
    present = set(summed if there is None else there)
    going_on = [group for group in groups if len(present & set(group)) >= agreement.min_holders]
    rows, holders, theta, members = [], [], [], []
    for group in going_on:
        cohort = sorted(present & set(group))
        staying = [site for site in cohort if site in summed]
        active = np.sum([holds_of(site) for site in cohort], axis=0) >= agreement.min_holders
        holds = np.array([holds_of(site) & active for site in staying])
        stack = np.array([prototypes_of(site, number) for site in staying])
        rows.append(np.where(holds[:, :, None], stack, 0.0).sum(axis=0))
        holders.append(holds.sum(axis=0))
        theta.append(np.sum([extractor_of(site, number) for site in staying], axis=0))
        members.append(len(staying))
    means = means_within_groups(
        np.array(rows), np.array(holders), np.array(theta), np.array(members), agreement.min_holders
    )
    mixed = mix_groups(means)
    results = zip(going_on, mixed.rows.reshape(-1, CLASSES * DIM), mixed.theta, mixed.has, strict=True)
    return {
        site: (np.concatenate([rows_j, theta_j]), has_j.astype(np.float64))
        for group, rows_j, theta_j, has_j in results
        for site in group
    }


def check_results(play: Play, number: int, results: Mapping[str, Result], got_by: Collection[str]) -> None:
    """Check that each site of ``got_by``, and no other, has its result, exact but for the fixed point's resolution."""
    form = result_shape(play.agreement)
    for name, site in play.sites.items():
        content = play.result(name, number)
        assert (content is not None) == (name in got_by), name
        if content is not None:
            vector, has = codec.decode_payload(content, site.limits, form).arrays
            np.testing.assert_array_equal(has, results[name][1])
            np.testing.assert_allclose(
                vector, results[name][0], rtol=0.0, atol=tolerance(play.agreement, results[name][0])
            )


def tolerance(agreement: Agreement, vector: Vector) -> float:
    """Half a unit in a mean; and the weights of groups, from prototypes of norm 1 or more, off by a few finer ones."""
    if agreement.protection is not Protection.MASKED:
        return 1e-13 * float(np.abs(vector).max())
    units = agreement.fixed_point().resolution
    return float(units.max() / 2 + 8 * units.min() * np.abs(vector).max())


VICTIM = "c"
"""Site whose answers are tampered with."""

Change = Callable[[ScriptedSite, PhaseKey, bytes], bytes]
"""(site, key, its honest answer) -> what is sent."""


def check_refused(
    play: Play, stage: RoundStage, number: int, change: Change, error: type[Exception], match: str = ""
) -> None:
    """Check that the victim's changed answer is refused, and its own answer after that is taken."""
    play.go_to(stage, number)
    site, key = play.sites[VICTIM], play.state.key(PHASE_OF_STAGE[stage])
    honest = site.answer(key, site.download(key))
    before = play.state
    with pytest.raises(error, match=match or None):
        site.upload(key, change(site, key, honest))
    assert play.state == before
    assert play.store.upload_hash(key, VICTIM) is None
    site.upload(key, honest)
    assert VICTIM in play.state.answered


def check_passes(play: Play, stage: RoundStage, change: Change) -> None:
    """Check that the victim's changed answer is taken."""
    play.go_to(stage, 1)
    site, key = play.sites[VICTIM], play.state.key(PHASE_OF_STAGE[stage])
    site.upload(key, change(site, key, site.answer(key, site.download(key))))
    assert VICTIM in play.state.answered
