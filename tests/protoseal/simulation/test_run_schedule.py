"""Schedule of a simulated run: who takes part, with which learning rate, images and optimiser state."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from agreement import ConfigError, Method
from agreement.sections.training import PreprocessingSection
from protoseal.simulation.config import ScheduleSection, SimulationConfig, load_simulation
from protoseal.simulation.schedules import RunSchedule, augmentation_for
from secure_client.training.loop import run_job
from tests.secure_client.jobs import SCHEDULE, jobs_of, model_of

NAMES = [f"site-{number:02d}" for number in range(30)]
IMAGES = PreprocessingSection(image_size=8, channels=1, mean=(0.5,), std=(0.25,))


def schedule(*, seed: int = 0, min_sites: int = 2, min_holders: int = 2, **settings: object) -> RunSchedule:
    section = ScheduleSection.model_validate(settings)
    agreement = SimulationConfig(
        sites=30, min_sites=min_sites, min_holders=min_holders, allow_fewer_holders_reveals_peers=True
    ).agreement(method=Method.PFPL, seed=seed, classes=("a", "b"), preprocessing=IMAGES)
    return RunSchedule(section, agreement)


# Participants


@pytest.mark.parametrize(
    ("share", "min_sites", "count"), [(0.1, 2, 3), (0.11, 2, 4), (0.01, 2, 2), (0.1, 7, 7), (1.0, 2, 30)]
)
def test_participants_are_the_share_rounded_up_and_at_least_min_sites(
    share: float, min_sites: int, count: int
) -> None:
    drawn = schedule(participation=share, min_sites=min_sites).participants([NAMES], 1)
    assert len(drawn) == count
    assert drawn <= set(NAMES)


def test_participants_of_several_groups_are_the_share_of_each_and_at_least_min_holders() -> None:
    groups = [NAMES[:20], NAMES[20:23], NAMES[23:]]
    drawn = schedule(participation=0.2, min_sites=9, min_holders=3).participants(groups, 1)
    assert [len(drawn.intersection(group)) for group in groups] == [4, 3, 3]


def test_participants_follow_from_seed_and_round_alone() -> None:
    first, again, other = (schedule(participation=0.3, seed=seed) for seed in (0, 0, 1))
    rounds = [first.participants([NAMES], number) for number in range(1, 6)]
    assert [again.participants([NAMES[::-1]], number) for number in reversed(range(1, 6))] == rounds[::-1]
    assert [other.participants([NAMES], number) for number in range(1, 6)] != rounds
    assert len(set(rounds)) == 5


def test_participants_are_drawn_uniformly() -> None:
    """Chi-squared statistic of how often each of 30 sites is drawn, 3 of them in each of 3,000 rounds.

    Each count is expected to be 300 with variance 300 · 0.9, and counts sum to 9,000, so that the sum of squared
    deviations over 270 · 30/29 has 29 degrees of freedom. Its 1 - 1e-5 quantile is 73.5. A site with twice the
    others' probability would add 290² / 279 = 300.
    """
    drawn = schedule(participation=0.1)
    counts = Counter(name for number in range(1, 3001) for name in drawn.participants([NAMES], number))
    assert sum((counts[name] - 300) ** 2 for name in NAMES) / (270 * 30 / 29) < 73.5


# Jobs


def test_adapt_decays_the_learning_rate_from_the_second_round_on() -> None:
    decaying, jobs = schedule(lr_decay=0.5), jobs_of(model_of())[:1]
    rates = [decaying.adapt(jobs, number)[0].schedule.lr / SCHEDULE.lr for number in (1, 2, 4)]
    assert rates == [1.0, 0.5, 0.125]


def test_adapt_with_the_defaults_changes_no_job() -> None:
    jobs = jobs_of(model_of())[:2]
    assert schedule().adapt(jobs, 5) == jobs


def test_adapt_kept_state_is_continued_from_a_copy() -> None:
    """Training that fails in a later stage is undone, and so leaves the states that earlier stages began with."""
    kept, jobs = schedule(optimiser_state="kept"), jobs_of(model_of())[:1]
    (first,) = kept.adapt(jobs, 1)
    assert first.optimiser_state == {}
    run_job(first)
    before = {name: state["momentum_buffer"].clone() for name, state in first.optimiser_state.items()}
    assert before.keys() == dict(first.model.named_parameters()).keys()
    (second,) = kept.adapt(jobs, 2, [first.optimiser_state])
    run_job(second)
    assert second.optimiser_state is not None
    for name, momentum in before.items():
        assert torch.equal(first.optimiser_state[name]["momentum_buffer"], momentum)
        assert not torch.equal(second.optimiser_state[name]["momentum_buffer"], momentum)


# Settings


def test_augmentation_for_images_is_black_where_preprocessing_maps_black() -> None:
    augmentation = augmentation_for(ScheduleSection(crop=2), IMAGES)
    assert augmentation is not None
    assert (augmentation.padding, augmentation.flips, augmentation.black) == (2, False, (-2.0,))


@pytest.mark.parametrize(("crop", "inputs"), [(1, None), (8, IMAGES)])
def test_augmentation_for_features_or_with_too_wide_a_crop_is_refused(
    crop: int, inputs: PreprocessingSection | None
) -> None:
    with pytest.raises(ConfigError):
        augmentation_for(ScheduleSection(crop=crop), inputs)
    assert augmentation_for(ScheduleSection(), inputs) is None


@pytest.mark.parametrize(
    "setting",
    ["participation=0.5", "lr_decay=0.99", "crop=1", "flip=true", "optimiser_state=kept"],
)
@pytest.mark.parametrize(
    "other",
    [
        ("protection=masked",),
        ("privacy.clip=1.0", "privacy.noise_multiplier=5.0", "training.norm=group"),
        ("engine=sessions",),
    ],
)
def test_schedule_beside_protection_privacy_or_sessions_is_refused(
    tmp_path: Path, setting: str, other: tuple[str, ...]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text("rounds = 2\n", encoding="utf-8")

    def load(*settings: str) -> SimulationConfig:
        return load_simulation(file, {}, settings)

    load(*other)
    load(f"schedule.{setting}")
    with pytest.raises(ConfigError, match=r"\[schedule\]"):
        load(f"schedule.{setting}", *other)


@pytest.mark.parametrize("setting", ["participation=0.0", "participation=1.1", "lr_decay=0.0", "crop=-1"])
def test_schedule_outside_its_range_is_refused(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text("rounds = 2\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=setting.partition("=")[0]):
        load_simulation(file, {}, (f"schedule.{setting}",))


def test_kept_state_of_an_optimiser_without_state_is_refused(tmp_path: Path) -> None:
    """SGD without momentum has none."""
    kept = ["training.optimiser=sgd", "schedule.optimiser_state=kept"]
    load_simulation(None, {"out": str(tmp_path)}, kept)
    with pytest.raises(ConfigError, match="optimiser_state"):
        load_simulation(None, {"out": str(tmp_path)}, [*kept, "training.momentum=0"])


def test_participation_with_prototypes_that_are_sent_once_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("rounds = 2\n[training]\nfrozen_extractor = true\n", encoding="utf-8")
    load_simulation(file, {}, ("schedule.lr_decay=0.5",))
    with pytest.raises(ConfigError, match="frozen_extractor"):
        load_simulation(file, {}, ("schedule.participation=0.5",))
