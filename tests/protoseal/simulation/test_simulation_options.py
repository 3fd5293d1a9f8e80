"""Options of a simulation: batching, different models, tests, early stopping, scalars, early reports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agreement import ConfigError, Method
from agreement.errors import UserError
from protoseal.reports.report import write_report
from protoseal.reports.result_files import RunResult, read_result, site_folder
from protoseal.simulation import site_pool
from protoseal.simulation.batched.training import run_together
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import Watcher, WrittenResult, simulate
from protoseal.simulation.run_folder import COMPARED
from protoseal.simulation.run_log import RunLog
from protoseal.simulation.tensorboard import Scalars
from protoseal.simulation.tensors.checkpoint import Checkpoints
from protoseal.simulation.tensors.sites import TensorSite
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.output.site_files import MODEL
from secure_client.output.site_log import read_site_log
from tests.support.simulations import DIGITS, Killed, config_in, fail_at

FILE = f"""
method = "pfpl"
rounds = 4
{DIGITS}"""


SMOOTH = FILE.replace("small-cnn", "tests.support.tiny_models:build_tanh")
"""Configuration with a network without ReLUs: rounding decides ties of ReLUs, so that two ways of training would part.
"""


def config_for(out: Path, text: str = FILE, **flags: Any) -> SimulationConfig:
    return config_in(text, out, **flags)


def models(folder: Path) -> dict[str, torch.Tensor]:
    """Return all sites' weights."""
    return {
        f"{path.parent.name}.{name}": value
        for path in sorted(folder.glob(f"sites/*/{MODEL}"))
        for name, value in safetensors.torch.load_file(path).items()
    }


# Training together


