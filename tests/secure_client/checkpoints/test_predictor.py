"""Predictor that a site saves under each method that sums, and the part of it that a restart restores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from agreement import Agreement, FedpcSection, Method, ModelPart, Predicts
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.learner_factory import (
    build_agreed_model,
    build_checkpointed_learner,
    build_learner,
)
from secure_client.data import SiteData
from secure_client.models.prototype_model import PrototypeModel
from secure_client.output.site_files import MODEL, read_prototypes
from secure_client.training.averaged_parameters import AveragedPart
from secure_client.training.evaluation import Evaluation
from tests.conformance.federations import data_for
from tests.secure_client.journals import journal_at
from tests.support.small import short_training
from tests.support.summed import PARTS, method_agreement

CLASSES, DIM = 3, 8
FIRST, SECOND = b"1" * 32, b"2" * 32
AGGREGATED = [Method.FEDAVG, Method.FEDPROX, Method.FEDBN, Method.FEDPROTO_AVERAGED]
TRAINED = [Method.FEDPC, Method.FEDPER, Method.FEDREP, Method.FEDPROTO, Method.FEDDBP]
METHODS = [*AGGREGATED, *TRAINED, Method.DITTO]


class Site:
    """A learner of a method, restarted as a new process would be: all that it has is in its journal."""

    def __init__(self, folder: Path, method: Method, **changes: Any) -> None:
        training = short_training("tests.support.tiny_models:build_normed", lr=0.05, local_epochs=4)
        self.agreement: Agreement = method_agreement(method, rounds=3, training=training, **changes)
        holds = np.ones((1, CLASSES), dtype=np.bool_)
        self.data: SiteData = data_for(self.agreement, holds)["site-1"]
        self._folder = folder
        self.method = method
        self._open()

    def _open(self) -> None:
        self.journal = journal_at(self._folder / "journal.sqlite")
        spec = self.agreement.training.model
        learner = build_learner(self.agreement, "a", self.data, model=spec, device="cpu")
        self.learner: CheckpointedLearner = build_checkpointed_learner(self.agreement, learner, self.journal)

    def restart(self) -> None:
        self.journal.close()
        torch.rand(5)
        self._open()

    def take(self, number: int, base: bytes) -> None:
        """Take a result after a round, of another site's making."""
        rng = np.random.default_rng(number)
        averaged = self.learner.values.averaged_part()
        moved = averaged + 0.2 * rng.normal(size=len(averaged)) * (averaged != 1.0)
        has = np.array([True, True, False])
        if not self.agreement.layout.classes:
            has[:] = False
        self.learner.received.take_base(number, base, rng.random((CLASSES, DIM)), has, np.abs(moved))

    def model(self, state: dict[str, Tensor]) -> PrototypeModel:
        model = build_agreed_model(self.agreement, self.agreement.training.model)
        model.load_state_dict(state)
        return model.eval()

    def saved(self) -> dict[str, Tensor]:
        self.learner.predictor.save(self._folder)
        return safetensors.torch.load_file(self._folder / MODEL)

    def accuracy(self, model: PrototypeModel) -> float:
        """Return the classifier's accuracy on the site's test set, a sample at a time."""
        dataset: Any = self.data.test
        right = 0
        for index in range(len(dataset)):
            inputs, label = dataset[index]
            with torch.no_grad():
                right += int(model.classifier(model.features(inputs[None])).argmax()) == int(label)
        return right / len(dataset)

    def evaluated(self) -> Evaluation:
        found = self.learner.predictor.evaluate()
        assert found is not None
        return found


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    made = Site(tmp_path, request.param)
    yield made
    made.journal.close()


def of_part(model: PrototypeModel, method: Method) -> NDArray[np.float64]:
    return AveragedPart(model, PARTS[method]).vector()


def own_state(site: Site) -> dict[str, Tensor]:
    """Return the state of the model as it was trained last."""
    state = site.learner._learner.state()
    return {name.removeprefix("averaged."): each for name, each in state.items() if "personal." not in name}


@pytest.mark.parametrize("site", AGGREGATED, indirect=True)
def test_save_fedavg_is_the_last_averaged_model(site: Site) -> None:
    """The parts that are not averaged are as the site trained them; the trained model's figures are kept apart."""
    method = site.method
    site.learner.train_round(1)
    before, trained = own_state(site), site.evaluated()
    assert trained.accuracy_trained is None
    site.take(1, FIRST)
    model, base = site.model(site.saved()), site.learner.received.base
    assert base is not None
    np.testing.assert_allclose(of_part(model, method), base.averaged, rtol=1e-6)
    evaluated = site.evaluated()
    assert evaluated.accuracy_classifier == pytest.approx(site.accuracy(model))
    assert evaluated.accuracy_trained == trained.accuracy_classifier == site.accuracy(site.model(before))
    assert (evaluated.pm_v, evaluated.pm_l) == (trained.pm_v, trained.pm_l)
    assert evaluated.accuracy_classifier + 0.2 < trained.accuracy_classifier
    # Nor does it stay in the model: what comes next starts where it would have.
    after = own_state(site)
    assert all(torch.equal(each, after[name]) for name, each in before.items())


