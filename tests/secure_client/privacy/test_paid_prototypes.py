"""A site whose prototypes are noisy: what leaves it is what it paid for, and stays the same until the next release."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from agreement import Agreement, Extractor, PrivacySection
from crypto.keys import StorageKey
from privacy.errors import BudgetError, RolledBackError
from privacy.mechanisms.prototype_query import Released
from secure_client.checkpoints.learner_factory import build_checkpointed_learner, check_frozen
from secure_client.errors import ModelError
from secure_client.models.prototype_model import PrototypeModel
from secure_client.output.site_files import read_prototypes
from secure_client.privacy.budget import BudgetSection
from secure_client.privacy.releases import Releases, open_releases
from secure_client.protocol.journal import Journal
from secure_client.training.evaluation import evaluate_outputs
from secure_client.training.learner import Learner
from tests.secure_client.privacy.paying_site import SITE, PayingSite, make_bare_learner
from tests.support.ledgers import spent_budget
from tests.support.small import small_agreement

PRIVACY = PrivacySection(clip=2.0, noise_multiplier=0.5, release_every=2, min_count=1.0)
"""Noise for six records a class: a noisy count below one is five deviations away, and three at once never happen."""


def agreement(**changes: Any) -> Agreement:
    return small_agreement(rounds=6).model_copy(
        update={"privacy": PRIVACY.model_copy(update=changes), "norm_bound": 50.0}
    )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PayingSite]:
    made = PayingSite(tmp_path, agreement())
    yield made
    made.journal.close()


def test_train_round_sends_noisy_and_paid_prototypes(site: PayingSite) -> None:
    rows, _ = site.learner.train_round(1)
    exact, _ = site.bare_learner.prototypes()
    held = site.learner.values.held_classes()
    assert (np.abs(rows - exact)[held] > 1e-3).any()
    assert [each.spending.release.round for each in site.entries] == [1]


def test_train_round_release_serves_its_rounds_and_attempts(site: PayingSite) -> None:
    first, _ = site.learner.train_round(1)
    for number in (1, 2):
        again, _ = site.learner.train_round(number)
        np.testing.assert_array_equal(again, first)
    third, _ = site.learner.train_round(3)
    assert not np.array_equal(third, first)
    assert [each.spending.release.round for each in site.entries] == [1, 3]


def test_restart_sends_the_same_and_pays_nothing(site: PayingSite) -> None:
    for number in (1, 2):
        rows, _ = site.learner.train_round(number)
        held, spent = site.learner.values.held_classes(), spent_budget(site.learner)
        site.restart()
        again, _ = site.learner.train_round(number)
        np.testing.assert_array_equal(again, rows)
        np.testing.assert_array_equal(site.learner.values.held_classes(), held)
        assert spent_budget(site.learner) == spent
    site.restart()
    np.testing.assert_array_equal(site.learner.train_round(2)[0], rows)
    assert len(site.entries) == 1


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Released]:
    """Return a list that gets every draw of the test's releases."""
    every: list[Released] = []
    release = Releases.release

    def kept(releases: Releases, *given: Any) -> Released:
        every.append(release(releases, *given))
        return every[-1]

    monkeypatch.setattr(Releases, "release", kept)
    return every


def test_frozen_features_average_their_releases_over_restarts(
    site: PayingSite, drawn: list[Released]
) -> None:
    for number in (1, 3, 5):
        rows, counts = site.learner.train_round(number)
        sums = np.mean([draw.sums for draw in drawn], axis=0)
        numbers = np.mean([draw.counts for draw in drawn], axis=0)
        present = numbers >= 1.0
        np.testing.assert_allclose(rows[present], sums[present] / numbers[present, None])
        np.testing.assert_array_equal(counts[present], np.maximum(np.rint(numbers[present]), 1.0))
        assert not counts[~present].any()
        site.restart()
    assert len(drawn) == 3


