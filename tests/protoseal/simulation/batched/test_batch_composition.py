"""Batches of sites: sites that train as one program, sites that cannot, programs side by side, and stacked models."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from protoseal.simulation.batched import training
from protoseal.simulation.batched.flat_models import CannotStack
from protoseal.simulation.batched.network import Stack, signature
from protoseal.simulation.batched.training import Batching, Precision, run_together, sites_at_once
from secure_client.errors import TrainingError
from secure_client.models.prototype_model import PrototypeModel, SplitModel
from secure_client.training.batches import BatchSource, DatasetSource, count_batches, split_batches
from secure_client.training.job import Job, Losses
from tests.secure_client.jobs import CLASSES, CPU, DIM, SIDE, assert_alike, images, jobs_of, model_of

pytestmark = pytest.mark.usefixtures("one_thread")  # the number of threads decides which sites train together


class _Own(PrototypeModel):
    """A site's own network, which adds up its batch: batches of other sites would change its results."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(SIDE * SIDE, DIM)
        self.classifier = nn.Linear(DIM, CLASSES)

    def features(self, inputs: Tensor) -> Tensor:
        embedded: Tensor = self.body(inputs.flatten(1))
        return (embedded - embedded.mean(dim=0)).relu()


class _Samples(Dataset[tuple[Tensor, int]]):
    def __init__(self, tensors: TensorDataset) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self._tensors[index]
        return image, int(label)


def with_layer(layer: nn.Module, at: int = 1) -> PrototypeModel:
    model = model_of()
    layers = list(model.backbone)  # type: ignore[arg-type]
    return SplitModel(nn.Sequential(*layers[:at], layer, *layers[at:]), model.classifier).double()


def tied() -> PrototypeModel:
    body = nn.Linear(DIM, DIM)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, DIM), body, nn.ReLU(), body)
    return SplitModel(backbone, nn.Linear(DIM, CLASSES)).double()


def hooked() -> PrototypeModel:
    model = model_of()
    model.classifier.register_forward_hook(lambda _, __, output: 2 * output)
    return model


UNKNOWN: dict[str, Callable[[], PrototypeModel]] = {
    "own": lambda: _Own().double(),
    "tied": tied,
    "hooked": hooked,
    "averages of all batches": lambda: with_layer(nn.BatchNorm2d(32, momentum=None)),
    "circular": lambda: with_layer(nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular")),
    "linear over pixels": lambda: with_layer(nn.Linear(SIDE, SIDE)),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_run_together_unstackable_models_train_alone(kind: str, alone: list[Job]) -> None:
    assert_alike(jobs_of(UNKNOWN[kind](), sizes=(8, 6, 4)))
    assert len(alone) == 3


def test_run_together_decoded_data_train_alone(alone: list[Job]) -> None:
    jobs = jobs_of(model_of())
    sources: list[BatchSource] = [DatasetSource(_Samples(images(6, site)), CPU) for site in range(2)]
    mixed = [replace(job, source=source) for job, source in zip(jobs, sources, strict=False)] + jobs[2:]
    assert_alike(mixed)
    assert [job.seed for job in alone] == [0, 1]


def test_different_networks_train_in_groups_of_their_own(alone: list[Job]) -> None:
    plain, wide = jobs_of(model_of()), jobs_of(with_layer(nn.Conv2d(32, 32, 1)))
    other = jobs_of(model_of("resnet10"), sizes=(2,))
    assert_alike([*plain[:2], *wide[2:4], plain[4], *other], tolerance=1e-6)
    assert [id(job) for job in alone] == [id(job) for job in other]


def test_the_switch(alone: list[Job]) -> None:
    jobs = jobs_of(model_of())
    run_together(jobs, Batching.NEVER)
    assert [id(job) for job in alone] == [id(job) for job in jobs]
    alone.clear()
    run_together(jobs, Batching.AUTO)
    assert alone == []  # a small network
    run_together(jobs_of(model_of("resnet10"), sizes=(5, 5)), Batching.AUTO)
    assert len(alone) == 2  # on a CPU


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("at_once", [1, 2, None])
def test_side_by_side_in_threads(
    at_once: int | None, alone: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[tuple[str, int]] = []
    stacked = training._as_one

    def noted(jobs: list[Job], precision: Precision) -> list[Losses] | None:
        settings.append((threading.current_thread().name, torch.get_num_threads()))
        return stacked(jobs, precision)

    monkeypatch.setattr(training, "_as_one", noted)
    assert_alike(jobs_of(model_of()), at_once=at_once)
    assert alone == []
    assert {threads for _, threads in settings} == {1}
    assert threading.current_thread().name not in {name for name, _ in settings}
    assert len(settings) == {1: 6, 2: 3, None: 2}[at_once]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_run_together_error_restores_threads() -> None:
    jobs = jobs_of(model_of())
    with torch.no_grad():
        next(jobs[2].model.parameters())[:] = float("inf")
    with pytest.raises(TrainingError):
        run_together(jobs)
    assert torch.get_num_threads() == 2


def test_sites_at_once_falls_with_size() -> None:
    small, large, cpu = model_of(), model_of("resnet18"), torch.device("cpu")
    assert sites_at_once(small, cpu) == training.MOST_ON_CPU
    assert sites_at_once(large, cpu) == 1
    assert sites_at_once(large, cpu, Batching.ALWAYS) == 2
    assert sites_at_once(small, torch.device("cuda")) > 100
    assert sites_at_once(large, torch.device("cuda")) == 1  # as a graph, beside others
    assert sites_at_once(large, torch.device("mps")) > 10


def test_signatures_differ_by_settings_and_shapes() -> None:
    ours = signature(model_of())
    assert ours == signature(model_of())
    others = [with_layer(nn.AvgPool2d(1, ceil_mode=mode)) for mode in (False, True)]
    assert len({ours, signature(model_of("fedpc-cnn", side=16)), *map(signature, others)}) == 4


def test_stack_leaves_models_until_unload() -> None:
    models = [job.model for job in jobs_of(model_of())]
    before = [copy.deepcopy(model.state_dict()) for model in models]
    stack = Stack(models)
    for value in stack.values.values():
        value.zero_()
    torch.testing.assert_close([model.state_dict() for model in models], before)
    stack.unload(models)
    assert all(float(each.abs().sum()) == 0.0 for model in models for each in model.state_dict().values())


def test_inputs_without_samples_dimension_cannot_be_stacked() -> None:
    model = model_of()
    stack = Stack([model, copy.deepcopy(model)])
    with pytest.raises(CannotStack, match="3"):
        stack.outputs(torch.rand(2, 4, SIDE, SIDE, dtype=torch.float64))


@pytest.mark.parametrize("count", range(1, 14))
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("join", [True, False])
def test_count_batches_splits_full_and_rest(count: int, size: int, join: bool) -> None:
    lengths = [len(each) for each in split_batches(range(count), size, join_single=join)]
    full, rest = count_batches(count, size, join_single=join)
    assert lengths == [size] * full + [rest] * bool(rest)
