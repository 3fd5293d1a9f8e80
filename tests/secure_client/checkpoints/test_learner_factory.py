"""Learners from the agreement: the method's objective, the size of the averaged part, and warnings in the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agreement import Agreement, AveragingSection, Method, Optimiser
from algorithms.method_losses import FedpcLoss, PfplLoss
from crypto.errors import BoundError
from protoseal.simulation.site_pool import SiteTraining
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.learner_factory import build_checkpointed_learner, build_learner
from secure_client.data import SiteData
from secure_client.errors import ModelError
from secure_client.protocol.journal import Journal
from secure_client.training.learner import Learner
from secure_client.training.recipes import build_recipe
from tests.secure_client.journals import journal_at
from tests.support.small import short_training, small_agreement, small_data
from tests.support.summed import method_agreement

OWN = "tests.secure_client.checkpoints.test_learner_factory"
TABLE: dict[str, Any] = {
    **json.loads(small_agreement().to_json()),
    "method": "fedpc",
    "fedpc": {"alignment": 0.25},
    "averaging": {"parameters": 64 * 8 + 8},
}


def agreement(**changes: Any) -> Agreement:
    return Agreement.from_json(json.dumps(TABLE | changes), source="test")


def data() -> SiteData:
    return next(iter(small_data(small_agreement()).values()))


def build(agreed: Agreement) -> Learner:
    return build_learner(agreed, "clinic-a", data(), model=agreed.training.model, device="cpu")


def with_norm(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return a model with buffers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, dim), nn.BatchNorm1d(dim)), nn.Linear(dim, num_classes)


def without_layers(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return a model with nothing before the classifier."""
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(dim)), nn.Linear(dim, num_classes)


