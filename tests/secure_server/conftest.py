"""Identities of FedPC's scripted sites, made once; a new run of them for each test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agreement import Protection
from crypto.pki import TrustAnchor
from secure_client.protocol.setup import Party
from tests.secure_server.exchanges.fedpc_play import Play, playing
from tests.secure_server.scripted_sites import fedpc_agreement, parties_for

Identities = tuple[Mapping[str, Party], TrustAnchor]


@pytest.fixture(scope="session")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    return parties_for(tmp_path_factory.mktemp("identities"), fedpc_agreement(Protection.PLAIN))


@pytest.fixture
def plain(identities: Identities, tmp_path: Path) -> Iterator[Play]:
    with playing(fedpc_agreement(Protection.PLAIN), *identities, tmp_path) as begun:
        begun.join()
        yield begun


@pytest.fixture
def masked(identities: Identities, tmp_path: Path) -> Iterator[Play]:
    with playing(fedpc_agreement(Protection.MASKED), *identities, tmp_path) as begun:
        begun.join()
        yield begun
