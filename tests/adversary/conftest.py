"""The sites, the hostile coordinator's certificates, and a play for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from crypto.keys import StorageKey
from crypto.pki import Credentials, Identity, Stretching, approve, create_authority, create_request
from secure_client.protocol.setup import Party
from tests.adversary.attack import Plays
from tests.support.grouped import TEN
from tests.support.scripted_coordinator import Cast
from tests.support.small import FEDERATION, small_agreement, small_data

_PASSPHRASE = b"the tests'"
STORAGE = partial(StorageKey, bytes(32))


class _Authority:
    """A CA on disk, and certificates made the honest way."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.trust = create_authority(
            home / "ca", FEDERATION, _PASSPHRASE, stretching=Stretching.NONE_FOR_RANDOM_SECRET
        )

    def enrol(self, identity: Identity, *hosts: str) -> Credentials:
        folder = self._home / identity.name
        create_request(folder, identity, _PASSPHRASE, hosts, stretching=Stretching.NONE_FOR_RANDOM_SECRET)
        certificate = approve(self._home / "ca", _PASSPHRASE, (folder / "request.pem").read_bytes())
        (folder / "certificate.pem").write_bytes(certificate)
        return Credentials.load(folder / "certificate.pem", folder / "key.pem", _PASSPHRASE)


@pytest.fixture(scope="session")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """One federation for all plays: certificates are slow to make."""
    home = _Authority(tmp_path_factory.mktemp("federation"))
    elsewhere = _Authority(tmp_path_factory.mktemp("stranger"))
    agreement = small_agreement()
    sites = {name: home.enrol(Identity.site(FEDERATION, name)) for name in TEN}
    return Cast(
        {name: Party(site, home.trust, agreement.min_sites, STORAGE) for name, site in sites.items()},
        home.enrol(Identity.coordinator(FEDERATION), "localhost"),
        elsewhere.enrol(Identity.site(FEDERATION, "clinic-z")),
        small_data(agreement),
    )


@pytest.fixture
def plays(tmp_path: Path, cast: Cast) -> Iterator[Plays]:
    """New runs for a hostile coordinator to ask."""
    with ExitStack() as stack:
        yield Plays(stack, tmp_path, cast)
