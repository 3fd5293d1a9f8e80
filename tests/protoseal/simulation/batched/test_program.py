"""Programs beside the one-by-one loop: joined channels, dropout, ``eval()`` mode, padding, and steps as graphs."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

from agreement import Norm
from algorithms.losses import Outputs, Terms
from protoseal.simulation.batched import graphs, network, program, training
from protoseal.simulation.batched.feed import Feed, StackedBatch, batches_of_job
from protoseal.simulation.batched.flat_models import CannotStack, FlatModels
from protoseal.simulation.batched.graphs import Captures
from protoseal.simulation.batched.layers import Draws, StackedDropout
from protoseal.simulation.batched.network import Stack
from protoseal.simulation.batched.program import Program
from protoseal.simulation.batched.training import Batching, Precision, allow_tf32, run_together
from secure_client.models.prototype_model import PrototypeModel, SplitModel, compute_outputs
from secure_client.training.augmentation import Augmentation
from secure_client.training.batches import TensorSource
from secure_client.training.job import Job, Schedule
from secure_client.training.loop import run_job
from tests.secure_client.jobs import (
    ADAM,
    ALIGNED,
    CLASSES,
    DIM,
    SCHEDULE,
    SIDE,
    assert_alike,
    assert_close,
    copies,
    jobs_of,
    model_of,
    states,
)
from tests.support.marks import full_but

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let images pass with the sites' channels side by side, as on a GPU."""
    monkeypatch.setattr(network, "joins_channels", lambda _: True)


def dropping_model() -> PrototypeModel:
    """Return a network that drops pixels' channels, and features twice."""
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout(0.25), nn.MaxPool2d(2), nn.Flatten()]
    backbone = nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(4 * 9, DIM), nn.ReLU())
    return SplitModel(backbone, nn.Sequential(nn.Dropout(0.1), nn.Linear(DIM, CLASSES))).double()


def normalised_model() -> PrototypeModel:
    """Return a small network with batch statistics."""
    layers = [
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * (SIDE - 2) ** 2, DIM),
    ]
    return SplitModel(nn.Sequential(*layers), nn.Linear(DIM, CLASSES)).double()


def with_circular_padding(job: Job) -> Job:
    """Return the job with a network that cannot be stacked."""
    layers = [
        nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"),
        nn.Flatten(),
        nn.Linear(4 * SIDE**2, DIM),
    ]
    return replace(job, model=SplitModel(nn.Sequential(*layers), nn.Linear(DIM, CLASSES)).double())


