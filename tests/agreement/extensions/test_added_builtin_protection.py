"""A protection that gives its halves as functions needs its entry in PROTECTIONS alone to be built in."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from agreement import PROTECTIONS, Method, Protection
from agreement.registry.compatibility import check_noise_is_shared
from protoseal.cli import main
from protoseal.reports.result_files import read_result, site_folder
from secure_client.output.site_files import read_prototypes
from tests.support.simulations import DIGITS

PADS_ERROR = 1e-9
"""Bound on the rounding of means of prototypes, in fixed point of 40 fractional bits."""


@pytest.fixture
def pads(example: Path, monkeypatch: pytest.MonkeyPatch) -> Protection:
    """Return the page's protection, entered in the table as a built-in one."""
    found: Protection = import_module("pads").pads
    monkeypatch.setitem(PROTECTIONS, found.name, found)
    return found


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a file of settings for a simulation of seconds."""
    file = tmp_path / "less.toml"
    file.write_text(DIGITS, encoding="utf-8")
    return file


def simulated(config: Path, protection: str, *options: str) -> Path:
    out = config.parent / protection
    words = ("simulate", "--config", config, "--protection", protection, "--rounds", 2, "--out", out)
    done = CliRunner().invoke(main, [*map(str, words), *options])
    assert done.exit_code == 0, done.output
    return out


FROZEN = ("--set", "training.frozen_extractor=true", "--set", "training.norm=group")
"""The second round repeats the first one's sum."""


@pytest.mark.parametrize("options", [(), FROZEN])
def test_builtin_protection_with_declared_halves_runs_as_plain(
    pads: Protection, config: Path, options: tuple[str, ...]
) -> None:
    runs = [
        simulated(config, name, "--method", "fedproto", "--engine", engine, *options)
        for name, engine in ((pads.name, "auto"), ("plain", "sessions"))
    ]
    result = read_result(runs[0])
    assert pads.built_in
    assert (result.protection, len(result.rounds)) == (pads.name, 2)
    assert len(result.sites) == 4
    for site in result.sites:
        protected, plain = (read_prototypes(site_folder(run, site.name)) for run in runs)
        np.testing.assert_allclose(protected.personal, plain.personal, rtol=0, atol=PADS_ERROR)
        assert plain.has_personal.any()


def test_distributed_noise_needs_a_builtin_protection_whose_sums_hide_their_terms(
    pads: Protection,
) -> None:
    check_noise_is_shared(Method.FEDPROTO, Protection.MASKED, personal=False)
    for protection in (pads, replace(Protection.MASKED)):
        with pytest.raises(ValueError, match=protection.name):
            check_noise_is_shared(Method.FEDPROTO, protection, personal=False)
