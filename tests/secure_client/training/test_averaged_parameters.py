"""The part of a model that is averaged: what is in the vector, in which order, and what stays local."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agreement import ModelPart
from secure_client.errors import ModelError
from secure_client.models.prototype_model import PrototypeModel, SplitModel, build_model
from secure_client.training.averaged_parameters import AveragedPart
from tests.support.refusals import refuses


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
    """Return a model that keeps the contract without deriving from it."""
    torch.manual_seed(0)
    return OwnModel()


def test_averaged_vector_is_parameters_then_buffers_of_the_extractor() -> None:
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
    averaged = AveragedPart(model)
    assert averaged.sizes == (4 + 4 + 12 + 3, 2 + 4 + 4)
    vector = averaged.vector()
    assert vector.dtype == np.float64
    assert np.array_equal(vector, expected)


def test_averaged_load_restores_the_extractor_alone() -> None:
    source, target = own_model(), own_model()
    with torch.no_grad():
        for each in (*source.parameters(), source.norm.running_mean):
            each.add_(1.5)
        target.steps.fill_(9)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    AveragedPart(target).load(AveragedPart(source).vector())
    for name, value in target.state_dict().items():
        local = name.startswith("classifier") or name == "steps" or name.endswith("num_batches_tracked")
        assert torch.equal(value, before[name] if local else source.state_dict()[name]), name
    assert np.array_equal(AveragedPart(target).vector(), AveragedPart(source).vector())


def test_averaged_vector_is_a_copy() -> None:
    model = own_model()
    averaged = AveragedPart(model)
    vector = averaged.vector()
    kept = vector.copy()
    with torch.no_grad():
        model.body.weight.add_(1.0)
    assert np.array_equal(vector, kept)
    averaged.load(vector)
    vector += 1.0
    assert np.array_equal(averaged.vector(), kept)


def test_averaged_buffer_that_the_module_replaces_is_found() -> None:
    model = own_model()
    averaged = AveragedPart(model)
    model.norm.running_mean = torch.full((4,), 8.0)
    assert np.array_equal(averaged.vector()[25:29], np.full(4, 8.0))


@pytest.mark.parametrize(("spec", "sizes"), [("fedpc-cnn", (571_648, 0)), ("resnet18", (11_266_176, 9_600))])
def test_averaged_sizes_of_built_in_models(spec: str, sizes: tuple[int, int]) -> None:
    """Sizes are worked out by hand. ResNet18: torchvision's 11,689,512 less its fc (513,000); a 3×3 stem of one channel
    for its 7×7 one (576 for 9,408); and the layer 512 → 192 (98,496).
    """
    model = build_model(spec, classes=10, dim=192, channels=1, image_size=28, seed=0)
    own = sum(each.numel() for each in model.classifier.parameters())
    assert AveragedPart(model).sizes[0] == sum(each.numel() for each in model.parameters()) - own
    assert AveragedPart(model).sizes == sizes


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda vector: vector[:-1], "(32,)"),
        (lambda vector: vector.reshape(3, 11), "(3, 11)"),
        (lambda vector: np.where(np.arange(33) == 32, np.nan, vector), "finite"),
    ],
)
def test_averaged_load_vector_that_does_not_fit_changes_nothing(change: Any, named: str) -> None:
    model = own_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with refuses(named, error=ModelError):
        AveragedPart(model).load(change(np.zeros(33)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_averaged_load_number_beyond_the_range_becomes_the_largest() -> None:
    """A coordinator chooses the numbers: an error would show it what a site decrypts."""
    model = own_model()
    averaged = AveragedPart(model)
    averaged.load(np.where(np.arange(33) < 2, [-1e300] + [1e300] * 32, 0.5))
    largest = float(np.finfo(np.float32).max)
    assert averaged.vector()[:3].tolist() == [-largest, largest, 0.5]


def test_averaged_shared_parameter_stays_with_the_classifier() -> None:
    shared = nn.Linear(3, 3)
    model = SplitModel(nn.Sequential(nn.Linear(3, 3), shared), nn.Sequential(shared, nn.Linear(3, 2)))
    assert AveragedPart(model).sizes == (12, 0)


class Undivided(nn.Module):
    """Its classifier is a method, which is enough where no extractor is averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2)

    def classifier(self, features: Tensor) -> Tensor:
        return features


def test_averaged_classifier_that_is_no_module_is_refused() -> None:
    undivided: Any = Undivided()
    with refuses("model.classifier", error=ModelError):
        AveragedPart(undivided)


