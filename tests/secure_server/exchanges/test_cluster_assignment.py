"""An assignment is worked out where nobody waits for it, and is its attempt's whoever asks at the same time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from agreement import Agreement
from protoseal_wire.codec import Limits
from protoseal_wire.messages import DownloadRequest, Phase, UploadHeader
from secure_server.aggregator import Aggregator
from secure_server.coordinator import Coordinator
from secure_server.exchanges import cluster_assignment
from secure_server.exchanges.clusters import MaskedClusters
from secure_server.exchanges.exchange import AttemptCache
from tests.adversary.stopped_run import Scene, stopped_at
from tests.support.scripted_clusters import clustered_agreement

B = "clinic-b"


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Yield the scene in which clinic-b is about to send masked values."""
    with stopped_at(clustered_agreement(), B, Phase.VALUES) as scene:
        yield scene


def restarted(scene: Scene) -> Coordinator:
    """Open the coordinator on its stored state, with nothing else of the previous process."""
    federation, before = scene.federation, scene.coordinator
    return Coordinator(
        agreement=federation.agreement,
        rules=before._rules,
        trust=before._members._trust,
        store=federation.store,
        aggregator=Aggregator(federation.agreement, federation._state / "keys"),
    )


def test_a_restarted_coordinator_has_it_before_it_is_asked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = restarted(scene)

    def again(*_: object) -> None:
        raise AssertionError("worked out within a site's call")

    monkeypatch.setattr(cluster_assignment, "assign_clusters", again)
    assert coordinator.download(B, DownloadRequest(scene.key)) == scene.request
    header = UploadHeader(scene.key, len(scene.honest), hashlib.sha256(scene.honest).digest())
    coordinator.upload(B, header, scene.honest)


class OvertakenCache(AttemptCache[Any]):
    """Cache of another attempt's values, whatever is stored in it."""

    @property
    def _kept(self) -> Any:
        return ("another attempt",), {}

    @_kept.setter
    def _kept(self, _: Any) -> None: ...


class Overtaken(MaskedClusters):
    """Exchange in which another thread replaces the cached values by another attempt's between any two steps."""

    def __init__(self, agreement: Agreement, limits: Limits) -> None:
        super().__init__(agreement, limits)
        self._listed = self._relayed = OvertakenCache()

    @property
    def _known(self) -> Any:
        return "another attempt", "its assignment"

    @_known.setter
    def _known(self, _: Any) -> None: ...


def test_another_attempt_s_is_never_handed_out(scene: Scene) -> None:
    agreement, coordinator = scene.federation.agreement, scene.coordinator
    exchange = coordinator._aggregator.exchange(1)
    assert isinstance(exchange, MaskedClusters)
    attempt = coordinator._requests.attempt(coordinator.state)
    overtaken = Overtaken(agreement, exchange._limits)
    assert overtaken.request(attempt, Phase.SHARES, B) == exchange.request(attempt, Phase.SHARES, B)
    assert overtaken.request(attempt, Phase.VALUES, B) == exchange.request(attempt, Phase.VALUES, B)
