"""Processes of which one can no longer read a file: it ends with exit code 1, and returns once the file is back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from secure_server.app import read_rounds
from tests.e2e.federations import peer_sum_agreement, small_sites
from tests.support.forked_processes import Nursery
from tests.support.processes import Federation

pytestmark = pytest.mark.full

VICTIM, HELD, ROUNDS = "site-1", "site-2", 4
LOST = "7.npy"
MODULE = """
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from secure_client.training import lost_data

lost_data.RETRY_SECONDS = 0.5
FOLDER = Path("scans")


class Scans(Dataset):
    def __init__(self, labels):
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return torch.from_numpy(np.load(FOLDER / f"{index}.npy")), int(self.labels[index])


def build(data_root):
    return Scans(np.load(FOLDER / "labels.npy")), None
"""


def test_site_without_readable_data_leaves_and_returns(tmp_path: Path, nursery: Nursery) -> None:
    sites = small_sites(4)
    with Federation(
        tmp_path / "run", peer_sum_agreement(rounds=ROUNDS), sites, nursery=nursery
    ) as federation:
        folder = federation.folder(VICTIM)
        _store_as_files(folder, sites[0].train.inputs, sites[0].train.labels)
        federation.hold(VICTIM, 2)
        federation.hold(HELD, 3)
        coordinator, running = federation.start_coordinator(), federation.start_sites()
        federation.wait_for_held(VICTIM)
        (folder / "scans" / LOST).rename(folder / LOST)
        federation.release(VICTIM)
        assert running[VICTIM].exit_code() == 1
        assert _last_line(running[VICTIM].log()).startswith("Error: ")
        assert f"scans/{LOST}" in _last_line(running[VICTIM].log())

        federation.wait_for_held(HELD)
        refused = federation.start_site(VICTIM)
        assert refused.exit_code() == 1
        assert f"scans/{LOST}" in _last_line(refused.log())
        assert f"joined as {VICTIM}" not in refused.log()

        (folder / LOST).rename(folder / "scans" / LOST)
        running[VICTIM] = federation.start_site(VICTIM)
        running[VICTIM].wait_for_log(f"joined as {VICTIM}")
        federation.release(HELD)
        assert [each.exit_code() for each in (*running.values(), coordinator)] == [0] * 5
        rounds = read_rounds(tmp_path / "run" / "coordinator" / "state" / "rounds.jsonl")
        with_victim = [each.round for each in rounds if VICTIM in each.sites]
        assert [each.round for each in rounds] == [1, 2, 3, 4]
        assert with_victim == [1, 3, 4]


def _store_as_files(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    scans = folder / "scans"
    scans.mkdir()
    np.save(scans / "labels.npy", labels)
    for index, image in enumerate(images):
        np.save(scans / f"{index}.npy", np.moveaxis(image, -1, 0))
    (folder / "scans_on_disk.py").write_text(MODULE, encoding="utf-8")
    config = folder / "site.toml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("npz:data.npz", "scans_on_disk:build"), encoding="utf-8")


def _last_line(log: str) -> str:
    return log.strip().splitlines()[-1]
