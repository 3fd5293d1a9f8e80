"""Augmentation and kept optimiser state in batched programs: each site's own, in any number of sites."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from agreement.registry.recipe import Trains
from protoseal.simulation.batched.training import Batching, run_together
from secure_client.errors import TrainingError
from secure_client.training.augmentation import Augmentation
from secure_client.training.job import Job, OptimiserState, Schedule
from secure_client.training.loop import run_job
from tests.secure_client.jobs import ADAM, SCHEDULE, assert_alike, copies, jobs_of, model_of

AUGMENTATION = Augmentation(padding=2, flips=True, black=(-1.0,))
SIZES = (9, 4, 13, 8, 9, 2, 11)


def augmented(jobs: Sequence[Job]) -> list[Job]:
    return [replace(job, augmentation=AUGMENTATION) for job in jobs]


# Augmentation


def test_augmented_training_together_equals_one_by_one(alone: list[Job]) -> None:
    assert_alike(augmented(jobs_of(model_of(), sizes=SIZES)))
    assert alone == []


@pytest.mark.parametrize("at_once", [1, 3, 7])
def test_draws_are_the_same_bits_at_any_number_of_sites_in_a_program(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, seen = Augmentation.draw, dict[int, list[Tensor]]()

    def recorded(self: Augmentation, count: int, generator: torch.Generator) -> Tensor:
        seen.setdefault(generator.initial_seed(), []).append(draws := original(self, count, generator))
        return draws

    monkeypatch.setattr(Augmentation, "draw", recorded)
    jobs = augmented(jobs_of(model_of(), sizes=SIZES))
    for job in copies(jobs):
        run_job(job)
    expected = {seed: draws.copy() for seed, draws in seen.items()}
    seen.clear()
    run_together(jobs, Batching.ALWAYS, at_once=at_once)
    assert seen.keys() == expected.keys()
    assert len(seen) == len(SIZES)
    for seed, draws in expected.items():
        assert len(draws) == SCHEDULE.local_epochs
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(seen[seed], draws, strict=True))


def test_two_sites_that_share_a_stream_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = torch.Generator().manual_seed(0)
    original = Augmentation.generator

    def mixed(self: Augmentation, seed: int) -> torch.Generator:
        return shared if seed in {2, 4} else original(self, seed)

    monkeypatch.setattr(Augmentation, "generator", mixed)
    with pytest.raises(AssertionError):
        assert_alike(augmented(jobs_of(model_of(), sizes=SIZES)))


def test_jobs_with_and_without_augmentation_train_apart(alone: list[Job]) -> None:
    plain = jobs_of(model_of(), sizes=SIZES)
    assert_alike([*augmented(plain[:4]), *plain[4:]])
    assert alone == []


# Optimiser state


def fresh(jobs: Sequence[Job]) -> list[OptimiserState]:
    return [{} for _ in jobs]


def train_rounds(jobs: Sequence[Job], states: Sequence[OptimiserState], *, together: bool) -> None:
    """Train three rounds with decaying learning rates, each from the state that the last one left."""
    for number in range(3):
        round_jobs = [
            replace(
                job,
                seed=job.seed + 100 * number,
                schedule=replace(job.schedule, lr=job.schedule.lr / 2**number),
                optimiser_state=state,
            )
            for job, state in zip(jobs, states, strict=True)
        ]
        if together:
            run_together(round_jobs, Batching.ALWAYS, at_once=4)
        else:
            for job in round_jobs:
                run_job(job)


@pytest.mark.parametrize("schedule", [SCHEDULE, ADAM, replace(SCHEDULE, momentum=0.0)])
@pytest.mark.parametrize("trains", [Trains.ALL, Trains.CLASSIFIER])
def test_kept_state_over_rounds_together_equals_one_by_one(
    schedule: Schedule, trains: Trains, alone: list[Job]
) -> None:
    jobs = jobs_of(model_of(), schedule=schedule, sizes=SIZES, trains=trains)
    singles, states, single_states = copies(jobs), fresh(jobs), fresh(jobs)
    train_rounds(jobs, states, together=True)
    train_rounds(singles, single_states, together=False)
    assert alone == []
    for ours, theirs in zip(jobs, singles, strict=True):
        torch.testing.assert_close(ours.model.state_dict(), theirs.model.state_dict(), rtol=1e-9, atol=1e-9)
    for state, single in zip(states, single_states, strict=True):
        torch.testing.assert_close(state, single, rtol=1e-9, atol=1e-9)


def test_kept_state_may_continue_one_by_one_and_together_by_turns() -> None:
    """A resumed round may have fewer sites in its program, or one alone."""
    jobs = jobs_of(model_of(), schedule=ADAM, sizes=SIZES)
    singles, states, single_states = copies(jobs), fresh(jobs), fresh(jobs)
    train_rounds(jobs, states, together=True)
    train_rounds(jobs, states, together=False)
    train_rounds(singles, single_states, together=False)
    train_rounds(singles, single_states, together=True)
    for ours, theirs in zip(jobs, singles, strict=True):
        torch.testing.assert_close(ours.model.state_dict(), theirs.model.state_dict(), rtol=1e-9, atol=1e-9)


def test_run_together_that_diverges_leaves_the_optimiser_states() -> None:
    jobs = jobs_of(model_of(), sizes=SIZES)
    states = fresh(jobs)
    train_rounds(jobs, states, together=True)
    before = copy.deepcopy(states)
    with pytest.raises(TrainingError):
        run_together(
            [
                replace(job, optimiser_state=state, schedule=replace(SCHEDULE, lr=1e200))
                for job, state in zip(jobs, states, strict=True)
            ],
            Batching.ALWAYS,
        )
    torch.testing.assert_close(states, before, rtol=0, atol=0)
