"""Models bound to the rows of one tensor."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from agreement import ModelPart
from protoseal.simulation.batched.flat_models import CannotStack, FlatModels
from secure_client.models.prototype_model import PrototypeModel, SplitModel
from secure_client.training.averaged_parameters import AveragedPart
from tests.secure_client.jobs import CLASSES, DIM, SIDE, model_of, moved


def normalised_models(count: int = 3) -> list[PrototypeModel]:
    """Return different models with parameters, running statistics and counts of batches."""
    backbone = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (SIDE - 2) ** 2, DIM)
    )
    return [moved(SplitModel(backbone, nn.Linear(DIM, CLASSES)), site) for site in range(count)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bound_models_keep_values_and_names(dtype: torch.dtype) -> None:
    models = [model.to(dtype) for model in normalised_models()]
    before = [copy.deepcopy(model.state_dict()) for model in models]
    flat = FlatModels(models)
    torch.testing.assert_close([model.state_dict() for model in models], before, rtol=0, atol=0)
    assert flat.values.dtype == dtype
    assert flat.values.shape == (3, flat.layout.width)
    assert flat.counts.shape == (3, 1)


def test_bound_models_share_memory_with_their_rows() -> None:
    models = normalised_models()
    flat = FlatModels(models)
    flat.values[1] = 7.0
    flat.counts[1] = 5
    assert all(bool((value == 7.0).all()) for value in models[1].parameters())
    assert int(models[1].state_dict()["backbone.1.num_batches_tracked"]) == 5
    models[2].train()
    models[2](torch.rand(4, 1, SIDE, SIDE))
    place = flat.layout.floats["backbone.1.running_mean"]
    running = models[2].get_buffer("backbone.1.running_mean")
    assert torch.equal(flat.values[2, place.start : place.stop], running)
    assert flat.counts[:, 0].tolist() == [0, 5, 1]


@pytest.mark.parametrize("part", [ModelPart.EXTRACTOR, ModelPart.MODEL, ModelPart.NOT_NORMS])
def test_columns_of_an_averaged_part_hold_its_vector(part: ModelPart) -> None:
    models = normalised_models()
    flat = FlatModels(models)
    averaged = [AveragedPart(model, part) for model in models]
    columns = flat.layout.columns(averaged[0].names)
    rows = torch.cat([flat.values[:, part_columns] for part_columns in columns], dim=1)
    np.testing.assert_array_equal(rows.double().numpy(), [average.vector() for average in averaged])
    assert len(columns) <= 3  # neighbours are one slice


def test_find_returns_rows_of_bound_models_in_order() -> None:
    models = normalised_models()
    flat = FlatModels(models)
    bound = FlatModels.find([models[2], models[0]])
    assert bound is not None
    assert bound[0] is flat
    assert bound[1].tolist() == [2, 0]


def test_find_ignores_models_bound_no_longer() -> None:
    models = normalised_models()
    flat = FlatModels(models)
    assert FlatModels.find([models[0], copy.deepcopy(models[1])]) is None
    models[1].double()
    assert FlatModels.find(models) is None
    assert FlatModels.find([models[0], models[2]]) is not None
    others = normalised_models(2)
    rows = FlatModels(others)
    assert FlatModels.find([models[0], others[0]]) is None
    assert (len(flat.values), len(rows.values)) == (3, 2)


def test_models_of_several_layouts_cannot_be_bound() -> None:
    models = normalised_models()
    with pytest.raises(CannotStack, match="kinds"):
        FlatModels([models[0], model_of()])
    with pytest.raises(CannotStack, match="twice"):
        FlatModels([models[0], models[0]])
    models[1].classifier.double()
    with pytest.raises(CannotStack, match="types"):
        FlatModels(models)
