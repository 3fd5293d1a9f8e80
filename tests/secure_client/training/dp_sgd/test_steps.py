"""Steps of DP-SGD: those of Opacus but for truncation, and records on which the model fails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from agreement import DpSgdSection, Optimiser
from protoseal.simulation.batched.training import Batching, run_together
from secure_client.errors import ModelError, TrainingError
from secure_client.models.prototype_model import SplitModel
from secure_client.models.wrapped_models import FixedBatchModel
from secure_client.training.batches import TensorSource, isolate_failures
from secure_client.training.dp_sgd import steps
from secure_client.training.dp_sgd.steps import run_private_steps
from secure_client.training.evaluation import EVALUATION_BATCH
from secure_client.training.feature_pass import FeaturePass
from secure_client.training.job import Job, Schedule
from secure_client.training.loop import run_job
from tests.secure_client.training.dp_sgd.private_training import (
    ALL,
    CPU,
    DIM,
    SETTINGS,
    flat,
    guide_of,
    images,
    job_of,
    model_of,
    moved,
    silence,
    tiny,
)
from tests.support.refusals import refuses


def by_opacus(job: Job, settings: DpSgdSection) -> Tensor:
    """Return the parameters after the same epoch by Opacus's own optimiser, all records in each step."""
    model = GradSampleModule(job.model, loss_reduction="sum")
    optimiser = DPOptimizer(
        job.schedule.optimise(job.model.parameters()),
        noise_multiplier=0.0,
        max_grad_norm=settings.clip,
        expected_batch_size=job.schedule.batch_size,
    )
    inputs, labels = next(job.source.batches([list(range(len(job.source)))]))
    job.model.train()
    for _ in range(settings.steps(job.epochs)):
        optimiser.zero_grad()
        torch.autograd.backward(functional.cross_entropy(model(inputs), labels, reduction="sum"))
        optimiser.step()
    model.to_standard_module()
    return flat(job.model)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("clip", [0.01, 30.0], ids=["clipped", "unclipped"])
def test_step_without_noise_is_opacuss(silent: None, optimiser: str, clip: float) -> None:
    settings = ALL.model_copy(update={"clip": clip})
    inputs, labels = images(12)
    schedule = Schedule(
        lr=0.05,
        momentum=0.9,
        weight_decay=0.1,
        batch_size=5,
        local_epochs=1,
        optimiser=Optimiser(optimiser),
    )
    start = flat(model_of("pfpl"))
    jobs = [
        job_of(model_of("pfpl"), inputs, labels, dp_sgd=settings, schedule=schedule, epochs=3)
        for _ in range(2)
    ]
    run_job(jobs[0])
    known = by_opacus(jobs[1], settings) - start
    ours = flat(jobs[0].model) - start
    # Adam divides by the gradient: where that is nothing but truncation, so is the step.
    allowed = 1e-3 if optimiser == "sgd" else 2e-2
    assert float((ours - known).norm()) < allowed * float(known.norm())


def test_run_private_steps_takes_the_steps_that_were_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    silence(monkeypatch, drawn)
    inputs, labels = images(4)
    for rate, epochs, count in [(0.25, 3, 12), (0.3, 1, 4), (0.1, 3, 30), (1.0, 2, 2)]:
        drawn.clear()
        settings = SETTINGS.model_copy(update={"sampling_rate": rate})
        run_job(job_of(tiny(), inputs, labels, dp_sgd=settings, epochs=epochs))
        assert drawn == [flat(tiny()).numel()] * count


def test_run_private_steps_losses_are_means_over_the_last_epochs_records(silent: None) -> None:
    inputs, labels = images(20)
    model = tiny()
    model.eval()
    job = job_of(model, inputs, labels, dp_sgd=ALL, guide=guide_of("pfpl"))
    with torch.no_grad():
        known = job.objective(model.outputs(inputs), labels, job.guide)
    found = run_job(job)
    assert found.classification == pytest.approx(float(known.classification), rel=1e-5)
    have = (labels < 2).float().mean()  # of the others the alignment is 0, and counts
    assert found.alignment == pytest.approx(float(known.alignment * have), rel=1e-5)


def test_run_private_steps_diverged_training_is_refused_by_its_parameters() -> None:
    inputs, labels = images(4)
    job = job_of(tiny(), inputs, labels, dp_sgd=ALL, epochs=2)
    with refuses("learning rate", error=TrainingError):
        run_job(replace(job, schedule=replace(job.schedule, lr=3e38)))