# Joined channels: one grouped convolution sums in another order than S convolutions, so that results agree in float64
# up to the rounding of sums of some hundred terms in some steps.


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("spec", ["small-cnn", "tanh-cnn", "fedpc-cnn", "scatternet"])
def test_joined_channels_train_as_alone(spec: str, alone: list[Job]) -> None:
    side = SIDE if spec in {"small-cnn", "scatternet"} else 16
    assert_alike(jobs_of(model_of(spec, side=side), side=side), tolerance=1e-12)
    assert alone == []


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize("spec", full_but(["resnet10", "mobilenet-v2", "googlenet"], "resnet10"))
def test_joined_channels_of_normalised_network_train_as_alone(
    spec: str, norm: Norm, alone: list[Job]
) -> None:
    jobs = jobs_of(
        model_of(spec, norm), schedule=replace(SCHEDULE, batch_size=5, local_epochs=1), sizes=(5, 5)
    )
    assert_alike(jobs, tolerance=1e-7)  # as one by one: batch normalisation of few pixels enlarges rounding
    assert alone == []


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch declares no types here
    """Counts of operations that compute, as opposed to views: a GPU launches a kernel for each, or several."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count and compute an operation."""
        name = function._schema.name.removeprefix("aten::")
        views = ("detach", "alias", "_unsafe_view", "lift_fresh", "empty", "empty_like", "empty_strided")
        if not (function.is_view or name in views):
            self.names[name] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize(
    ("spec", "side", "schedule", "most"),
    [("small-cnn", SIDE, SCHEDULE, 80), ("fedpc-cnn", 16, ADAM, 95), ("resnet18", SIDE, SCHEDULE, 225)],
)
def test_step_of_a_gpu_has_few_operations(spec: str, side: int, schedule: Schedule, most: int) -> None:
    """The objective has some 40 of them; torch's versions differ by a few."""
    jobs = jobs_of(model_of(spec, side=side), schedule=schedule, sizes=(8, 8), side=side)
    stacked = Program(jobs)
    inputs, labels = torch.rand(2, 4, 1, side, side, dtype=torch.float64), torch.tensor([[0, 1, 2, 0]] * 2)
    batch = StackedBatch(range(2), inputs, labels, (4, 4))
    stacked.step(batch)  # the first step makes views for the others
    with Operations() as taken:
        stacked.step(batch)
    assert 0 < taken.names.total() <= most


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize(
    ("spec", "norm"), [("small-cnn", Norm.BATCH), *(("resnet10", norm) for norm in Norm)]
)
def test_outputs_in_eval_mode_are_those_of_the_models(
    joins: bool, spec: str, norm: Norm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "joins_channels", lambda _: joins)
    models = [job.model for job in jobs_of(model_of(spec, norm), sizes=(5, 5, 5))]
    inputs = torch.rand(3, 5, 1, SIDE, SIDE, dtype=torch.float64)
    for model, batch in zip(models, inputs, strict=True):
        model.train()
        model(batch)  # moves running statistics apart
        model.eval()
    before = copy.deepcopy([model.state_dict() for model in models])
    stack = Stack(models)
    with torch.no_grad():
        outputs = stack.outputs(inputs, training=False)
        expected = [compute_outputs(model, batch) for model, batch in zip(models, inputs, strict=True)]
    for name in ("features", "logits"):
        singly = torch.stack([getattr(output, name) for output in expected])
        torch.testing.assert_close(getattr(outputs, name), singly, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close([model.state_dict() for model in models], before, rtol=0, atol=0)
    assert all(torch.equal(stack.values[name][1], value) for name, value in before[1].items())


def test_bound_models_are_copied_in_few_operations() -> None:
    """Alone each model would need a copy of each tensor, there and back."""
    models = [job.model for job in jobs_of(model_of("resnet10"), sizes=(5, 5, 5))]
    flat = FlatModels(models)
    stack = Stack(models)
    with Operations() as taken:
        stack.load(models)
        stack.unload(models)
    assert 0 < taken.names.total() <= 8
    assert len(flat.values) == 3


@pytest.mark.parametrize("padded", [False, True])
def test_epoch_has_one_index_for_the_device(padded: bool) -> None:
    """To index by a list is to copy the list to the device, which ends all of its earlier steps first."""
    jobs = sorted(jobs_of(model_of()), key=lambda job: -len(job.source))
    feed = Feed(jobs, padded=padded)
    with Operations() as taken:
        list(feed.epoch([torch.Generator().manual_seed(job.seed) for job in jobs]))
    assert not {"index", "_to_copy"} & taken.names.keys()


# Dropout


@pytest.mark.parametrize("schedule", [SCHEDULE, ADAM])
@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_dropout_trains_as_alone(
    schedule: Schedule, joins: bool, channels_last: bool, alone: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "joins_channels", lambda _: joins)
    jobs = jobs_of(dropping_model(), schedule=schedule)
    if channels_last:
        jobs = [with_channels_last(job) for job in jobs]
    assert_alike(jobs, tolerance=1e-12)
    assert alone == []


@pytest.mark.parametrize("channels_last", [False, True])
def test_dropout_in_float32_draws_the_masks_of_training_alone(channels_last: bool) -> None:
    """Convolutions in float32 are another library's; other masks would differ in half of the values."""
    jobs = [replace(job, guide=None, source=single(job)) for job in jobs_of(dropping_model())]
    jobs = [replace(job, model=job.model.float()) for job in jobs]
    assert_alike([with_channels_last(job) for job in jobs] if channels_last else jobs, tolerance=1e-5)


@pytest.mark.parametrize("channels_last", [False, True])
def test_dropout_of_augmented_images_trains_as_alone(channels_last: bool) -> None:
    augmentation = Augmentation(1, flips=True, black=(0.0,))
    jobs = [replace(job, augmentation=augmentation) for job in jobs_of(dropping_model())]
    assert_alike([with_channels_last(job) for job in jobs] if channels_last else jobs, tolerance=1e-12)


def with_channels_last(job: Job) -> Job:
    """Return the job with records whose channels lie side by side in memory, as image files have them."""
    inputs, labels = job.source.tensors  # type: ignore[attr-defined]
    # A copy, since contiguous() does not change images of one channel.
    records = inputs.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)
    return replace(job, source=TensorSource(TensorDataset(records, labels), job.device))


