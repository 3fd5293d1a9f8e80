"""A site's trained model, prototypes and base: trained once a round, and after a restart bit for bit the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from agreement import Optimiser
from agreement.registry.recipe import Recipe
from algorithms.gram_matrix import Float
from algorithms.losses import Terms
from algorithms.method_losses import FedpcLoss
from algorithms.prototypes import Targets
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.data import SiteData
from secure_client.models.prototype_model import SplitModel
from secure_client.output.site_files import MODEL, PROTOTYPES
from secure_client.privacy.bounds import PrototypeBounds
from secure_client.training.job import Job, Schedule
from secure_client.training.learner import Learner
from tests.secure_client.journals import journal_at
from tests.support.power_cut import PowerCut

CLASSES, DIM, BOUND = 3, 6, 2.0
FIRST, SECOND = b"1" * 32, b"2" * 32


def digits(start: int, stop: int) -> TensorDataset:
    scans = load_digits()
    chosen = np.flatnonzero(scans.target < CLASSES)[start:stop]
    images = torch.tensor(scans.images[chosen] / 16, dtype=torch.float32)
    return TensorDataset(images.flatten(1), torch.tensor(scans.target[chosen]))


def make_learner(*, relu: bool = True) -> Learner:
    """Make a learner with batch normalisation, for its buffers, and Adam, whose state must not outlive a round."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        last = nn.ReLU() if relu else nn.Identity()
        backbone = nn.Sequential(nn.Linear(64, DIM), nn.BatchNorm1d(DIM), last)
        model = SplitModel(backbone, nn.Linear(DIM, CLASSES))
    return Learner(
        model,
        SiteData(digits(0, 40), digits(40, 60)),
        Recipe(FedpcLoss(0.5)),
        Schedule(0.01, 0.9, 0.0, batch_size=8, local_epochs=1, optimiser=Optimiser.ADAM),
        site="a",
        seed=3,
        classes=CLASSES,
        dim=DIM,
        device=torch.device("cpu"),
    )


class Site:
    """A learner that can be restarted: a new process would build the same learner and open the same journal."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._path = folder / "journal.sqlite"
        self._settings = settings
        self.open()

    def open(self) -> None:
        self.journal = journal_at(self._path)
        bound, relu = self._settings.get("bound", BOUND), self._settings.get("relu", True)
        clip = self._settings.get("clip", True)
        self.learner = CheckpointedLearner(
            make_learner(relu=relu), self.journal, PrototypeBounds(bound, clip), noisy=None
        )

    def restart(self) -> None:
        self.journal.close()
        torch.rand(7)  # another process has drawn other numbers
        self.open()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.journal.close()


def size() -> int:
    return sum(make_learner().averaged_sizes)


def a_base(seed: int) -> tuple[Float, np.ndarray[Any, np.dtype[np.bool_]], Float]:
    """Return rows, their presence, and an averaged part near the initial one."""
    rng = np.random.default_rng(seed)
    initial = make_learner().averaged_vector()
    return (
        rng.random((CLASSES, DIM)),
        np.array([True, True, False]),
        initial + 0.01 * rng.random(len(initial)),
    )


def contribution(learner: CheckpointedLearner, round_number: int) -> list[Float]:
    rows, counts = learner.train_round(round_number)
    return [rows, counts.astype(np.float64), learner.values.averaged_part()]


def equal(first: list[Float], second: list[Float]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_train_round_0_is_the_initial_model(site: Site) -> None:
    learner = make_learner()
    expected, counts = learner.prototypes()
    rows, got = site.learner.train_round(0)
    np.testing.assert_allclose(rows, expected)  # none is negative or beyond the bound here
    assert np.array_equal(got, counts)
    assert np.array_equal(site.learner.values.averaged_part(), learner.averaged_vector())
    assert not site.learner.values.has_trained
    assert site.learner.values.held_classes().all()
    assert site.learner.received.base_hash == b""


def test_train_round_again_trains_nothing(site: Site) -> None:
    before = contribution(site.learner, 0)
    first = contribution(site.learner, 1)
    assert not equal(before, first)
    assert equal(first, contribution(site.learner, 1))
    assert site.learner.values.has_trained


def test_train_round_starts_from_the_base_with_the_own_classifier(site: Site) -> None:
    """Replayed by hand on a bare learner: own classifier of round 1, the group's extractor, the group's targets."""
    site.learner.train_round(1)
    rows, has, averaged = a_base(1)
    site.learner.received.take_base(1, FIRST, rows, has, averaged)
    assert site.learner.received.base_hash == FIRST
    got = contribution(site.learner, 2)

    by_hand, targets = make_learner(), site.learner.received.base
    assert targets is not None
    by_hand.train(1, None)
    by_hand.load_averaged(averaged)
    by_hand.train(2, targets.guide())
    assert np.array_equal(got[2], by_hand.averaged_vector())
    np.testing.assert_array_equal(got[0], np.maximum(by_hand.prototypes()[0], 0.0))

    unaligned = make_learner()
    unaligned.train(1, None)
    unaligned.load_averaged(averaged)
    unaligned.train(2, None)
    assert not np.array_equal(got[2], unaligned.averaged_vector())


def test_run_failing_job_ends_no_later_job(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site with a model of its own trains two models in a round."""
    passes: list[bool] = []

    def failing(*_: object) -> Terms:
        passes.append(True)
        raise RuntimeError("out of memory")

    def two_jobs(number: int) -> list[Job]:
        return [replace(job, objective=failing) for job in 2 * jobs(number)]

    jobs = site.learner.jobs
    monkeypatch.setattr(site.learner, "jobs", two_jobs)
    site.learner.train_round(1)
    assert len(passes) == 2 * 5  # batches of 8 of 40 records
    assert site.learner.values.require_last().losses is None


