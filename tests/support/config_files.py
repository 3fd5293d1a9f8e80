"""Configuration files to be loaded: right ones, and how wrong ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agreement import Agreement, ConfigError, load_agreement
from secure_client.config import load_site
from secure_server.config import load_coordinator

AGREEMENT: dict[str, Any] = {
    "federation": "hospital-net",
    "run": "run-1",
    "method": "pfpl",
    "protection": "ckks",
    "rounds": 3,
    "classes": ["a", "b"],
    "dim": 8,
    "preprocessing": {"image_size": 8, "channels": 1, "mean": [0.5], "std": [0.5]},
}
PARTY: dict[str, Any] = {"ca": "ca.pem", "certificate": "c.pem", "key": "k.pem", "state_dir": "state"}
SITE = PARTY | {"name": "north", "coordinator": "localhost:8443", "data": "npz:d.npz", "out": "out"}
COORDINATOR = PARTY | {"listen": "0.0.0.0:8443", "sites": ["north", "south", "west"]}
FEDPC: dict[str, Any] = {"method": "fedpc", "protection": "masked", "averaging": {"parameters": 1000}}


def toml(table: dict[str, Any]) -> str:
    """Return the table as TOML: JSON's values are TOML's, but for nested tables."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += [f"[{key}]", *(f"{name} = {json.dumps(each)}" for name, each in value.items())]
    return "\n".join(lines)


def write(path: Path, table: dict[str, Any]) -> Path:
    path.write_text(toml(table), encoding="utf-8")
    return path


def agreement(tmp_path: Path, **changes: Any) -> Agreement:
    return load_agreement(write(tmp_path / "agreement.toml", AGREEMENT | changes))


def problem(tmp_path: Path, **changes: Any) -> str:
    """Return the one line that a changed agreement is refused with."""
    with pytest.raises(ConfigError) as refused:
        agreement(tmp_path, **changes)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(str(tmp_path / "agreement.toml") + ": ")
    return line


def load_party(tmp_path: Path, base: dict[str, Any], **changes: Any) -> Any:
    table = {"agreement": "agreement.toml"} | base | changes
    path = write(tmp_path / "party.toml", table)
    return load_site(path) if "coordinator" in base else load_coordinator(path)
