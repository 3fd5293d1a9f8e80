"""A federation stopped where one of its sites is about to answer, for uploads that site should not make."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreement import Agreement
from algorithms.prototypes import Targets
from protoseal.simulation.local_federation import LocalFederation, LocalSite
from protoseal_wire.messages import DownloadRequest, Finished, Phase, PhaseKey, UploadHeader
from secure_server.coordinator import Coordinator
from secure_server.rounds.state import State
from secure_server.rounds.task_assignment import task_for
from tests.support.small import small_data


@dataclass(frozen=True)
class Upload:
    """Upload under the certificate of ``site``, as the answer to ``key``.

    ``announced`` is the size in the header: the content's own unless the header lies.
    """

    site: str
    key: PhaseKey
    content: bytes
    announced: int | None = None


@dataclass
class Scene:
    """``honest`` is what ``victim`` would answer to ``key`` now."""

    federation: LocalFederation
    victim: LocalSite
    key: PhaseKey
    request: bytes
    honest: bytes

    @property
    def coordinator(self) -> Coordinator:
        """The real one."""
        return self.federation.coordinator

    def upload(self, content: bytes) -> Upload:
        """Return an upload of this content in the honest answer's place."""
        return Upload(self.victim.name, self.key, content)

    def other(self, name: str) -> LocalSite:
        """Another site of the federation."""
        return next(site for site in self.federation.sites if site.name == name)

    def send(self, upload: Upload) -> None:
        """Send the upload to the coordinator, as its service hands it on."""
        size = len(upload.content) if upload.announced is None else upload.announced
        digest = hashlib.sha256(upload.content).digest()
        header = UploadHeader(upload.key, size, digest)
        self.coordinator.check_upload(upload.site, header)
        self.coordinator.upload(upload.site, header, upload.content)

    def memory(self) -> tuple[State, list[tuple[object, ...]]]:
        """Return all that the coordinator knows and has stored."""
        database = sqlite3.connect(self.federation._state / "coordinator.sqlite")
        tables = ("state", "statements", "uploads", "results")
        try:
            rows = [row for table in tables for row in database.execute(f"SELECT * FROM {table}")]  # noqa: S608
        finally:
            database.close()
        return self.coordinator.state, rows


@contextmanager
def stopped_at(agreement: Agreement, victim: str, phase: Phase) -> Iterator[Scene]:
    """Yield the run up to where ``victim`` is first asked for ``phase``; all others go on as far as they can."""
    with LocalFederation(agreement, small_data(agreement)) as federation:
        for site in federation.sites:
            site.join()
        site = next(each for each in federation.sites if each.name == victim)
        key = play_up_to(federation, site, phase)
        request = federation.coordinator.download(victim, DownloadRequest(key))
        yield Scene(federation, site, key, request, site.session.answer(key, request))


def play_up_to(federation: LocalFederation, victim: LocalSite, phase: Phase) -> PhaseKey:
    """Let all sites take turns until ``victim`` is asked for ``phase``, and return the phase's key."""
    coordinator = federation.coordinator
    while True:
        for site in federation.sites:
            key = task_for(coordinator._rules, coordinator.state, victim.name)
            if key is not None and key.phase is phase:
                return key
            if isinstance(site.step(), Finished):
                raise RuntimeError(f"{victim.name} was never asked for {phase.name}")


def personalised(federation: LocalFederation) -> dict[str, NDArray[np.float64]]:
    """Return each site's targets after the run, (K, d) float32 values, zero where it has none."""
    found = {}
    for site in federation.sites:
        targets = site.learner.received.guide
        if not isinstance(targets, Targets):
            raise RuntimeError(f"{site.name} took no result with one prototype for each class")
        found[site.name] = np.where(targets.present.numpy()[:, None], targets.rows.double().numpy(), 0.0)
    return found