@pytest.mark.parametrize(
    "changes", [{"extractor": Extractor.TRAINED}, {"release_every": None}, {"release_every": 6}]
)
def test_trained_features_or_one_release_average_nothing(
    tmp_path: Path, drawn: list[Released], changes: dict[str, Any]
) -> None:
    site = PayingSite(tmp_path, agreement(**changes), allow_no_guarantee=True)
    for number in range(1, 7):
        rows, _ = site.learner.train_round(number)
        np.testing.assert_allclose(rows[drawn[-1].present], drawn[-1].rows[drawn[-1].present])
        site.restart()
    assert len(drawn) == (3 if "extractor" in changes else 1)
    site.journal.close()


def test_missed_release_leaves_no_prototypes_and_pays_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The period's other rounds send no prototypes. The next period has a release."""
    site = PayingSite(tmp_path, agreement(release_every=3))
    for number in (2, 3):
        rows, counts = site.learner.train_round(number)
        made = (rows, counts, site.learner.values.held_classes())
        assert not any(values.any() for values in made)
        site.restart()
    assert [name for name, _, text in caplog.record_tuples if "missed the round" in text] == [
        "protoseal.site"
    ]
    assert "before round 4" in caplog.text
    assert not site.entries
    site.learner.predictor.save(tmp_path / "out")
    assert not read_prototypes(tmp_path / "out").local.any()
    site.learner.train_round(4)
    assert site.learner.values.held_classes().any()
    assert [each.spending.release.round for each in site.entries] == [4]
    site.journal.close()


