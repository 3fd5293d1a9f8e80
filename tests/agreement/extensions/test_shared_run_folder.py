"""A third party's method beside another: added to a simulation's folder, taken from it, and thrown away with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agreement.storage.run_files import FileError
from protoseal.reports.result_files import site_folder
from protoseal.simulation.experiment import EndedRun, Watcher, simulate
from protoseal.simulation.run_folder import CLAIM, STATE, OtherSimulation, SavedRun
from protoseal.simulation.tensors.federation import TensorFederation
from secure_client.output.site_files import read_agreement
from tests.support.extensions import install_documented, installed
from tests.support.simulations import DIGITS, Killed, config_in, fail_at

FILE = "rounds = 1\n" + DIGITS.replace("per=40", "per=20")
WEIGHT = "[extension.cosine-proto]\nweight = {}\n"


class Anew(Watcher):
    """Record of the methods that ran instead of being read from the folder."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def on_run(self, ended: EndedRun) -> None:
        if ended.anew:
            self.ran.append(ended.method.value)


def ran(out: Path, *compare: str, method: str = "local", more: str = "", fresh: bool = False) -> list[str]:
    anew = Anew()
    simulate(config_in(FILE + more, out, method=method, compare=compare), anew, fresh=fresh)
    return anew.ran


def test_extension_run_is_added_to_a_folder_and_finished_runs_are_reused(
    example: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert ran(out) == ["local"]
    assert ran(out, "cosine-proto") == ["cosine-proto"]
    assert ran(out) == []
    assert ran(out, "cosine-proto") == []
    assert json.loads((out / CLAIM).read_text(encoding="utf-8"))["config"]["extension"] == {}


@pytest.mark.full
def test_extension_record_is_reused_only_under_its_own_settings(example: Path, tmp_path: Path) -> None:
    """``self`` beside it has its settings, too."""
    out, other = tmp_path / "out", WEIGHT.format(2.0)
    ran(out, "cosine-proto", "self")
    for compare in (["cosine-proto"], ["cosine-proto", "self"]):
        with pytest.raises(OtherSimulation, match=r"runs/cosine-proto\.json .*\(extension\.cosine-proto\)"):
            ran(out, *compare, more=other)
    record = out / "runs" / "cosine-proto.json"
    record.unlink()
    with pytest.raises(OtherSimulation, match=r"runs/self-cosine-proto\.json .*\(extension\.cosine-proto\)"):
        ran(out, "cosine-proto", "self", more=other)
    assert not record.exists()
    assert ran(out, "cosine-proto", more=other) == ["cosine-proto"]
    assert SavedRun.read(record).agreement.model_dump()["extension"] == {"cosine-proto": {"weight": 2.0}}


def test_unfinished_extension_run_resumes_only_under_its_own_settings(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        fail_at(patch, TensorFederation, "save", 1, after=False)
        with pytest.raises(Killed):
            ran(out, "cosine-proto")
    with pytest.raises(OtherSimulation, match=r"seed-0/cosine-proto .*\(extension\.cosine-proto\)"):
        ran(out, "cosine-proto", more=WEIGHT.format(2.0))
    assert ran(out, "cosine-proto") == ["cosine-proto"]
    assert not (out / STATE).exists()


@pytest.mark.full
def test_extension_as_the_main_method_is_part_of_the_folders_claim(example: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran(out, method="cosine-proto")
    with pytest.raises(OtherSimulation, match=r"\(extension\.cosine-proto\.weight\)"):
        ran(out, method="cosine-proto", more=WEIGHT.format(2.0))


@pytest.mark.full
def test_fresh_removes_every_extension_record(example: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran(out, "cosine-proto")
    assert (out / "compared" / "cosine-proto" / "result.json").exists()
    (out / "compared" / ".DS_Store").touch()
    ran(out, fresh=True)
    assert [each.name for each in (out / "runs").iterdir()] == ["local.json"]
    assert [each.name for each in (out / "compared").iterdir()] == [".DS_Store"]  # no simulation's


def test_a_distribution_that_is_gone_is_named(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "example"
    folder.mkdir()
    install_documented(folder)
    with installed(folder):
        ran(out, method="cosine-proto")
    with pytest.raises(FileError, match=r"agreement\.json needs .*: install protoseal-example 1\.0$"):
        read_agreement(site_folder(out, "site-1"))
