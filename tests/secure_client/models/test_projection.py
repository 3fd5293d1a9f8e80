"""A public random projection: orthogonal rows, the same everywhere, in no state, average or training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.grad_sample import GradSampleModule
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from agreement import Agreement, Method, ModelPart, Norm, PrivacySection
from agreement.registry.recipe import Trains
from algorithms.losses import Outputs
from algorithms.method_losses import PfplLoss
from algorithms.prototypes import Targets
from protoseal.simulation.batched.network import signature
from protoseal.simulation.batched.training import Batching, run_together
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.errors import ModelError
from secure_client.models.prototype_model import PrototypeModel, build_model, check_model, compute_outputs
from secure_client.models.wrapped_models import Projected, make_projection, project
from secure_client.training.averaged_parameters import AveragedPart
from secure_client.training.batches import open_source
from secure_client.training.job import Job, Schedule
from secure_client.training.loop import run_job
from tests.support.refusals import refuses
from tests.support.small import small_agreement

FROM, DIM, CLASSES = 24, 8, 3
KNOWN = [
    [0.566875751, -0.279394204, -0.636467256, 1.239656083, -0.639956441, -0.499208116],
    [1.077051474, 1.219014516, -0.025578884, 0.075022007, 0.589632508, 0.003828587],
]
"""Projection of 6 features to 2 with seed 11."""
CPU = torch.device("cpu")


def agreed(**privacy: Any) -> Agreement:
    noise = PrivacySection(clip=1.0, noise_multiplier=5.0, **privacy)
    return small_agreement().model_copy(update={"privacy": noise})


def small(seed: int = 1) -> PrototypeModel:
    return build_model("small-cnn", classes=CLASSES, dim=FROM, channels=1, image_size=8, seed=seed)


def projected(seed: int = 1) -> Projected:
    return project(small(), FROM, DIM, seed=seed)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32))
@settings(max_examples=25)
def test_projection_rows_are_orthogonal_and_keep_norms_on_average(dim: int, more: int, seed: int) -> None:
    wide = dim + more
    rows = make_projection(wide, dim, seed)
    assert rows.shape == (dim, wide)
    np.testing.assert_allclose(rows @ rows.T, wide / dim * np.eye(dim), atol=1e-10)


def test_projection_directions_are_uniform() -> None:
    """Over seeds, squared lengths have mean 1 and variance 2(D − d)/(d(D + 2)), those of d of D coordinates."""
    vector = np.eye(FROM)[3]
    lengths = np.array([np.square(make_projection(FROM, DIM, seed) @ vector).sum() for seed in range(2000)])
    variance = 2 * (FROM - DIM) / (DIM * (FROM + 2))
    assert abs(lengths.mean() - 1) < 6 * np.sqrt(variance / 2000)
    assert lengths.var() == pytest.approx(variance, rel=0.25)
    signs = np.array(
        [make_projection(FROM, DIM, seed)[0] for seed in range(2000)]
    )  # of each coordinate, not QR's
    assert np.abs((signs > 0).mean(axis=0) - 0.5).max() < 6 * 0.5 / np.sqrt(2000)


def test_projection_matrix_is_frozen() -> None:
    """Digits are compared beyond the rounding of any library: a change would be another agreement."""
    found = make_projection(6, 2, 11)
    assert found.round(9).tolist() == KNOWN
    assert (make_projection(6, 2, 12) != found).all()
    torch.testing.assert_close(projected().projection.matrix, projected().projection.matrix, rtol=0, atol=0)


def test_projected_model_classifier_takes_unprojected_features() -> None:
    torch.manual_seed(0)
    plain, model, images = small().eval(), projected().eval(), torch.randn(5, 1, 8, 8)
    embedded = plain.features(images)
    given_outputs = compute_outputs(model, images)
    matrix = torch.from_numpy(make_projection(FROM, DIM, 1)).float()
    torch.testing.assert_close(given_outputs.features, embedded @ matrix.T)
    torch.testing.assert_close(model.features(images), given_outputs.features)
    torch.testing.assert_close(given_outputs.logits, plain.classifier(embedded))
    torch.testing.assert_close(model(images), given_outputs.logits)
    check_model(model, images, classes=CLASSES, dim=DIM)


def test_projection_is_in_no_state_and_no_average() -> None:
    model, plain = projected(), small()
    assert len(list(model.parameters())) == len(list(plain.parameters()))
    assert not any("projection" in name for name in model.state_dict())
    for part in (ModelPart.EXTRACTOR, ModelPart.MODEL, ModelPart.NOT_NORMS):
        assert AveragedPart(model, part).sizes == AveragedPart(plain, part).sizes
    again = projected(seed=1)
    again.load_state_dict(model.state_dict())


def test_projection_stays_in_training() -> None:
    model = projected()
    before = model.projection.matrix.clone()
    run_job(job(model))
    assert torch.equal(model.projection.matrix, before)
    assert not model.projection.matrix.requires_grad


def test_projected_models_stacked_train_as_one_by_one() -> None:
    jobs, alone = ([in_float64(job(projected())) for _ in range(3)] for _ in range(2))
    losses = run_together(jobs, Batching.ALWAYS, at_once=3)
    for one, each, loss in zip(alone, jobs, losses, strict=True):
        assert run_job(one).total == pytest.approx(loss.total, rel=1e-6)  # sums of losses are float32
        for mine, others in zip(one.model.parameters(), each.model.parameters(), strict=True):
            torch.testing.assert_close(mine, others, rtol=1e-9, atol=1e-12)


def in_float64(given: Job) -> Job:
    """Compute in float64, since rounding of float32 would decide ties of ReLUs."""
    inputs, labels = given.source.tensors  # type: ignore[attr-defined]  # of a TensorSource
    assert given.guide is not None
    guide = Targets(given.guide.rows.double(), given.guide.present)  # type: ignore[union-attr]
    source = open_source(TensorDataset(inputs.double(), labels), CPU)
    return replace(given, model=given.model.double(), source=source, guide=guide)


def test_projected_models_of_different_seeds_are_not_stacked() -> None:
    assert signature(projected()) == signature(projected())
    assert signature(projected(seed=2)) != signature(projected())


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # images need no gradient
def test_projected_model_opacus_gradients_add_up() -> None:
    model = project(
        build_model(
            "small-cnn", classes=CLASSES, dim=FROM, channels=1, image_size=8, seed=0, norm=Norm.GROUP
        ),
        FROM,
        DIM,
        seed=0,
    ).double()
    assert ModuleValidator.validate(model, strict=True) == []
    images, labels = torch.randn(4, 1, 8, 8).double(), torch.tensor([0, 2, 1, 1])
    targets = Targets(torch.randn(CLASSES, DIM).double(), torch.ones(CLASSES, dtype=torch.bool))
    single = [slice(at, at + 1) for at in range(4)]
    known = [
        torch.autograd.grad(
            _loss(compute_outputs(model, images[at]), labels[at], targets), list(model.parameters())
        )
        for at in single
    ]
    hooked = GradSampleModule(model, loss_reduction="sum")
    given_outputs = hooked._module.outputs(images)
    alone = [
        _loss(Outputs(given_outputs.features[at], given_outputs.logits[at]), labels[at], targets)
        for at in single
    ]
    torch.autograd.backward(torch.stack(alone).sum())
    for place, parameter in enumerate(hooked.parameters()):
        for at, gradients in enumerate(known):
            torch.testing.assert_close(parameter.grad_sample[at], gradients[place])


def test_projected_model_classifier_that_is_no_module_is_refused() -> None:
    model = small()
    del model.classifier
    model.classifier = lambda features: features  # type: ignore[assignment]  # a site's own may be anything
    with refuses("model.classifier", error=ModelError):
        project(model, FROM, DIM, seed=0)


# As agreed


def test_agreed_projection_gives_the_agreed_features() -> None:
    model = build_agreed_model(agreed(project_from=FROM), "small-cnn")
    assert isinstance(model, Projected)
    assert model.features(torch.zeros(2, 1, 8, 8)).shape == (2, 8)
    assert isinstance(model.classifier, nn.Linear)
    assert model.classifier.in_features == FROM
    assert not isinstance(build_agreed_model(agreed(), "small-cnn"), Projected)


def test_agreement_hash_depends_on_the_projection() -> None:
    assert '"project_from":null' in agreed().to_json()
    assert '"project_from":24' in agreed(project_from=FROM).to_json()
    assert agreed(project_from=FROM).hash() != agreed().hash()


@pytest.mark.parametrize("features", [4, 8])
def test_agreement_projection_from_fewer_features_is_refused(features: int) -> None:
    with pytest.raises(ValueError, match="project_from"):
        agreed(project_from=features).check_served(Method.PFPL)
    agreed(project_from=9).check_served(Method.PFPL)


def _loss(outputs: Outputs, labels: Tensor, targets: Targets) -> Tensor:
    return PfplLoss(1.0)(outputs, labels, targets).total


def job(model: PrototypeModel) -> Job:
    torch.manual_seed(3)
    images, labels = torch.randn(12, 1, 8, 8), torch.arange(12) % CLASSES
    targets = Targets(torch.randn(CLASSES, DIM), torch.ones(CLASSES, dtype=torch.bool))
    schedule = Schedule(lr=0.05, momentum=0.9, weight_decay=0.0, batch_size=4, local_epochs=2)
    return Job(
        model=model,
        source=open_source(TensorDataset(images, labels), CPU),
        objective=PfplLoss(1.0),
        guide=targets,
        schedule=schedule,
        epochs=2,
        trains=Trains.ALL,
        seed=5,
        device=CPU,
        anchor={},
    )
