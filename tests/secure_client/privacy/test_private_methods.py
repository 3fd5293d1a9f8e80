"""Each method at a site with noise: which releases it pays for, what its own parts are taken of, what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agreement import (
    Agreement,
    AveragingSection,
    DpSgdSection,
    Extractor,
    FeddbpSection,
    FedplccSection,
    Method,
    PrivacySection,
    Protection,
)
from algorithms.fedplcc import GlobalClusters
from privacy.accounting.events import GaussianRelease
from privacy.ledger.budget_account import read_account
from privacy.ledger.lines import Entry
from protoseal.simulation.local_federation import LocalFederation
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.privacy.bounds import model_weight
from secure_client.privacy.cost import planned_epsilon, planned_history
from tests.conformance.federations import data_for, private_agreement
from tests.secure_client.privacy.paying_site import PayingSite
from tests.support.composed import epsilon
from tests.support.ledgers import spent_budget
from tests.support.replayed_noise import replayed_noise

CLASSES, DIM, SITE = 3, 8, "site-1"
PRIVACY = PrivacySection(
    clip=3.0, noise_multiplier=0.2, min_count=2.0, release_every=2, extractor=Extractor.TRAINED
)
PRIVATE = PRIVACY.model_copy(
    update={
        "extractor": Extractor.PRIVATE,
        "dp_sgd": DpSgdSection(noise_multiplier=1.0, clip=1.0, sampling_rate=0.5),
    }
)
SUMMED = (Method.FEDPC, Method.FEDDBP, Method.FEDPROTO, Method.FEDPLCC)


def agreed(method: Method, privacy: PrivacySection = PRIVACY, **changes: Any) -> Agreement:
    return private_agreement(
        Protection.PLAIN, method, classes=CLASSES, dim=DIM, rounds=4, privacy=privacy, **changes
    )


@contextmanager
def checkpointed_learner(agreement: Agreement, folder: Path) -> Iterator[CheckpointedLearner]:
    data = data_for(agreement, np.ones((3, CLASSES), dtype=np.bool_))[SITE]
    with PayingSite(folder, agreement, data, name=SITE, epsilon=800.0, allow_no_guarantee=True) as site:
        yield site.learner


def entries(folder: Path) -> tuple[Entry, ...]:
    return read_account(folder / "ledger.jsonl").entries


# What is paid for


@pytest.mark.parametrize("method", SUMMED)
def test_run_with_private_features_pays_the_plan(method: Method, tmp_path: Path) -> None:
    """Training in each of four rounds, releases in two, and one before them where sites are clustered."""
    agreement = agreed(method, PRIVATE)
    data = data_for(agreement, np.ones((3, CLASSES), dtype=np.bool_))
    with LocalFederation(agreement, data, state=tmp_path) as federation:
        federation.run()
    for site in data:
        spent = [each.spending for each in entries(tmp_path / "sites" / site)]
        trained = [each.release.round for each in spent if each.release.what == "training"]
        released = [each.release.round for each in spent if each.release.what == "prototypes"]
        assert trained == [1, 2, 3, 4]
        assert released == ([0, 1, 3] if method is Method.FEDPC else [1, 3])
        assert len(spent) == len(planned_history(agreement, PRIVATE))
        assert {each.facts["guarantee"] for each in spent} == {"record"}


@pytest.mark.parametrize("method", SUMMED)
def test_site_without_a_release_has_no_prototypes(method: Method, tmp_path: Path) -> None:
    """Round 2 repeats the sum of round 1, which the site missed. Its model takes part."""
    for _ in range(2):  # the second time from the journal
        with checkpointed_learner(agreed(method), tmp_path) as learner:
            rows, counts = learner.train_round(2)
            made = (rows, counts, learner.values.held_classes())
            assert not any(values.any() for values in made)
            if method is Method.FEDPLCC:
                assert len(learner.values.local().labels) == 0
            assert learner.values.require_last().released == 2
            assert learner.predictor.evaluate() is not None
    assert not entries(tmp_path)


def test_release_of_few_cells_costs_the_agreed_number(tmp_path: Path) -> None:
    """The number of cells follows from a decryption under ``ckks``: neither cost nor line may depend on it."""
    section = FedplccSection(most_clusters=5, most_prototypes=5)
    agreement = agreed(Method.FEDPLCC, fedplcc=section)
    most = CLASSES * 5 * (DIM + 1)
    assert planned_history(agreement, PRIVACY) == [GaussianRelease(PRIVACY.noise_multiplier, most)] * 2
    with checkpointed_learner(agreement, tmp_path) as learner:
        for number, of_class in ((1, 0), (3, 5)):
            if of_class:
                take_centres(learner, of_class)
            learner.train_round(number)
        first, second = (each.spending for each in entries(tmp_path))
        assert [first.event, second.event] == planned_history(agreement, PRIVACY)
        assert first.facts == second.facts
        assert spent_budget(learner).epsilon == planned_epsilon(agreement, PRIVACY, 1e-5)
        fewest = GaussianRelease(PRIVACY.noise_multiplier, CLASSES * (DIM + 1))
        assert spent_budget(learner).epsilon >= epsilon([fewest] * 2, 1e-5)
        take_centres(learner, 6)
        with pytest.raises(ValueError, match="18"):
            learner.train_round(5)
        assert len(entries(tmp_path)) == 2


def take_centres(learner: CheckpointedLearner, of_class: int, around: Sequence[torch.Tensor] = ()) -> None:
    """Take a result of round 2 with so many centres of each class, at the first of its six records if given."""
    count = CLASSES * of_class
    labels = np.repeat(np.arange(CLASSES, dtype=np.int64), of_class)
    rows = np.random.default_rng(of_class).uniform(0.1, 1.0, (count, DIM))
    if around:
        features = torch.cat(list(around)).double().numpy()
        rows = np.concatenate([features[6 * k : 6 * k + of_class] for k in range(CLASSES)])
    clusters = GlobalClusters(rows, labels, np.full(count, 1.0 / of_class))
    learner.received.take_clusters(2, bytes(32), clusters, learner.values.averaged_part())


# FedPLCC's cells


def test_cells_are_around_the_centres_of_training(tmp_path: Path) -> None:
    """The noise is the same each time, since chance decides how many of twelve cells of one record it leaves."""
    agreement = agreed(Method.FEDPLCC, PRIVACY.model_copy(update={"min_count": 0.5}))
    with replayed_noise(), checkpointed_learner(agreement, tmp_path) as learner:
        learner.train_round(1)
        assert learner.values.local().labels.tolist() == [0, 1, 2]
        take_centres(learner, 4, around=[given for given, _ in learner._learner.embed()])
        learner.train_round(3)
        local = learner.values.local()
        assert len(local.labels) > CLASSES
        assert np.bincount(local.labels).max() <= 4
        counts = np.bincount(local.labels, weights=local.counts)
        np.testing.assert_array_equal(learner.train_round(3)[1], counts)


def test_restart_and_round_in_between_keep_the_prototypes(tmp_path: Path) -> None:
    """Though what they are nearest to has changed since."""
    agreement = agreed(Method.FEDPLCC)
    with checkpointed_learner(agreement, tmp_path) as learner:
        learner.train_round(1)
        before = learner.values.local()
        take_centres(learner, 4)
    with checkpointed_learner(agreement, tmp_path) as learner:
        learner.train_round(2)
        for name, kept in vars(before).items():
            np.testing.assert_array_equal(vars(learner.values.local())[name], kept)
    with checkpointed_learner(agreement, tmp_path) as learner:
        learner.train_round(2)
        np.testing.assert_array_equal(learner.values.local().rows, before.rows)
    assert len(entries(tmp_path)) == 1


def test_site_without_classes_weighs_one(tmp_path: Path) -> None:
    """The site has no class by noisy counts: a sum over weights of 0 would have no mean."""
    absent = PRIVACY.model_copy(update={"min_count": 1e6})
    agreement = agreed(Method.FEDPLCC, absent)
    data = data_for(agreement, np.ones((3, CLASSES), dtype=np.bool_))
    with LocalFederation(agreement, data) as federation:
        federation.run()
        for site in federation.sites:
            assert len(site.learner.values.local().rows) == 0
            assert not site.learner.values.held_classes().any()


def test_warnings_state_no_exact_number_of_samples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agreement = agreed(Method.FEDPLCC)
    averaging = agreement.averaging.model_copy(update={"most_samples": 5})
    with checkpointed_learner(agreement.model_copy(update={"averaging": averaging}), tmp_path) as learner:
        _, counts = learner.train_round(1)
        assert model_weight(counts, 5) == 5
    assert "most_samples" not in caplog.text


# FedDBP's scores


def test_scores_are_at_the_released_prototypes(tmp_path: Path) -> None:
    """(∂ log p(k|P^k)/∂z_j)², worked out by hand for a linear classifier: ((e_k − p)·W)_j².

    With the same noise each time: how far scores at a noisy row are from those over records is chance.
    """
    with replayed_noise(), checkpointed_learner(agreed(Method.FEDDBP), tmp_path) as learner:
        rows, _ = learner.train_round(1)
        head = learner._learner.predictor.classifier
        assert isinstance(head, torch.nn.Linear)
        weight, bias = head.weight.detach().double(), head.bias.detach().double()
        at = torch.from_numpy(rows).float().double()
        wrong = torch.eye(CLASSES).double() - torch.softmax(at @ weight.T + bias, dim=1)
        expected = (wrong @ weight).square().numpy()
        np.testing.assert_allclose(learner.values.scores(), expected, rtol=1e-4, atol=1e-9)
        over_records = learner._learner.scores(learner._learner.embed())
        assert over_records is not None
        assert np.abs(over_records - expected).max() > 0.05 * np.abs(expected).max()


def test_absent_class_has_scores_of_zero(tmp_path: Path) -> None:
    with checkpointed_learner(
        agreed(Method.FEDDBP, PRIVACY.model_copy(update={"min_count": 1e6})), tmp_path
    ) as learner:
        learner.train_round(1)
        assert not learner.values.scores().any()


# Features that nothing has shaped


@pytest.mark.parametrize("model", ["of_instances", "moving_average", "tied"])
def test_averaged_parameters_of_frozen_features_stay_initial(tmp_path: Path, model: str) -> None:
    """The parameters stay initial whatever moves in training, and whatever result came back."""
    frozen = PRIVACY.model_copy(update={"extractor": Extractor.FROZEN, "release_every": 1})
    agreement = agreed(Method.FEDPC, frozen)
    training = agreement.training.model_copy(
        update={"model": f"tests.secure_client.privacy.moving_models:{model}"}
    )
    parameters, buffers = sizes_of(model)
    averaging = AveragingSection(parameters=parameters, buffers=buffers)
    agreement = agreement.model_copy(update={"training": training, "averaging": averaging})
    with checkpointed_learner(agreement, tmp_path) as learner:
        before = learner.values.averaged_part()
        learner.train_round(1)
        np.testing.assert_array_equal(learner.values.averaged_part(), before)
        learner.received.take_base(
            1, bytes(32), np.zeros((CLASSES, DIM)), np.zeros(CLASSES, np.bool_), before + 1.0
        )
        learner.train_round(2)
        np.testing.assert_array_equal(learner.values.averaged_part(), before)
        moved = learner._learner._averaged.vector()
        assert np.abs(moved - before).max() > 1e-6


def sizes_of(model: str) -> tuple[int, int]:
    """Return the sizes of the parts outside the classifier: weights and biases of a layer, and moving buffers."""
    layer = 64 * DIM + DIM
    return layer, {"of_instances": 2, "moving_average": 1, "tied": 0}[model]


# What is refused


def test_frozen_features_with_an_averaged_classifier_are_refused() -> None:
    with pytest.raises(ValueError, match="fedplcc"):
        agreed(Method.FEDPLCC, PRIVACY.model_copy(update={"extractor": Extractor.FROZEN}))


def test_frozen_features_with_an_untrained_predicting_branch_are_refused() -> None:
    frozen = PRIVACY.model_copy(update={"extractor": Extractor.FROZEN})
    with pytest.raises(ValueError, match="decision"):
        agreed(Method.FEDDBP, frozen)
    agreed(Method.FEDDBP, frozen, feddbp=FeddbpSection(decision=False))


@pytest.mark.parametrize("method", [Method.FEDPC, Method.FEDPLCC])
def test_averaged_buffers_are_refused(method: Method) -> None:
    agreement = agreed(method)
    averaging = agreement.averaging.model_copy(update={"buffers": 2})
    with pytest.raises(ValueError, match="buffers"):
        agreement.model_copy(update={"averaging": averaging}).check_served(method)


def test_more_clusters_than_prototypes_are_refused() -> None:
    with pytest.raises(ValueError, match="most_prototypes"):
        agreed(Method.FEDPLCC, fedplcc=FedplccSection(most_clusters=16, most_prototypes=15))
