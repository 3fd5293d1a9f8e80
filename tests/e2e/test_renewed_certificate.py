"""A site whose certificate and key are renewed in the middle of a run goes on with the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from crypto.errors import KeyStoreError
from crypto.pki.key_files import rewrap
from secure_client.app import JOURNAL, STORAGE_KEY, open_party
from secure_client.config import load_site
from secure_client.protocol.setup import open_journal
from tests.e2e.federations import check_saved, simulated, small_agreement, small_sites
from tests.support.processes import Federation


@pytest.mark.full
def test_a_site_with_a_new_key_and_certificate_resumes_its_run(tmp_path: Path) -> None:
    agreement, sites = small_agreement(rounds=2), small_sites(3)
    with Federation(tmp_path / "run", agreement, sites) as federation:
        federation.hold("site-2", 1)
        coordinator, running = federation.start_coordinator(), federation.start_sites()
        running["site-1"].wait_for_log("uploaded PRESENCE of round 1")
        running["site-1"].kill()
        before = federation.credentials("site-1").fingerprint
        federation.renew("site-1")
        assert federation.credentials("site-1").fingerprint != before
        running["site-1"] = federation.start_site("site-1")
        federation.release("site-2")
        assert [each.exit_code() for each in (*running.values(), coordinator)] == [0, 0, 0, 0]
        check_saved(federation, simulated(agreement, sites, tmp_path / "undisturbed"))


def test_a_storage_key_is_made_once_and_a_lost_one_is_named(tmp_path: Path) -> None:
    """Its place, its loss and another passphrase; the certificate and its key do not matter."""
    agreement, sites = small_agreement(rounds=1), small_sites(3)
    with Federation(tmp_path, agreement, sites) as federation:
        folder, passphrase = federation.folder("site-1"), federation.passphrase
        config = load_site(folder / "site.toml")
        first = open_party(config, passphrase).storage()
        stored = first.encrypt(b"secret", b"name")
        federation.renew("site-1")
        again = open_party(config, passphrase)
        assert again.storage().decrypt(stored, b"name") == b"secret"
        open_journal(config.state_dir / JOURNAL, agreement, again).close()
        rewrap(config.state_dir / STORAGE_KEY, passphrase, b"another")
        with pytest.raises(KeyStoreError, match="pki passphrase"):
            again.storage()
        (config.state_dir / STORAGE_KEY).unlink()
        with pytest.raises(KeyStoreError, match="missing"):
            again.storage()
