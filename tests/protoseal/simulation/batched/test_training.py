"""Training several sites at once gives what training them one by one gives."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from agreement import Norm
from agreement.registry.recipe import BatchLoss, Trains
from algorithms.feddbp import FeddbpLoss
from algorithms.losses import Outputs, Terms
from algorithms.method_losses import (
    CrossEntropyLoss,
    FedpcLoss,
    FedplccLoss,
    FedplvmLoss,
    FedprotoLoss,
    FplLoss,
    PfplLoss,
)
from algorithms.prototypes import Guide, Targets
from protoseal.simulation.batched import graphs
from protoseal.simulation.batched.flat_models import FlatModels
from protoseal.simulation.batched.training import Batching, KeptPrograms, run_together
from secure_client.errors import TrainingError
from secure_client.models.prototype_model import BACKBONES, PrototypeModel, SplitModel
from secure_client.models.wrapped_models import add_branches
from secure_client.training.batches import TensorSource
from secure_client.training.job import Job, Schedule
from secure_client.training.loop import run_job
from tests.secure_client.jobs import (
    ADAM,
    ALIGNED,
    CLASSES,
    CPU,
    DIM,
    SCHEDULE,
    SIDE,
    SIZES,
    assert_alike,
    assert_close,
    clusters,
    copies,
    jobs_of,
    model_of,
    states,
    targets,
)
from tests.support.marks import full_but


@pytest.mark.parametrize("schedule", [SCHEDULE, ADAM, replace(SCHEDULE, momentum=0.0, weight_decay=0.0)])
@pytest.mark.parametrize(("spec", "side"), [("small-cnn", SIDE), ("fedpc-cnn", 16)])
def test_together_is_one_by_one(spec: str, side: int, schedule: Schedule, alone: list[Job]) -> None:
    assert_alike(jobs_of(model_of(spec, side=side), schedule=schedule, side=side))
    assert alone == []


@pytest.mark.parametrize("at_once", [2, 4])
def test_in_groups(at_once: int, alone: list[Job]) -> None:
    assert_alike(jobs_of(model_of()), at_once=at_once)
    assert alone == []


GUIDED: dict[str, tuple[BatchLoss, list[Guide]]] = {
    "pfpl": (PfplLoss(0.7), [targets(site) for site in range(6)]),
    "pfpl literal": (PfplLoss(0.7, literal=True), [targets(site) for site in range(6)]),
    "fedpc": (FedpcLoss(0.5), [targets(site) for site in range(6)]),
    "fedproto": (FedprotoLoss(1.0), [targets(0)] * 6),
    "fedplcc": (FedplccLoss(0.5, 0.5), [clusters(0)] * 6),
    "fpl": (FplLoss(), [clusters(site) for site in range(6)]),
    "fedplvm": (FedplvmLoss(weight=1.0), [clusters(site) for site in range(6)]),
    "cross entropy": (CrossEntropyLoss(), [targets(site) for site in range(6)]),
}


@pytest.mark.parametrize("method", GUIDED)
@pytest.mark.parametrize("guided", [True, False])
def test_batched_training_equals_single_training_for_every_method(
    method: str, guided: bool, alone: list[Job]
) -> None:
    objective, guides = GUIDED[method]
    assert_alike(jobs_of(model_of(), objective, guides if guided else [None] * 6))
    assert alone == []


@pytest.mark.parametrize("literal", [True, False])
def test_batched_training_equals_single_training_for_two_branches(literal: bool, alone: list[Job]) -> None:
    dual = add_branches(model_of(), DIM, seed=1).double()
    objective = FeddbpLoss(literal=literal)
    assert_alike(jobs_of(dual, objective))
    assert_alike(jobs_of(dual, FeddbpLoss(), [None] * 6))
    assert alone == []


def test_run_together_guided_sites_train_apart(alone: list[Job]) -> None:
    guides = [targets(0), None, targets(2), None, None, targets(5)]
    assert_alike(jobs_of(model_of(), guides=guides))
    assert alone == []


@pytest.mark.parametrize("trains", Trains)
@pytest.mark.parametrize("schedule", [SCHEDULE, ADAM])
def test_parts_that_stand_still(trains: Trains, schedule: Schedule, alone: list[Job]) -> None:
    jobs = jobs_of(model_of(), schedule=schedule, trains=trains)
    before = states(jobs)
    assert_alike(jobs)
    still = {
        Trains.ALL: (),
        Trains.CLASSIFIER: [name for name in before[0] if not name.startswith("classifier.")],
        Trains.EXTRACTOR: [name for name in before[0] if name.startswith("classifier.")],
    }[trains]
    for job, old in zip(jobs, before, strict=True):
        assert all(torch.equal(job.model.state_dict()[name], old[name]) for name in still)
    assert alone == []


def test_frozen_parameters_stay(alone: list[Job]) -> None:
    model = model_of()
    next(model.parameters()).requires_grad_(False)
    jobs = jobs_of(model)
    before = states(jobs)
    assert_alike(jobs)
    name = next(iter(before[0]))
    assert all(
        torch.equal(job.model.state_dict()[name], old[name]) for job, old in zip(jobs, before, strict=True)
    )
    assert alone == []


@pytest.mark.parametrize("schedule", [SCHEDULE, ADAM])
def test_proximal_term(schedule: Schedule, alone: list[Job]) -> None:
    assert_alike(jobs_of(model_of(), schedule=schedule, proximal=0.7))
    assert alone == []
    with_it, without = jobs_of(model_of(), proximal=0.7), jobs_of(model_of())
    run_together(with_it, Batching.ALWAYS)
    run_together(without, Batching.ALWAYS)
    assert not torch.allclose(
        states(with_it)[0]["classifier.weight"], states(without)[0]["classifier.weight"]
    )


SAME_BLOCKS = {"resnet18", "resnet34", "resnet101", "resnet152"}
"""Networks with the blocks of resnet10 or resnet50, and more of them."""
SMALLEST = ("small-cnn", "fedpc-cnn", "tanh-cnn", "scatternet", "resnet10")


@pytest.mark.parametrize("spec", full_but(sorted(BACKBONES.keys() - SAME_BLOCKS), *SMALLEST))
@pytest.mark.parametrize("norm", Norm)
def test_run_together_built_in_network_equals_alone(spec: str, norm: Norm, alone: list[Job]) -> None:
    """One step: batch normalisation of a few pixels makes much of a difference in the last digit."""
    if spec == "resnet50" and norm is Norm.GROUP:
        pytest.skip("its blocks with the other norm, and this norm in resnet10")
    side = 16 if spec in ("fedpc-cnn", "tanh-cnn") else SIDE
    schedule = replace(SCHEDULE, batch_size=5, local_epochs=1)
    jobs = jobs_of(model_of(spec, norm, side), schedule=schedule, sizes=(5, 5), side=side)
    assert_alike(jobs, tolerance=1e-7)
    assert alone == []


def test_batch_normalisation_joins_a_single_last_sample(alone: list[Job]) -> None:
    """9 samples are 4 and 5, 8 are 4 and 4: the smaller site has more full batches."""
    jobs = jobs_of(model_of("resnet10"), sizes=(9, 8, 5, 13), schedule=replace(SCHEDULE, local_epochs=1))
    assert_alike(jobs, tolerance=1e-6)
    assert alone == []


def test_in_float32() -> None:
    """Batched training rounds about as much as training alone does: both are compared with float64's result.

    A smooth network: at a tie of a ReLU rounding would decide, and the two ways would part.
    """
    exact = jobs_of(smooth_model())
    alone, together = in_float32(copies(exact)), in_float32(copies(exact))
    for job in (*exact, *alone):
        run_job(job)
    run_together(together, Batching.ALWAYS)
    rounding = largest_difference(alone, exact)
    assert 0 < rounding < 1e-5
    assert largest_difference(together, exact) <= 4 * rounding


def smooth_model() -> PrototypeModel:
    return SplitModel(
        nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, DIM), nn.Tanh()), nn.Linear(DIM, CLASSES)
    ).double()


def in_float32(jobs: list[Job]) -> list[Job]:
    """Convert models, data and targets of the jobs."""
    for job in jobs:
        job.model.float()
        inputs, labels = job.source.tensors  # type: ignore[attr-defined]
        object.__setattr__(job, "source", TensorSource(TensorDataset(inputs.float(), labels), CPU))
        object.__setattr__(job, "guide", Targets(job.guide.rows.float(), job.guide.present))  # type: ignore[union-attr]
    return jobs


def largest_difference(jobs: list[Job], expected: list[Job]) -> float:
    """Return the largest difference of any parameter of the jobs' models."""
    return max(
        float((ours[name].double() - value).abs().max())
        for ours, theirs in zip(states(jobs), states(expected), strict=True)
        for name, value in theirs.items()
    )


