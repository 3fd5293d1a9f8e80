"""Single settings of a simulation from the command line, and one run's figures against another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from agreement import ConfigError
from agreement.storage.run_files import FileError
from protoseal.reports.result_files import Accuracies, RunResult, SeedFigures
from protoseal.reports.run_results import between_runs
from protoseal.simulation.config import SimulationConfig, load_simulation


def loaded(tmp_path: Path, *settings: str, **flags: object) -> SimulationConfig:
    file = tmp_path / "run.toml"
    file.write_text("rounds = 4\n[pfpl]\nalpha = 0.25\nlambda = 2.0\n", encoding="utf-8")
    return load_simulation(file, flags, settings)


def test_settings_win_over_the_file_and_flags_over_settings(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        "pfpl.weighting=uniform",
        "pfpl.lambda = 3",
        "rounds=7",
        "training.model=fedpc-cnn",
        rounds=9,
    )
    assert (config.pfpl.weighting.value, config.pfpl.alignment, config.pfpl.alpha) == ("uniform", 3.0, 0.25)
    assert (config.rounds, config.training.model) == (9, "fedpc-cnn")


def test_load_simulation_setting_is_read_as_toml(tmp_path: Path) -> None:
    config = loaded(tmp_path, "feddbp.share=false", 'classes=["a", "b"]', 'dataset="y"')
    assert (config.feddbp.share, config.classes) == (False, ("a", "b"))
    assert config.dataset.endswith("y")


def test_load_simulation_flag_seeds_win(tmp_path: Path) -> None:
    assert loaded(tmp_path, "seeds=[0, 1]", seeds=(7,)).seeds == (7,)
    assert loaded(tmp_path, "seeds=[0, 1]").seeds == (0, 1)
    with pytest.raises(ConfigError, match="seeds"):
        loaded(tmp_path, seeds=(1, 1))
    with pytest.raises(ConfigError, match="seeds"):
        loaded(tmp_path, "seeds=[]")


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("pfpl", "'pfpl'"),
        ("=1", "'=1'"),
        ("pfpl.=1", "'pfpl.=1'"),
        (".alpha=1", "'.alpha=1'"),
        ("rounds.x=1", "rounds"),
        ("pfpl.alhpa=1", "'alpha'"),
        ("pfpl.alpha=x", "pfpl.alpha"),
    ],
)
def test_load_simulation_wrong_setting_is_refused(tmp_path: Path, setting: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as refused:
        loaded(tmp_path, setting)
    assert len(str(refused.value).splitlines()) == 1


def result(method: str, accuracies: dict[int, float], **others: float) -> RunResult:
    """Return a result of some seeds; ``others`` are methods that ran beside it, the same in each seed."""

    def metrics(value: float) -> dict[str, Accuracies]:
        return {method: Accuracies(accuracy=value), **{k: Accuracies(accuracy=v) for k, v in others.items()}}

    seeds = tuple(
        SeedFigures(seed=seed, mean_accuracy=value, metrics=metrics(value))
        for seed, value in accuracies.items()
    )
    first = seeds[0]
    return RunResult(
        method=method,
        protection="plain",
        dataset="digits",
        seed=first.seed,
        sites=(),
        rounds=(),
        mean_accuracy=first.mean_accuracy,
        config={},
        metrics=first.metrics,
        seeds=seeds if len(seeds) > 1 else (),
    )


def test_between_runs_pairs_common_seeds() -> None:
    other = result("pfpl", {2: 0.5, 1: 0.75, 7: 0.1}, local=0.25)
    differences = between_runs(result("pfpl", {1: 0.5, 2: 1.0, 3: 0.9}), other)
    assert differences["pfpl"]["accuracy"].by_seed == {1: -0.25, 2: 0.5}
    assert differences["pfpl"]["accuracy"].mean == 0.125
    assert differences["local"]["accuracy"].by_seed == {1: 0.25, 2: 0.75}


def test_between_runs_one_seed_is_paired() -> None:
    (pairs,) = between_runs(result("pfpl", {4: 0.5}), result("fedpc", {4: 0.25})).values()
    assert pairs["accuracy"].by_seed == {4: 0.25}
    assert pairs["accuracy"].standard_error is None


def test_between_runs_other_seeds_are_refused() -> None:
    with pytest.raises(FileError, match="--seeds"):
        between_runs(result("pfpl", {1: 0.5}), result("pfpl", {2: 0.5}))


def test_between_runs_unlike_runs_are_refused() -> None:
    one = result("pfpl", {1: 0.5})
    for update, named in (
        ({"data_sha256": "other"}, "seed 1"),
        ({"config": {"rounds": 2}}, "rounds"),
        ({"complete": False}, "ended"),
    ):
        with pytest.raises(FileError, match=named):
            between_runs(one, one.model_copy(update=update))
    known = one.model_copy(update={"data_sha256": "5eed"})
    with pytest.raises(FileError, match="seed 1"):
        between_runs(known, one.model_copy(update={"data_sha256": "other"}))
    assert between_runs(known, known)


def test_config_site_files_refuse_split(tmp_path: Path) -> None:
    for name in ("split", "sites", "tests"):
        with pytest.raises(ConfigError, match=name):
            load_simulation(None, {"dataset": f"sites:{tmp_path}", name: "iid" if name == "split" else 7})
    assert load_simulation(None, {"dataset": f"sites:{tmp_path}", "min_holders": 9}).fewest_sites == 9
    file = tmp_path / "run.toml"
    file.write_text('split = "iid"\nsites = 7\ntests = 7\n', encoding="utf-8")
    assert load_simulation(file, {"dataset": f"sites:{tmp_path}"}).has_site_files, (
        "the file's are of other data"
    )
    assert load_simulation(file, {}, [f"dataset=sites:{tmp_path}"]).has_site_files
    for flags, settings in (({"split": "iid"}, []), ({}, ["split=iid"])):
        with pytest.raises(ConfigError, match="split"):
            load_simulation(file, {"dataset": f"sites:{tmp_path}", **flags}, settings)


def test_load_simulation_out_is_named_after_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert loaded(tmp_path).out == tmp_path / "runs" / "run"
    assert loaded(tmp_path, "out=there").out == tmp_path / "there"
    assert loaded(tmp_path, out="here").out == tmp_path / "here"
