"""The part of a model that is averaged: what is in the vector, in which order, and what stays local."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secure_client.errors import ModelError
from secure_client.extractor import Extractor
from secure_client.models import PrototypeModel, SplitModel, build_model


class OwnModel(nn.Module):
    """A site's own module with both halves, batch normalisation and buffers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
        self.norm = nn.BatchNorm1d(4)
        self.body = nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor([2.0, 3.0], dtype=torch.float64))
        self.register_buffer("mask", torch.tensor([float("-inf")]), persistent=False)
        self.register_buffer("steps", torch.tensor(7))

    def features(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.body(self.norm(inputs)))


def own_model() -> Any:
    """It keeps the contract without deriving from it."""
    torch.manual_seed(0)
    return OwnModel()


def test_the_vector_is_parameters_then_buffers_without_the_classifier() -> None:
    model = own_model()
    with torch.no_grad():
        model.norm.running_mean.fill_(5.0)
    expected = torch.cat(
        [
            each.detach().double().flatten()
            for each in (
                *(model.norm.weight, model.norm.bias, model.body.weight, model.body.bias),
                *(model.scale, model.norm.running_mean, model.norm.running_var),
            )
        ]
    ).numpy()
    extractor = Extractor(model)
    assert extractor.sizes == (4 + 4 + 12 + 3, 2 + 4 + 4)
    vector = extractor.vector()
    assert vector.dtype == np.float64
    assert np.array_equal(vector, expected)


def test_loading_restores_the_extractor_and_nothing_else() -> None:
    source, target = own_model(), own_model()
    with torch.no_grad():
        for each in (*source.parameters(), source.norm.running_mean):
            each.add_(1.5)
        target.steps.fill_(9)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    Extractor(target).load(Extractor(source).vector())
    for name, value in target.state_dict().items():
        local = name.startswith("classifier") or name == "steps" or name.endswith("num_batches_tracked")
        assert torch.equal(value, before[name] if local else source.state_dict()[name]), name
    assert np.array_equal(Extractor(target).vector(), Extractor(source).vector())


def test_a_vector_is_a_copy_and_the_loaded_one_is_copied() -> None:
    model = own_model()
    extractor = Extractor(model)
    vector = extractor.vector()
    kept = vector.copy()
    with torch.no_grad():
        model.body.weight.add_(1.0)
    assert np.array_equal(vector, kept)
    extractor.load(vector)
    vector += 1.0
    assert np.array_equal(extractor.vector(), kept)


def test_a_buffer_that_the_module_replaces_is_still_found() -> None:
    model = own_model()
    extractor = Extractor(model)
    model.norm.running_mean = torch.full((4,), 8.0)
    assert np.array_equal(extractor.vector()[25:29], np.full(4, 8.0))


@pytest.mark.parametrize(("spec", "sizes"), [("fedpc-cnn", (571_648, 0)), ("resnet18", (11_266_176, 9_600))])
def test_sizes_of_built_in_models(spec: str, sizes: tuple[int, int]) -> None:
    """By hand. ResNet18: torchvision's 11,689,512 less its fc (513,000); a 3×3 stem of one channel for its 7×7 one
    (576 for 9,408); and the layer 512 → 192 (98,496).
    """
    model = build_model(spec, classes=10, dim=192, channels=1, image_size=28, seed=0)
    own = sum(each.numel() for each in model.classifier.parameters())
    assert Extractor(model).sizes[0] == sum(each.numel() for each in model.parameters()) - own
    assert Extractor(model).sizes == sizes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda vector: vector[:-1], r"shape \(32,\), the model's has \(33,\)"),
        (lambda vector: vector.reshape(3, 11), r"shape \(3, 11\)"),
        (lambda vector: np.where(np.arange(33) == 32, np.nan, vector), "cannot hold"),
        (lambda vector: np.where(np.arange(33) == 0, 1e300, vector), "cannot hold"),  # infinite in float32
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(change: Any, message: str) -> None:
    model = own_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ModelError, match=message):
        Extractor(model).load(change(np.zeros(33)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_shared_parameter_stays_with_the_classifier() -> None:
    shared = nn.Linear(3, 3)
    model = SplitModel(nn.Sequential(nn.Linear(3, 3), shared), nn.Sequential(shared, nn.Linear(3, 2)))
    assert Extractor(model).sizes == (12, 0)


class Undivided(nn.Module):
    """Its classifier is a method, which is enough where no extractor is averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2)

    def classifier(self, features: Tensor) -> Tensor:
        return features


def test_a_classifier_that_is_no_module_cannot_be_told_apart() -> None:
    undivided: Any = Undivided()
    with pytest.raises(ModelError, match=r"make model\.classifier an nn\.Module"):
        Extractor(undivided)


def test_parameters_that_are_no_real_numbers_are_refused() -> None:
    backbone = nn.Linear(2, 2)
    backbone.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    model: PrototypeModel = SplitModel(backbone, nn.Linear(2, 2))
    with pytest.raises(ModelError, match=r"'backbone\.phase' holds no real numbers"):
        Extractor(model)


def test_an_extractor_without_parameters_is_an_empty_vector() -> None:
    model = SplitModel(nn.Flatten(), nn.Linear(2, 2))
    assert Extractor(model).sizes == (0, 0)
    assert Extractor(model).vector().shape == (0,)