def test_steps_do_not_depend_on_who_trains_along() -> None:
    """One site's training, beside any others', is its own."""
    few, many = jobs_of(model_of(), sizes=SIZES[:2]), jobs_of(model_of())
    run_together(few, Batching.ALWAYS)
    run_together(many, Batching.ALWAYS)
    torch.testing.assert_close(states(few)[0], states(many)[0], rtol=1e-12, atol=1e-12)


def test_run_together_diverging_site_is_refused() -> None:
    jobs = jobs_of(model_of())
    with torch.no_grad():
        next(jobs[2].model.parameters())[:] = float("inf")
    with pytest.raises(TrainingError, match="learning rate"):
        run_together(jobs, Batching.ALWAYS)


def test_run_together_one_model_twice_is_refused() -> None:
    job = jobs_of(model_of())[0]
    with pytest.raises(ValueError, match="jobs"):
        run_together([job, job])


def test_run_together_wrong_gradient_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison fails when the sites' losses are averaged instead of added up."""

    def averaged(outputs: Outputs, labels: Tensor, guide: Guide | None) -> Terms:
        terms = ALIGNED(outputs, labels, guide)  # type: ignore[arg-type]
        return Terms(terms.total / 6, terms.classification, terms.alignment)

    jobs = jobs_of(model_of())
    expected = copies(jobs)
    for job in expected:
        run_job(job)
    run_together([replace(job, objective=averaged) for job in jobs], Batching.ALWAYS)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(states(jobs), states(expected), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("spec", ["small-cnn", "resnet10"])
def test_models_bound_to_rows_train_as_others(spec: str) -> None:
    loose = jobs_of(model_of(spec), sizes=(9, 8), schedule=replace(SCHEDULE, local_epochs=1))
    bound = copies(loose)
    flat = FlatModels([job.model for job in reversed(bound)])
    run_together(loose, Batching.ALWAYS)
    run_together(bound, Batching.ALWAYS)
    torch.testing.assert_close(states(bound), states(loose), rtol=0, atol=0)
    assert FlatModels.find([job.model for job in bound]) is not None
    first = next(loose[0].model.parameters())
    assert torch.equal(flat.values[1, : first.numel()], first.flatten())  # rows are in the order of binding


def on_gpu(jobs: list[Job], dtype: torch.dtype = torch.float64) -> list[Job]:
    """Return the jobs with models, records and targets on the GPU."""
    gpu = torch.device("cuda")
    moved = []
    for job in jobs:
        inputs, labels = job.source.tensors  # type: ignore[attr-defined]
        source = TensorSource(TensorDataset(inputs.to(dtype), labels), gpu)
        guide = None if job.guide is None else replace(job.guide, rows=job.guide.rows.to(dtype)).to(gpu)
        moved.append(
            replace(job, model=job.model.to(gpu, dtype), source=source, guide=guide, device=gpu, anchor={})
        )
    return moved


SLOW = replace(SCHEDULE, lr=2.0**-10, local_epochs=1)
"""A learning rate that float32 holds exactly, and with which rounding does not grow from step to step."""


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", [SLOW, replace(ADAM, lr=2.0**-10, local_epochs=1)])
@pytest.mark.parametrize(
    ("spec", "norm", "tolerance"),
    [
        ("small-cnn", Norm.BATCH, 1e-9),
        ("resnet10", Norm.GROUP, 1e-9),
        ("resnet10", Norm.BATCH, 1e-6),  # batch normalisation of few pixels enlarges rounding
    ],
)
def test_graphs_on_a_gpu_train_as_alone(
    spec: str, norm: Norm, tolerance: float, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, so that rounding hides no error; later rounds use the graphs of the first one."""
    capture = Mock(side_effect=graphs.capture)
    monkeypatch.setattr(graphs, "capture", capture)
    jobs = on_gpu(jobs_of(model_of(spec, norm), schedule=schedule, sizes=(22, 21, 20, 9)))
    others, kept = copies(jobs), KeptPrograms()
    for _ in range(2):
        expected = [run_job(job) for job in others]
        assert_close(run_together(jobs, programs=kept), expected, tolerance)
    assert capture.called
    assert not kept._captures.failed  # or steps would have been taken without a graph
    torch.testing.assert_close(states(jobs), states(others), rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("spec", ["small-cnn", "resnet10"])
def test_programs_on_a_gpu_repeat_bit_for_bit(spec: str) -> None:
    """In other programs of the same sites, in float32."""
    first = on_gpu(jobs_of(model_of(spec), schedule=SLOW, sizes=(22, 21, 20, 9)), torch.float32)
    second = copies(first)
    for jobs in (first, second):
        kept = KeptPrograms()
        for _ in range(2):
            run_together(jobs, programs=kept)
    torch.testing.assert_close(states(first), states(second), rtol=0, atol=0)


@pytest.mark.gpu
def test_float32_on_a_gpu_rounds_as_alone() -> None:
    """As :func:`test_in_float32` on a CPU: both ways are compared with float64's result, in a smooth network."""
    exact = jobs_of(smooth_model(), guides=[None] * len(SIZES))
    alone, together = (on_gpu(copies(exact), torch.float32) for _ in range(2))
    for job in (*exact, *alone):
        run_job(job)
    run_together(together)
    for jobs in (alone, together):
        for job in jobs:
            job.model.cpu()
    assert largest_difference(together, exact) <= 4 * largest_difference(alone, exact)
