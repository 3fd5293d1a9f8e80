"""Runs with frozen features: each method and control is reported by prototype, as ``protoseal predict`` predicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from agreement import ConfigError
from protoseal.cli import main
from protoseal.prediction import Basis, choose_basis, load_trained, predict
from protoseal.reports.result_files import RunResult
from protoseal.reports.tables import NO_PROTOTYPE, accuracy_text, sites_table
from protoseal.simulation.config import SimulationConfig, load_simulation
from protoseal.simulation.experiment import load_scene, simulate
from secure_client.models.prototype_model import PrototypeModel, compute_outputs
from secure_client.output.site_log import read_site_log
from tests.support.marks import full_but

FILE = """
method = "{method}"
protection = "plain"
dataset = "digits"
split = "iid:per=550"
sites = 3
rounds = 1
dim = 16
device = "cpu"
[training]
model = "tests.support.tiny_models:build_relu"
lr = 0.01
local_epochs = 1
[feddbp]
decision = false
[privacy]
clip = 0.3
noise_multiplier = {noise}
min_count = {least}
extractor = "frozen"
"""
LOUD, QUIET = 20.0, 0.3
METHODS = ("pfpl", "fedpc", "feddbp", "fedproto", "average")
Run = tuple[SimulationConfig, RunResult]
RunOf = Callable[..., Run]
"""Function of a method, its noise and, if it matters, the least count of a released prototype."""
Rows = NDArray[np.float64]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """Return a function that runs a method with some noise, once; PFPL with its controls beside it."""
    folder = tmp_path_factory.mktemp("frozen")

    @cache
    def run(method: str, noise: float, least: float = 1.0) -> Run:
        file = folder / f"{method}-{noise}-{least}.toml"
        file.write_text(FILE.format(method=method, noise=noise, least=least), encoding="utf-8")
        controls = ("local", "self") if method == "pfpl" else ()
        config = load_simulation(file, {"out": str(file.with_suffix("")), "compare": controls})
        return config, simulate(config)

    return run


def features_of(model: PrototypeModel, samples: Dataset[Any]) -> tuple[Rows, NDArray[np.int64]]:
    inputs, labels = next(iter(DataLoader(samples, batch_size=1000)))
    model.eval()
    with torch.no_grad():
        return compute_outputs(model, inputs).features.double().numpy(), labels.numpy()


def nearest(features: Rows, prototypes: Rows) -> NDArray[np.int64]:
    """Return the class of the nearest prototype, by distances of this test's own."""
    distances = np.square(features[:, None] - prototypes[None]).sum(axis=2)
    return np.asarray(distances.argmin(axis=1))


@pytest.mark.parametrize("method", full_but(METHODS, "pfpl", "fedpc"))
def test_frozen_accuracy_follows_noise_unlike_classifiers(run_of: RunOf, method: str) -> None:
    (_, loud), (_, quiet) = run_of(method, LOUD), run_of(method, QUIET)
    assert loud.metrics[method].accuracy_classifier == quiet.metrics[method].accuracy_classifier
    assert loud.mean_accuracy is not None
    assert quiet.mean_accuracy is not None
    assert quiet.mean_accuracy > loud.mean_accuracy
    assert loud.rounds[-1].mean_accuracy == loud.mean_accuracy


@pytest.mark.parametrize("method", full_but(METHODS, "pfpl", "fedpc"))
def test_frozen_saved_site_predicts_reported_accuracy(run_of: RunOf, method: str) -> None:
    config, result = run_of(method, QUIET)
    scene = load_scene(config, 0)
    for site in result.sites:
        trained, test = load_trained(config.out / "sites" / site.name), scene.data[site.name].test
        assert test is not None
        features, labels = features_of(trained.model, test)
        expected = nearest(features, trained.prototypes.personal)
        by = choose_basis(trained)
        assert by is Basis.PROTOTYPE
        assert predict(trained, test, by, device="cpu") == (expected.tolist(), labels.tolist())
        assert site.accuracy == pytest.approx((expected == labels).mean())


def test_frozen_controls_use_exact_prototypes(run_of: RunOf) -> None:
    (config, loud), (_, quiet) = run_of("pfpl", LOUD), run_of("pfpl", QUIET)
    scene = load_scene(config, 0)
    for site in loud.sites:
        data = scene.data[site.name]
        model = load_trained(config.out / "sites" / site.name).model
        features, labels = features_of(model, data.train)
        means = np.stack([features[labels == label].mean(axis=0) for label in range(10)])
        assert data.test is not None
        tested, known = features_of(model, data.test)
        alone = (nearest(tested, means) == known).mean()
        assert site.compared == {"local": pytest.approx(alone), "self": pytest.approx(alone)}
    assert loud.compared == quiet.compared


@pytest.fixture(scope="module")
def unreleased(run_of: RunOf) -> Run:
    """Return a run in which no class has enough samples for a prototype."""
    return run_of("pfpl", QUIET, least=1000.0)


def test_frozen_run_without_prototypes_has_classifiers_accuracy(unreleased: Run) -> None:
    _, result = unreleased
    means = result.metrics["pfpl"]
    assert (result.mean_accuracy, means.accuracy, means.accuracy_prototype) == (None, None, None)
    assert means.accuracy_classifier is not None
    assert result.rounds[-1].mean_accuracy is None
    assert not any(site.per_class for site in result.sites)
    assert sites_table(result).caption == NO_PROTOTYPE


def test_frozen_site_without_prototypes_says_so(unreleased: Run) -> None:
    config, _ = unreleased
    site = config.out / "sites" / "site-1"
    assert "no prototype" in accuracy_text(read_site_log(site).rounds[-1])
    predicted = CliRunner().invoke(main, ["predict", "--run", str(site), "--data", "digits", "--json"])
    assert json.loads(predicted.stdout)["by"] == Basis.CLASSIFIER
    assert "no prototype" in predicted.stderr


def test_simulate_finished_run_without_releases_warns(
    unreleased: Run, caplog: pytest.LogCaptureFixture
) -> None:
    config, _ = unreleased
    simulate(config)
    assert not caplog.records
    simulate(config.model_copy(update={"keep_releases": True}))
    (warning,) = caplog.records
    assert "--fresh" in warning.getMessage()


def test_config_keep_releases_without_noise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep_releases"):
        load_simulation(None, {"keep_releases": True, "out": str(tmp_path)})
