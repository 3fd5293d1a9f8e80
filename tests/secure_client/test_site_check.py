"""``client check`` on sites of the samples, which come without data, key, certificate and coordinator."""

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
from secure_client.config import SiteConfig, load_site
from secure_client.privacy.cost import planned_epsilon
from secure_client.site_check import CheckFinding, check_site

SAMPLES = Path(__file__).parents[2] / "deploy" / "samples"


def find(site: SiteConfig) -> dict[str, CheckFinding]:
    """Return the findings of a check by their name."""
    return {finding.what: finding for finding in check_site(site, lambda: b"")}


def sample_site(folder: Path, agreement: str = "agreement-private.toml") -> SiteConfig:
    """Write the sample of a site with a privacy budget, under this agreement."""
    shutil.copy(SAMPLES / agreement, folder / "agreement-private.toml")
    shutil.copy(SAMPLES / "site-private.toml", folder)
    return load_site(folder / "site-private.toml")


def with_records(site: SiteConfig, folder: Path) -> SiteConfig:
    labels = np.arange(40) % 10
    np.savez(folder / "data.npz", x_train=np.zeros((40, 8, 8, 1), np.uint8), y_train=labels)
    return site.model_copy(update={"data": f"npz:{folder / 'data.npz'}"})


def with_privacy(site: SiteConfig, **changes: object) -> SiteConfig:
    assert site.privacy is not None
    return site.model_copy(update={"privacy": site.privacy.model_copy(update=changes)})


# Causes


def test_check_missing_data_and_certificate_states_each_cause_once(tmp_path: Path) -> None:
    site = sample_site(tmp_path)
    findings = find(site)
    assert "data.npz" in findings["data and model"].detail
    for what in ("data", "privacy"):
        assert findings[what] == CheckFinding(what, False, "for the same reason as data and model")
    for what in ("state", "coordinator", "listed", "same agreement", "run"):
        assert findings[what] == CheckFinding(what, False, "for the same reason as certificate")
    failed = [finding for finding in findings.values() if not finding.ok]
    assert len(failed) == 9
    assert sum("for the same reason" not in finding.detail for finding in failed) == 2
    assert site.privacy is not None
    assert not site.privacy.ledger.exists()


def test_check_delta_too_large_for_the_records_names_delta(tmp_path: Path) -> None:
    site = with_privacy(with_records(sample_site(tmp_path), tmp_path), delta=0.5)
    assert "delta = 0.5" in find(site)["privacy"].detail


# Privacy


def test_check_dp_sgd_describes_releases_steps_and_their_total_epsilon(tmp_path: Path) -> None:
    """2 releases, and 20 steps in each of 10 rounds: what docs/explanation/privacy.md says of the sample."""
    site = with_records(sample_site(tmp_path, "agreement-dpsgd.toml"), tmp_path)
    agreed = site.agreement
    assert agreed.privacy is not None
    assert planned_epsilon(agreed, agreed.privacy, 1e-5) == pytest.approx(2.98, abs=5e-3)
    finding = find(with_privacy(site, epsilon=3.0))["privacy"]
    assert finding.ok
    assert finding.detail.startswith(
        "2 releases with noise multiplier 3.8 and 200 steps of DP-SGD with 2.5 at sampling rate 0.1 take"
        " epsilon 2.98"
    )
    assert "by themselves; 0 of 3 at delta 1e-05 for one record is spent on" in finding.detail


def test_check_dp_sgd_beyond_the_budget_is_refused_and_makes_no_ledger(tmp_path: Path) -> None:
    site = with_records(sample_site(tmp_path, "agreement-dpsgd.toml"), tmp_path)
    finding = find(with_privacy(site, epsilon=2.5))["privacy"]
    assert not finding.ok
    for figure in ("2 releases with noise multiplier 3.8", "200 steps", "2.5"):
        assert figure in finding.detail
    assert site.privacy is not None
    assert not site.privacy.ledger.exists()


# Labels


class Scans(Dataset[Any]):
    """Random images with these labels, and class names if there are any."""

    def __init__(self, labels: list[int], classes: list[str] | None) -> None:
        self.targets = labels
        self.classes = classes
        self.images = torch.from_numpy(np.random.default_rng(0).random((len(labels), 1, 8, 8), np.float32))

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.targets[index]


def site_of_scans(folder: Path, class_names: dict[str, str]) -> SiteConfig:
    shutil.copy(SAMPLES / "agreement.toml", folder)
    text = (SAMPLES / "site.toml").read_text(encoding="utf-8").replace("npz:data.npz", "own_scans:build")
    pairs = ", ".join(f'"{name}" = "{agreed}"' for name, agreed in class_names.items())
    (folder / "site.toml").write_text(f"class_names = {{ {pairs} }}\n{text}", encoding="utf-8")
    return load_site(folder / "site.toml")


def check_labels(
    folder: Path, monkeypatch: pytest.MonkeyPatch, train: Scans, class_names: dict[str, str] | None = None
) -> CheckFinding:
    """Return the finding on the labels of a site with these data."""
    monkeypatch.setitem(sys.modules, "own_scans", SimpleNamespace(build=lambda data_root: (train, None)))
    return find(site_of_scans(folder, class_names or {}))["data and model"]


def test_check_labels_class_without_a_folder_numbers_the_others_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [digit for digit in "0123456789" if digit != "6"]
    finding = check_labels(tmp_path, monkeypatch, Scans([0, 6, 6, 8], names))
    assert finding.ok
    assert "(0: 1, 7: 2, 9: 1)" in finding.detail
    assert "6 ('7') becomes 7 ('7')" in finding.detail
    assert "no samples of 1, 2, 3, 4, 5, 6, 8" in finding.detail


def test_check_labels_names_not_agreed_are_refused_until_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = {f"{digit} - number": str(digit) for digit in range(10)}
    scans = Scans([3, 3, 1], list(written))
    refused = check_labels(tmp_path, monkeypatch, scans)
    assert not refused.ok
    assert '"3 - number" = "3"' in refused.detail
    confirmed = check_labels(tmp_path, monkeypatch, scans, written)
    assert confirmed.ok
    assert "(1: 1, 3: 2)" in confirmed.detail


@pytest.mark.parametrize(
    ("labels", "warns"), [([0, 1, 2], True), ([1, 2, 3], True), ([0, 2, 9], False), (list(range(10)), False)]
)
def test_check_labels_unnamed_without_gaps_warns_that_they_may_be_a_sites_own_numbers(
    labels: list[int], warns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = check_labels(tmp_path, monkeypatch, Scans(labels, None))
    assert finding.ok
    assert ("WARNING" in finding.detail) == warns


def test_load_site_class_names_not_agreed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'ten'"):
        site_of_scans(tmp_path, {"9": "ten"})