@pytest.mark.parametrize("predicts", Predicts)
def test_save_fedpc_has_the_agreed_extractor(tmp_path: Path, predicts: Predicts) -> None:
    """Its own as it was trained, or the one that came back; the classifier is its own in both."""
    site = Site(tmp_path, Method.FEDPC, fedpc=FedpcSection(predicts=predicts))
    site.learner.train_round(1)
    own = own_state(site)
    site.take(1, FIRST)
    saved, base = site.saved(), site.learner.received.base
    assert base is not None
    counted = "num_batches_tracked"  # stays at the site, and is read nowhere
    kept = {name for name in saved if torch.equal(saved[name], own[name]) and not name.endswith(counted)}
    trained = predicts is Predicts.TRAINED
    assert kept == {name for name in own if trained or name.startswith("classifier.")} - {
        f"backbone.2.{counted}"
    }
    extractor = of_part(site.model(saved), Method.FEDPC)
    assert np.allclose(extractor, base.averaged, rtol=1e-6) is not trained
    evaluated = site.evaluated()
    assert evaluated.accuracy_classifier == pytest.approx(site.accuracy(site.model(saved)))
    assert (evaluated.accuracy_trained is None) is trained
    site.journal.close()


@pytest.mark.parametrize("site", [Method.FEDBN], indirect=True)
def test_save_fedbn_keeps_its_norms(site: Site) -> None:
    site.learner.train_round(1)
    own = own_state(site)
    site.take(1, FIRST)
    saved = site.saved()
    kept = {name for name in saved if torch.equal(saved[name], own[name])}
    assert kept == {name for name in saved if name.startswith("backbone.2.")}
    assert len(kept) == 5


@pytest.mark.parametrize("site", TRAINED, indirect=True)
def test_save_pfpl_is_the_last_trained_model(site: Site) -> None:
    site.learner.train_round(1)
    own, accuracy = own_state(site), site.evaluated().accuracy_classifier
    site.take(1, FIRST)
    saved = site.saved()
    assert all(torch.equal(each, own[name]) for name, each in saved.items())
    assert site.evaluated().accuracy_classifier == accuracy == site.accuracy(site.model(saved))
    assert site.evaluated().accuracy_trained is None


@pytest.mark.parametrize("site", [Method.DITTO], indirect=True)
def test_save_ditto_is_the_second_model(site: Site) -> None:
    site.learner.train_round(1)
    first = site.saved()
    site.take(1, FIRST)
    again = site.saved()
    assert all(torch.equal(each, again[name]) for name, each in first.items())
    assert any(not torch.equal(each, again[name]) for name, each in own_state(site).items())
    assert site.evaluated().accuracy_classifier == site.accuracy(site.model(again))
    assert site.evaluated().accuracy_trained is None


def course(site: Site, restart_at: frozenset[int]) -> list[NDArray[np.float64]]:
    """Play three rounds with results between them, restarted after the named steps, and return the outcome."""
    seen: list[NDArray[np.float64]] = []
    for step in range(5):
        number = step // 2 + 1
        if step % 2:
            site.take(number, (FIRST, SECOND)[number - 1])
        else:
            rows, counts = site.learner.train_round(number)
            seen += [rows, counts.astype(np.float64), site.learner.values.averaged_part()]
        if step in restart_at:
            site.restart()
    seen += [each.double().numpy().ravel() for each in site.saved().values()]
    return seen


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("restart_at", [frozenset(range(5)), *(frozenset({step}) for step in range(5))])
def test_restart_after_steps_changes_no_bit(
    tmp_path: Path, method: Method, restart_at: frozenset[int]
) -> None:
    for name in ("steady", "restarted"):
        (tmp_path / name).mkdir()
    steady, restarted = Site(tmp_path / "steady", method), Site(tmp_path / "restarted", method)
    for first, second in zip(course(steady, frozenset()), course(restarted, restart_at), strict=True):
        np.testing.assert_array_equal(first, second)
    assert steady.evaluated() == restarted.evaluated()
    for name, array in vars(read_prototypes(tmp_path / "steady")).items():
        np.testing.assert_array_equal(array, vars(read_prototypes(tmp_path / "restarted"))[name])
    for each in (steady, restarted):
        each.journal.close()


@pytest.mark.parametrize("site", [Method.DITTO], indirect=True)
def test_restart_without_the_second_model_is_caught(site: Site) -> None:
    site.learner.train_round(1)
    site.take(1, FIRST)
    kept = site.saved()
    fresh = build_agreed_model(site.agreement, site.agreement.training.model).state_dict()
    assert any(not torch.equal(each, fresh[name]) for name, each in kept.items())


@pytest.mark.parametrize("site", [Method.FEDDBP], indirect=True)
def test_scores_of_the_last_training_survive_a_restart(site: Site) -> None:
    with pytest.raises(RuntimeError, match="scores"):
        site.learner.values.scores()
    site.learner.train_round(1)
    first = site.learner.values.scores()
    assert first.shape == (CLASSES, DIM)
    assert (first >= 0.0).all()
    assert first.any(axis=1).all()
    site.restart()
    np.testing.assert_array_equal(site.learner.values.scores(), first)
    site.take(1, FIRST)
    site.learner.train_round(2)
    assert (site.learner.values.scores() != first).any()


@pytest.mark.parametrize("site", [Method.FEDPROTO], indirect=True)
def test_scores_of_other_methods_are_refused(site: Site) -> None:
    site.learner.train_round(1)
    with pytest.raises(RuntimeError, match="scores"):
        site.learner.values.scores()


def test_every_part_is_tested() -> None:
    assert {PARTS[method] for method in METHODS} == set(ModelPart)
