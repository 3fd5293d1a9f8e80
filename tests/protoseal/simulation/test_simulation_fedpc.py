"""FedPC in simulation: groups, its control, both protections, and FedNH's accuracies worked out from the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray

from agreement import Method
from protoseal.prediction import load_trained
from protoseal.reports.report import write_report
from protoseal.reports.result_files import RunResult, read_result, site_folder
from protoseal.reports.tables import NO_GLOBAL_MODEL, result_tables
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import simulate
from protoseal.simulation.run_folder import COMPARED
from protoseal.simulation.site_datasets import DividedData, divide
from secure_client.output.site_files import MODEL, read_agreement, read_prototypes
from tests.support.simulations import Rounds, config_in

SPLIT, SITES, ROUNDS = "dirichlet:0.5,per=60", 8, 3
FILE = f"""
method = "fedpc"
dataset = "digits"
split = "{SPLIT}"
sites = {SITES}
rounds = {ROUNDS}
dim = 16
norm_bound = 30.0
device = "cpu"
[fedpc]
alignment = 0.02
[training]
model = "small-cnn"
optimiser = "adam"
lr = 0.003
batch_size = 8
local_epochs = 2
"""


def config_for(out: Path, **flags: Any) -> SimulationConfig:
    return config_in(FILE, out, **flags)


FedpcRun = tuple[Path, RunResult, Rounds]


@pytest.fixture(scope="module")
def fedpc(tmp_path_factory: pytest.TempPathFactory) -> FedpcRun:
    """Simulate FedPC in plain beside its control and sites that train alone."""
    out = tmp_path_factory.mktemp("fedpc") / "out"
    rounds = Rounds()
    return out, simulate(config_for(out, compare=("local", "self", "average")), rounds), rounds


def divided() -> DividedData:
    return divide("digits", SPLIT, sites=SITES, seed=0)


def weights(folder: Path, site: str) -> dict[str, torch.Tensor]:
    """Return the weights of a site's saved model, by name."""
    return safetensors.torch.load_file(site_folder(folder, site) / MODEL)