def test_dropout_from_another_sites_stream_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "Draws", lambda generators, *others: Draws(generators[::-1], *others))
    with pytest.raises(AssertionError):
        assert_alike(jobs_of(dropping_model()))


def test_order_from_another_sites_stream_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = Feed.epoch
    monkeypatch.setattr(Feed, "epoch", lambda feed, orders, *others: epoch(feed, orders[::-1], *others))
    with pytest.raises(AssertionError):
        assert_alike(jobs_of(model_of()))


@pytest.mark.parametrize("layout", ["vectors", "parted", "joined"])
def test_dropout_draws_the_same_bits_at_any_number_of_sites(layout: str) -> None:
    images = torch.rand(3, 4, 2, 5, 5) + 1.0
    layer = StackedDropout(nn.Dropout(0.4))
    layer.joined = layout == "joined"

    def dropped(sites: range) -> Tensor:
        layer.sites = len(sites)
        layer.draws = Draws([torch.Generator().manual_seed(site) for site in sites], [4, 2, 4][sites.start :])
        chosen = images[sites.start : sites.stop]
        inputs = {
            "vectors": chosen.flatten(0, 1).flatten(1),
            "parted": chosen.flatten(0, 1),
            "joined": chosen.transpose(0, 1).flatten(1, 2),
        }[layout]
        outputs: Tensor = layer(inputs)
        return (
            outputs.view(4, len(sites), 2, 5, 5).transpose(0, 1)
            if layer.joined
            else outputs.view(chosen.shape)
        )

    together = dropped(range(3))
    assert torch.equal(together[2:], dropped(range(2, 3)))
    assert torch.equal(together[1, :2], dropped(range(1, 3))[0, :2])
    torch.manual_seed(2)
    assert torch.equal(together[2], nn.functional.dropout(images[2], 0.4))


# Last batches: without batch statistics, and not on a CPU, those of all sites share a step


def test_last_batches_share_a_step() -> None:
    jobs = sorted(jobs_of(model_of()), key=lambda job: -len(job.source))
    generators = [torch.Generator().manual_seed(job.seed) for job in jobs]
    steps = list(Feed(jobs, padded=True).epoch(generators))
    assert [list(step.sites) for step in steps] == [[0, 1, 2, 3], [0, 1, 2], [0], [0, 1, 2, 3, 4, 5]]
    assert steps[-1].lengths == (1, 1, 1, 4, 4, 2)


def test_last_batches_of_equal_length_share_a_step() -> None:
    jobs = sorted(jobs_of(normalised_model(), sizes=(11, 10, 7, 6, 3)), key=lambda job: -len(job.source))
    generators = [torch.Generator().manual_seed(job.seed) for job in jobs]
    feed = Feed(jobs, padded=False)
    last = [(list(step.sites), step.lengths) for step in feed.epoch(generators) if step.lengths[0] != 4]
    assert last == [([0, 2, 4], (3, 3, 3)), ([1, 3], (2, 2))]
    assert_alike(jobs)


# Steps as graphs, replayed by a stand-in for the GPU that calls the function itself


class StandIn:
    """Graph of a function that is called again."""

    captured = 0

    def __init__(self, function: Callable[[], None], _: object) -> None:
        self.replay = function
        StandIn.captured += 1

    def pool(self) -> None:
        """Return no memory."""


def run_plainly(jobs: list[Job]) -> None:
    plain = Program(jobs)
    plain.run(jobs)
    plain.finish(jobs)


def run_graphed(jobs: list[Job], rounds: int = 1) -> list[dict[str, Tensor]]:
    """Train the jobs by one program, in rounds that begin with the same models; return the models' last states."""
    begun = states(jobs)
    trained = Program(jobs, captures=Captures())
    for _ in range(rounds):
        for job, state in zip(jobs, begun, strict=True):
            job.model.load_state_dict(state)
        trained.run(jobs)
        trained.finish(jobs)
    return states(jobs)


EXACT = replace(SCHEDULE, lr=0.0625, local_epochs=4)
"""A learning rate that float32 holds exactly, and steps of one kind enough for a graph."""


