"""Audit of DP-SGD as it ran: doubles in the path of a training, each found by the check for its weakness alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agreement import DpSgdSection
from privacy.accounting.events import DpSgd
from protoseal.audit.run_checks import Check, CheckOutcome
from protoseal.audit.training_checks import (
    ESSENTIAL,
    STATISTICAL,
    TrainingClaim,
    check_shared,
    check_succession,
    check_training,
)
from secure_client.models.prototype_model import SplitModel
from secure_client.training.dp_sgd import steps
from secure_client.training.dp_sgd.mechanism import GradientGrid, draw_noise, poisson_sample
from secure_client.training.loop import run_job
from secure_client.training.step_records import StepRecords, TrainingRecord, read_step_records
from tests.secure_client.training.dp_sgd.private_training import images, job_of
from tests.support.marks import full_but

UNITS, ROUNDS, EPOCHS, RATE = 160, 2, 6, 0.25
STEPS = int(EPOCHS / RATE)
PARAMETERS = 64 * 12 + 12 + 12 * 3 + 3
SETTINGS = DpSgdSection(noise_multiplier=1.0, clip=0.01, sampling_rate=RATE)
EVENT = DpSgd(1.0, RATE, STEPS)
PAID = TrainingClaim(EVENT, {number: [EVENT] for number in range(1, ROUNDS + 1)})
LEVEL = 1e-4 / STATISTICAL
Patch = Callable[[pytest.MonkeyPatch], None]


def recorded(folder: Path, units: int = UNITS, rounds: int = ROUNDS) -> list[TrainingRecord]:
    """Train a model of 819 parameters by DP-SGD, and return the records of its rounds."""
    inputs, labels = images(units)
    model = SplitModel(
        nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 12), nn.Tanh()), nn.Linear(12, 3)
    )
    records = StepRecords(folder)
    for number in range(1, rounds + 1):
        recorder = records.open_recorder(number)
        run_job(job_of(model, inputs, labels, dp_sgd=SETTINGS, epochs=EPOCHS, recorder=recorder))
    return read_step_records(folder)


@pytest.fixture(scope="module")
def true_run(tmp_path_factory: pytest.TempPathFactory) -> list[TrainingRecord]:
    """Record one true run, for all tests that only read it."""
    return recorded(tmp_path_factory.mktemp("true"))


def found(checks: list[Check]) -> set[str]:
    return {check.weakness for check in checks if check.outcome is CheckOutcome.FOUND}


def sampler(chosen: Callable[[int, float], Any]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(steps, "poisson_sample", chosen)

    return patch


def noise(drawn: Callable[[int], Any]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(steps, "draw_noise", drawn)

    return patch


def in_epochs(shuffled: bool) -> Callable[[int, float], list[int]]:
    """Return successive batches of the records in one order, or in another order in each epoch."""
    order: list[int] = []

    def batch(records: int, rate: float) -> list[int]:
        if not order:
            whole = np.arange(records)
            order.extend(np.random.default_rng().permutation(whole) if shuffled else whole)
        size = int(records * rate)
        taken = order[:size]
        del order[:size]
        return taken

    return batch


def fixed_size(records: int, rate: float) -> list[int]:
    chosen: list[int] = np.random.default_rng().permutation(records)[: int(records * rate)].tolist()
    return chosen


def same_in_every_round() -> Callable[[int, float], list[int]]:
    kept: list[list[int]] = []
    count = itertools.count()

    def sample(records: int, rate: float) -> list[int]:
        number = next(count) % STEPS
        if len(kept) <= number:
            kept.append(poisson_sample(records, rate))
        return kept[number]

    return sample


def twice(records: int, rate: float) -> list[int]:
    chosen = poisson_sample(records, rate)
    return [*chosen, *chosen[:1]]


def mixed(own: float, other: float) -> Callable[[int], Any]:
    """Return noise of the claimed deviation, of which a part is the same in every step."""
    kept: dict[int, Any] = {}

    def draw(count: int) -> Any:
        common = kept.setdefault(count, draw_noise(count))
        return own * draw_noise(count) + other * common

    return draw


def alternating() -> Callable[[int], Any]:
    kept: list[Any] = []

    def draw(count: int) -> Any:
        if not kept:
            kept.append(draw_noise(count))
            return kept[0]
        return -kept.pop()

    return draw


def half_copied(count: int) -> Any:
    drawn = draw_noise(count)
    drawn[: count // 2] = drawn[-(count // 2) :][::-1]
    return drawn


def reordered() -> Callable[[int], Any]:
    kept: dict[int, Any] = {}

    def draw(count: int) -> Any:
        return np.random.default_rng().permutation(kept.setdefault(count, draw_noise(count)))

    return draw


def first_tensor_only(count: int) -> Any:
    drawn = draw_noise(count)
    drawn[-3:] = 0.0  # the bias of the classifier
    return drawn


def half_of_the_coordinates(count: int) -> Any:
    return draw_noise(count) * np.where(np.random.default_rng().random(count) < 0.5, 0.0, np.sqrt(2))


def unclipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GradientGrid, "clip_", lambda grid, rows: rows.div_(grid.step).trunc_())


def by_coordinate(monkeypatch: pytest.MonkeyPatch) -> None:
    def clip(grid: GradientGrid, rows: Tensor) -> Tensor:
        return rows.div_(grid.step).clamp_(-grid.radius, grid.radius).trunc_()

    monkeypatch.setattr(GradientGrid, "clip_", clip)


def too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clip a step's sum instead of each gradient."""
    clip, set_gradients = GradientGrid.clip_, steps._Training._set_gradients
    unclipped(monkeypatch)

    def set_clipped(training: Any, total: Tensor) -> None:
        grid = training._grid
        set_gradients(training, clip(grid, total.unsqueeze(0) * grid.step).squeeze(0))

    monkeypatch.setattr(steps._Training, "_set_gradients", set_clipped)


