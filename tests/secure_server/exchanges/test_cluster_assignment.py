"""An assignment is worked out where nobody waits for it, and is its attempt's whoever asks at the same time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agreement.derived.payload_shapes import limits_of
from protoseal_wire.messages import DownloadRequest, Phase, UploadHeader
from secure_server.aggregator import Aggregator
from secure_server.coordinator import Coordinator
from secure_server.exchanges import cluster_assignment
from secure_server.exchanges.exchange import AttemptCache, ExchangeParts, build_half
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
    """Cache that holds another attempt's value, whatever is stored in it."""

    @property
    def _entry(self) -> Any:
        return ("another attempt",), "another attempt's value"

    @_entry.setter
    def _entry(self, _: Any) -> None: ...


def test_attempt_cache_overtaken_by_another_attempt_returns_own_value(scene: Scene) -> None:
    """Another thread replaces the cached values by another attempt's between any two steps."""
    agreement, coordinator = scene.federation.agreement, scene.coordinator
    exchange = coordinator._aggregator.exchange(1)
    attempt = coordinator._requests.attempt(coordinator.state)
    overtaken: Any = build_half(ExchangeParts(agreement, limits_of(agreement), Path()))
    overtaken._active_list = overtaken._relayed = overtaken._directions._assignment = OvertakenCache()
    for phase in (Phase.DIRECTIONS, Phase.SHARES, Phase.VALUES):
        assert overtaken.request(attempt, phase, B) == exchange.request(attempt, phase, B)
