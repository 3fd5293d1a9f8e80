"""A record's features, where they are private, are the same whatever other records there are, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from agreement import DpSgdSection, Extractor, Method, Norm, PrivacySection, Protection
from agreement.registry.recipe import Recipe
from secure_client.data import SiteData
from secure_client.models.prototype_model import PrototypeModel, SplitModel, build_model
from secure_client.training import learner
from secure_client.training.evaluation import EVALUATION_BATCH
from secure_client.training.job import Schedule
from secure_client.training.learner import Learner
from secure_client.training.recipes import build_recipe
from tests.conformance.federations import PRIVACY, private_agreement

CLASSES, DIM, SIZE = 3, 8, 16
COUNT = EVALUATION_BATCH + 1
"""The last batch is of one record, unless one is taken away."""
FROZEN = PRIVACY.model_copy(update={"extractor": Extractor.FROZEN})
PRIVATE = PRIVACY.model_copy(
    update={
        "extractor": Extractor.PRIVATE,
        "dp_sgd": DpSgdSection(noise_multiplier=1.0, clip=1.0, sampling_rate=0.5),
    }
)
INPUTS = torch.randn(COUNT, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(2))


def recipe(privacy: PrivacySection) -> Recipe:
    return build_recipe(
        private_agreement(
            Protection.PLAIN, Method.FEDPROTO, classes=CLASSES, dim=DIM, rounds=1, privacy=privacy
        )
    )


def network(spec: str) -> PrototypeModel:
    return build_model(spec, classes=CLASSES, dim=DIM, channels=1, image_size=SIZE, seed=0, norm=Norm.GROUP)


def features(privacy: PrivacySection, spec: str, inputs: torch.Tensor) -> NDArray[np.float32]:
    labels = torch.arange(len(inputs)) % CLASSES
    made = Learner(
        network(spec),
        SiteData(TensorDataset(inputs, labels), None),
        recipe(privacy),
        Schedule(lr=0.1, momentum=0.0, weight_decay=0.0, batch_size=8, local_epochs=1),
        site="a",
        seed=0,
        classes=CLASSES,
        dim=DIM,
        device=torch.device("cpu"),
    )
    return np.concatenate([each.numpy() for each, _ in made.embed()])


@pytest.mark.parametrize("spec", ["small-cnn", "fedpc-cnn", "scatternet"])
@pytest.mark.parametrize("privacy", [FROZEN, PRIVATE], ids=["frozen", "private"])
def test_features_do_not_depend_on_other_records(spec: str, privacy: PrivacySection) -> None:
    """The last is alone in its batch, or not; the others move up by one; or there are a few alone."""
    whole = features(privacy, spec, INPUTS)
    np.testing.assert_array_equal(features(privacy, spec, INPUTS[1:]), whole[1:])
    np.testing.assert_array_equal(features(privacy, spec, INPUTS[-3:]), whole[-3:])
    np.testing.assert_array_equal(features(privacy, spec, INPUTS[-1:]), whole[-1:])


def test_padding_removes_rounding_by_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few processors have such kernels for networks as small as these, so the kernel is a double."""
    given = SplitModel.features
    monkeypatch.setattr(learner, "check_batch_independence", lambda *_: None)  # it would refuse the double
    monkeypatch.setattr(
        SplitModel, "features", lambda model, inputs: given(model, inputs) * (1 + 1e-3 / len(inputs))
    )

    def last_apart(privacy: PrivacySection) -> float:
        whole = features(privacy, "small-cnn", INPUTS)
        return float(np.abs(features(privacy, "small-cnn", INPUTS[1:]) - whole[1:]).max())

    assert last_apart(FROZEN) == 0.0
    assert last_apart(PRIVACY) > 0.0  # features that are not private are not filled
