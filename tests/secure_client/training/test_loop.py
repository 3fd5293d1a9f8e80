"""Training loop and its optimisers: every step is taken, whatever happens in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from algorithms.losses import Terms
from protoseal.simulation.batched.feed import Feed, StackedBatch
from protoseal.simulation.batched.training import Batching, run_together
from secure_client import app
from secure_client.config import SiteConfig
from secure_client.errors import DataError, StateError, TrainingError
from secure_client.models.prototype_model import SplitModel
from secure_client.training.batches import Batch, BatchSource
from secure_client.training.job import Adam, Job, Sgd
from secure_client.training.loop import flush_denormals, run_job
from tests.secure_client.jobs import CLASSES, DIM, SIDE, jobs_of

_STEPS = 6
"""Two epochs of 9 records in batches of 4."""


class Layer(nn.Module):
    """A linear layer that counts its passes in training, and fails in the first of them where ``fails``."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(SIDE * SIDE, DIM)
        self.passes, self._fails = 0, fails

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features (B, d), or raise."""
        self.passes += self.training
        if self._fails and self.passes == 1:
            raise RuntimeError("out of memory")
        return torch.relu(self.linear(inputs.flatten(1)))


class Torn(BatchSource):
    """A source that cannot read the first batch that is asked for."""

    def __init__(self, source: BatchSource) -> None:
        self._source, self._asked = source, 0

    def __len__(self) -> int:
        return len(self._source)

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """Yield the source's batches."""
        self._asked += 1
        if self._asked == 1:
            raise DataError("the file is torn")
        return self._source.batches(groups)


def job_of(layer: Layer) -> Job:
    (job,) = jobs_of(SplitModel(layer, nn.Linear(DIM, CLASSES)).double(), sizes=(9,))
    return job


def passes_of(job: Job) -> int:
    layer = next(each for each in job.model.modules() if isinstance(each, Layer))
    return layer.passes


def spoil(job: Job) -> Job:
    with torch.no_grad():
        next(job.model.parameters())[:] = float("inf")
    return job


@pytest.mark.parametrize(
    ("job", "error", "skipped"),
    [
        (lambda: spoil(job_of(Layer())), TrainingError, 0),
        (lambda: job_of(Layer(fails=True)), RuntimeError, 0),
        (lambda: replace(job := job_of(Layer()), source=Torn(job.source)), DataError, 1),
    ],
    ids=["diverges", "model raises", "data raise"],
)
def test_run_job_that_fails_takes_every_later_step(
    job: Callable[[], Job], error: type[Exception], skipped: int
) -> None:
    failing, well = job(), job_of(Layer())
    run_job(well)
    with pytest.raises(error):
        run_job(failing)
    assert passes_of(well) == _STEPS
    assert passes_of(failing) == _STEPS - skipped


def test_run_job_ctrl_c_ends_at_once() -> None:
    def interrupted(*_: object) -> Terms:
        raise KeyboardInterrupt

    job = job_of(Layer())
    with pytest.raises(KeyboardInterrupt):
        run_job(replace(job, objective=interrupted))
    assert passes_of(job) == 1


def test_run_jobs_together_take_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    epoch = Feed.epoch

    def counted(*arguments: Any) -> Iterator[StackedBatch]:
        for step in epoch(*arguments):
            steps.append(1)
            yield step

    monkeypatch.setattr(Feed, "epoch", counted)
    jobs = jobs_of(
        SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, DIM)), nn.Linear(DIM, CLASSES)).double()
    )
    well = jobs_of(jobs[0].model)
    run_together(well, Batching.ALWAYS, at_once=len(well))
    taken = len(steps)
    spoil(jobs[2])
    with pytest.raises(TrainingError):
        run_together(jobs, Batching.ALWAYS, at_once=len(jobs))
    assert len(steps) == 2 * taken


def test_flush_denormals_holds_in_later_threads() -> None:
    def product() -> float:
        return float(torch.tensor(1e-38) * torch.tensor(1e-4))

    inside: list[float] = []
    with flush_denormals():
        inside.append(product())
        thread = threading.Thread(target=lambda: inside.append(product()))
        thread.start()
        thread.join()
    assert inside == [0.0, 0.0]
    assert product() > 0.0


def test_flush_denormals_comes_before_a_site_opens_its_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    products: list[float] = []

    def open_state(*_: object) -> NoReturn:
        products.append(float(torch.tensor(1e-38) * torch.tensor(1e-4)))
        raise StateError("no state in this test")

    monkeypatch.setattr(app, "open_party", lambda *_: None)
    monkeypatch.setattr(app, "open_state", open_state)
    with pytest.raises(StateError):
        app.run_site(cast(SiteConfig, None), b"")
    assert products == [0.0]


Make = Callable[[Iterable[Tensor]], Optimizer]


def stepped(make: Make) -> Tensor:
    """Return parameters after five steps on a quadratic."""
    weights = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 12).reshape(3, 4))
    optimiser = make([weights])
    for _ in range(5):
        optimiser.zero_grad()
        torch.autograd.backward((weights**2 + weights).sum())
        optimiser.step()
    assert weights.requires_grad
    assert weights.is_leaf
    optimiser.zero_grad()
    assert weights.grad is None
    return weights.detach()


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (
            partial(Sgd, lr=0.1, momentum=0.9, weight_decay=0.01),
            partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
        ),
        (partial(Adam, lr=0.1, weight_decay=0.01), partial(torch.optim.Adam, lr=0.1, weight_decay=0.01)),
    ],
    ids=["sgd", "adam"],
)
def test_optimiser_steps_are_torchs(ours: Make, torchs: Make) -> None:
    assert torch.equal(stepped(ours), stepped(torchs))
