"""``protoseal server check``: what an operator reads out to the sites before a run, and what it refuses."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from crypto.pki import Role
from protoseal.cli import main
from protoseal.demo import demo_agreement, demo_sites
from tests.support.processes import Federation


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Write certificates and configuration files; nothing runs."""
    agreement, sites = demo_agreement(seed=0, rounds=1), demo_sites(0)
    with Federation(
        tmp_path_factory.mktemp("federation") / "net", agreement, sites, gated=False
    ) as federation:
        yield federation


def check(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(
        main, ["server", "check", "--config", str(folder / "coordinator.toml"), *options]
    )


def test_server_check_prints_the_agreements_hash_and_roster(federation: Federation) -> None:
    result = check(federation.root / "coordinator", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["agreement"] == federation.agreement.hash().hex()
    assert facts["sites"] == federation.names
    assert facts["identity"] == f"spiffe://{federation.agreement.federation}/{Role.COORDINATOR.value}"
    assert federation.agreement.hash().hex() in check(federation.root / "coordinator").stdout


def test_server_check_opens_no_port_and_writes_no_state(federation: Federation) -> None:
    with socket.create_server(("127.0.0.1", federation.port)):
        assert check(federation.root / "coordinator").exit_code == 0
    assert not (federation.root / "coordinator" / "state").exists()


def test_server_check_sites_certificate_is_one_line(federation: Federation, tmp_path: Path) -> None:
    folder = tmp_path / "net" / "coordinator"
    shutil.copytree(federation.root / "coordinator", folder)
    shutil.copy(federation.root / "agreement.toml", tmp_path / "net")
    assert check(folder).exit_code == 0
    for name in ("certificate.pem", "key.pem"):
        shutil.copy(federation.folder(federation.names[0]) / name, folder)
    result = check(folder)
    assert result.exit_code != 0
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert "certificate.pem: " in line
