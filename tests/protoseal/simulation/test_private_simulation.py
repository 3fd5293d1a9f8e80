"""Simulated runs with noise: epsilon in result.json, table and report, and figures by prototype of frozen features."""

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
from privacy.accounting.events import GaussianRelease
from protoseal.cli import main
from protoseal.prediction import Basis, choose_basis, load_trained, predict
from protoseal.reports.result_files import RunResult
from protoseal.reports.tables import NO_PROTOTYPE, accuracy_text, sites_table
from protoseal.simulation.config import SimulationConfig, load_simulation
from protoseal.simulation.experiment import load_scene, simulate
from secure_client.models.prototype_model import PrototypeModel, compute_outputs
from secure_client.output.site_log import read_site_log
from tests.support.composed import epsilon
from tests.support.marks import full_but

FILE = """
method = "pfpl"
protection = "plain"
dataset = "digits"
split = "iid"
sites = 3
rounds = 3
dim = 8
[training]
norm = "group"
optimiser = "sgd"
lr = 0.01
local_epochs = 1
[privacy]
clip = 1.0
noise_multiplier = 5.0
release_every = 2
extractor = "{extractor}"
"""


SHARED = (
    FILE.replace("pfpl", "fedpc")
    .replace("plain", "masked")
    .replace("release_every = 2", 'noise = "distributed"')
    .replace("sites = 3", "sites = 4")
)
"""Noise that four sites share."""


def simulated(folder: Path, extractor: str, text: str = FILE) -> tuple[dict[str, Any], str]:
    file = folder / "private.toml"
    file.write_text(text.format(extractor=extractor), encoding="utf-8")
    ran = CliRunner().invoke(
        main, ["simulate", "--config", str(file), "--out", str(folder / "out"), "--device", "cpu"]
    )
    assert ran.exit_code == 0, ran.output
    content: dict[str, Any] = json.loads((folder / "out" / "result.json").read_text(encoding="utf-8"))
    return content, ran.output + (folder / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("extractor", "guaranteed"), full_but([("frozen", True), ("trained", False)], ("trained", False))
)
def test_simulate_private_run_shows_epsilon_and_its_guarantee(
    tmp_path: Path, extractor: str, guaranteed: bool
) -> None:
    result, shown = simulated(tmp_path, extractor)
    assert len(result["sites"]) == 3
    for site in result["sites"]:
        assert 0.5 < site["epsilon"] < 2.0  # two releases
        assert site["guaranteed"] == guaranteed
    assert result["config"]["privacy"]["extractor"] == extractor
    assert ("NO GUARANTEE" in " ".join(shown.split())) == (not guaranteed)
    assert "<th>ε</th>" in shown


@pytest.mark.parametrize("unit", full_but(["subject", "site"], "subject"))
def test_simulate_other_unit_shows_its_epsilon(tmp_path: Path, unit: str) -> None:
    """The report names the unit beside each epsilon; a site alone leaves no class in the noise."""
    changed = FILE.replace('split = "iid"', 'split = "iid:subject=5"').replace(
        "clip = 1.0", f'clip = 1.0\nunit = "{unit}"\nproject_from = 32'
    )
    file = tmp_path / "units.toml"
    file.write_text(changed.format(extractor="frozen"), encoding="utf-8")
    out = tmp_path / "out"
    ran = CliRunner().invoke(main, ["simulate", "--config", str(file), "--out", str(out), "--device", "cpu"])
    assert ran.exit_code == 0, ran.output
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert all(site["guaranteed"] and 0.5 < site["epsilon"] < 2.0 for site in result["sites"])
    assert f"<th>ε ({unit})</th>" in (out / "report.html").read_text(encoding="utf-8")


def test_simulate_unit_subject_without_subjects_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "units.toml"
    text = FILE.replace("clip = 1.0", 'clip = 1.0\nunit = "subject"').format(extractor="frozen")
    file.write_text(text, encoding="utf-8")
    ran = CliRunner().invoke(main, ["simulate", "--config", str(file), "--out", str(tmp_path / "out")])
    assert ran.exit_code == 1
    assert "the training samples have none" in ran.output


@pytest.mark.full
def test_simulate_shared_noise_is_paid_in_each_sum(tmp_path: Path) -> None:
    """No site has a prototype of its own from which the report could draw a line."""
    result, shown = simulated(tmp_path, "frozen", SHARED)
    for site in result["sites"]:
        assert site["epsilon"] == pytest.approx(epsilon([GaussianRelease(5.0, 10 * 9)] * 4, 1e-5))
        assert site["guaranteed"]
    assert result["config"]["privacy"]["noise"] == "distributed"
    assert "first principal component" not in shown


@pytest.mark.full
def test_simulate_without_noise_shows_no_epsilon(tmp_path: Path) -> None:
    file = tmp_path / "exact.toml"
    file.write_text(FILE.partition("[privacy]")[0], encoding="utf-8")
    out = tmp_path / "out"
    ran = CliRunner().invoke(main, ["simulate", "--config", str(file), "--out", str(out), "--device", "cpu"])
    assert ran.exit_code == 0, ran.output
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert {site["epsilon"] for site in result["sites"]} == {None}
    assert "<th>ε</th>" not in (out / "report.html").read_text(encoding="utf-8")
    assert "epsilon" not in ran.output


def test_simulate_infinite_epsilon_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "loud.toml"
    file.write_text(FILE.format(extractor="frozen").replace("5.0", "0.01"), encoding="utf-8")
    ran = CliRunner().invoke(main, ["simulate", "--config", str(file), "--out", str(tmp_path / "out")])
    assert ran.exit_code == 1
    assert "too small for a finite epsilon" in ran.output


@pytest.mark.full
def test_simulate_site_without_class_is_tested_by_classifier(tmp_path: Path) -> None:
    file = tmp_path / "quiet.toml"
    quiet = FILE.format(extractor="frozen").replace("release_every = 2", "min_count = 1e6")
    file.write_text(quiet, encoding="utf-8")
    out = tmp_path / "out"
    ran = CliRunner().invoke(main, ["simulate", "--config", str(file), "--out", str(out), "--device", "cpu"])
    assert ran.exit_code == 0, ran.output
    for site in json.loads((out / "result.json").read_text(encoding="utf-8"))["sites"]:
        assert site["accuracy_classifier"] > 0
        assert site["accuracy_prototype"] is None


FROZEN_FILE = """
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
        file.write_text(FROZEN_FILE.format(method=method, noise=noise, least=least), encoding="utf-8")
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
    assert not [message for message in caplog.messages if "--fresh" in message]
    simulate(config.model_copy(update={"keep_releases": True}))
    assert len([message for message in caplog.messages if "--fresh" in message]) == 1


def test_config_keep_releases_without_noise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep_releases"):
        load_simulation(None, {"keep_releases": True, "out": str(tmp_path)})