class _WithoutGradients(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(inputs)


def frozen(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return a model whose backbone does not train."""
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, dim), nn.ReLU()).requires_grad_(requires_grad=False)
    return backbone, nn.Linear(dim, num_classes)


def without_gradients(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return a model whose backbone has parameters that no gradient reaches."""
    return nn.Sequential(nn.Flatten(), _WithoutGradients(64, dim), nn.ReLU()), nn.Linear(dim, num_classes)


@pytest.mark.parametrize("protection", ["masked", "ckks"])
@pytest.mark.parametrize("model", ["frozen", "without_gradients"])
def test_build_learner_fixed_features_in_hidden_sums_are_refused(protection: str, model: str) -> None:
    training = TABLE["training"] | {"model": f"{OWN}:{model}"}
    with pytest.raises(ModelError, match="frozen_extractor"):
        build(agreement(protection=protection, training=training))
    for changes in (
        {"protection": "plain"},
        {"rounds": 1},
        {"training": training | {"frozen_extractor": True}},
    ):
        build(agreement(**{"protection": protection, "training": training, **changes}))


def test_build_learner_frozen_extractor_with_batch_norm_is_refused() -> None:
    training = TABLE["training"] | {"model": f"{OWN}:with_norm", "frozen_extractor": True}
    with pytest.raises(ModelError, match="norm"):
        build(agreement(training=training, averaging={"parameters": 64 * 8 + 8 + 16, "buffers": 16}))


def test_build_learner_objective_is_the_methods() -> None:
    assert build_recipe(agreement()).objective == FedpcLoss(0.25)
    printed = agreement(fedpc={"literal": True})
    assert build_recipe(printed).objective == FedpcLoss(literal=True)


@pytest.mark.parametrize(
    ("settings", "objective"),
    [
        ({}, PfplLoss(3.0)),
        ({"lambda": 2.0}, PfplLoss(2.0)),
        ({"literal": True}, PfplLoss(0.1, literal=True)),
        ({"literal": True, "lambda": 1.0}, PfplLoss(1.0, literal=True)),
    ],
)
def test_build_learner_pfpl_regulariser_has_its_default_weight(
    settings: dict[str, Any], objective: PfplLoss
) -> None:
    assert build_recipe(agreement(method="pfpl", pfpl=settings)).objective == objective


def test_build_learner_optimiser_is_the_agreements() -> None:
    steps = {}
    for name in Optimiser:
        settings = {key: value for key, value in TABLE["training"].items() if key != "momentum"}
        agreed = agreement(training=settings | {"optimiser": name.value})
        learner = build(agreed)
        learner.train(1, None)
        steps[name] = learner.averaged_vector()
    assert not np.array_equal(steps[Optimiser.SGD], steps[Optimiser.ADAM])


def test_build_learner_agreed_size_is_accepted() -> None:
    assert build(agreement()).averaged_sizes == (520, 0)
    sizes = {"parameters": 536, "buffers": 16}
    training = TABLE["training"] | {"model": f"{OWN}:with_norm"}
    assert build(agreement(averaging=sizes, training=training)).averaged_sizes == (536, 16)


@pytest.mark.parametrize(
    ("function", "sizes", "message"),
    [
        (
            None,
            {"parameters": 1},
            r"has 520 parameters and 0 buffers: set parameters = 520 in \[averaging\]",
        ),
        (
            None,
            {"parameters": 520, "buffers": 1},
            r"set parameters = 520 and buffers = 0 in \[averaging\]",
        ),
        (
            "with_norm",
            {"parameters": 536},
            r"has 536 parameters and 16 buffers: set parameters = 536 and buffers = 16 in",
        ),
        (
            "without_layers",
            {"parameters": 1},
            "the part of the model that fedpc would average has no parameters",
        ),
    ],
)
def test_build_learner_other_size_is_refused_with_the_settings(
    function: str | None, sizes: dict[str, int], message: str
) -> None:
    model = f"{OWN}:{function}" if function else TABLE["training"]["model"]
    agreed = agreement(averaging=sizes, training=TABLE["training"] | {"model": model})
    with pytest.raises(ModelError, match=message):
        build(agreed)


def loud(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return a model as pretrained elsewhere: a parameter of 80 and a running mean of 2e6."""
    backbone, classifier = with_norm(num_classes, dim)
    nn.init.constant_(backbone.get_parameter("1.bias"), -80.0)
    nn.init.constant_(backbone.get_buffer("2.running_mean"), 2e6)
    return backbone, classifier


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (
            {},
            "before training, .* a parameter of magnitude 80, beyond the agreed parameter_bound = 60: .*another model",
        ),
        ({"parameter_bound": 80.0}, r"a buffer of magnitude 2e\+06, beyond the bound of 1e\+06"),
    ],
)
def test_build_learner_initial_model_beyond_the_bounds_is_refused(
    bounds: dict[str, float], message: str
) -> None:
    sizes: dict[str, float] = {"parameters": 536, "buffers": 16}
    training = TABLE["training"] | {"model": f"{OWN}:loud"}
    with pytest.raises(BoundError, match=message):
        build(agreement(averaging=sizes | bounds, training=training))
    build(agreement(method="pfpl", training=training))


def test_build_learner_size_does_not_matter_for_prototypes_alone() -> None:
    learner = build(agreement(method="pfpl", averaging={"parameters": 1}))
    assert sum(each.numel() for each in learner.state().values()) > 1


@pytest.mark.parametrize("method", ["fedpc", "pfpl"])
def test_prototype_bounds_of_fedpc_have_no_negative_component(tmp_path: Path, method: str) -> None:
    """The model ends in tanh, so some of its own are negative; PFPL sends them as they are."""
    agreed = agreement(method=method)
    with journal_at(tmp_path / "journal.sqlite") as journal:
        rows, _ = build_checkpointed_learner(agreed, build(agreed), journal).train_round(0)
    assert bool((rows < 0).any()) is (method == "pfpl")


PLAIN, WITH_NORM = "tests.support.tiny_models:build_tanh", "tests.support.tiny_models:build_normed"
"""But for the layer that normalises, the second is as large as the first."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with journal_at(tmp_path / "journal.sqlite") as opened:
        yield opened


def build_with_checkpoints(agreement: Agreement, journal: Journal) -> CheckpointedLearner:
    data = small_data(agreement)["clinic-a"]
    learner = build_learner(agreement, "clinic-a", data, model=agreement.training.model, device="cpu")
    return build_checkpointed_learner(agreement, learner, journal)


@pytest.mark.parametrize("method", [Method.FEDBN, Method.FEDAVG])
@pytest.mark.parametrize("model", [PLAIN, WITH_NORM])
def test_warn_of_fedavg_without_norms_once(
    caplog: pytest.LogCaptureFixture, method: Method, model: str
) -> None:
    parameters = 563 if (method, model) == (Method.FEDAVG, WITH_NORM) else 547
    buffers = 16 if parameters == 563 else 0
    agreement = method_agreement(
        method,
        training=short_training(model),
        averaging=AveragingSection(parameters=parameters, buffers=buffers),
    )
    with caplog.at_level(logging.WARNING):
        for position, (name, data) in enumerate(small_data(agreement).items()):
            SiteTraining().learner(agreement, name, data, position)
    said = [record.getMessage() for record in caplog.records]
    expected = (
        "fedbn equals fedavg for this model, which has no normalisation layers: the whole model is averaged"
    )
    assert said == ([expected] if (method, model) == (Method.FEDBN, PLAIN) else [])


@pytest.mark.parametrize("method", [Method.FEDAVG, Method.FEDPLCC, Method.FEDPC])
@pytest.mark.parametrize("most", [17, 18])
def test_build_checkpointed_learner_warns_of_fewer_samples(
    caplog: pytest.LogCaptureFixture, journal: Journal, method: Method, most: int
) -> None:
    """The site has 18 samples. FedPC weighs no models by samples."""
    plain = method_agreement(method)
    averaging = plain.averaging.model_copy(update={"most_samples": most})
    with caplog.at_level(logging.WARNING):
        build_with_checkpoints(method_agreement(method, averaging=averaging), journal)
    said = [record.getMessage() for record in caplog.records]
    if method is Method.FEDPC or most == 18:
        assert not said
    else:
        assert len(said) == 1
        assert said[0].startswith("clinic-a: has 18 training samples and counts as 17 in every sum")


@pytest.mark.parametrize("method", [Method.PFPL, Method.FEDPROTO, Method.FEDPLCC])
def test_shortened_prototypes_are_logged_once_a_round(
    caplog: pytest.LogCaptureFixture, journal: Journal, method: Method
) -> None:
    site = build_with_checkpoints(method_agreement(method, norm_bound=0.01), journal)
    with caplog.at_level(logging.WARNING):
        for number in (1, 1, 2):
            site.train_round(number)
    first, second = [record.getMessage() for record in caplog.records]
    sent = len(site.values.local().labels) if method is Method.FEDPLCC else 3
    assert second.startswith(
        f"clinic-a, round 2: {sent} prototypes were longer than norm_bound = 0.01, the longest "
    )
    assert first.startswith("clinic-a, round 1: ")