@pytest.mark.parametrize("method", ["fedpc", "feddbp", "fedrep", "ditto", "fedprox", "self"])
def test_simulate_batched_equals_one_by_one(tmp_path: Path, method: str) -> None:
    """The tolerance detects another method or order of batches; test_in_float32 derives one for rounding."""
    together, alone = tmp_path / "together", tmp_path / "alone"
    results = {
        folder: simulate(config_for(folder, SMOOTH, method=method, rounds=2, batched=batched))
        for folder, batched in ((together, "always"), (alone, "never"))
    }
    for one, other in zip(models(together).values(), models(alone).values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert all(each.seconds.train > 0 for each in results[together].rounds)
    losses = [
        [each.loss for each in read_site_log(site_folder(folder, "site-1")).rounds]
        for folder in results
        if method != "self"
    ]
    assert not losses or losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_simulate_batched_always_trains_in_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round's stage is one call with the jobs of all four sites; when told never to, there is none."""
    calls: list[int] = []

    def counted(jobs: Any, *arguments: Any, **settings: Any) -> Any:
        calls.append(len(jobs))
        return run_together(jobs, *arguments, **settings)

    monkeypatch.setattr(site_pool, "run_together", counted)
    simulate(config_for(tmp_path / "never", method="fedrep", compare=("local",), rounds=2))
    assert calls == []
    simulate(config_for(tmp_path / "always", method="fedrep", compare=("local",), rounds=2, batched="always"))
    assert calls == [4] * (2 * 2 + 2)  # two stages a round, and the control's one


# Models


def test_simulate_models_are_dealt_in_turn(tmp_path: Path) -> None:
    text = FILE.replace(
        "sites = 4", 'sites = 4\nmodels = ["small-cnn", "tests.support.tiny_models:build_tanh"]'
    )
    out = tmp_path / "out"
    result = simulate(config_for(out, text, method="feddbp", compare=("fedproto", "local"), rounds=1))
    names = ["small-cnn", "tests.support.tiny_models:build_tanh"] * 2
    assert [site.model for site in result.sites] == names
    for folder in (out, out / COMPARED / "fedproto"):
        sizes = [
            sum(1 for name in models(folder) if name.startswith(f"site-{site}.")) for site in range(1, 5)
        ]
        assert sizes[0] == sizes[2] != sizes[1] == sizes[3]
        assert [read_site_log(site_folder(folder, f"site-{site}")).model for site in range(1, 5)] == names


@pytest.mark.parametrize("method", ["fedpc", "fedavg", "fedplcc", "average"])
def test_config_averaging_different_models_is_refused(tmp_path: Path, method: str) -> None:
    different = ("small-cnn", "resnet10")
    with pytest.raises(ConfigError, match="models"):
        config_for(tmp_path / "out", method=method, models=different)
    with pytest.raises(ConfigError, match="models"):
        config_for(tmp_path / "out", compare=(method,), models=different)
    assert config_for(tmp_path / "out", method=method, models=("resnet10",)).model_at(3) == "resnet10"


@pytest.mark.parametrize("method", ["fedavg", "fedplcc", "fpl", "fedrep"])
def test_config_self_beside_several_prototypes_is_refused(tmp_path: Path, method: str) -> None:
    with pytest.raises(ConfigError, match="self"):
        config_for(tmp_path / "out", method=method, compare=("self",))


# Tests


def test_simulate_evaluate_every_tests_these_rounds_and_last(tmp_path: Path) -> None:
    every = simulate(config_for(tmp_path / "every", compare=("local",)))
    third = simulate(config_for(tmp_path / "third", compare=("local",), evaluate_every=3))
    tested = [each.round for each in third.rounds if each.mean_accuracy is not None]
    assert tested == [each.round for each in third.rounds if each.compared] == [3, 4]
    assert third.mean_accuracy == every.mean_accuracy
    assert third.metrics == every.metrics
    write_report(tmp_path / "third")  # its curves have gaps


def test_simulate_per_class_reports_each_class(tmp_path: Path) -> None:
    """Each class's share, weighted by how often the site tests it, is the accuracy by the method's own inference."""
    out = tmp_path / "out"
    result = simulate(config_for(out, method="fedproto", compare=("local",), rounds=2, per_class=True))
    rows = [line.split(",") for line in (out / "split.csv").read_text(encoding="utf-8").splitlines()]
    tested = {site.name: np.zeros(10, dtype=np.int64) for site in result.sites}
    for site, _, part, _, *counted in rows:
        if part == "test":
            tested[site] += np.array(counted, dtype=np.int64)  # one row for each domain
    for figures in result.sites:
        counts = dict(zip(result.classes, tested[figures.name], strict=True))
        assert set(figures.per_class) == {name for name, count in counts.items() if count}
        right = sum(share * counts[name] for name, share in figures.per_class.items())
        assert figures.accuracy == pytest.approx(right / tested[figures.name].sum())
    assert any(site.accuracy != site.accuracy_classifier for site in result.sites)
    assert "each class of each site" in write_report(out).read_text(encoding="utf-8")


def test_simulate_accuracy_uses_methods_inference(tmp_path: Path) -> None:
    result = simulate(config_for(tmp_path / "out", method="fedproto", compare=("pfpl", "feddbp"), rounds=2))
    for name, metrics in result.metrics.items():
        own = metrics.accuracy_classifier if name == "pfpl" else metrics.accuracy_prototype
        assert metrics.accuracy == own is not None
        assert metrics.accuracy_classifier != metrics.accuracy_prototype
    assert result.mean_accuracy == result.metrics["fedproto"].accuracy
    assert result.compared["pfpl"] == result.metrics["pfpl"].accuracy
    assert result.rounds[-1].mean_accuracy == pytest.approx(result.mean_accuracy)


# Early stopping

STOPPING: dict[str, Any] = {"split": "iid:per=40,val=0.3", "rounds": 30, "early_stopping": 2}


def best_of(values: list[float]) -> tuple[int, int]:
    """Return (best round, last round) by the rule, worked out one by one."""
    best = 0
    for number in range(len(values)):
        if values[number] > values[best]:
            best = number
        if number - best == 2:
            return best + 1, number + 1
    return best + 1, len(values)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult]:
    """Simulate a run that ends before its last round."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    return out, simulate(config_for(out, method="fedavg", compare=("local",), **STOPPING))


def test_simulate_early_stopping_stops(stopped: tuple[Path, RunResult]) -> None:
    out, result = stopped
    logs = [read_site_log(site_folder(out, site.name)).rounds for site in result.sites]
    values = [float(np.mean([each.accuracy_validation for each in told])) for told in zip(*logs, strict=True)]
    best, last = best_of(values)
    assert last < 30
    assert (result.best_round, len(result.rounds)) == (best, last)
    assert best < last
    for site, log in zip(result.sites, logs, strict=True):
        assert site.accuracy == log[best - 1].accuracy_classifier
        assert log[best - 1].pm_v_global is not None
        assert all(each.pm_v_global is None for each in log if each.round != best)


def test_simulate_early_stopping_saves_best_model(stopped: tuple[Path, RunResult], tmp_path: Path) -> None:
    out, result = stopped
    assert result.best_round is not None
    until = config_for(tmp_path / "out", method="fedavg", split=STOPPING["split"], rounds=result.best_round)
    simulate(until)
    for one, other in zip(models(out).values(), models(tmp_path / "out").values(), strict=True):
        assert torch.equal(one, other)


SITES_OF_ENGINE = {"tensors": TensorSite, "sessions": CheckpointedLearner}


@pytest.mark.parametrize("engine", ["tensors", "sessions"])
@pytest.mark.parametrize(("name", "after"), [("remember", True), ("go_back", True), ("finish", False)])
def test_simulate_early_stopping_resumed_after_end(
    stopped: tuple[Path, RunResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    name: str,
    after: bool,
) -> None:
    """Ended while models are put aside, while they are taken up again, and in the training after the best round."""
    reference, expected = stopped
    assert expected.best_round is not None
    out, count = tmp_path / "out", 2 if name != "finish" else 4 * expected.best_round + 3
    flags = {"method": "fedavg", "compare": ("local",), "engine": engine, **STOPPING}
    monkeypatch.setattr(Checkpoints, "is_due", True)
    with monkeypatch.context() as patch:
        fail_at(patch, SITES_OF_ENGINE[engine], name, count, after=after)
        with pytest.raises(Killed):
            simulate(config_for(out, **flags))
    result = simulate(config_for(out, **flags))
    assert result.best_round == expected.best_round
    assert [each.accuracies for each in result.rounds] == [each.accuracies for each in expected.rounds]
    assert result.metrics == expected.metrics
    for one, other in zip(models(out).values(), models(reference).values(), strict=True):
        assert torch.equal(one, other)


# While it runs


class Folder(Watcher):
    """Recorder of each written folder, and of whether its result is complete."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool, list[str]]] = []

    def on_result(self, written: WrittenResult) -> None:
        """Record the result, of which a report can be made."""
        result = read_result(written.folder)
        assert result == written.result
        self.seen.append((len(result.rounds), result.complete, sorted(result.compared)))
        page = write_report(written.folder).read_text(encoding="utf-8")
        assert ("Incomplete" in page) is not result.complete


