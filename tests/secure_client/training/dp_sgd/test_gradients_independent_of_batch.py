"""A record's clipped gradient in DP-SGD is the same whatever other records there are, to the last bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from algorithms.losses import Outputs
from secure_client.models.prototype_model import PrototypeModel, compute_outputs
from secure_client.training.dp_sgd import steps
from secure_client.training.loop import run_job
from tests.secure_client.training.dp_sgd.private_training import (
    ALL,
    OBJECTIVES,
    guide_of,
    images,
    job_of,
    model_of,
)

COUNT, AT_ONCE = 5, 4
"""The last physical batch is of one record, unless one is taken away."""
FINE = ALL.model_copy(update={"noise_multiplier": 0.01})
"""A grid on which float32's last places show."""
BACKBONES = ("small-cnn", "fedpc-cnn", "tanh-cnn", "scatternet", "resnet10")
"""The smaller ones, and one of those with blocks and group normalisation."""


class HangsOnOthersError(AssertionError):
    """A record's part in a sum is not what it is alone."""


def sum_of(sums: list[Tensor], name: str, backbone: str, chosen: list[int]) -> Tensor:
    """Return a step's sum over the chosen records, in whole steps (P,)."""
    inputs, labels = images(COUNT)
    model, loss = model_of(name, backbone), OBJECTIVES[name]
    run_job(job_of(model, inputs[chosen], labels[chosen], dp_sgd=FINE, objective=loss, guide=guide_of(name)))
    return sums.pop()


def check(sums: list[Tensor], name: str, backbone: str) -> None:
    """Check with and without a record in the middle; those after it move up."""
    every, record = list(range(COUNT)), 1
    whole, own = sum_of(sums, name, backbone, every), sum_of(sums, name, backbone, [record])
    others = sum_of(sums, name, backbone, [each for each in every if each != record])
    if not torch.equal(whole - others, own):
        raise HangsOnOthersError(f"{name}, {backbone}")
    assert bool(own.any())


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "physical_size", lambda *_: AT_ONCE)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_record_gradient_of_every_loss_is_independent_of_the_batch(
    sums: list[Tensor], silent: None, name: str
) -> None:
    check(sums, name, "small-cnn")


@pytest.mark.parametrize("backbone", BACKBONES[1:])
def test_record_gradient_of_every_network_is_independent_of_the_batch(
    sums: list[Tensor], silent: None, backbone: str
) -> None:
    check(sums, "pfpl", backbone)


def test_record_gradient_without_padding_depends_on_a_kernel_that_rounds_by_size(
    sums: list[Tensor], silent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few processors have such kernels for networks as small as these, so the kernel is a double."""
    given = compute_outputs

    def rounded_by_size(model: PrototypeModel, inputs: Tensor) -> Outputs:
        factor = 1 + 1e-3 / len(inputs)
        return Outputs(*(None if each is None else each * factor for each in given(model, inputs)))  # type: ignore[arg-type]

    monkeypatch.setattr(steps, "compute_outputs", rounded_by_size)
    check(sums, "pfpl", "small-cnn")
    monkeypatch.setattr(steps, "pad", lambda rows, size: rows)
    with pytest.raises(HangsOnOthersError):
        check(sums, "pfpl", "small-cnn")