def _furthest(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def test_fedpc_groups_partition_sites(fedpc: FedpcRun) -> None:
    _, result, _ = fedpc
    assert sorted(name for group in result.groups for name in group) == [site.name for site in result.sites]
    assert min(map(len, result.groups)) >= 3  # how many groups is the data's to say


def test_fedpc_averaged_sizes_follow_from_model(fedpc: FedpcRun) -> None:
    """8×8 images: 1 → 32 → 64 channels of 3×3, then 4·64 → 16."""
    out, result, _ = fedpc
    parameters = (9 * 32 + 32) + (9 * 32 * 64 + 64) + (4 * 64 * 16 + 16)
    assert result.config["averaging"]["parameters"] == parameters
    agreement = read_agreement(site_folder(out, "site-1"))
    assert (agreement.averaging.parameters, agreement.averaging.buffers) == (parameters, 0)


def test_fedpc_methods_start_alike_and_differ(fedpc: FedpcRun) -> None:
    """Round 1 is cross entropy from the common model for all of them; afterwards each has its own way."""
    out, result, _ = fedpc
    assert set(result.compared) == {"local", "self", "average"}
    first = result.rounds[0]
    assert {first.mean_accuracy, *first.compared.values()} == {first.mean_accuracy}
    # Means of four accuracies each, two of them on all sites' scans: models that differ do not have them alike.
    assert len({each.model_dump_json() for each in result.metrics.values()}) == len(result.metrics) == 4
    for site in result.sites:
        assert _furthest(weights(out, site.name), weights(out / COMPARED / "average", site.name)) > 1e-4


def test_control_average_is_one_group_without_alignment(fedpc: FedpcRun) -> None:
    out, result, _ = fedpc
    average = read_result(out / COMPARED / "average")
    assert average.method == "average"
    assert average.groups == (tuple(site.name for site in result.sites),)
    assert average.config["method"] == "fedpc"
    assert (average.config["fedpc"]["groups"], average.config["fedpc"]["alignment"]) == (1, 0.0)
    assert average.mean_accuracy == pytest.approx(result.compared["average"])
    assert average.metrics["average"] == result.metrics["average"]


def test_control_average_as_method_is_equal(fedpc: FedpcRun, tmp_path: Path) -> None:
    _, beside, _ = fedpc
    result = simulate(config_for(tmp_path / "out", method="average"))
    assert result.method == "average"
    assert result.mean_accuracy == pytest.approx(beside.compared["average"])


def test_fedpc_compared_methods_write_their_sites(fedpc: FedpcRun) -> None:
    out, result, rounds = fedpc
    for folder in (out, out / COMPARED / "average"):
        for site in result.sites:
            assert (site_folder(folder, site.name) / "model.safetensors").exists()
            assert read_prototypes(site_folder(folder, site.name)).has_personal.any()
    told = [each.method for each in rounds.completed for _ in each.reports]
    assert [told.count(method) for method in (Method.FEDPC, Method.AVERAGE)] == [SITES * ROUNDS] * 2


def counted(
    folder: Path, inputs: torch.Tensor, labels: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Count right predictions and all, by class, of a site's saved model, in a loop over samples."""
    model = load_trained(folder).model
    right, total = np.zeros(10), np.zeros(10)
    with torch.no_grad():
        predicted = model(inputs).argmax(dim=1).numpy()
    for guess, label in zip(predicted, labels, strict=True):
        total[label] += 1
        right[label] += guess == label
    return right, total


def test_fedpc_personalised_accuracies_follow_from_saved_models(fedpc: FedpcRun) -> None:
    out, result, _ = fedpc
    data = divided()
    tests = [site.to_data(data.preprocessing).test for site in data.sites]
    inputs = [torch.stack([image for image, _ in test]) for test in tests if test is not None]  # type: ignore[attr-defined]  # iterable
    labels = [site.test.labels for site in data.sites]
    differ = set()
    for index, (site, figures) in enumerate(zip(data.sites, result.sites, strict=True)):
        own = np.bincount(site.train.labels, minlength=10)
        folder = site_folder(out, site.name)
        on_own = counted(folder, inputs[index], labels[index])
        on_all = counted(folder, torch.cat(inputs), np.concatenate(labels))
        for (right, total), pm_v, pm_l in (
            (on_own, figures.pm_v, figures.pm_l),
            (on_all, figures.pm_v_global, figures.pm_l_global),
        ):
            assert pm_v == pytest.approx(right[own > 0].sum() / total[own > 0].sum())
            assert pm_l == pytest.approx((own @ right) / (own @ total))
        assert figures.accuracy_global == pytest.approx(on_all[0].sum() / on_all[1].sum())
        differ |= {figures.pm_v, figures.pm_l, figures.pm_v_global, figures.pm_l_global}
    assert len(differ) > 2 * SITES
    for name in ("pm_v", "pm_l", "pm_v_global", "pm_l_global"):
        mean = np.mean([getattr(site, name) for site in result.sites])
        assert getattr(result.metrics["fedpc"], name) == pytest.approx(mean)


@pytest.mark.full
def test_fedpc_masked_equals_plain(tmp_path: Path) -> None:
    """Words of 64 bits round in the 40th binary place, which is finer than most weights' own rounding.

    By SGD: Adam steps by the learning rate however small a gradient is, and so makes more of a last place of it.
    """
    sgd = FILE.replace('optimiser = "adam"\nlr = 0.003', "lr = 0.02") + "\n[masking]\nring_bits = 64\n"
    plain, masked = (
        simulate(config_in(sgd, tmp_path / protection, protection=protection, compare=compared))
        for protection, compared in (("plain", ("average",)), ("masked", ()))
    )
    assert masked.protection == "masked"
    assert masked.groups == plain.groups
    for got, expected in zip(masked.sites, plain.sites, strict=True):
        model = weights(tmp_path / "masked", got.name)
        assert _furthest(model, weights(tmp_path / "plain", got.name)) < 1e-6
        assert _furthest(model, weights(tmp_path / "plain" / COMPARED / "average", got.name)) > 1e-4
        assert got.bytes_up > expected.bytes_up


@pytest.mark.full
def test_fedpc_several_seeds_report_each(tmp_path: Path) -> None:
    result = simulate(config_for(tmp_path / "out", compare=("average",), seeds=(0, 4), rounds=2))
    for figures in result.seeds:
        single = read_result(tmp_path / "out" / f"seed-{figures.seed}")
        assert figures.compared == single.compared
        assert set(figures.metrics) == {"fedpc", "average"}
        assert figures.metrics == single.metrics
    assert result.seeds[0].metrics != result.seeds[1].metrics


def test_fedpc_report_shows_groups(fedpc: FedpcRun) -> None:
    out, result, _ = fedpc
    page = write_report(out).read_text(encoding="utf-8")
    assert NO_GLOBAL_MODEL in page
    for group in result.groups:
        assert ", ".join(group) in page
    titles = [table.title for table in result_tables(result)]
    assert titles[-2:] == ["means over the sites, %", "groups"]