def test_finish_without_losses_restores_the_model_of_the_rounds_start(site: Site) -> None:
    site.learner.begin(1)
    start = site.learner.values.averaged_part()
    assert site.learner.run(1) is not None
    assert not np.array_equal(site.learner.values.averaged_part(), start)
    site.learner.finish(1, None)
    np.testing.assert_array_equal(site.learner.values.averaged_part(), start)
    site.restart()
    np.testing.assert_array_equal(site.learner.values.averaged_part(), start)
    assert site.learner.values.require_last().losses is None


def test_take_base_changes_neither_model_nor_values(site: Site) -> None:
    """The model as trained is evaluated, saved and contributed to this round."""
    before, accuracy = contribution(site.learner, 1), site.learner.predictor.evaluate()
    site.learner.received.take_base(1, FIRST, *a_base(1))
    assert equal(before, contribution(site.learner, 1))
    after = site.learner.predictor.evaluate()
    assert accuracy is not None
    assert after is not None
    assert (after.accuracy_classifier, after.pm_l) == (accuracy.accuracy_classifier, accuracy.pm_l)
    assert after.accuracy_prototype is not None


def test_save_outlasts_a_power_cut(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.learner.train_round(1)
    disk = PowerCut(tmp_path, monkeypatch)
    site.learner.predictor.save(tmp_path / "out")
    for name in (MODEL, PROTOTYPES):
        path = tmp_path / "out" / name
        assert disk.left(path) == path.read_bytes()
    assert not disk.moved_early


@pytest.mark.parametrize("restarted", [False, True])
def test_train_round_from_another_base_is_repeated(site: Site, restarted: bool) -> None:
    """A coordinator that gives one base, fails the attempt and then gives another gets no part of the first.

    Else sites that trained from different models could state the same base, and their masks would cancel.
    """
    site.learner.train_round(1)
    site.learner.received.take_base(1, FIRST, *a_base(1))
    from_first = contribution(site.learner, 2)
    site.learner.received.take_base(1, SECOND, *a_base(2))  # a catch-up as round 2 starts again
    if restarted:
        site.restart()
    from_second = contribution(site.learner, 2)
    assert not equal(from_first, from_second)
    by_hand = make_learner()
    by_hand.train(1, None)
    by_hand.load_averaged(a_base(1)[2])
    by_hand.train(2, site.learner.received.guide)
    assert not np.array_equal(from_second[2], by_hand.averaged_vector())
    assert equal(from_second, contribution(site.learner, 2))


def test_train_round_without_discarding_would_leak_the_first_base(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The course of the test above, at a site that only asks whether it has trained in the round."""
    monkeypatch.setattr(
        CheckpointedLearner,
        "is_trained_for",
        lambda self, number: self.values.has_trained and self.values.require_last().round >= number,
    )
    site.learner.train_round(1)
    site.learner.received.take_base(1, FIRST, *a_base(1))
    from_first = contribution(site.learner, 2)
    site.learner.received.take_base(1, SECOND, *a_base(2))
    assert site.learner.received.base_hash == SECOND
    assert equal(from_first, contribution(site.learner, 2))


def test_take_targets_outlast_a_restart(site: Site) -> None:
    rows, present, _ = a_base(1)
    site.learner.received.take_targets(1, rows, present)
    site.restart()
    guide = site.learner.received.guide
    assert isinstance(guide, Targets)
    np.testing.assert_array_equal(guide.rows.numpy(), rows.astype(np.float32))
    np.testing.assert_array_equal(guide.present.numpy(), present)


def test_take_base_again_discards_nothing(site: Site) -> None:
    site.learner.train_round(1)
    site.learner.received.take_base(1, FIRST, *a_base(1))
    trained = contribution(site.learner, 2)
    site.learner.received.take_base(1, FIRST, *a_base(1))
    assert equal(trained, contribution(site.learner, 2))


def test_train_round_after_missed_rounds_trains_once(site: Site) -> None:
    site.learner.received.take_base(4, SECOND, *a_base(2))
    got = contribution(site.learner, 5)
    by_hand = make_learner()
    by_hand.load_averaged(a_base(2)[2])
    by_hand.train(5, site.learner.received.guide)
    assert np.array_equal(got[2], by_hand.averaged_vector())


@pytest.mark.parametrize("clip", [True, False])
def test_prototypes_are_clipped_at_zero_where_agreed(
    tmp_path: Path, clip: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Half the components are negative without a ReLU. Clipping comes before shortening, so that the bound holds."""
    site = Site(tmp_path, relu=False, clip=clip, bound=0.5)
    with caplog.at_level(logging.WARNING):
        rows, _ = site.learner.train_round(0)
    own, _ = make_learner(relu=False).prototypes()
    assert (own < 0).any()
    expected = np.maximum(own, 0.0) if clip else own
    norms = np.linalg.norm(expected, axis=1, keepdims=True)
    assert (norms > 0.5).any()
    np.testing.assert_allclose(rows, expected * np.minimum(1.0, 0.5 / norms))
    assert ("end the model's features with a ReLU" in caplog.text) is clip
    assert "longer than norm_bound" in caplog.text
    site.journal.close()


def test_shortened_counts_prototypes_beyond_the_bound(tmp_path: Path) -> None:
    own, _ = make_learner().prototypes()
    norms = np.linalg.norm(own, axis=1)
    longest = float(norms.max())
    assert (norms < longest).sum() == CLASSES - 1
    for at, (bound, share) in enumerate([(longest, 0.0), (0.999 * longest, 1 / CLASSES), (0.1, 1.0)]):
        folder = tmp_path / str(at)
        folder.mkdir()
        site = Site(folder, bound=bound)
        site.learner.train_round(0)
        assert site.learner.values.require_last().shortened_share == share
        site.restart()
        assert site.learner.values.require_last().shortened_share == share
        site.journal.close()


def test_warning_names_site_and_round_once_a_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(tmp_path, relu=False, bound=0.5)
    with caplog.at_level(logging.WARNING):
        for number in (1, 1, 2):
            site.learner.train_round(number)
    said = [record.getMessage() for record in caplog.records]
    for what in ("negative components", "longer than norm_bound"):
        (first, second) = [line for line in said if what in line]
        assert first.startswith("a, round 1: ")
        assert second.startswith("a, round 2: ")
    site.journal.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows, has, averaged: (rows[:2], has, averaged), "do not fit together"),
        (lambda rows, has, averaged: (rows * np.inf, has, averaged), "a target is not finite"),
        (lambda rows, has, averaged: (rows, has, averaged * np.nan), "not finite"),
        (lambda rows, has, averaged: (rows, has, averaged[1:]), "do not fit the averaged part"),
        (lambda rows, has, averaged: (rows, has, averaged[None]), "the averaged part, of shape"),
    ],
)
def test_take_base_of_another_shape_is_refused(site: Site, change: Any, message: str) -> None:
    site.learner.train_round(1)
    with pytest.raises(ValueError, match=message):
        site.learner.received.take_base(1, FIRST, *change(*a_base(1)))
    assert site.learner.received.base_hash == b""
    assert site.journal.get("base") is None
