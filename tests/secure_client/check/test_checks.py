"""``client check`` tells each cause once, however many things it keeps from working."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from secure_client.check.checks import Finding, check_site
from secure_client.config import SiteConfig, load_site

SAMPLES = Path(__file__).parents[3] / "deploy" / "samples"


@pytest.fixture
def site(tmp_path: Path) -> SiteConfig:
    """Write a site of the samples, which come without data, key and certificate."""
    for name in ("agreement-private.toml", "site-private.toml"):
        shutil.copy(SAMPLES / name, tmp_path / name)
    return load_site(tmp_path / "site-private.toml")


def found(site: SiteConfig) -> dict[str, Finding]:
    return {each.what: each for each in check_site(site, lambda: b"")}


def causes(findings: dict[str, Finding]) -> list[str]:
    return [each.detail for each in findings.values() if not each.ok]


def test_data_that_cannot_be_read_are_told_of_once(site: SiteConfig) -> None:
    findings = found(site)
    assert "file does not exist" in findings["data and model"].detail
    for what in ("data", "privacy"):
        assert findings[what] == Finding(what, False, "for the same reason as data and model")
    for what in ("state", "coordinator", "listed", "same agreement", "run"):
        assert findings[what] == Finding(what, False, "for the same reason as certificate")
    assert len(causes(findings)) == 9
    assert sum("for the same reason" not in cause for cause in causes(findings)) == 2
    assert site.privacy is not None
    assert not site.privacy.ledger.exists()


def test_causes_that_differ_are_each_told(site: SiteConfig, tmp_path: Path) -> None:
    """Data that can be read, and a δ that is too large for as many."""
    labels = np.arange(40) % 10
    np.savez(tmp_path / "data.npz", x_train=np.zeros((40, 8, 8, 1), np.uint8), y_train=labels)
    assert site.privacy is not None
    large = site.privacy.model_copy(update={"delta": 0.5})
    changed = site.model_copy(update={"data": f"npz:{tmp_path / 'data.npz'}", "privacy": large})
    assert "delta = 0.5" in found(changed)["privacy"].detail
