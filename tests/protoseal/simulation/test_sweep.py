"""Sweeps of ``protoseal simulate``: combinations of settings, their folders, and the table."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agreement import ConfigError
from agreement.toml_loading import validate
from protoseal.cli import main
from protoseal.reports.result_files import RunResult, read_result
from protoseal.reports.sweep_table import CSV, JSON, SweepResult
from protoseal.simulation import experiment
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import EndedRun, Watcher, simulate
from protoseal.simulation.sweep import (
    SweepFailed,
    SweepPoint,
    SweepStopped,
    load_sweep,
    open_sweep,
    run_sweep,
)
from secure_client.errors import DataError
from tests.support.simulations import DIGITS

FILE = f"""
method = "local"
rounds = 1
{DIGITS.replace("per=40", "per=20")}"""
RATES = ("training.lr=0.02,0.1",)


def points_of(folder: Path, *sweeps: str, settings: tuple[str, ...] = (), **flags: Any) -> list[SweepPoint]:
    file = folder / "sweep.toml"
    file.write_text(FILE, encoding="utf-8")
    return load_sweep(file, {"out": str(folder / "out"), **flags}, settings, sweeps)


# Combinations


def test_load_sweep_combines_all_values(tmp_path: Path) -> None:
    points = points_of(tmp_path, "training.lr=0.1, 0.2", 'split=["iid:per=40", "dirichlet:0.3,per=40"]')
    assert [point.values for point in points] == [
        {"training.lr": lr, "split": split}
        for lr in ("0.1", "0.2")
        for split in ("iid:per=40", "dirichlet:0.3,per=40")
    ]
    assert [(point.config.training.lr, point.config.split) for point in points] == [
        (float(point.values["training.lr"]), point.values["split"]) for point in points
    ]


def test_load_sweep_without_settings_is_one_simulation(tmp_path: Path) -> None:
    (point,) = points_of(tmp_path)
    assert point.values == {}
    assert point.config.out == tmp_path / "out"


@pytest.mark.parametrize(
    "sweeps",
    [
        ("training.lr",),
        ("training.lr=",),
        ("training.lr=0.1,",),
        ("=0.1",),
        ("training.lr=[]",),
        ("training.lr=[0.1",),
        ("training.lr=[1979-05-27]",),
        ("training.lr=0.1", "training.lr=0.2"),
        ("training.lr=0.1,0.10",),  # the same configuration twice
        ("workers=1,2",),  # changes no run
        ("pretrained=a,b",),
        ("dim=8,16",),  # is set as well
        ("method=local,pfpl",),  # has a flag as well
        ("training.no_such_key=1",),
    ],
)
def test_load_sweep_unusable_values_are_refused(tmp_path: Path, sweeps: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        points_of(tmp_path, *sweeps, settings=("dim=8",), method="local")


def test_load_sweep_setting_that_changes_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data_root changes no run"):
        points_of(tmp_path, "data_root=/a,/b")


# Folders


def test_load_sweep_folder_has_values_and_hash(tmp_path: Path) -> None:
    (first, second) = points_of(tmp_path, 'split=["iid:per=40", "domains"]')
    assert first.config.out.parent == tmp_path / "out"
    label, _, digest = first.config.out.name.rpartition("-")
    assert label == "split=iid-per=40"
    assert len(digest) == 8
    assert second.config.out.name.startswith("split=domains-")


def test_load_sweep_folder_follows_configuration(tmp_path: Path) -> None:
    """Settings that change runs give another folder; settings that only select runs do not."""

    def folders(**flags: Any) -> list[str]:
        return [point.config.out.name for point in points_of(tmp_path, "training.lr=0.1,0.2", **flags)]

    assert folders() == folders(compare=("fedavg",)) == folders(data_root=str(tmp_path))
    assert not set(folders()) & set(folders(rounds=2))
    assert len(set(folders())) == 2


def test_load_sweep_long_values_give_distinct_valid_names(tmp_path: Path) -> None:
    values = json.dumps([f"npz:{'a' * 300}{end}.npz" for end in "bc"])
    names = [point.config.out.name for point in points_of(tmp_path, f"dataset={values}")]
    assert len(set(names)) == 2
    assert all(len(name.encode()) <= 255 for name in names)


# Runs and their table


class Ended(Watcher):
    """Record of each run, and whether it ran anew."""

    def __init__(self) -> None:
        self.anew: list[bool] = []

    def on_run(self, ended: EndedRun) -> None:
        """Record the run."""
        self.anew.append(ended.anew)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SweepResult]:
    """Sweep over two learning rates, on two seeds each."""
    folder = tmp_path_factory.mktemp("swept")
    return folder, run_sweep(points_of(folder, *RATES, seeds=(0, 1)), simulate)


def test_run_sweep_started_again_runs_what_is_missing(
    swept: tuple[Path, SweepResult], tmp_path: Path
) -> None:
    shutil.copytree(swept[0] / "out", tmp_path / "out")
    points, ended = points_of(tmp_path, *RATES, seeds=(0, 1)), Ended()
    table = (tmp_path / "out" / CSV).read_bytes()
    (points[1].config.out / "seed-1" / "runs" / "local.json").unlink()
    (tmp_path / "out" / CSV).unlink()
    assert run_sweep(points, lambda config: simulate(config, ended)) == swept[1]
    assert ended.anew == [False] * 3 + [True]
    assert (tmp_path / "out" / CSV).read_bytes() == table


def test_run_sweep_table_has_means_and_spreads_of_results(swept: tuple[Path, SweepResult]) -> None:
    folder, sweep = swept
    out = folder / "out"
    written = json.loads((out / JSON).read_text(encoding="utf-8"))
    assert SweepResult.model_validate(written) == sweep
    assert [row.settings["training.lr"] for row in sweep.rows] == ["0.02", "0.1"]
    with (out / CSV).open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    for row, line in zip(sweep.rows, lines, strict=True):
        result = read_result(out / row.folder)
        for metric, spread in result.summary[row.method].items():
            assert row.figures[metric].model_dump() == spread.model_dump()
            assert float(line[metric]) == spread.mean
            assert float(line[f"{metric}_standard_deviation"]) == spread.standard_deviation
        assert line["accuracy_prototype"] == ""
        assert (line["training.lr"], line["seeds"]) == (row.settings["training.lr"], "0 1")


def test_run_sweep_failed_simulation_spares_the_others(tmp_path: Path) -> None:
    points, results = points_of(tmp_path, "training.lr=0.02,0.05,0.1"), []

    def fail_second(config: SimulationConfig) -> RunResult:
        if config.training.lr == 0.05:
            raise DataError("lost")
        results.append(simulate(config))
        return results[-1]

    with pytest.raises(SweepFailed, match=points[1].config.out.name):
        run_sweep(points, fail_second)
    written = json.loads((tmp_path / "out" / JSON).read_text(encoding="utf-8"))
    assert [row["settings"]["training.lr"] for row in written["rows"]] == ["0.02", "0.1"]
    assert written["complete"] is False


def test_run_sweep_stops_where_all_would_fail(tmp_path: Path) -> None:
    points, seen = points_of(tmp_path, *RATES), []

    def stop(config: SimulationConfig) -> RunResult:
        seen.append(config)
        raise SweepStopped("no machine sees the folder")

    with pytest.raises(SweepStopped):
        run_sweep(points, stop)
    assert len(seen) == 1


def test_open_sweep_that_runs_again_is_not_complete(swept: tuple[Path, SweepResult], tmp_path: Path) -> None:
    shutil.copytree(swept[0] / "out", tmp_path / "out")

    with open_sweep(tmp_path / "out"):
        table = SweepResult.model_validate_json((tmp_path / "out" / JSON).read_bytes())
    assert table == swept[1].model_copy(update={"complete": False})


def test_simulate_command_sweeps_from_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = tmp_path / "s.toml", tmp_path / "out"
    file.write_text(FILE, encoding="utf-8")
    words = ["simulate", "--config", str(file), "--out", str(out), "--sweep", "dim=4,8"]
    shown = CliRunner().invoke(main, words, catch_exceptions=False)
    assert shown.exit_code == 0
    assert "sweep" in shown.output
    monkeypatch.setattr(experiment, "load_scene", None)  # all is there already
    again = CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False)
    assert json.loads(again.stdout) == json.loads((out / JSON).read_text(encoding="utf-8"))


# Configurations as tasks get them


def test_config_without_unset_fields_validates_to_itself(tmp_path: Path) -> None:
    for point in points_of(tmp_path, "split=iid:per=40,domains", seeds=(0, 1)):
        table = point.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        again = validate(SimulationConfig, table, source="task", directory=tmp_path)
        assert again == point.config
        assert again.model_fields_set == point.config.model_fields_set
