"""Passes of a site's model over its training data beside training: only for figures that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from agreement import Method
from protoseal.simulation.tensors.federation import run_control
from secure_client.checkpoints.learner_factory import prototype_bounds
from secure_client.models.prototype_model import PrototypeModel
from secure_client.output.site_files import read_prototypes
from secure_client.training.batches import open_source
from secure_client.training.feature_pass import EmbeddedBatch, FeaturePass
from tests.secure_client.checkpoints.test_predictor import FIRST, Site
from tests.support.small import small_agreement, small_data
from tests.support.summed import method_agreement

pytestmark = pytest.mark.usefixtures("one_thread")

AGGREGATED = [Method.FEDAVG, Method.FEDPROX, Method.FEDBN]
OWN_HEAD = [Method.FEDPER, Method.FEDREP, Method.DITTO]
EXCHANGED = [*(Method.PFPL, Method.FEDPC, Method.FEDPROTO), *(Method.FEDDBP, Method.FEDPLCC, Method.FPL)]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return the number of passes over training data since the last call."""
    seen: list[FeaturePass] = []
    over = FeaturePass.embed

    def counted(self: FeaturePass, order: Iterable[int]) -> Iterator[EmbeddedBatch]:
        seen.append(self)
        return over(self, order)

    def since() -> int:
        number = len(seen)
        seen.clear()
        return number

    monkeypatch.setattr(FeaturePass, "embed", counted)
    return since


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    made = Site(tmp_path, request.param)
    yield made
    made.journal.close()


def within(site: Site, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows as the site holds them to the agreed bounds."""
    return prototype_bounds(site.agreement).bound(rows).rows


def course(site: Site) -> None:
    """Play two rounds of training, with a result between them."""
    site.learner.train_round(1)
    site.take(1, FIRST)
    site.learner.train_round(2)


@pytest.mark.parametrize("site", AGGREGATED, indirect=True)
def test_feature_passes_of_averages_are_for_saved_prototypes_alone(
    site: Site, passes: Callable[[], int], tmp_path: Path
) -> None:
    course(site)
    assert site.evaluated().accuracy_prototype is None
    assert passes() == 0
    site.learner.predictor.save(tmp_path)
    assert passes() == 1
    rows, counts = site.learner._learner.prototypes()
    saved = read_prototypes(tmp_path)
    np.testing.assert_array_equal(saved.local, within(site, rows))
    np.testing.assert_array_equal(saved.counts, counts)


@pytest.mark.parametrize("site", OWN_HEAD, indirect=True)
def test_feature_passes_of_a_test_by_prototype_are_one(site: Site, passes: Callable[[], int]) -> None:
    """Figures by the nearest of the site's own prototypes equal those with prototypes from training."""
    course(site)
    assert passes() == 0
    lazy = [site.evaluated(), site.evaluated()]
    assert passes() == 1
    own, held = site.learner.values.latest()
    site.restart()
    assert [site.evaluated(), site.evaluated()] == lazy
    assert lazy[0].accuracy_prototype is not None
    np.testing.assert_array_equal(site.learner.values.latest()[0], own)
    np.testing.assert_array_equal(within(site, site.learner._learner.prototypes()[0]), own)
    assert held.all()


@pytest.mark.parametrize("site", EXCHANGED, indirect=True)
def test_feature_passes_of_an_exchange_are_one(site: Site, passes: Callable[[], int]) -> None:
    """Prototypes, scores and clusters are those that a pass for each of them gives."""
    rows, counts = site.learner.train_round(1)
    assert passes() == 1
    learner = site.learner._learner
    apart, apart_counts = learner.prototypes()
    np.testing.assert_array_equal(rows, within(site, apart))
    np.testing.assert_array_equal(counts, apart_counts)
    scores, local = learner.scores(learner.embed()), learner.local_clusters(learner.embed())
    assert (scores is None) is (site.agreement.method is not Method.FEDDBP)
    assert (local is None) is (not site.agreement.clusters)
    if scores is not None:
        np.testing.assert_array_equal(site.learner.values.scores(), scores)
    if local is not None:
        bounded = replace(local, rows=within(site, local.rows)).without_zeros()
        for got, wanted in zip(astuple(site.learner.values.local()), astuple(bounded), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_feature_passes_of_controls_are_for_alignment_alone(passes: Callable[[], int]) -> None:
    agreement = method_agreement(Method.LOCAL)
    data = small_data(agreement)
    run_control(agreement, Method.LOCAL, data)
    assert passes() == 0
    run_control(small_agreement(rounds=2), Method.SELF, data)
    assert passes() == 2 * len(data)


class Spoilt(PrototypeModel):
    """The features are the inputs, which may not be finite."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(2, 2)

    def features(self, inputs: Tensor) -> Tensor:
        return inputs


def test_feature_pass_features_that_are_not_finite_count_as_zeros_of_their_label() -> None:
    inputs = torch.tensor([[1.0, 2.0], [float("nan"), 3.0], [float("inf"), 0.0], [5.0, 6.0]])
    labels = torch.tensor([0, 1, 0, 1])
    source = open_source(TensorDataset(inputs, labels), torch.device("cpu"))
    features = FeaturePass(Spoilt(), source, labels, dim=2, device=torch.device("cpu"), where="north")
    ((rows, given),) = features.embed(range(4))
    assert rows.tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0], [5.0, 6.0]]
    assert given.tolist() == labels.tolist()
    assert "sample 1" in features.warnings[0]
