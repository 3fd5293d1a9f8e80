"""Numbers and files of which no budget can be made: told in one line, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agreement.sections.privacy import DpSgdSection
from privacy.accounting.events import DpSgd, Event, GaussianRelease
from tests.protoseal.commands.budget_plans import planned, refusal
from tests.support.composed import delta_of, epsilon

USUAL = ("--releases", 20, "--records", 500)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((*USUAL, "--noise-multiplier", 1e-300), "more than any ε"),
        ((*USUAL, "--epsilon", 1, "--dim", 10**10), "not in the range"),
        (("--epsilon", 1, "--releases", 10**10), "not in the range"),
        (("--epsilon", 1, "--releases", 1, "--records", 10**10), "each number must be from 1"),
        (("--epsilon", 1, "--noise-multiplier", 1e-300), "none fits"),
        (("--epsilon", 1e300, "--noise-multiplier", 1e300), "the budget allows over"),
        ((*USUAL, "--noise-multiplier", 6, "--dp-sgd", 0.1, 1e-5, 3), "more than any ε"),
    ],
)
def test_a_plan_of_what_is_far_out_is_refused(options: tuple[object, ...], reason: str) -> None:
    assert reason in refusal(*options)


def test_more_than_any_budget_is_planned_as_much_as_is_told() -> None:
    assert planned(*USUAL, "--epsilon", 1e300)["noise_multiplier"] == pytest.approx(0.1166, abs=1e-4)


@pytest.mark.parametrize(
    ("event", "least", "most"),
    [
        (GaussianRelease(1e-300, 650), np.inf, np.inf),
        (GaussianRelease(1e300, 650), 0.0, 1e-6),
        (GaussianRelease(5.0, 1 << 60), np.inf, np.inf),
        (DpSgd(1e-300, 0.1, 3), np.inf, np.inf),
        (DpSgd(1e300, 0.1, 3), 0.0, 1e-6),
        (DpSgd(1.0, 0.1, 1 << 62), np.inf, np.inf),
        (DpSgd(1.0, 1e-200, 3), 0.0, 1e-3),
    ],
)
def test_the_accountant_answers_for_any_event(event: Event, least: float, most: float) -> None:
    assert least <= epsilon([event, event], 1e-5) <= most
    assert delta_of([event, event], 1.0) <= (1.0 if least else 1e-5)
    assert (delta_of([event, event], 1.0) == 1.0) is bool(least)


def test_agreements_have_no_more_steps_than_an_event() -> None:
    with pytest.raises(ValueError, match=r"greater than or equal to 0\.000001"):
        DpSgdSection(noise_multiplier=1.0, clip=1.0, sampling_rate=1e-7)
    most = DpSgdSection(noise_multiplier=1.0, clip=1.0, sampling_rate=1e-6).steps(10**6)
    assert DpSgd(1.0, 1e-6, most * 100_000).steps == most * 100_000


def test_labels_that_are_no_classes_are_not_counted(tmp_path: Path) -> None:
    file = tmp_path / "ids.npz"
    np.savez(file, x_train=np.zeros((2, 3), np.float32), y_train=np.array([0, 9_000_000_000]))
    assert "has label 9000000000; number the classes" in refusal(
        "--epsilon", 3, "--releases", 4, "--counts-of", f"npz:{file}"
    )
