"""Passes of stacked sites equal each site's own pass, whatever the sizes of their data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from algorithms.prototypes import Targets
from protoseal.simulation.batched.network import Stack
from protoseal.simulation.batched.training import Batching
from protoseal.simulation.site_pool import ONE_BY_ONE
from protoseal.simulation.tensors import passes
from protoseal.simulation.tensors.passes import embed_sites, evaluate_sites
from secure_client.models.prototype_model import PrototypeModel
from secure_client.training.learner import Learner
from tests.support.small import DIM, short_training, small_agreement, small_data

PASS_BYTES = 4 * 64 * 4
"""Bytes of a site's inputs in a pass: four images of 64 pixels in float32."""
SIZES = {"clinic-a": 5, "clinic-b": 18, "clinic-c": 1, "clinic-d": 4}


@pytest.fixture
def learners(monkeypatch: pytest.MonkeyPatch) -> list[Learner]:
    """Build learners of different models with data of different sizes, in passes of at most four samples."""
    monkeypatch.setattr(passes, "EVALUATION_BATCH", 4)
    agreement = replace_training(small_agreement())
    data = small_data(agreement)
    for name, size in SIZES.items():
        train: Any = data[name].train
        part = TensorDataset(*(tensor[:size] for tensor in train.tensors))
        data[name] = replace(data[name], train=part, test=part)
    built = ONE_BY_ONE.learners(agreement, data)
    torch.manual_seed(0)
    for learner in built:
        for parameter in learner.predictor.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return built


def replace_training(agreement: Any) -> Any:
    model = short_training("tests.support.tiny_models:build_relu")
    return type(agreement).model_validate({**dict(agreement), "training": model})


@pytest.mark.parametrize("at_once", [2, 10])
def test_embed_sites_equals_each_sites_own_features(
    learners: list[Learner], monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(passes, "INPUT_BYTES", at_once * PASS_BYTES)
    for learner, embedded in zip(learners, embed_sites(learners, Batching.ALWAYS), strict=True):
        assert embedded is not None
        assert [len(features) for features, _ in embedded][:-1] == [4] * (len(embedded) - 1)
        got, expected = (
            [torch.cat(list(parts)) for parts in zip(*batches, strict=True)]
            for batches in (embedded, learner.embed())
        )
        # Sums of 64 products of numbers below 1, in another order.
        torch.testing.assert_close(got[0], expected[0], rtol=0, atol=64 * 2.0**-24)
        assert torch.equal(got[1], expected[1])


def test_embed_sites_with_features_that_are_not_finite_embed_themselves(learners: list[Learner]) -> None:
    inputs, _ = learners[1].train_tensors or pytest.fail("the data are tensors")
    inputs[7] = torch.nan
    assert [embedded is None for embedded in embed_sites(learners, Batching.ALWAYS)] == [
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("at_once", [1, 3])
def test_evaluate_sites_equals_each_sites_own_evaluation(
    learners: list[Learner], monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(passes, "INPUT_BYTES", at_once * PASS_BYTES)
    guides = [None, *(Targets(torch.rand(3, DIM), torch.tensor([True, True, True])) for _ in learners[1:])]
    tested = evaluate_sites(learners, guides, Batching.ALWAYS)
    assert tested == [learner.evaluate(guide) for learner, guide in zip(learners, guides, strict=True)]


def test_embed_sites_inputs_limit_the_sites_of_a_pass(
    learners: list[Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activations grow with inputs, which the number of parameters does not tell; the longest data come first."""
    stacks = []

    class Counted(Stack):
        def __init__(self, models: Sequence[PrototypeModel]) -> None:
            stacks.append(len(models))
            super().__init__(models)

    monkeypatch.setattr(passes, "Stack", Counted)
    for sites, expected in ((2, [2, 2]), (3, [3]), (1, []), (0, [])):
        monkeypatch.setattr(passes, "INPUT_BYTES", sites * PASS_BYTES)
        embed_sites(learners, Batching.ALWAYS)
        assert stacks == expected
        stacks.clear()
