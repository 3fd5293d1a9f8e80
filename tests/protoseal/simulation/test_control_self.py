"""The control `self` is scored the way the method is that it is compared with."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset

from agreement import Method
from protoseal.reports.result_files import Accuracies
from protoseal.simulation.config import SimulationConfig, load_simulation
from protoseal.simulation.experiment import Completed, Watcher, simulate
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.output.site_log import SiteRound
from secure_client.training.evaluation import Evaluation
from tests.support.marks import full_but

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

    def on_completed(self, completed: Completed) -> None:
        """Record reports of the control `self` alone."""
        if completed.method is Method.SELF:
            self.rounds += completed.reports.values()


def config_for(out: Path, **flags: Any) -> SimulationConfig:
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
    result = simulate(config_for(tmp_path / "out", method=method, compare=("self",)), told)
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
    result = simulate(config_for(out, method="self", compare=(method,)))
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
    evaluate_on = CheckpointedLearner.evaluate_on

    def noted(self: CheckpointedLearner, dataset: Dataset[Any]) -> Evaluation:
        tested.append(evaluate_on(self, dataset))
        return tested[-1]

    monkeypatch.setattr(CheckpointedLearner, "evaluate_on", noted)
    told = Told()
    simulate(config_for(tmp_path / "out", method="self", compare=("fedproto",), rounds=1), told)
    of_self = tested[: len(told.rounds)]
    assert [each.accuracy_validation for each in told.rounds] == [each.accuracy_prototype for each in of_self]
    assert any(each.accuracy_prototype != each.accuracy_classifier for each in of_self)