@pytest.mark.parametrize("buckets", [1, 2])
@pytest.mark.parametrize("schedule", [EXACT, replace(ADAM, lr=0.0078125, local_epochs=4)])
@pytest.mark.parametrize("normalised", [False, True])
def test_replayed_steps_train_as_others(
    buckets: int, schedule: object, normalised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "capture", StandIn)
    monkeypatch.setattr(StandIn, "captured", 0)
    monkeypatch.setattr(program, "BUCKETS", buckets)
    model = normalised_model() if normalised else model_of()
    jobs = jobs_of(model, schedule=schedule, proximal=0.1)  # type: ignore[arg-type]
    jobs.sort(key=batches_of_job, reverse=True)
    others = copies(jobs)
    run_plainly(others)
    torch.testing.assert_close(run_graphed(jobs, rounds=2), states(others), rtol=1e-9, atol=1e-9)
    assert StandIn.captured > 0


def test_steps_that_cannot_be_captured_are_taken_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed capture keeps memory, so that no other program of the run tries one; another run does."""

    def fail(*_: object) -> None:
        raise RuntimeError("no graph here")

    monkeypatch.setattr(graphs, "capture", fail)
    jobs = jobs_of(model_of(), schedule=EXACT, sizes=(9, 9))
    others, kept = copies(jobs), training.KeptPrograms()
    run_plainly(others)
    for key, programs, warnings in ((1, kept, 1), (2, kept, 1), (1, training.KeptPrograms(), 2)):
        alike = copies(jobs)
        with caplog.at_level(logging.WARNING, "protoseal.simulation"):
            trained = programs.program(key, alike, Precision.FLOAT32)
            trained.run(alike)
            trained.finish(alike)
        torch.testing.assert_close(states(alike), states(others), rtol=1e-12, atol=1e-12)
        assert len(caplog.records) == warnings


class Lane:
    """Stand-in for a CUDA stream."""

    def wait_stream(self, other: object) -> None:
        """Wait for nothing."""


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs run in streams, and steps as graphs, on a CPU."""
    monkeypatch.setattr(graphs, "capture", StandIn)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Lane())
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Lane())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[list[Job]]:
    """Record the jobs of the programs that are built from now on."""
    seen: list[list[Job]] = []

    def build(jobs: list[Job], **settings: Any) -> Program:
        seen.append(jobs)
        return Program(jobs, **settings)

    monkeypatch.setattr(training, "Program", build)
    return seen


