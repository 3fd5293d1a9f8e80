"""A site that trains by DP-SGD: every training is paid for before it is done, and what is planned is what is spent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agreement import Agreement, DpSgdSection, Extractor, PrivacySection
from privacy.accounting.events import DpSgd
from privacy.errors import BudgetError, LedgerError
from privacy.ledger.ledger import Ledger
from protoseal_files import append_only_file
from secure_client.checkpoints import checkpointed_learner
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.models.prototype_model import hash_weights
from secure_client.privacy.budget import BudgetSection
from secure_client.privacy.cost import (
    SIMULATED_DELTA,
    planned_epsilon,
    planned_history,
    planned_in_words,
    simulated_budget,
)
from secure_client.privacy.releases import open_releases
from secure_client.training.dp_sgd import steps as dp_sgd
from secure_client.training.dp_sgd.mechanism import draw_noise
from secure_client.training.learner import Learner
from tests.secure_client.privacy.paying_site import PayingSite, make_bare_learner
from tests.support.composed import epsilon
from tests.support.ledgers import spent_budget
from tests.support.small import small_agreement

ROUNDS, EPOCHS = 4, 2
DP_SGD = DpSgdSection(noise_multiplier=2.0, clip=1.0, sampling_rate=0.3)
STEPS = math.ceil(EPOCHS / DP_SGD.sampling_rate)
PRIVACY = PrivacySection(
    clip=2.0,
    noise_multiplier=1.0,
    release_every=2,
    min_count=1.0,
    extractor=Extractor.PRIVATE,
    dp_sgd=DP_SGD,
)
TRAINING, PROTOTYPES = "training", "prototypes"


def agreement(**changes: Any) -> Agreement:
    agreed = small_agreement(rounds=ROUNDS)
    training = agreed.training.model_copy(update={"local_epochs": EPOCHS})
    privacy = PRIVACY.model_copy(update=changes)
    return agreed.model_copy(update={"privacy": privacy, "norm_bound": 50.0, "training": training})


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PayingSite]:
    made = PayingSite(tmp_path, agreement())
    yield made
    made.journal.close()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the drawn noise, in numbers a step, which shows the real training."""
    drawn: list[int] = []
    draw = draw_noise

    def watched(count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        drawn.append(count)
        return draw(count)

    monkeypatch.setattr(dp_sgd, "draw_noise", watched)
    return drawn


def paid_for(site: PayingSite) -> list[tuple[int, str]]:
    return [(entry.spending.release.round, entry.spending.release.what) for entry in site.entries]


def trained_and_paid(site: PayingSite, steps: list[int]) -> tuple[int, int]:
    events = [each.spending.event for each in site.entries]
    return len(steps), sum(each.steps for each in events if isinstance(each, DpSgd))


def test_every_round_is_paid_as_planned(site: PayingSite, steps: list[int]) -> None:
    for number in range(1, ROUNDS + 1):
        site.learner.train_round(number)
    assert paid_for(site) == [
        (1, TRAINING),
        (1, PROTOTYPES),
        (2, TRAINING),
        (3, TRAINING),
        (3, PROTOTYPES),
        (4, TRAINING),
    ]
    assert trained_and_paid(site, steps) == (ROUNDS * STEPS, ROUNDS * STEPS)
    spent = spent_budget(site.learner)
    assert spent is not None
    assert spent.guaranteed
    assert spent.epsilon == pytest.approx(planned_epsilon(site.agreed, PRIVACY, 1e-5), rel=1e-9)
    assert spent.epsilon < 100.0


def test_ledger_records_what_was_trained(site: PayingSite) -> None:
    initial = hash_weights(make_bare_learner(site.agreed).state())
    site.learner.train_round(1)
    training, release = (each.spending for each in site.entries)
    assert training.event == DpSgd(DP_SGD.noise_multiplier, DP_SGD.sampling_rate, STEPS)
    assert training.facts == {
        "clip": DP_SGD.clip,
        "extractor": "private",
        "guarantee": "record",
        "weights": initial,
    }
    assert release.facts["weights"] == initial
    assert release.facts["guarantee"] == "record"


def test_recorded_weights_are_the_initial_models_after_a_restart(site: PayingSite) -> None:
    site.learner.train_round(1)
    site.restart()
    site.learner.train_round(3)
    assert len({each.spending.facts["weights"] for each in site.entries}) == 1


@pytest.mark.parametrize("extractor", [Extractor.FROZEN, Extractor.TRAINED])
def test_recorded_weights_stand_also_without_dp_sgd(
    tmp_path: Path, extractor: Extractor, steps: list[int]
) -> None:
    site = PayingSite(tmp_path, agreement(extractor=extractor, dp_sgd=None))
    site.learner.train_round(1)
    assert paid_for(site) == [(1, PROTOTYPES)]
    assert site.entries[0].spending.facts["weights"] == hash_weights(make_bare_learner(site.agreed).state())
    assert not steps
    site.journal.close()


def test_recorded_weights_differ_for_another_start() -> None:
    first = agreement()
    other = first.model_copy(update={"training": first.training.model_copy(update={"init_seed": 1})})
    assert hash_weights(make_bare_learner(first).state()) == hash_weights(make_bare_learner(first).state())
    assert hash_weights(make_bare_learner(first).state()) != hash_weights(make_bare_learner(other).state())


def test_training_changes_the_whole_model_and_the_classifier(site: PayingSite) -> None:
    before = site.bare_learner.state()
    site.learner.train_round(1)
    moved = {
        name for name, value in site.bare_learner.state().items() if not torch.equal(value, before[name])
    }
    assert moved == set(before)


def test_round_0_costs_no_training(site: PayingSite, steps: list[int]) -> None:
    site.learner.begin(0)
    assert site.learner.jobs(0) == []
    assert paid_for(site) == []
    assert not steps


# Killed, refused, or without a disk


class KilledError(KeyboardInterrupt):
    """Stop as by a signal, which nothing catches."""


def kill(*_: object) -> None:
    raise KilledError


POINTS = {
    "before the ledger has it": (Ledger, "spend"),
    "once it is paid": (Learner, "jobs"),
    "in the first step": (dp_sgd, "poisson_sample"),
    "after training": (Learner, "embed"),
    "before it is kept": (CheckpointedLearner, "_save_model"),
}


@pytest.mark.parametrize("point", POINTS)
def test_killed_site_never_trained_more_than_was_paid(
    site: PayingSite, steps: list[int], point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between every two steps of spend, train, release and keep; and what the next start trains is paid again."""
    owner, name = POINTS[point]
    with monkeypatch.context() as dying:
        dying.setattr(owner, name, kill)
        with pytest.raises(KilledError):
            site.learner.train_round(1)
    trained, paid = trained_and_paid(site, steps)
    assert trained <= paid
    assert paid == (0 if point == "before the ledger has it" else STEPS)
    site.restart()
    site.learner.train_round(1)
    trained, paid = trained_and_paid(site, steps)
    assert trained <= paid
    assert paid == (STEPS if point == "before the ledger has it" else 2 * STEPS)
    site.restart()
    site.learner.train_round(1)
    assert trained_and_paid(site, steps) == (trained, paid)


def test_comparison_finds_training_paid_late(
    site: PayingSite, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power of the last: a site that pays at the end."""
    pay = site.learner.releases.pay_for_training  # type: ignore[union-attr]
    finish = CheckpointedLearner.finish

    def finished(learner: CheckpointedLearner, number: int, losses: Any) -> None:
        pay(number)
        finish(learner, number, losses)

    with monkeypatch.context() as changed:
        changed.setattr(site.learner.releases, "pay_for_training", lambda number: None)
        changed.setattr(CheckpointedLearner, "finish", finished)
        changed.setattr(checkpointed_learner, "run_job", _run_and_die)
        with pytest.raises(KilledError):
            site.learner.train_round(1)
    trained, paid = trained_and_paid(site, steps)
    assert trained > paid


def _run_and_die(job: Any) -> None:
    dp_sgd.run_private_steps(job, job.dp_sgd)
    raise KilledError


def test_exhausted_budget_trains_nothing(tmp_path: Path, steps: list[int]) -> None:
    """The run fits, and a round of it was paid for before: it ends where there is no room for training."""
    agreed = agreement()
    site = PayingSite(tmp_path, agreed, epsilon=planned_epsilon(agreed, PRIVACY, 1e-5))
    earlier = open_releases(
        agreed,
        BudgetSection(
            dataset="scans",
            ledger=tmp_path / "ledger.jsonl",
            epsilon=planned_epsilon(agreed, PRIVACY, 1e-5),
        ),
    )
    assert earlier is not None
    earlier.pay_for_training(1)
    for number in range(1, ROUNDS):
        site.learner.train_round(number)
    held, weights = site.learner.values.latest()[0], site.bare_learner.state()
    with pytest.raises(BudgetError, match="round 4 "):
        site.learner.train_round(ROUNDS)
    assert len(steps) == (ROUNDS - 1) * STEPS
    np.testing.assert_array_equal(site.learner.values.latest()[0], held)
    for name, value in site.bare_learner.state().items():
        assert torch.equal(value, weights[name])
    site.journal.close()


def test_unwritable_ledger_trains_nothing(
    site: PayingSite, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(append_only_file, "append", full)
    with pytest.raises(LedgerError):
        site.learner.train_round(1)
    assert not steps


# Planned


def test_run_beyond_the_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BudgetError,
        match=r"2 releases with noise multiplier 1 and 28 steps of DP-SGD with 2 at sampling rate 0\.3 take epsilon",
    ):
        PayingSite(tmp_path, agreement(), epsilon=1.0)


def test_planned_history_has_every_round_and_release() -> None:
    agreed = agreement()
    history = planned_history(agreed, PRIVACY)
    assert [type(each).__name__ for each in history] == ["DpSgd"] * ROUNDS + ["GaussianRelease"] * 2
    assert planned_epsilon(agreed, PRIVACY, 1e-5) == epsilon(history, 1e-5)
    frozen = agreement(extractor=Extractor.FROZEN, dp_sgd=None)
    assert frozen.privacy is not None
    assert planned_epsilon(frozen, frozen.privacy, 1e-5) < planned_epsilon(agreed, PRIVACY, 1e-5)
    assert planned_in_words(frozen, frozen.privacy) == "2 releases with noise multiplier 1"


def test_simulated_budget_has_room_for_repeated_rounds(tmp_path: Path) -> None:
    agreed = agreement()
    own = simulated_budget(agreed, "site-1", tmp_path)
    history = planned_history(agreed, PRIVACY)
    assert own.epsilon > epsilon([*history, history[0], history[-1]], SIMULATED_DELTA)