def test_simulate_writes_results_while_running(tmp_path: Path) -> None:
    watcher = Folder()
    simulate(config_for(tmp_path / "out", compare=("local", "self")), watcher)
    assert watcher.seen == [(4, False, []), (4, False, ["local"]), (4, True, ["local", "self"])]


def test_tensorboard_scalars_equal_rounds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Scalars(out / "tensorboard") as scalars:
        result = simulate(config_for(out, compare=("local",), evaluate_every=2), scalars)
    events = EventAccumulator(str(out / "tensorboard" / "seed-0" / "pfpl"))
    events.Reload()
    written = {each.step: each.value for each in events.Scalars("accuracy/mean")}
    assert written == pytest.approx(
        {each.round: each.mean_accuracy for each in result.rounds if each.mean_accuracy is not None}
    )
    tags = events.Tags()["scalars"]
    assert {"accuracy/site-1", "loss/mean", "loss/site-4", "seconds/train", "seconds/protect"} <= set(tags)
    assert [each.step for each in events.Scalars("loss/mean")] == [1, 2, 3, 4]
    assert (out / "tensorboard" / "seed-0" / Method.LOCAL.value).is_dir()


def test_tensorboard_missing_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"protoseal\[tensorboard\]"):
        Scalars(tmp_path)


def test_run_log_repeated_entry_counts_once(tmp_path: Path) -> None:
    """The log counts bytes by request and not by how often a request was repeated."""
    from protoseal_wire.messages import Phase, PhaseKey  # noqa: PLC0415 (of this test alone)

    with RunLog(tmp_path / "log.sqlite") as log:
        for size in (10, 12):
            log.put_payload("a", PhaseKey("run", 1, 1, Phase.VALUES), size, up=True)
        log.put_payload("a", PhaseKey("run", 2, 1, Phase.VALUES), 5, up=True)
        log.put_payload("a", PhaseKey("run", 2, 1, Phase.VALUES), 70, up=False)
        assert (log.payload_bytes("a", up=True), log.payload_bytes("a", up=False)) == (17, 70)
        assert log.payload_bytes("b", up=True) == 0
