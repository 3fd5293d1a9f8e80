"""Opacus and the built-in networks: group normalisation is accepted, batch normalisation is not."""

from __future__ import annotations

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.validators import ModuleValidator
from torch.nn import functional

from agreement import Norm
from secure_client.models.backbones import BACKBONES
from secure_client.models.prototype_model import build_model
from tests.support.marks import full_but

PLAIN = ("small-cnn", "fedpc-cnn", "tanh-cnn", "scatternet")
NORMALISED = sorted(set(BACKBONES) - set(PLAIN))
BLOCKS = (*PLAIN, "resnet10", "resnet50", "googlenet", "mobilenet-v2")
"""A network of each kind of block."""


def build(name: str, norm: Norm) -> torch.nn.Module:
    return build_model(name, classes=3, dim=8, channels=1, image_size=16, seed=0, norm=norm)


@pytest.mark.parametrize("name", BACKBONES)
def test_opacus_accepts_group_normalisation(name: str) -> None:
    assert ModuleValidator.validate(build(name, Norm.GROUP), strict=True) == []


@pytest.mark.parametrize("name", NORMALISED)
def test_opacus_refuses_batch_normalisation(name: str) -> None:
    assert ModuleValidator.validate(build(name, Norm.BATCH), strict=False)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # images need no gradient
@pytest.mark.parametrize("name", full_but(BLOCKS, *PLAIN, "resnet10"))
def test_opacus_gradients_of_single_samples_sum_to_the_batchs(name: str) -> None:
    images, labels = torch.randn(3, 1, 16, 16), torch.tensor([0, 2, 1])
    plain = build(name, Norm.GROUP).train().double()
    hooked = GradSampleModule(build(name, Norm.GROUP).train().double(), loss_reduction="sum")
    for model in (plain, hooked):
        logits = model(images.double())
        torch.autograd.backward(functional.cross_entropy(logits, labels, reduction="sum"))
    for (known, parameter), single in zip(plain.named_parameters(), hooked.parameters(), strict=True):
        torch.testing.assert_close(single.grad_sample.sum(dim=0), parameter.grad, msg=known)
        assert len(single.grad_sample) == len(images)
