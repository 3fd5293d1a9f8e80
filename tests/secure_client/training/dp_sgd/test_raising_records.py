"""Records on which a model raises count as zeros, at a cost that grows with their number and not with the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from secure_client.models.prototype_model import FixedBatchModel, SplitModel
from secure_client.training.batches import TensorSource, isolate_failures
from secure_client.training.dp_sgd import steps
from secure_client.training.evaluation import EVALUATION_BATCH
from secure_client.training.feature_pass import FeaturePass
from secure_client.training.loop import run_job
from tests.secure_client.training.dp_sgd.private_training import ALL, CPU, DIM, images, job_of, tiny

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
def test_isolation_takes_few_computations_for_few_records(size: int, number: int) -> None:
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
def test_isolation_takes_no_result_from_the_probe(guess: frozenset[int]) -> None:
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


def test_dp_sgd_isolates_raising_records(
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