def test_averaged_parameters_that_are_no_real_numbers_are_refused() -> None:
    backbone = nn.Linear(2, 2)
    backbone.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    model: PrototypeModel = SplitModel(backbone, nn.Linear(2, 2))
    with refuses("'backbone.phase'", error=ModelError):
        AveragedPart(model)


def test_averaged_extractor_without_parameters_is_empty() -> None:
    model = SplitModel(nn.Flatten(), nn.Linear(2, 2))
    assert AveragedPart(model).sizes == (0, 0)
    assert AveragedPart(model).vector().shape == (0,)


# Other parts than the extractor


class ManyNorms(nn.Module):
    """Every kind of layer that normalises, one of them in the classifier, between layers that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.GroupNorm(2, 4),
            nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            nn.LocalResponseNorm(2),
            nn.Flatten(),
            nn.Linear(4, 3),
        )
        self.classifier = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2))
        self.register_buffer("scale", torch.tensor([2.0]))

    def features(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.body(inputs)
        return features


NOT_NORMS = {"body.0.weight", "body.0.bias", "body.6.weight", "body.6.bias"} | {
    "classifier.1.weight",
    "classifier.1.bias",
    "scale",
}


def many_norms() -> Any:
    torch.manual_seed(0)
    return ManyNorms()


def moved_by(part: ModelPart) -> set[str]:
    """Return the names whose values change when a vector of that part is loaded."""
    model = many_norms()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    averaged = AveragedPart(model, part)
    averaged.load(averaged.vector() + 1.0)
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


def test_averaged_not_norms_is_all_but_normalisation() -> None:
    assert moved_by(ModelPart.NOT_NORMS) == NOT_NORMS
    parameters = 4 * 9 + 4 + 4 * 3 + 3 + 3 * 2 + 2
    assert AveragedPart(many_norms(), ModelPart.NOT_NORMS).sizes == (parameters, 1)


def test_averaged_model_is_everything_but_counts_of_batches() -> None:
    state = many_norms().state_dict()
    assert moved_by(ModelPart.MODEL) == {name for name in state if "num_batches" not in name}
    parameters, buffers = AveragedPart(many_norms(), ModelPart.MODEL).sizes
    assert parameters == sum(each.numel() for each in many_norms().parameters())
    assert buffers == 1 + 2 * (4 + 4)  # scale, and two layers' running means and variances


def test_averaged_extractor_is_everything_before_the_classifier() -> None:
    assert moved_by(ModelPart.EXTRACTOR) == {
        name for name in moved_by(ModelPart.MODEL) if not name.startswith("classifier")
    }


def test_averaged_nothing_is_empty() -> None:
    averaged = AveragedPart(many_norms(), ModelPart.NOTHING)
    assert averaged.sizes == (0, 0)
    assert averaged.vector().shape == (0,)
    assert moved_by(ModelPart.NOTHING) == set()
    with refuses("(1,)", "(0,)", error=ModelError):
        averaged.load(np.ones(1))


def test_averaged_only_the_extractor_needs_a_separate_classifier() -> None:
    undivided: Any = Undivided()
    for part in (ModelPart.MODEL, ModelPart.NOT_NORMS, ModelPart.NOTHING):
        assert sum(AveragedPart(undivided, part).sizes) == (0 if part is ModelPart.NOTHING else 6)


@pytest.mark.parametrize("part", list(ModelPart))
def test_averaged_each_part_is_restored(part: ModelPart) -> None:
    source, target = many_norms(), many_norms()
    with torch.no_grad():
        for each in (*source.parameters(), *(b for b in source.buffers() if b.is_floating_point())):
            each.add_(torch.rand_like(each))
    AveragedPart(target, part).load(AveragedPart(source, part).vector())
    assert np.array_equal(AveragedPart(target, part).vector(), AveragedPart(source, part).vector())
    whole = np.array_equal(
        AveragedPart(target, ModelPart.MODEL).vector(), AveragedPart(source, ModelPart.MODEL).vector()
    )
    assert whole is (part is ModelPart.MODEL)


def test_averaged_load_negative_variance_becomes_zero() -> None:
    """A mean variance that was tampered with, or has its protection's error, stops no training."""
    model = own_model()
    averaged = AveragedPart(model)
    vector = averaged.vector()
    _, buffers = averaged.sizes
    vector[-buffers:] = -1.0
    averaged.load(vector)
    state = model.state_dict()
    variances = [name for name in averaged.names if name.endswith("running_var")]
    assert variances
    for name in variances:
        assert not state[name].any()
    assert (state[variances[0].replace("var", "mean")] == -1.0).all()
