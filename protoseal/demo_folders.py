"""Folders of the demo's parties: the agreement, a CA, and a certificate and a configuration for each party.

A party's folder has what the party would have on a machine of its own; only the agreement's file is shared.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from agreement import Agreement
from agreement.errors import UserError
from crypto.pki import Identity, Stretching, approve, create_authority, create_request

FEDERATION = "demo"
SITES = tuple(f"site-{number}" for number in range(1, 6))
_MARK = ".protoseal-demo"
_IDENTITY_FILES = {
    "ca": "ca.pem",
    "certificate": "certificate.pem",
    "key": "key.pem",
    "passphrase_file": "passphrase",
}


def clear(out: Path) -> None:
    """Empty the folder of an earlier demo; its mark stays, so that a demo interrupted here can be started again.

    Raises ``UserError`` for a folder of anything else.
    """
    if out.exists() and any(out.iterdir()):
        if not (out / _MARK).exists():
            raise UserError(f"{out} is not empty and was not written by a demo; give --out another folder")
        for path in out.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != _MARK:
                path.unlink()
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).touch()


def site_folder(out: Path, site: str) -> Path:
    """Return the folder of a site."""
    return out / "sites" / site


def prepare(out: Path, agreement: Agreement) -> None:
    """Write the agreement, and make the CA and every party's identity; a site's data and file come later."""
    (out / "agreement.toml").write_text(_agreement_toml(agreement), encoding="utf-8")
    ca = out / "ca"
    # A random passphrase of 128 bits cannot be guessed, so that stretching it would only cost the demo's time.
    ca_passphrase = secrets.token_hex(16).encode()
    create_authority(ca, FEDERATION, ca_passphrase, stretching=Stretching.NONE_FOR_RANDOM_SECRET)
    coordinator = out / "coordinator"
    _enrol(ca, ca_passphrase, coordinator, Identity.coordinator(FEDERATION), ["127.0.0.1", "localhost"])
    _write_toml(
        coordinator / "coordinator.toml",
        agreement="../agreement.toml",
        **_IDENTITY_FILES,
        state_dir="state",
        listen="127.0.0.1:0",
        sites=SITES,
        record_view=True,
    )
    for site in SITES:
        _enrol(ca, ca_passphrase, site_folder(out, site), Identity.site(FEDERATION, site), [])


def _enrol(ca: Path, ca_passphrase: bytes, folder: Path, identity: Identity, hosts: Sequence[str]) -> None:
    """Create a certificate, as `pki request` at the party and `pki approve` at the CA do."""
    folder.mkdir(parents=True)
    passphrase = secrets.token_hex(16).encode()
    create_request(folder, identity, passphrase, hosts, stretching=Stretching.NONE_FOR_RANDOM_SECRET)
    (folder / "certificate.pem").write_bytes(
        approve(ca, ca_passphrase, (folder / "request.pem").read_bytes())
    )
    shutil.copy(ca / "ca.pem", folder / "ca.pem")
    with os.fdopen(os.open(folder / "passphrase", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(passphrase)


def write_site_file(out: Path, site: str, address: str) -> None:
    """Write a site's own file, once the coordinator's address is known."""
    _write_toml(
        site_folder(out, site) / "site.toml",
        agreement="../../agreement.toml",
        **_IDENTITY_FILES,
        state_dir="state",
        name=site,
        coordinator=address,
        data="npz:data.npz",
        out=".",
        retry_seconds=60.0,
    )


def _write_toml(path: Path, **values: object) -> None:
    # JSON's strings, numbers, booleans and arrays are valid TOML.
    path.write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()), encoding="utf-8"
    )


def _agreement_toml(agreement: Agreement) -> str:
    content = agreement.model_dump(mode="json", by_alias=True, exclude_none=True)  # TOML has no null
    lines = [f"{key} = {json.dumps(value)}" for key, value in content.items() if not isinstance(value, dict)]
    for key, table in content.items():
        if isinstance(table, dict) and table:
            lines += [f"\n[{key}]", *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"
