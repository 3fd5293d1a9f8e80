"""Models for DP-SGD: refused, with reasons, if they couple records, keep state from them or hide a gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from agreement import Agreement, DpSgdSection, Extractor, PrivacySection
from agreement.registry.recipe import Recipe, Stage, Trains
from secure_client.checkpoints.learner_factory import build_learner
from secure_client.errors import ModelError
from secure_client.models.prototype_model import BACKBONES
from secure_client.training.dp_sgd.model_support import (
    check_suitable,
    compute_gradient_gap,
    make_trial,
)
from secure_client.training.recipes import build_recipe
from tests.secure_client.training.dp_sgd.private_training import OBJECTIVES, SETTINGS, images, model_of
from tests.support.marks import full_but
from tests.support.refusals import refuses
from tests.support.small import small_agreement, small_data

SITE = "clinic-a"
PRIVACY = PrivacySection(
    clip=1.0,
    noise_multiplier=1.0,
    extractor=Extractor.PRIVATE,
    dp_sgd=DpSgdSection(noise_multiplier=1.0, clip=1.0, sampling_rate=0.5),
)


def agreement(model: str) -> Agreement:
    agreed = small_agreement().model_copy(update={"privacy": PRIVACY})
    return agreed.model_copy(update={"training": agreed.training.model_copy(update={"model": model})})


def learn(model: str, **changes: Any) -> None:
    agreed = agreement(f"tests.secure_client.training.dp_sgd.unsuitable_models:{model}")
    data = small_data(agreed)[SITE]
    build_learner(agreed, SITE, data, model=agreed.training.model, device="cpu", **changes)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("centred", "gradients"),
        ("moving_average", "statistics"),
        ("counts_calls", "statistics"),
        ("of_instances", "stats"),
        ("past_its_layer", "weight"),
        ("in_place", "inplace=False"),
        ("functional_dropout", "nn.Dropout"),
        ("recurrent", "LSTM"),
    ],
)
def test_check_suitable_unsuitable_model_is_refused_with_the_reason(model: str, named: str) -> None:
    with refuses("DP-SGD", named, error=ModelError):
        learn(model)


@pytest.mark.parametrize("model", ["with_dropout", "with_a_layer_of_its_own", "partly_frozen"])
def test_check_suitable_suitable_model_is_accepted(model: str) -> None:
    learn(model)


def test_check_suitable_coupling_before_any_weight_is_refused() -> None:
    """The coupling is in the model's output, and no gradient shows it."""
    model = model_of("pfpl")
    model.backbone.append(_AddsTheMean())  # type: ignore[union-attr, operator]
    with refuses("records", error=ModelError):
        check_suitable(model, images(1)[0])


class _AddsTheMean(torch.nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            return inputs
        return inputs + inputs.mean(dim=0, keepdim=True)


SMALLEST = ("small-cnn", "fedpc-cnn", "tanh-cnn", "scatternet", "resnet10")
NETWORKS = [name for name in BACKBONES if name[-2:] not in ("34", "01", "52")]
"""All built-in networks but ResNets that repeat the blocks of smaller ones."""


@pytest.mark.parametrize("backbone", full_but(NETWORKS, *SMALLEST))
def test_check_suitable_built_in_networks_are_accepted(backbone: str) -> None:
    check_suitable(model_of("pfpl", backbone), images(1)[0])


@pytest.mark.parametrize("seed", full_but([1, 2], 1))
@pytest.mark.parametrize("backbone", full_but(NETWORKS, *SMALLEST))
def test_gradient_gap_of_rounding_is_far_below_one(backbone: str, seed: int) -> None:
    """Rounding of float32 decides ties of ReLUs and max-poolings; an earlier check refused one GoogLeNet in four."""
    trial = make_trial(model_of("pfpl", backbone, seed=seed), images(1)[0])
    assert trial.exact
    assert compute_gradient_gap(trial) < 1e-8


def test_check_suitable_model_of_float32_is_tried_in_it() -> None:
    model = model_of("pfpl")
    model.backbone.append(_InFloat32())  # type: ignore[union-attr, operator]
    assert not make_trial(model, images(1)[0]).exact
    check_suitable(model, images(1)[0])


class _InFloat32(torch.nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.float()


def test_check_suitable_both_branches_are_accepted() -> None:
    check_suitable(model_of("feddbp"), images(1)[0])


def test_check_suitable_public_projection_is_accepted_unchanged() -> None:
    """The model has a buffer, and no weight that trains."""
    agreed = agreement("tests.support.tiny_models:build_tanh")
    projected = agreed.model_copy(update={"privacy": PRIVACY.model_copy(update={"project_from": 32})})
    data = small_data(projected)[SITE]
    made = build_learner(projected, SITE, data, model=projected.training.model, device="cpu")
    before, matrices = made.state(), [each.clone() for each in made.predictor.buffers()]
    made.train(1, None)
    assert not any(torch.equal(value, before[name]) for name, value in made.state().items())
    assert len(matrices) == 1
    assert torch.equal(next(made.predictor.buffers()), matrices[0])


def test_check_suitable_leaves_the_model_as_it_is() -> None:
    model = model_of("feddbp").eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.random.get_rng_state()
    check_suitable(model, images(1)[0])
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert not model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_agreement_batch_norm_with_dp_sgd_is_refused() -> None:
    agreed = agreement("tests.support.tiny_models:build_normed")
    data = small_data(agreed)[SITE]
    with refuses("[privacy]", 'norm = "group"', error=ModelError):
        build_learner(agreed, SITE, data, model=agreed.training.model, device="cpu")


@pytest.mark.parametrize(
    "changes",
    [
        {"proximal": 0.1},
        {"personal": 0.1},
        {"stages": (Stage(Trains.CLASSIFIER, 1), Stage(Trains.EXTRACTOR))},
        {"stages": (Stage(epochs=3),)},
    ],
    ids=["proximal", "personal", "parts", "epochs"],
)
def test_agreement_recipe_that_is_not_accounted_for_is_refused(changes: dict[str, Any]) -> None:
    recipe = Recipe(OBJECTIVES["pfpl"], dp_sgd=SETTINGS)
    with pytest.raises(ValueError, match="dp_sgd"):
        replace(recipe, **changes)


def test_recipe_dp_sgd_has_features_of_the_trained_model() -> None:
    recipe = build_recipe(agreement("small-cnn"))
    assert recipe.dp_sgd == PRIVACY.dp_sgd
    assert recipe.stages == (Stage(Trains.ALL),)
    assert not recipe.initial_features


@pytest.mark.parametrize("model", ["centred", "seen_before"])
def test_frozen_features_of_coupled_records_are_refused(model: str) -> None:
    agreed = agreement(f"tests.secure_client.training.dp_sgd.unsuitable_models:{model}")
    frozen = agreed.model_copy(
        update={"privacy": PRIVACY.model_copy(update={"extractor": Extractor.FROZEN, "dp_sgd": None})}
    )
    with refuses("frozen_extractor", error=ModelError):
        build_learner(frozen, SITE, small_data(frozen)[SITE], model=agreed.training.model, device="cpu")
