"""Poison by one site in five: attacks that succeed without bounds, a bound that holds, and one that was left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from algorithms.pfpl import Weighting
from algorithms.prototypes import project_to_norm
from benchmarks.robust_options import lost_in_sums, median_of_groups
from crypto.errors import MalformedError
from protoseal.attacks import poisoning
from protoseal.attacks.cases import Measurement
from protoseal.attacks.poisoning import (
    BOOST,
    TARGET,
    Poison,
    Poisoning,
    _interval,
    add_backdoor,
    add_triggers,
    choose_malicious,
    flip_labels,
    poisoning_cases,
    run_poisoned,
    scale_upload,
    shift_rows,
)
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import LabelledImages, RecordedRun, record_run
from protoseal.simulation.config import SimulationConfig, load_simulation
from secure_server.exchanges import sums
from tests.support.marks import full_but

SCALED = scale_upload(BOOST)
BOUND = 2.0
"""Norm bound below the norms of honest prototypes, so that all uploads are equally long."""
FAST = ("batched=never", "dim=32", "training.lr=0.003", "training.local_epochs=3", f"norm_bound={BOUND}")


def config_of(method: str, **flags: Any) -> SimulationConfig:
    usual = {
        "protection": "plain",
        "dataset": "digits",
        "split": "iid",
        "sites": 10,
        "rounds": 1,
        "device": "cpu",
    }
    return load_simulation(None, {"method": method, **usual, **flags}, FAST)


def run_of(config: SimulationConfig) -> RecordedRun:
    """Return as much of a recorded run as the cases read."""
    return cast(
        "RecordedRun", SimpleNamespace(config=config, seed=0, agreement=SimpleNamespace(method=config.method))
    )


def case_of(poison: Poison, **changes: Any) -> Poisoning:
    return Poisoning(
        "test", "Does the bound hold?", "break the bound", poison, repeats=1, margin=0.15, **changes
    )


def succeeds(case: Poisoning, measured: Measurement) -> bool:
    """Return whether the loss in one seed exceeds the margin; a verdict needs several seeds."""
    return measured.value >= case.chance + case.margin


def test_poisoning_norm_bound_holds_and_its_absence_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, run = case_of(SCALED), run_of(config_of("fedproto", sites=5))
    undefended = case.reference(run)
    assert undefended is not None
    (within,) = case.measure(run, Adversary.PEER)
    assert succeeds(case, undefended)
    assert undefended.details["accuracy without poison"] > 0.25
    assert not succeeds(case, within)
    # The double is a coordinator that has lost its check; rows may then be as long as the check of the mean permits.
    monkeypatch.setattr(sums, "_check_rows", lambda rows, holds, bound: None)
    monkeypatch.setattr(poisoning, "project_to_norm", lambda rows, bound: project_to_norm(rows, 4 * bound))
    (double,) = case_of(SCALED).measure(run, Adversary.PEER)
    assert succeeds(case, double)


@pytest.mark.full
def test_poisoning_default_weights_hold_what_printed_weights_do_not() -> None:
    config = config_of("pfpl", sites=5, rounds=5).model_copy(update={"norm_bound": 50.0})
    case, run = case_of(SCALED), run_of(config)
    undefended = case.reference(run)
    assert undefended is not None
    (within,) = case.measure(run, Adversary.PEER)
    assert succeeds(case, undefended)
    assert not succeeds(case, within)


def test_poisoning_scaled_model_succeeds_within_bounds() -> None:
    case = case_of(SCALED)
    (measured,) = case.measure(run_of(config_of("fedavg", sites=5)), Adversary.PEER)
    assert succeeds(case, measured)


def test_poisoning_honest_behaviour_costs_nothing() -> None:
    (measured,) = case_of(Poison()).measure(run_of(config_of("fedproto", split="iid:per=30")), Adversary.PEER)
    assert measured.value == 0.0
    assert measured.trials == 1


def test_run_poisoned_too_long_upload_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poisoning, "project_to_norm", lambda rows, bound: (rows, 0))
    with pytest.raises(MalformedError):
        run_poisoned(config_of("fedproto", split="iid:per=30"), 0, SCALED, add_triggers)


def test_run_poisoned_two_malicious_sites_stay_within_the_masked_mean() -> None:
    config = config_of("pfpl", split="iid:per=30", protection="masked")
    weighting = config.pfpl.model_copy(update={"weighting": Weighting.UNIFORM})
    uniform = config.model_copy(update={"norm_bound": 50.0, "dim": 128, "pfpl": weighting})
    assert len(run_poisoned(uniform, 0, SCALED, add_triggers).accuracy) == 8


@pytest.mark.parametrize("method", full_but(["fedproto", "pfpl", "fedpc", "fedplcc"], "pfpl", "fedplcc"))
def test_run_poisoned_masked_run_completes(method: str) -> None:
    config = config_of(method, split="iid:per=30", protection="masked")
    assert len(run_poisoned(config, 0, Poison(rows=shift_rows, factor=-1.0), add_triggers).accuracy) == 8


def test_poisoning_cases_skip_methods_without_their_values() -> None:
    cases = {case.attack: case for case in poisoning_cases()}
    skipped = {"prototype shift": "fedavg", "inflated sample count": "pfpl"}
    for attack, method in skipped.items():
        run = run_of(config_of(method))
        assert not cases[attack].measure(run, Adversary.PEER)
        assert cases[attack].reference(run) is None
    assert not cases["label flip"].measure(run_of(config_of("pfpl")), Adversary.COORDINATOR)


def test_poisoned_data_labels_and_triggers() -> None:
    images = LabelledImages(torch.zeros(3, 1, 8, 8), np.array([TARGET, 1, 9]))
    images.inputs[0] = 1.0
    assert flip_labels(images, 10).labels.tolist() == [9, 8, 0]
    marked = add_triggers(images)
    assert marked.labels.tolist() == [TARGET, TARGET]
    assert marked.inputs[0].sum() == marked.inputs[0, 0, -2:, -2:].sum() == 4.0
    assert len(add_backdoor(images, 10)) == 5
    assert not images.inputs[1:].any()


def test_shift_rows_moves_the_mean_to_the_next_class() -> None:
    rows, labels = np.random.default_rng(0).normal(size=(4, 3)), np.arange(4)
    mean = (4 * rows + shift_rows(rows, labels, 5)) / 5
    np.testing.assert_allclose(mean, rows[(labels + 1) % 4])


def test_choose_malicious_one_in_five_and_at_least_one() -> None:
    assert choose_malicious(["b", "a", "c"]) == ["a"]
    assert choose_malicious([f"{i:02}" for i in range(15)]) == ["00", "01", "02"]


# Robust options


@pytest.mark.full
def test_a_sum_suffers_from_poison_in_the_last_round_and_a_median_of_groups_costs_little() -> None:
    config = config_of("fedproto", sites=9).model_copy(update={"norm_bound": 100.0})
    lost = lost_in_sums(record_run(config, 0), SCALED, size=3)
    assert lost["mean"] > 0.1
    assert abs(lost["median of groups, no poison"]) < 0.1


def test_a_median_of_groups_is_that_of_means() -> None:
    rows = np.array([1.0, 3.0, 4.0, 6.0, 100.0, 900.0]).reshape(6, 1, 1)
    assert median_of_groups(rows, 2).item() == 5.0


def test_interval_is_over_seeds_not_sites() -> None:
    """Four seeds whose sites all lose alike are four trials: Student's interval, and none from one seed."""
    lost = np.array([[0.10] * 9, [0.14] * 9, [0.12] * 9, [0.08] * 9])
    low, high = _interval(lost)
    assert (high - low) / 2 == pytest.approx(3.182 * lost[:, 0].std(ddof=1) / 2, rel=1e-3)
    assert _interval(lost[:1]) == (-1.0, 1.0)
