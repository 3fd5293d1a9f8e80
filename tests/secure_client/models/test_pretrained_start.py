"""A run from pretrained weights: what is agreed, what a site has to have, and where the rest begins."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from agreement import Agreement, FeddbpSection, Method, Norm, TrainingSection
from protoseal.simulation.config import load_simulation
from protoseal.simulation.local_controls import run_control
from protoseal.simulation.site_pool import SiteTraining
from secure_client.checkpoints.learner_factory import build_agreed_model, build_initial_model, build_learner
from secure_client.errors import ModelError
from secure_client.models.prototype_model import build_model
from tests.support.simulations import run_federation
from tests.support.small import DIM, short_training, small_agreement, small_data

SMALL = "small-cnn"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Return weights of small-cnn for the small federation's scans, from another seed."""
    model = build_model(SMALL, classes=3, dim=DIM, channels=1, image_size=8, seed=99)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def agreement(weights: Path | None, **changes: Any) -> Agreement:
    sha256 = None if weights is None else hashlib.sha256(weights.read_bytes()).hexdigest()
    training = short_training(SMALL, pretrained_sha256=sha256, **changes.pop("training", {}))
    return Agreement(**(dict(small_agreement()) | {"training": training} | changes))


def first_layer(model: nn.Module) -> Tensor:
    return next(model.parameters()).detach()


def test_a_site_begins_from_the_agreed_file(weights: Path) -> None:
    agreed = agreement(weights)
    data = small_data(agreed)["clinic-a"]
    learner = build_learner(agreed, "clinic-a", data, model=SMALL, device="cpu", pretrained=weights)
    given, from_seed = safetensors.torch.load_file(weights), build_agreed_model(agreed, SMALL)
    begun = learner.state()
    assert torch.equal(begun["backbone.0.weight"], given["backbone.0.weight"])
    assert not torch.equal(begun["backbone.0.weight"], first_layer(from_seed))
    assert torch.equal(begun["classifier.weight"], from_seed.state_dict()["classifier.weight"])


def test_a_site_without_the_agreed_file_does_not_begin(weights: Path, tmp_path: Path) -> None:
    agreed = agreement(weights)
    with pytest.raises(
        ModelError, match=f"set pretrained to the file of SHA-256 {agreed.training.pretrained_sha256}"
    ):
        build_initial_model(agreed, SMALL, None)
    another = tmp_path / "another"
    another.write_bytes(weights.read_bytes() + b" ")
    with pytest.raises(ModelError, match="get the federation's file"):
        build_initial_model(agreed, SMALL, another)


def test_a_file_that_nobody_agreed_on_is_refused(weights: Path) -> None:
    with pytest.raises(ModelError, match="pretrained is set, but small-cnn begins from the seed"):
        build_initial_model(agreement(None), SMALL, weights)


def test_a_site_with_a_model_of_its_own_begins_from_the_seed(weights: Path) -> None:
    agreed, own = agreement(weights), "resnet10"
    with pytest.raises(ModelError, match="but resnet10 begins from the seed"):
        build_initial_model(agreed, own, weights)
    begun, from_seed = build_initial_model(agreed, own, None), build_agreed_model(agreement(None), own)
    assert torch.equal(first_layer(begun), first_layer(from_seed))


def test_a_trained_model_is_read_without_the_file(weights: Path) -> None:
    """The ``predict`` command builds the model without the file before it loads the saved state."""
    model = build_agreed_model(agreement(weights), SMALL)
    assert torch.equal(first_layer(model), first_layer(build_agreed_model(agreement(None), SMALL)))


def test_the_backbone_under_two_branches_is_the_files(weights: Path) -> None:
    agreed = agreement(weights, method=Method.FEDDBP, feddbp=FeddbpSection())
    given = safetensors.torch.load_file(weights)["backbone.0.weight"]
    states = [build_initial_model(agreed, SMALL, weights).state_dict() for _ in range(2)]
    assert torch.equal(states[0]["body.backbone.0.weight"], given)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_agreed_norm_is_the_models() -> None:
    for norm, kind in ((Norm.BATCH, nn.BatchNorm2d), (Norm.GROUP, nn.GroupNorm)):
        model = build_agreed_model(agreement(None, training={"norm": norm}), "resnet10")
        layers = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d | nn.GroupNorm)]
        assert len(layers) == 12
        assert all(isinstance(each, kind) for each in layers)


def test_group_normalisation_trains_on_single_samples() -> None:
    agreed = agreement(None, training={"norm": Norm.GROUP, "batch_size": 1, "lr": 1e-4})
    learner = build_learner(agreed, "a", small_data(agreed)["clinic-c"], model="resnet10", device="cpu")
    assert np.isfinite(learner.train(1, None).total)


def test_norm_and_file_are_part_of_what_is_agreed(weights: Path) -> None:
    agreed = (agreement(None), agreement(weights), agreement(None, training={"norm": Norm.GROUP}))
    assert len({each.hash() for each in agreed}) == 3
    for each in agreed:
        assert Agreement.from_json(each.to_json(), source="test") == each


@pytest.mark.parametrize("sha256", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64])
def test_a_bad_sha256_is_refused(sha256: str) -> None:
    with pytest.raises(ValidationError, match="pretrained_sha256"):
        TrainingSection(pretrained_sha256=sha256)


def test_simulated_sites_and_controls_begin_from_the_file(weights: Path, tmp_path: Path) -> None:
    """Each site still has the file's first layer at the end, since the steps are next to nothing."""
    agreed = agreement(weights, rounds=1, training={"lr": 1e-30, "momentum": 0.0})
    data = small_data(agreed)
    training = SiteTraining(pretrained=weights)
    outcome = run_federation(agreed, data, tmp_path / "run", training=training)
    given = safetensors.torch.load_file(weights)["backbone.0.weight"]
    for site in outcome.sites:
        trained = safetensors.torch.load_file(tmp_path / "run" / "sites" / site / "model.safetensors")
        assert torch.equal(trained["backbone.0.weight"], given)
    run_control(agreed, Method.LOCAL, data, training=training)
    with pytest.raises(ModelError, match="set pretrained"):
        run_control(agreed, Method.LOCAL, data)


def test_a_simulations_file_is_taken_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('pretrained = "weights.safetensors"\n')
    assert load_simulation(tmp_path / "run.toml", {}).pretrained == tmp_path / "weights.safetensors"
