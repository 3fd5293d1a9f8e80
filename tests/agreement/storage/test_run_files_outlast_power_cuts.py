"""Everything that a run leaves outlasts a power cut just after it was written, at the sites and at the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from crypto.pki import Identity, create_authority, create_request
from protoseal_files.sqlite import make_private
from secure_client.output.site_files import SitePrototypes, write_agreement, write_prototypes
from secure_client.output.site_log import SiteLog, write_site_log
from secure_server.aggregator import Aggregator
from secure_server.app import append_round, read_rounds
from secure_server.round_log import CoordinatorRound
from tests.support.power_cut import PowerCut
from tests.support.small import small_agreement

ROUND = CoordinatorRound(1, 1, ("east", "west"), (), 0.0, 0.0)
SITE = SiteLog(name="north", model="small-cnn", train_samples=3, bytes_up=0, bytes_down=0, rounds=())
PROTOTYPES = SitePrototypes(np.eye(2), np.eye(2), np.ones(2, np.bool_), np.ones(2, np.int64))


def _keys(folder: Path) -> None:
    create_request(folder / "north", Identity.site("f.example", "north"), b"passphrase")


WRITERS: dict[str, Callable[[Path], object]] = {
    "site.json": lambda folder: write_site_log(folder, SITE),
    "agreement.json": lambda folder: write_agreement(folder, small_agreement()),
    "prototypes": lambda folder: write_prototypes(folder, PROTOTYPES),
    "rounds.jsonl": lambda folder: append_round(folder / "rounds.jsonl", ROUND),
    "evaluation keys": lambda folder: Aggregator(small_agreement(), folder / "keys.bin").write_group_keys(
        b"keys"
    ),
    "CA": lambda folder: create_authority(folder / "ca", "f.example", b"passphrase"),
    "site's key": _keys,
    "database": lambda folder: make_private(folder / "state.sqlite"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_written_file_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    disk = PowerCut(tmp_path, monkeypatch)
    WRITERS[writer](tmp_path)
    written = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert written
    assert {each.name: disk.left(each) for each in written} == {
        each.name: each.read_bytes() for each in written
    }
    assert not disk.moved_early


def test_read_rounds_leaves_out_a_torn_round(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    append_round(path, ROUND)
    path.write_bytes(path.read_bytes() * 2)
    path.write_bytes(path.read_bytes()[:-20])
    assert read_rounds(path) == [ROUND]
    append_round(path, ROUND)
    assert read_rounds(path) == [ROUND]
    assert len(path.read_bytes().splitlines()) == 2
