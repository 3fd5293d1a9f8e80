"""``simulate``: the same code as a deployment, over methods and seeds, on the bundled digits."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from agreement import Method, Protection
from protoseal.reports.result_files import RESULT, RunResult, read_result, site_folder
from protoseal.simulation.config import SimulationConfig, load_simulation
from protoseal.simulation.experiment import simulate
from tests.support.simulations import Rounds

TINY = {
    "dataset": "digits",
    "split": "mixed:n=10,max=10",
    "sites": 3,
    "rounds": 2,
    "dim": 32,
    "norm_bound": 10.0,  # near the prototypes' lengths, since errors under ckks are in units of it
    "training": {"model": "small-cnn", "optimiser": "sgd", "lr": 0.02, "batch_size": 4, "local_epochs": 2},
    "workers": 1,
    "device": "cpu",
}


def config_for(out: Path, **settings: Any) -> SimulationConfig:
    file = out.parent / "simulation.toml"
    table = {**TINY, **settings}
    training = table.pop("training")
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    lines += ["[training]", *(f"{key} = {json.dumps(value)}" for key, value in training.items())]
    file.write_text("\n".join(lines), encoding="utf-8")
    return load_simulation(file, {"out": str(out)})


@pytest.fixture(scope="module")
def one_seed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult, Rounds]:
    """Simulate PFPL beside both controls for one seed."""
    out = tmp_path_factory.mktemp("simulation") / "out"
    rounds = Rounds()
    return out, simulate(config_for(out, compare=["local", "self"]), rounds), rounds


OneSeed = tuple[Path, RunResult, Rounds]


def test_simulate_one_seed_writes_the_result_it_returns(one_seed: OneSeed) -> None:
    out, result, _ = one_seed
    assert read_result(out) == result
    assert [each.name for each in result.sites] == ["site-1", "site-2", "site-3"]
    assert all((site_folder(out, each.name) / "model.safetensors").exists() for each in result.sites)
    assert [each.round for each in result.rounds] == [1, 2]
    assert all(each.bytes_up > 0 and each.bytes_down > 0 for each in result.sites)


def test_simulate_controls_share_first_round_with_method(one_seed: OneSeed) -> None:
    _, result, _ = one_seed
    assert set(result.compared) == {"local", "self"}
    for site in result.sites:
        assert site.accuracy is not None
        assert set(site.compared) == {"local", "self"}
    assert result.compared["local"] == pytest.approx(fmean(site.compared["local"] for site in result.sites))
    # Before the first answer there is nothing to learn from: round 1 is the same training in all three.
    first = result.rounds[0]
    assert first.compared == {"local": first.mean_accuracy, "self": first.mean_accuracy}


def test_watcher_sees_every_round_of_every_method(one_seed: OneSeed) -> None:
    _, _, rounds = one_seed
    for method in (Method.PFPL, Method.LOCAL, Method.SELF):
        told = [(each.round, sorted(each.reports)) for each in rounds.completed if each.method is method]
        assert told == [(number, ["site-1", "site-2", "site-3"]) for number in (1, 2)]
    assert {each.seed for each in rounds.completed} == {0}


def test_simulate_several_seeds_reports_each_and_their_spread(one_seed: OneSeed, tmp_path: Path) -> None:
    _, first, _ = one_seed
    out = tmp_path / "seeds"
    result = simulate(config_for(out, seeds=[0, 3]))
    assert [each.seed for each in result.seeds] == [0, 3]
    single = [read_result(out / f"seed-{seed}") for seed in (0, 3)]
    # The same seed gives the same, whatever runs beside it.
    assert [done.accuracies for done in single[0].rounds] == [done.accuracies for done in first.rounds]
    assert [site.accuracy for site in single[0].sites] == [site.accuracy for site in first.sites]
    assert single[1].rounds[-1].accuracies != first.rounds[-1].accuracies
    means = [each.mean_accuracy for each in single if each.mean_accuracy is not None]
    assert result.spread is not None
    assert (result.spread.mean, result.spread.standard_deviation) == pytest.approx(
        (fmean(means), stdev(means))
    )
    for figures, alone in zip(result.seeds, single, strict=True):
        assert (figures.mean_accuracy, figures.compared) == (alone.mean_accuracy, alone.compared)
    assert result.sites == single[0].sites
    assert read_result(out) == result


def test_simulate_control_as_method_equals_control_beside_it(one_seed: OneSeed, tmp_path: Path) -> None:
    _, beside, _ = one_seed
    result = simulate(config_for(tmp_path / "out", method="local"))
    assert result.method == "local"
    assert result.mean_accuracy == pytest.approx(beside.compared["local"])
    assert all(each.bytes_up == each.bytes_down == 0 for each in result.sites)
    assert [each.round for each in result.rounds] == [1, 2]


@pytest.mark.full
def test_simulate_ckks_in_worker_processes_equals_plain_up_to_noise(
    one_seed: OneSeed, tmp_path: Path
) -> None:
    _, plain, _ = one_seed
    config = config_for(tmp_path / "out", protection="ckks")
    assert config.protection is Protection.CKKS
    result = simulate(config)
    assert result.mean_accuracy is not None
    assert result.mean_accuracy > 0.3  # of ten classes: something was learnt that could differ
    for got, expected in zip(result.rounds, plain.rounds, strict=True):
        # A site has over 400 test samples; after the first round noise may break a tie among them.
        assert got.accuracies == pytest.approx(expected.accuracies, abs=0.01)
    assert min(each.bytes_up for each in result.sites) > 100 * max(each.bytes_up for each in plain.sites)


def test_simulate_impossible_split_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = config_for(out).model_copy(update={"split": "mixed:n=11"})
    with pytest.raises(Exception, match="11"):
        simulate(config)
    assert not (out / RESULT).exists()
