"""One federation for all of these tests, and a server on it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from crypto.pki import Credentials
from tests.secure_server.service.harness import FakeHandler, serving
from tests.secure_server.service.parties import Federation


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation(tmp_path_factory.mktemp("federation"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Another CA, of a federation with the same name."""
    return Federation(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="session")
def site(federation: Federation) -> Credentials:
    return federation.site("clinic-a")


@pytest.fixture(scope="session")
def coordinator(federation: Federation) -> Credentials:
    return federation.coordinator()


@pytest.fixture(autouse=True)
def _quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers here end at once when told to."""
    monkeypatch.setattr("secure_server.service.server._TICK_SECONDS", 0.02)


@pytest.fixture
def handler() -> FakeHandler:
    return FakeHandler()


@pytest.fixture
def port(handler: FakeHandler, coordinator: Credentials, federation: Federation) -> Iterator[int]:
    """Yield the port of a server with ``handler``."""
    with serving(handler, coordinator, federation.trust) as number:
        yield number


class SecurityLog:
    """Records of the logger ``protoseal.security``."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def events(self) -> list[dict[str, Any]]:
        """The parsed lines."""
        return [
            json.loads(record.getMessage())
            for record in self._caplog.records
            if record.name == "protoseal.security"
        ]


@pytest.fixture
def security(caplog: pytest.LogCaptureFixture) -> SecurityLog:
    caplog.set_level(logging.INFO, "protoseal.security")
    return SecurityLog(caplog)
