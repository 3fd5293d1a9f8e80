"""The tensor engine comes to what sessions come to: in float64 up to 1e-9, in withheld classes and bytes exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from agreement import CONTROLS, METHODS
from protoseal.simulation import site_pool
from protoseal.simulation.batched import training
from protoseal.simulation.batched.training import Batching, Precision
from protoseal.simulation.site_pool import SiteTraining
from secure_client.data import SiteData
from secure_client.training.job import Job, Losses
from secure_client.training.loop import run_job
from tests.protoseal.simulation.tensors.engines import check_equal, run_both, scene_of
from tests.support.marks import full_but
from tests.support.small import small_agreement, small_data

CLOSE = 1e-9
"""Of numbers in float64, after three rounds, the order of whose sums differs."""
ONE_STEP = 2.0**-22
"""Of numbers in float32, after one round, that are rounded from float64 sums in another order: a unit in the last
place, and another where it is doubled."""

FEDERATED = sorted(name for name, method in METHODS.items() if method not in CONTROLS)
NORMED = "tests.support.tiny_models:build_normed_images"
"""Model with statistics of batches, which sites compute together, and keep or average."""
SPLITS = ("iid:per=30", "shots:n=3,k=8", "dirichlet:0.3,per=30", "domains:per=20", "mixed:n=4,max=20,val=0.2")


@pytest.mark.parametrize("method", full_but(FEDERATED, "pfpl", "fedpc", "fedplcc"))
def test_engines_in_float64_are_equal(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, float64: None
) -> None:
    """Three rounds, in which groups and clusters are equal too; the tensor engine stacks sites in every pass."""
    model = NORMED if method in {"fedbn", "ditto"} else "small-cnn"
    scene = scene_of(tmp_path, method=method, double=True, training__model=model)
    check_equal(*run_both(**scene, batching=Batching.ALWAYS), CLOSE)
    assert "failed, and " not in caplog.text, "no pass fell back to one site after the other"


@pytest.mark.parametrize("split", full_but(SPLITS))
def test_engines_any_split_are_equal(split: str, tmp_path: Path, float64: None) -> None:
    check_equal(*run_both(**scene_of(tmp_path, method="fedpc", split=split, double=True)), CLOSE)


@pytest.mark.parametrize("method", full_but(["pfpl", "fedpc", "feddbp", "fedplcc", "fedavg"], "fedavg"))
def test_engines_in_float32_are_equal_after_one_round(method: str, tmp_path: Path) -> None:
    check_equal(*run_both(**scene_of(tmp_path, method=method, rounds=1)), ONE_STEP)


@pytest.mark.parametrize("method", full_but(["pfpl", "fedpc"], "fedpc"))
def test_engines_frozen_extractor_repeats_the_same_rows(method: str, tmp_path: Path, float64: None) -> None:
    """Rounds after the first send no prototypes, and their results repeat the first round's."""
    frozen = {"training__model": "tests.support.tiny_models:build_relu", "training__frozen_extractor": True}
    check_equal(*run_both(**scene_of(tmp_path, method=method, double=True, **frozen)), CLOSE)


def test_engines_model_with_a_mask_are_equal(tmp_path: Path) -> None:
    """The model's tensors cannot be rows of one tensor."""
    model = "tests.support.tiny_models:build_masked"
    check_equal(*run_both(**scene_of(tmp_path, method="fedavg", rounds=2, training__model=model)), ONE_STEP)


@pytest.mark.parametrize("batching", [Batching.ALWAYS, Batching.NEVER])
def test_engines_diverging_site_is_undone_alike(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, batching: Batching
) -> None:
    agreement = small_agreement()
    data = small_data(agreement)
    train: Any = data["clinic-b"].train
    inputs, labels = train.tensors
    spoilt = torch.full_like(inputs, torch.nan)
    spoilt[0] = inputs[0]  # a model without any finite feature is refused at the start
    data["clinic-b"] = SiteData(TensorDataset(spoilt, labels), None)
    runs = run_both(agreement, data, tmp_path, training=SiteTraining(batching=batching))
    check_equal(*runs, ONE_STEP)
    for run in runs:
        assert [done.trained for done in run.outcome.sites["clinic-b"].rounds] == [False, False]
    assert caplog.text.count("training failed in 2 of 8 rounds") == len(runs)
    programs = agreement.rounds if batching is Batching.ALWAYS else 0  # sessions train one by one here
    assert caplog.text.count("as one program failed, and the sites compute one by one: ") == programs


def test_engines_train_one_by_one_in_bf16_after_a_program_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower: list[bool] = []

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no program today")

    def noted(job: Job) -> Losses:
        lower.append(torch.is_autocast_enabled("cpu"))
        return run_job(job)

    monkeypatch.setattr(site_pool, "run_together", fail)
    monkeypatch.setattr(training, "run_job", noted)
    scene = scene_of(tmp_path, method="pfpl", rounds=1)
    scene["training"] = SiteTraining(batching=Batching.ALWAYS, precision=Precision.BF16)
    run_both(**scene, batching=Batching.ALWAYS)
    assert lower == [True] * 8  # four sites of two engines