def test_run_private_steps_dropout_does_not_follow_the_seed(silent: None) -> None:
    """Dropout by the seed would follow from a record's place in the batch, and so from the other records."""
    inputs, labels = images(4)
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        dropping = SplitModel(
            nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(256, 8)), nn.Linear(8, 3)
        )
        state = torch.random.get_rng_state()
        results.append(moved(job_of(dropping, inputs, labels, dp_sgd=ALL)))
        assert torch.equal(torch.random.get_rng_state(), state)
    assert float((results[0] - results[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("batching", Batching)
def test_train_with_dp_sgd_never_leaves_out_the_noise(
    batching: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one by one nor together."""
    drawn: list[int] = []
    silence(monkeypatch, drawn)
    inputs, labels = images(4)
    jobs = [job_of(tiny(), inputs, labels, dp_sgd=ALL) for _ in range(3)]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run_together(jobs, batching)
    finally:
        torch.set_num_threads(before)
    assert len(drawn) == 3


def test_run_private_steps_proximal_term_is_refused() -> None:
    inputs, labels = images(1)
    with refuses("proximal", error=ModelError):
        run_private_steps(job_of(tiny(), inputs, labels, proximal=0.1), ALL)


LIMIT = 100.0


@dataclass
class Computation:
    """A computation that raises on some records and keeps the size of every batch."""

    raising: frozenset[int]
    sizes: list[int] = field(default_factory=list)

    def __call__(self, group: Sequence[int]) -> list[int]:
        self.sizes.append(len(group))
        if self.raising & set(group):
            raise RuntimeError("no room for that")
        return list(group)


class Raising(nn.Module):
    """Raises for a batch that has a record beyond the limit, and keeps the size of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs as they are."""
        self.sizes.append(len(inputs))
        if bool((inputs > LIMIT).any()):
            raise RuntimeError("no room for that")
        return inputs


def raising_model() -> tuple[SplitModel, list[int]]:
    """Return a model, and the sizes of the batches that it is given."""
    model, raising = tiny(), Raising()
    model.backbone = nn.Sequential(raising, model.backbone)
    return model, raising.sizes


def most_rows(batch: int, padded: int, raising: int) -> int:
    """Return the most records that a failing batch computes, copies included: ``padded`` is a batch's size."""
    return (raising + 2) * padded + batch + raising * (batch // 3 + math.ceil(math.log(batch, 4)))


@pytest.mark.parametrize("size", [1, 2, 5, 64, 100, 256])
@pytest.mark.parametrize("number", [0, 1, 2, 5, 256])
def test_isolate_failures_takes_few_computations_for_few_records(size: int, number: int) -> None:
    drawn = torch.Generator().manual_seed(size)
    group = torch.randperm(1000, generator=drawn)[:size].tolist()
    raising = frozenset(group[place] for place in torch.randperm(size, generator=drawn)[:number].tolist())
    compute, probe = Computation(raising), Computation(raising)
    parts, order = isolate_failures(group, compute, probe=probe, fallback=lambda record, _: [-record])
    rows = [record for part in parts for record in part]
    assert [rows[place] for place in order] == [-record if record in raising else record for record in group]
    assert len(compute.sizes) <= (len(raising) + 2 if raising else 1)
    levels = math.ceil(math.log(size, 4) - 1e-9)
    assert len(probe.sizes) <= 4 * len(raising) * levels
    assert sum(probe.sizes) <= (size + len(raising) * (size / 3 + levels) if raising else 0)


@pytest.mark.parametrize("guess", [frozenset(), frozenset(range(64)), frozenset({7})])
def test_isolate_failures_takes_no_result_from_the_probe(guess: frozenset[int]) -> None:
    """A probe that finds no record, all, or a wrong one costs time only."""
    group, raising = list(range(64)), frozenset({3, 40})
    parts, order = isolate_failures(
        group, Computation(raising), probe=Computation(guess), fallback=lambda record, _: [-record]
    )
    rows = [record for part in parts for record in part]
    assert [rows[place] for place in order] == [-record if record in raising else record for record in group]


@pytest.mark.parametrize("size", [None, EVALUATION_BATCH], ids=["as they are", "filled"])
def test_feature_pass_isolates_raising_records(size: int | None) -> None:
    inputs, labels = images(EVALUATION_BATCH)
    spoiled = [3, 200]
    inputs[spoiled] = 10 * LIMIT
    model, sizes = raising_model()
    features = FeaturePass(
        model if size is None else FixedBatchModel(model, size),
        TensorSource(TensorDataset(inputs, labels), CPU),
        labels,
        dim=DIM,
        device=CPU,
        where="site",
    )
    ((rows, given),) = features.embed(range(len(labels)))
    assert torch.equal(given, labels)
    assert (rows == 0).all(dim=1).nonzero().flatten().tolist() == spoiled
    assert sum(sizes) <= most_rows(len(labels), EVALUATION_BATCH, len(spoiled))


def test_step_isolates_raising_records(
    sums: list[Tensor], silent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have the gradients that they have without the raising ones, to the last bit."""
    batch = 64
    monkeypatch.setattr(steps, "physical_size", lambda *_: batch)
    inputs, labels = images(batch)
    spoiled = [3, 40]
    inputs[spoiled] = 10 * LIMIT
    kept = [record for record in range(batch) if record not in spoiled]
    for records in (list(range(batch)), kept):
        model, sizes = raising_model()

        run_job(job_of(model, inputs[records], labels[records], dp_sgd=ALL))
        assert sum(sizes) <= (most_rows(batch, batch, len(spoiled)) if records != kept else batch)
    assert bool(sums[0].any())
    assert torch.equal(sums[0], sums[1])
