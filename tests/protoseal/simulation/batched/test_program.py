"""Programs beside the one-by-one loop: joined channels, dropout, ``eval()`` mode, padding, and steps as graphs."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from agreement import Norm
from protoseal.simulation.batched import graphs, network, program
from protoseal.simulation.batched.feed import Feed, batches_of_job
from protoseal.simulation.batched.layers import Draws, StackedDropout
from protoseal.simulation.batched.network import Stack
from protoseal.simulation.batched.program import Program
from secure_client.models.prototype_model import PrototypeModel, SplitModel, compute_outputs
from secure_client.training.job import Job
from tests.secure_client.jobs import (
    ADAM,
    CLASSES,
    DIM,
    SCHEDULE,
    SIDE,
    assert_alike,
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
@pytest.mark.parametrize("spec", full_but(["resnet10", "resnet50", "mobilenet-v2", "googlenet"], "resnet10"))
def test_joined_channels_of_normalised_network_train_as_alone(
    spec: str, norm: Norm, alone: list[Job]
) -> None:
    jobs = jobs_of(
        model_of(spec, norm), schedule=replace(SCHEDULE, batch_size=5, local_epochs=1), sizes=(5, 5)
    )
    assert_alike(jobs, tolerance=1e-7)  # as one by one: batch normalisation of few pixels enlarges rounding
    assert alone == []


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


# Dropout


@pytest.mark.parametrize("schedule", [SCHEDULE, ADAM])
@pytest.mark.parametrize("joins", [False, True])
def test_dropout_trains_as_alone(
    schedule: object, joins: bool, alone: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "joins_channels", lambda _: joins)
    assert_alike(jobs_of(dropping_model(), schedule=schedule), tolerance=1e-12)  # type: ignore[arg-type]
    assert alone == []


def test_dropout_from_another_sites_stream_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "Draws", lambda generators, lengths: Draws(generators[::-1], lengths))
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


# Padding: without batch statistics all sites' last batches share a step


def test_last_batches_share_a_step() -> None:
    jobs = sorted(jobs_of(model_of()), key=lambda job: -len(job.source))
    generators = [torch.Generator().manual_seed(job.seed) for job in jobs]
    steps = list(Feed(jobs).epoch(generators))
    assert [list(step.sites) for step in steps] == [[0, 1, 2, 3], [0, 1, 2], [0], [0, 1, 2, 3, 4, 5]]
    assert steps[-1].lengths == (1, 1, 1, 4, 4, 2)


def test_last_batches_of_equal_length_share_a_step_with_batch_statistics() -> None:
    jobs = sorted(jobs_of(normalised_model(), sizes=(11, 10, 7, 6, 3)), key=lambda job: -len(job.source))
    generators = [torch.Generator().manual_seed(job.seed) for job in jobs]
    last = [(list(step.sites), step.lengths) for step in Feed(jobs).epoch(generators) if step.lengths[0] != 4]
    assert last == [([0, 2, 4], (3, 3, 3)), ([1, 3], (2, 2))]
    assert_alike(jobs)


# Steps as graphs, replayed by a stand-in for the GPU that calls the function itself


def run_plainly(jobs: list[Job]) -> None:
    plain = Program(jobs)
    plain.start(jobs)
    plain.run_epochs()
    plain.finish()


def run_graphed(jobs: list[Job], rounds: int = 1) -> list[dict[str, Tensor]]:
    """Train the jobs by one program, in rounds that begin with the same models; return the models' last states."""
    begun = states(jobs)
    trained = Program(jobs, graphed=True)
    for _ in range(rounds):
        for job, state in zip(jobs, begun, strict=True):
            job.model.load_state_dict(state)
        jobs = list(jobs)
        trained.start(jobs)
        trained.run_epochs()
        trained.finish()
    return states(jobs)


EXACT = replace(SCHEDULE, lr=0.0625, local_epochs=4)
"""A learning rate that float32 holds exactly, and steps of one kind enough for a graph."""


@pytest.mark.parametrize("buckets", [1, 2, 8])
@pytest.mark.parametrize("schedule", [EXACT, replace(ADAM, lr=0.0078125, local_epochs=4)])
@pytest.mark.parametrize("normalised", [False, True])
def test_replayed_steps_train_as_others(
    buckets: int, schedule: object, normalised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[Callable[[], None]] = []

    def stand_in(function: Callable[[], None]) -> Callable[[], None]:
        captured.append(function)
        return function

    monkeypatch.setattr(graphs, "capture", stand_in)
    monkeypatch.setattr(program, "BUCKETS", buckets)
    model = normalised_model() if normalised else model_of()
    jobs = jobs_of(model, schedule=schedule, proximal=0.1)  # type: ignore[arg-type]
    jobs.sort(key=batches_of_job, reverse=True)
    others = copies(jobs)
    run_plainly(others)
    torch.testing.assert_close(run_graphed(jobs, rounds=2), states(others), rtol=1e-9, atol=1e-9)
    assert captured


def test_steps_that_cannot_be_captured_are_taken_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no graph here")

    monkeypatch.setattr(graphs, "capture", fail)
    jobs = jobs_of(model_of(), schedule=EXACT, sizes=(9, 9))
    others = copies(jobs)
    run_plainly(others)
    with caplog.at_level(logging.WARNING, "protoseal.simulation"):
        torch.testing.assert_close(run_graphed(jobs), states(others), rtol=1e-12, atol=1e-12)
    assert len(caplog.records) == 1
