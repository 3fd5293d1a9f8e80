"""``client check`` says how labels were numbered, and refuses class names that are not agreed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from agreement import ConfigError
from secure_client.check.checks import Finding, check_site
from secure_client.config import SiteConfig, load_site

SAMPLES = Path(__file__).parents[3] / "deploy" / "samples"
WRITTEN = {f"{digit} - number": str(digit) for digit in range(10)}


class Scans(Dataset[Any]):
    def __init__(self, labels: list[int], classes: list[str] | None) -> None:
        self.targets, self.classes = labels, classes
        self.images = torch.from_numpy(np.random.default_rng(0).random((len(labels), 1, 8, 8), np.float32))

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.targets[index]


def checked(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    train: Dataset[Any],
    class_names: dict[str, str] | None = None,
) -> Finding:
    """Return the finding on the labels of a site with these data."""
    monkeypatch.setitem(sys.modules, "own_scans", SimpleNamespace(build=lambda data_root: (train, None)))
    config = site(folder, class_names or {})
    return next(each for each in check_site(config, lambda: b"") if each.what == "data and model")


def site(folder: Path, class_names: dict[str, str]) -> SiteConfig:
    shutil.copy(SAMPLES / "agreement.toml", folder)
    text = (SAMPLES / "site.toml").read_text(encoding="utf-8").replace("npz:data.npz", "own_scans:build")
    pairs = ", ".join(f'"{name}" = "{agreed}"' for name, agreed in class_names.items())
    (folder / "site.toml").write_text(f"class_names = {{ {pairs} }}\n{text}", encoding="utf-8")
    return load_site(folder / "site.toml")


def test_folders_without_a_digit_count_for_the_digits_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [digit for digit in "0123456789" if digit != "6"]
    finding = checked(tmp_path, monkeypatch, Scans([0, 6, 6, 8], names))
    assert finding.ok
    assert "(0: 1, 7: 2, 9: 1)" in finding.detail
    assert "6 ('7') becomes 7 ('7')" in finding.detail
    assert "no samples of 1, 2, 3, 4, 5, 6, 8" in finding.detail


def test_names_that_are_not_agreed_wait_for_the_site_to_confirm_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = Scans([3, 3, 1], list(WRITTEN))
    refused = checked(tmp_path, monkeypatch, scans)
    assert not refused.ok
    assert '"3 - number" = "3"' in refused.detail
    confirmed = checked(tmp_path, monkeypatch, scans, WRITTEN)
    assert confirmed.ok
    assert "(1: 1, 3: 2)" in confirmed.detail


@pytest.mark.parametrize(
    ("labels", "warns"), [([0, 1, 2], True), ([1, 2, 3], True), ([0, 2, 9], False), (list(range(10)), False)]
)
def test_numbers_that_may_be_a_sites_own_are_warned_of(
    labels: list[int], warns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = checked(tmp_path, monkeypatch, Scans(labels, None))
    assert finding.ok
    assert ("WARNING" in finding.detail) == warns


def test_class_names_have_to_be_agreed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'ten'"):
        site(tmp_path, {"9": "ten"})