def added_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add every clipped gradient to a step's sum once more, after its norm was looked at."""
    set_gradients = steps._Training._set_gradients
    monkeypatch.setattr(
        steps._Training, "_set_gradients", lambda training, total: set_gradients(training, 2 * total)
    )


def exact_for_the_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the noisy gradient by the exact one, after the noise was added."""
    set_gradients = steps._Training._set_gradients

    def set_exact(training: Any, total: Tensor) -> None:
        set_gradients(training, total)
        parts = torch.split(total * training._grid_unit, training._sizes)
        for parameter, part in zip(training._parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)

    monkeypatch.setattr(steps._Training, "_set_gradients", set_exact)


DOUBLES: dict[str, tuple[Patch, str]] = {
    "fixed size": (sampler(fixed_size), "samples of a fixed size"),
    "shuffled epochs": (sampler(in_epochs(True)), "batches of epochs, or the same batches again"),
    "successive batches": (
        sampler(in_epochs(False)),
        "successive steps that share too few or too many units",
    ),
    "samples of the round before": (sampler(same_in_every_round()), "the same sample in two steps"),
    "pairs": (
        sampler(lambda units, rate: [2 * k + b for k in poisson_sample(units // 2, rate) for b in (0, 1)]),
        "units that are sampled together",
    ),
    "a rate too high": (
        sampler(lambda units, rate: poisson_sample(units, 1.5 * rate)),
        "a sampling rate above the agreed one",
    ),
    "a record twice": (sampler(twice), "a unit counted more than once in a step"),
    "half the noise": (noise(lambda count: 0.5 * draw_noise(count)), "training's noise that is too small"),
    "nine tenths of the noise": (
        noise(lambda count: 0.9 * draw_noise(count)),
        "training's noise that is too small",
    ),
    "no noise on a tensor": (noise(first_tensor_only), "training's noise that is too small"),
    "noise on half": (
        noise(half_of_the_coordinates),
        "training's noise that is not normal, or equal in neighbouring parameters",
    ),
    "equal noise": (noise(mixed(0.0, 1.0)), "training's noise that repeats"),
    "noise in common": (noise(mixed(0.6, 0.8)), "training's noise that repeats"),
    "opposite noise": (noise(alternating()), "training's noise that repeats"),
    "noise copied in a step": (noise(half_copied), "training's noise that occurs again in another order"),
    "noise in another order": (noise(reordered()), "training's noise that occurs again in another order"),
    "no clipping": (unclipped, "gradients longer than the clip"),
    "clipping by coordinate": (by_coordinate, "gradients longer than the clip"),
    "clipping too late": (too_late, "gradients longer than the clip"),
    "exact gradients for the optimiser": (exact_for_the_optimiser, "training's noise that is too small"),
    "gradients added twice": (added_twice, "training's noise that is too small"),
}


def test_check_training_true_run_stands(true_run: list[TrainingRecord]) -> None:
    checks = check_training(true_run, PAID, LEVEL)
    assert found(checks) == set()
    assert {check.weakness for check in checks if check.outcome is CheckOutcome.NOT_COVERED} == {
        "gradients that depend on other records",
        "what the optimiser made of the gradient",
    }


@pytest.mark.parametrize("double", full_but(DOUBLES, "fixed size", "equal noise", "no clipping"))
def test_check_training_double_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: str) -> None:
    patch, weakness = DOUBLES[double]
    patch(monkeypatch)
    assert weakness in found(check_training(recorded(tmp_path), PAID, LEVEL))


def test_check_training_unpaid_or_cheaper_training_is_found(true_run: list[TrainingRecord]) -> None:
    records, weakness = true_run, "training that the ledger does not charge"
    claims = {
        "no entry": {1: [EVENT]},
        "less noise in training than in the entry": {1: [EVENT], 2: [DpSgd(1.1, RATE, STEPS)]},
        "fewer steps in the entry": {1: [EVENT], 2: [DpSgd(1.0, RATE, STEPS - 1)]},
    }
    for name, paid in claims.items():
        assert weakness in found(check_training(records, TrainingClaim(EVENT, paid), LEVEL)), name
    fewer = TrainingClaim(DpSgd(1.0, RATE, STEPS - 1), PAID.paid)
    assert weakness in found(check_training(records, fewer, LEVEL))
    assert weakness in found(check_training([*records, records[0]], PAID, LEVEL))


def test_check_training_few_steps_are_not_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GradientGrid, "clip_", lambda grid, rows: rows.zero_())
    checks = check_training(recorded(tmp_path, units=4, rounds=1), PAID, LEVEL)
    uncovered = {check.weakness for check in checks if check.outcome is CheckOutcome.NOT_COVERED}
    assert {
        *ESSENTIAL,
        "batches of epochs, or the same batches again",
        "the same sample in two steps",
        "units that are sampled together",
        "gradients longer than the clip",
    } <= uncovered
    (nothing,) = check_training([], PAID, LEVEL)
    assert nothing.outcome is CheckOutcome.NOT_COVERED


def test_check_shared_equal_noise_of_two_sites_is_found(
    true_run: list[TrainingRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two rounds of one site have independent noise, as two sites have.
    assert check_shared([[record] for record in true_run], LEVEL).outcome is CheckOutcome.STANDS
    assert check_shared([true_run], LEVEL).outcome is CheckOutcome.NOT_COVERED
    drawn = [draw_noise(PARAMETERS) for _ in range(STEPS)]
    count = itertools.count()
    monkeypatch.setattr(steps, "draw_noise", lambda numbers: drawn[next(count) % STEPS])
    sharing = [recorded(tmp_path / site, rounds=1) for site in ("a", "b")]
    assert check_shared(sharing, LEVEL).outcome is CheckOutcome.FOUND


def test_check_training_rate_of_one_stands(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"sampling_rate": 1.0})
    inputs, labels = images(20)
    model = SplitModel(nn.Sequential(nn.AvgPool2d(2), nn.Flatten()), nn.Linear(64, 3))
    with torch.random.fork_rng():
        recorder = StepRecords(tmp_path).open_recorder(1)
        run_job(job_of(model, inputs, labels, dp_sgd=settings, epochs=EPOCHS, recorder=recorder))
    claim = TrainingClaim(DpSgd(1.0, 1.0, EPOCHS), {1: [DpSgd(1.0, 1.0, EPOCHS)]})
    assert found(check_training(read_step_records(tmp_path), claim, LEVEL)) == set()


def test_check_succession_changed_model_is_found(true_run: list[TrainingRecord]) -> None:
    """Records of one model follow from each other, and those of another do not follow from the initial one."""
    records = true_run
    first, second = records
    initial, averaged = first.start, set(first.names.tolist())
    changed = replace(second, began=np.roll(second.began, 1), start="another")
    outcomes = {
        "as recorded": check_succession(records, {}, initial, set()).outcome,
        "undone": check_succession([first, replace(second, began=first.began)], {}, initial, set()).outcome,
        "changed between rounds": check_succession([first, changed], {}, initial, set()).outcome,
        "by a result": check_succession([first, changed], {}, initial, averaged).outcome,
        "changed before": check_succession(records, {}, "another", set()).outcome,
        "another released": check_succession(
            records, {"release": {"weight": torch.ones(1)}}, initial, set()
        ).outcome,
    }
    assert {name for name, outcome in outcomes.items() if outcome is CheckOutcome.FOUND} == {
        "changed between rounds",
        "changed before",
        "another released",
    }
