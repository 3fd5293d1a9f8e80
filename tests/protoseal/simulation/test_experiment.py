"""``simulate``: the same code as a deployment, over methods, controls and seeds, on the bundled digits."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset

from agreement import Method, Protection
from protoseal.reports.result_files import RESULT, Accuracies, RunResult, read_result, site_folder
from protoseal.simulation.config import SimulationConfig, load_simulation
from protoseal.simulation.experiment import CompletedRound, Watcher, simulate
from secure_client.checkpoints.predictor import Predictor
from secure_client.output.site_log import SiteRound
from secure_client.training.evaluation import Evaluation
from tests.support.marks import full_but
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


@pytest.mark.parametrize(("split", "warned"), [("mixed:n=2,max=6", True), ("iid:per=40", False)])
def test_simulate_all_classes_withheld_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, split: str, warned: bool
) -> None:
    """With two classes at each of three sites, hardly a class has the three holders that it needs."""
    simulate(config_for(tmp_path / "out", split=split, rounds=1), Watcher())
    assert any("every class" in record.message for record in caplog.records) is warned


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


FILE = """
dataset = "digits"
split = "iid:per=60,val=0.2"
sites = 3
rounds = 2
dim = 8
norm_bound = 100.0
device = "cpu"
batched = "never"
per_class = true
early_stopping = 5
[training]
model = "small-cnn"
optimiser = "sgd"
lr = 0.02
batch_size = 8
local_epochs = 1
"""
BY_PROTOTYPE = {"feddbp": True, "fedproto": True, "pfpl": False}


class Told(Watcher):
    """Recorder of each site's reports in each round of `self`."""

    def __init__(self) -> None:
        self.rounds: list[SiteRound] = []

    def on_completed(self, completed: CompletedRound) -> None:
        """Record reports of the control `self` alone."""
        if completed.method is Method.SELF:
            self.rounds += completed.reports.values()


def self_config(out: Path, **flags: Any) -> SimulationConfig:
    file = out.with_suffix(".toml")
    file.write_text(FILE, encoding="utf-8")
    return load_simulation(file, {"out": str(out), **flags})


def own(figures: Accuracies | SiteRound, method: str) -> float | None:
    """Return the accuracy by the inference of the method that `self` stands beside."""
    return figures.accuracy_prototype if BY_PROTOTYPE[method] else figures.accuracy_classifier


def best_of(rounds: list[SiteRound]) -> int:
    """Return the round that is reported."""
    means = {
        number: fmean(each.accuracy_validation or 0.0 for each in rounds if each.round == number)
        for number in (1, 2)
    }
    return max(means, key=lambda number: (means[number], -number))


@pytest.mark.parametrize("method", full_but(BY_PROTOTYPE, "feddbp"))
def test_control_self_beside_method_is_scored_alike(tmp_path: Path, method: str) -> None:
    told = Told()
    result = simulate(self_config(tmp_path / "out", method=method, compare=("self",)), told)
    metrics = result.metrics["self"]
    assert metrics.accuracy_classifier != metrics.accuracy_prototype
    assert metrics.accuracy == result.compared["self"] == own(metrics, method)
    best = [each for each in told.rounds if each.round == best_of(told.rounds)]
    assert [site.compared["self"] for site in result.sites] == [own(each, method) for each in best]
    assert [each.accuracy for each in told.rounds] == [own(each, method) for each in told.rounds]
    of_round = [own(each, method) or 0.0 for each in told.rounds[: len(result.sites)]]
    assert result.rounds[0].compared["self"] == pytest.approx(sum(of_round) / len(of_round))


@pytest.mark.parametrize("method", full_but(BY_PROTOTYPE, "fedproto"))
def test_control_self_as_method_is_scored_alike(tmp_path: Path, method: str) -> None:
    """Each class's share, weighted by how often the site tests it, is the accuracy by the same inference."""
    out = tmp_path / "out"
    result = simulate(self_config(out, method="self", compare=(method,)))
    lines = (out / "split.csv").read_text(encoding="utf-8").splitlines()
    rows = [line.split(",") for line in lines]
    for site in result.sites:
        counts = np.sum(
            [[*map(int, row[4:])] for row in rows if (row[0], row[2]) == (site.name, "test")], axis=0
        )
        shares = [site.per_class.get(name, 0.0) for name in result.classes]
        assert site.accuracy == own(site, method) == pytest.approx(counts @ shares / counts.sum())
    assert result.mean_accuracy == result.metrics["self"].accuracy


def test_control_self_early_stopping_uses_same_inference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: list[Evaluation] = []
    evaluate_on = Predictor.evaluate_on

    def noted(self: Predictor, dataset: Dataset[Any]) -> Evaluation:
        tested.append(evaluate_on(self, dataset))
        return tested[-1]

    monkeypatch.setattr(Predictor, "evaluate_on", noted)
    told = Told()
    simulate(self_config(tmp_path / "out", method="self", compare=("fedproto",), rounds=1), told)
    of_self = tested[: len(told.rounds)]
    assert [each.accuracy_validation for each in told.rounds] == [each.accuracy_prototype for each in of_self]
    assert any(each.accuracy_prototype != each.accuracy_classifier for each in of_self)