def test_killed_between_paying_and_storing_pays_again(
    site: PayingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost draw was paid for and not sent: the ledger shows more than what left, never less."""
    with monkeypatch.context() as dying:
        dying.setattr(site.journal, "put", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            site.learner.train_round(1)
    site.restart()
    site.learner.train_round(1)
    assert [each.spending.release.round for each in site.entries] == [1, 1]


def test_held_classes_follow_from_noisy_counts(tmp_path: Path) -> None:
    """The site has three classes and a threshold far above their counts, and so states none."""
    site = PayingSite(tmp_path, agreement(min_count=1e6))
    site.learner.train_round(1)
    assert not site.learner.values.held_classes().any()
    assert not site.learner.train_round(1)[0].any()
    site.journal.close()


def test_frozen_features_are_the_initial_models(site: PayingSite) -> None:
    initial = {name: value.clone() for name, value in site.bare_learner.predictor.state_dict().items()}
    for number in range(1, 4):
        site.learner.train_round(number)
    trained = site.bare_learner.predictor.state_dict()
    moved = {name for name, value in trained.items() if not torch.equal(value, initial[name])}
    assert moved
    assert all(name.startswith("classifier") for name in moved)


def test_trained_features_move(tmp_path: Path) -> None:
    """The power of the last."""
    agreed = agreement(extractor=Extractor.TRAINED)
    site = make_bare_learner(agreement())
    own = BudgetSection(
        dataset="scans", ledger=tmp_path / "ledger.jsonl", epsilon=100.0, allow_no_guarantee=True
    )
    with Journal(
        tmp_path / "journal.sqlite",
        run=agreed.run,
        agreement_hash=agreed.hash(),
        site=SITE,
        storage=StorageKey(bytes(32)),
    ) as journal:
        trained = make_bare_learner(agreed)
        learner = build_checkpointed_learner(agreed, trained, journal, open_releases(agreed, own))
        learner.train_round(1)
        spent = spent_budget(learner)
    assert spent is not None
    assert not spent.guaranteed
    initial = site.predictor.state_dict()
    moved = {
        name
        for name, value in trained.predictor.state_dict().items()
        if not torch.equal(value, initial[name])
    }
    assert any(not name.startswith("classifier") for name in moved)


def test_batch_statistics_are_refused() -> None:
    """Batch normalisation's move with every record, whatever is frozen."""
    agreed = agreement().model_copy(
        update={
            "training": agreement().training.model_copy(
                update={"model": "tests.support.tiny_models:build_normed"}
            ),
        }
    )
    with pytest.raises(ModelError, match="norm"):
        make_bare_learner(agreed)


class ClassifierAsMethod(PrototypeModel):
    def features(self, inputs: Tensor) -> Tensor:
        return inputs

    def classifier(self, features: Tensor) -> Tensor:  # type: ignore[override]
        return features


def test_frozen_extractor_without_a_classifier_module_is_refused() -> None:
    with pytest.raises(ModelError, match="classifier"):
        check_frozen(agreement(), ClassifierAsMethod())
    check_frozen(agreement(extractor=Extractor.TRAINED), ClassifierAsMethod())


def test_refused_release_leaves_nothing_to_send(
    site: PayingSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the first time nor when it is asked again, nor after a restart."""
    with monkeypatch.context() as refusing:
        refusing.setattr(Releases, "release", _refused)
        for _ in range(2):
            with pytest.raises(BudgetError):
                site.learner.train_round(1)
            with pytest.raises(RuntimeError):
                site.learner.values.held_classes()
            with pytest.raises(RuntimeError):
                site.learner.values.latest()
    first, _ = site.learner.train_round(1)
    with monkeypatch.context() as refusing:
        refusing.setattr(Releases, "release", _refused)
        for _ in range(2):
            with pytest.raises(BudgetError):
                site.learner.train_round(3)
    site.restart()
    np.testing.assert_array_equal(site.learner.train_round(2)[0], first)


def _refused(*_: object) -> None:
    raise BudgetError("no")


def test_build_learner_with_noise_without_releases_is_refused(site: PayingSite) -> None:
    with pytest.raises(BudgetError):
        build_checkpointed_learner(agreement(), site.bare_learner, site.journal)


@pytest.mark.parametrize("model", ["of_instances", "moving_average", "tied"])
def test_frozen_features_hold_by_construction(tmp_path: Path, model: str) -> None:
    """Models whose features move although only the classifier trains: by statistics, buffers, and a weight of both."""
    agreed = agreement(release_every=1)
    training = agreed.training.model_copy(
        update={"model": f"tests.secure_client.privacy.moving_models:{model}"}
    )
    site = PayingSite(tmp_path, agreed.model_copy(update={"training": training}))
    before = features(site.bare_learner)
    site.learner.train_round(1)
    np.testing.assert_array_equal(features(site.bare_learner), before)
    moved = [
        given.features for given, _ in evaluate_outputs(site.bare_learner.predictor, site.bare_learner._train)
    ]
    assert np.abs(np.concatenate([each.numpy() for each in moved]) - before).max() > 1e-6
    site.restart()
    np.testing.assert_array_equal(features(site.bare_learner), before)
    site.journal.close()


def features(learner: Learner) -> NDArray[np.float32]:
    return np.concatenate([given.numpy() for given, _ in learner.embed()])


@pytest.mark.parametrize("lost", ["removed", "older"])
def test_restart_with_an_older_ledger_is_refused(site: PayingSite, lost: str) -> None:
    ledger = site.ledger
    site.learner.train_round(1)
    kept = ledger.read_bytes()
    site.learner.train_round(3)
    ledger.unlink()
    if lost == "older":
        ledger.write_bytes(kept)
    with pytest.raises(RolledBackError):
        site.restart()


def test_saved_counts_are_the_noisy_ones(tmp_path: Path) -> None:
    site = PayingSite(tmp_path, agreement(min_count=1e6))
    site.learner.train_round(1)
    site.learner.predictor.save(tmp_path)
    assert not read_prototypes(tmp_path).counts.any()
    site.journal.close()


def test_released_rows_beyond_the_norm_bound_are_shortened(tmp_path: Path) -> None:
    site = PayingSite(tmp_path, agreement().model_copy(update={"norm_bound": 0.25}))
    rows, _ = site.learner.train_round(1)
    assert np.linalg.norm(rows, axis=1).max() == pytest.approx(0.25)