@pytest.mark.usefixtures("lanes")
def test_programs_in_streams_train_as_alone(built: list[list[Job]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs have memory at a time, so that the last group's jobs run in the first one's program."""
    monkeypatch.setattr(training, "AT_ONCE", 2)
    kept = training.KeptPrograms()
    for lr in (0.0625, 0.03125):  # a later round has another learning rate, and other models
        jobs = sorted(jobs_of(model_of(), schedule=replace(EXACT, lr=lr)), key=batches_of_job, reverse=True)
        circular = [with_circular_padding(jobs[0])]
        others = copies(jobs)
        groups = [("", jobs[:1]), ("", jobs[1:3]), ("circular", circular), ("", jobs[3:4])]
        losses = training.run_in_streams(groups, Precision.FLOAT32, kept)
        expected = [run_job(job) for job in others[:4]]
        assert losses[2] is None
        assert_close([loss for group in losses for loss in group or ()], expected, 1e-9)
        torch.testing.assert_close(states(jobs[:4]), states(others[:4]), rtol=1e-9, atol=1e-9)
    assert len(built) == 4  # for one job, for two, and for the circular network in each round


@pytest.mark.usefixtures("joined")
def test_last_batches_are_captured_only_if_they_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If sites take part by chance, last batches of the same lengths hardly come again."""
    monkeypatch.setattr(graphs, "capture", StandIn)
    monkeypatch.setattr(StandIn, "captured", 0)
    counts = []
    trained = None
    for sizes in ((9, 6), (10, 7), (11, 5), (9, 6)):
        jobs = jobs_of(model_of(), schedule=EXACT, sizes=sizes)
        trained = trained or Program(jobs, captures=Captures())
        trained.run(jobs)
        trained.finish(jobs)
        counts.append((StandIn.captured, len(trained._grouped)))  # memory of no others either
    # Full batches of one and of two sites, then the last ones.
    assert counts == [(2, 2), (2, 2), (2, 2), (3, 3)]


@pytest.mark.usefixtures("lanes")
def test_kept_programs_leave_when_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = jobs_of(model_of(), schedule=EXACT, sizes=(9, 9))
    kept = training.KeptPrograms()
    first = kept.program("first", jobs[:1], Precision.FLOAT32)
    assert kept.program("first", jobs[:1], Precision.FLOAT32) is first
    size = first.bytes
    first.run(jobs[:1])
    assert first.bytes > size  # its graphs' inputs, too
    monkeypatch.setattr(training, "GPU_BYTES", first.bytes)
    second = kept.program("second", jobs[1:], Precision.FLOAT32)
    assert kept.program("second", jobs[1:], Precision.FLOAT32) is second
    assert kept.program("first", jobs[:1], Precision.FLOAT32) is not first


def test_program_without_references_is_freed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector of cycles does not know how much of a GPU's memory it would free."""
    monkeypatch.setattr(graphs, "capture", lambda *_: Mock())
    jobs = jobs_of(model_of(), schedule=EXACT, sizes=(9, 9))
    trained = Program(jobs, captures=Captures())
    trained.run(jobs)
    reference, source = weakref.ref(trained), weakref.ref(jobs[0].source)
    gc.disable()
    try:
        del jobs
        assert source() is None  # not even while it is kept
        del trained
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("lanes")
def test_programs_leave_when_memory_runs_out(
    built: list[list[Job]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The sites then train one by one, which needs the memory."""

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    jobs = jobs_of(model_of(), schedule=EXACT, sizes=(9,))
    kept = training.KeptPrograms()
    monkeypatch.setattr(graphs, "capture", fail)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            training.run_in_streams([("", jobs)], Precision.FLOAT32, kept)
    assert len(built) == 2
    assert not caplog.records  # graphs are tried again


@pytest.mark.usefixtures("lanes")
def test_kept_programs_lose_one_that_fails_in_its_first_step(
    built: list[list[Job]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CannotStack("a step")

    jobs = jobs_of(model_of(), sizes=(9,))
    kept = training.KeptPrograms()
    with monkeypatch.context() as failing:
        failing.setattr(Program, "run", fail)
        assert training.run_in_streams([("", jobs)], Precision.FLOAT32, kept) == [None]
    for _ in range(2):
        assert training.run_in_streams([("", jobs)], Precision.FLOAT32, kept) != [None]
    assert built == [jobs, jobs]  # the failed one, and another that is kept


def test_share_of_a_gpu_bounds_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Mock(total_memory=2**32))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    gpu = torch.device("cuda")

    def share() -> int:
        training.share_gpu(0.25)
        return training.usable_memory(gpu)

    assert copy_context().run(share) == 2**29
    assert training.usable_memory(gpu) == 2**31
    assert shares == [0.25]


# Precision


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("batching", Batching)
def test_bf16_training_is_near_float32(batching: Batching, *, stacked: bool) -> None:
    """A step changes weights by lr times the gradient, whose relative error is some 2⁻⁸ for each of the layers.

    With the first step's weights in all steps, they would be apart by as much as they moved.
    """
    schedule = replace(SCHEDULE, batch_size=8, local_epochs=10)
    exact = jobs_of(model_of(), schedule=schedule)
    if not stacked:
        exact = [with_circular_padding(job) for job in exact]
    exact = [
        replace(job, model=job.model.float(), guide=None, source=single(job))
        for job in exact
        if len(job.source) <= 8
    ]
    lower, begun = copies(exact), states(exact)
    run_together(exact, batching)
    seen: list[torch.dtype] = []

    def objective(outputs: Outputs, labels: Tensor, guide: Any) -> Terms:
        seen.append((outputs.features.T @ outputs.features).dtype)
        return ALIGNED(outputs, labels, guide)

    lower = [replace(job, objective=objective) for job in lower]
    run_together(lower, batching, precision=Precision.BF16)
    assert set(seen) == {torch.float32}
    for ours, theirs, before in zip(states(lower), states(exact), begun, strict=True):
        moved = torch.cat([(theirs[name] - before[name]).flatten() for name in before])
        apart = torch.cat([(ours[name] - theirs[name]).flatten() for name in before])
        assert 0.0 < apart.norm() < 0.05 * moved.norm()
        assert ours["classifier.weight"].dtype == torch.float32


def single(job: Job) -> TensorSource:
    """Return the job's records in float32."""
    inputs, labels = job.source.tensors  # type: ignore[attr-defined]
    return TensorSource(TensorDataset(inputs.float(), labels), job.device)


@pytest.mark.parametrize("precision", Precision)
def test_precision_of_a_gpu_is_restored_after_training(precision: Precision) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    with allow_tf32(precision):
        assert {matmul.allow_tf32, cudnn.allow_tf32} == {precision is not Precision.FLOAT32}
    assert (matmul.allow_tf32, cudnn.allow_tf32) == before
