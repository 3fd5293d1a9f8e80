"""``client check`` of an agreement with DP-SGD: releases, steps, what both cost, and what a file refuses."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from secure_client.check.checks import Finding, check_site
from secure_client.config import SiteConfig, load_site
from secure_client.privacy.run_cost import planned_epsilon

SAMPLES = Path(__file__).parents[3] / "deploy" / "samples"


@dataclass(frozen=True)
class _Site:
    config: SiteConfig

    def privacy(self, epsilon: float) -> Finding:
        own = self.config.privacy
        assert own is not None
        config = self.config.model_copy(update={"privacy": own.model_copy(update={"epsilon": epsilon})})
        return next(each for each in check_site(config, lambda: b"") if each.what == "privacy")


@pytest.fixture
def site(tmp_path: Path) -> _Site:
    """Write a site of the samples, with the agreement that trains by DP-SGD, and forty records."""
    shutil.copy(SAMPLES / "agreement-dpsgd.toml", tmp_path / "agreement-private.toml")
    shutil.copy(SAMPLES / "site-private.toml", tmp_path)
    labels = np.arange(40) % 10
    np.savez(tmp_path / "data.npz", x_train=np.zeros((40, 8, 8, 1), np.uint8), y_train=labels)
    config = load_site(tmp_path / "site-private.toml")
    return _Site(config.model_copy(update={"data": f"npz:{tmp_path / 'data.npz'}"}))


def test_check_prints_releases_steps_and_their_total_epsilon(site: _Site) -> None:
    """2 releases, and 20 steps in each of 10 rounds: what docs/explanation/privacy.md says of the sample."""
    agreed = site.config.agreement
    assert agreed.privacy is not None
    planned = planned_epsilon(agreed, agreed.privacy, 1e-5)
    assert planned == pytest.approx(2.98, abs=5e-3)
    finding = site.privacy(3.0)
    assert finding.ok
    assert finding.detail.startswith(
        "2 releases with noise multiplier 3.8 and 200 steps of DP-SGD with 2.5 at sampling rate 0.1 take"
        " epsilon 2.98"
    )
    assert "by themselves; 0 of 3 at delta 1e-05 for one record is spent on" in finding.detail


def test_check_refuses_an_agreement_beyond_the_budget_with_its_noise_and_steps(site: _Site) -> None:
    finding = site.privacy(2.5)
    assert not finding.ok
    for told in ("2 releases with noise multiplier 3.8", "200 steps", "2.5"):
        assert told in finding.detail
    assert site.config.privacy is not None
    assert not site.config.privacy.ledger.exists()
