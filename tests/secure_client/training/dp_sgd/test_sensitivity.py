"""Sensitivity of a step of DP-SGD: one record, or one subject, more or less changes the sum by the clip at most."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor, nn

from agreement import DpSgdSection, Extractor, PrivacySection
from algorithms.prototypes import Targets
from privacy.accounting.events import Unit
from secure_client.training.dp_sgd import steps
from secure_client.training.dp_sgd.mechanism import GradientGrid, RecordUnits, SubjectUnits
from secure_client.training.dp_sgd.steps import physical_size
from secure_client.training.job import Job
from secure_client.training.loop import run_job
from tests.secure_client.training.dp_sgd.private_training import (
    ALL,
    CPU,
    FALSE_ALARM,
    OBJECTIVES,
    SETTINGS,
    flat,
    guide_of,
    images,
    job_of,
    model_of,
    moved,
    tiny,
)


def neighbours(
    sums: list[Tensor], name: str, settings: DpSgdSection, count: int = 5, **changes: Any
) -> list[float]:
    """Return the change of a step's sum without each of the records, in radii."""
    inputs, labels = images(count)
    found = []
    for record in range(count):
        sums.clear()
        for kept in (torch.arange(count), torch.arange(count)[torch.arange(count) != record]):
            own: dict[str, Any] = {"objective": OBJECTIVES[name], "guide": guide_of(name)}
            run_job(job_of(model_of(name), inputs[kept], labels[kept], dp_sgd=settings, **(own | changes)))
        assert all(torch.equal(each, each.round()) for each in sums)
        found.append(float((sums[0] - sums[1]).norm()) / GradientGrid.from_settings(settings).radius)
    return found


@pytest.mark.parametrize("clip", [0.001, 0.5], ids=["all clipped", "some"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_step_one_record_changes_the_sum_by_the_clip_at_most(
    sums: list[Tensor], name: str, clip: float
) -> None:
    """Exactly: whole numbers, and the squares of norms within R²."""
    changes = neighbours(sums, name, ALL.model_copy(update={"clip": clip}), count=4)
    assert max(changes) <= 1.0
    if clip == 0.001:
        assert min(changes) > 0.99


@pytest.mark.parametrize("batchwise", [True, False], ids=["of the batch", "of records"])
def test_step_of_a_batchs_loss_is_too_sensitive(
    sums: list[Tensor], monkeypatch: pytest.MonkeyPatch, batchwise: bool
) -> None:
    """A distance of class means, near 0: one record more or less turns the gradients of all the others."""

    def of_batch(objective: Any, outputs: Any, labels: Tensor, guide: Any) -> Any:
        terms = objective(outputs, labels, guide)
        return type(terms)(*(each.expand(len(labels)) for each in terms))

    with torch.no_grad():
        centre = model_of("pfpl-literal").features(images(5)[0]).mean(dim=0)
    guide = Targets(centre.expand(3, -1), torch.tensor([True, True, True]))
    if batchwise:
        monkeypatch.setattr(steps, "compute_sample_terms", of_batch)
    settings = ALL.model_copy(update={"clip": 0.001})
    changes = neighbours(
        sums,
        "pfpl-literal",
        settings,
        guide=guide,
        objective=lambda outputs, _, given: OBJECTIVES["pfpl-literal"](
            outputs, torch.zeros(len(outputs.features), dtype=torch.int64), given
        ),
    )
    assert (max(changes) > 1.2) == batchwise


def test_step_of_a_larger_radius_is_too_sensitive(
    sums: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ALL.model_copy(update={"clip": 0.001})
    true, of = GradientGrid.from_settings(settings).radius, GradientGrid.from_settings
    monkeypatch.setattr(
        GradientGrid, "from_settings", lambda given: replace(of(given), radius=int(1.01 * true))
    )
    changes = neighbours(sums, "pfpl", settings, count=2)
    assert max(changes) * int(1.01 * true) > true


@pytest.mark.parametrize("spoiled", [math.inf, math.nan, 3e38])
def test_step_record_that_is_not_finite_counts_as_none(
    sums: list[Tensor], silent: None, spoiled: float
) -> None:
    """No error tells of it, no number of the others changes, and no parameter is lost."""
    inputs, labels = images(3)
    inputs[2] = spoiled
    for kept in (3, 2):
        job = job_of(model_of("pfpl"), inputs[:kept], labels[:kept], dp_sgd=ALL)
        losses = run_job(job)
        assert math.isfinite(losses.total)
        assert bool(flat(job.model).isfinite().all())
    assert torch.equal(sums[0], sums[1])


class Raising(nn.Module):
    """Raises for a batch that has a record beyond the ordinary."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs as they are."""
        if bool((inputs > 100.0).any()):
            raise RuntimeError("no room for that")
        return inputs


def test_step_record_on_which_the_model_raises_counts_as_none(sums: list[Tensor], silent: None) -> None:
    """The batch is computed again by records, and each of the others has the gradient that it had."""
    inputs, labels = images(4)
    inputs[2] = 1e3
    for kept in ([0, 1, 2, 3], [0, 1, 3]):
        model = tiny()
        model.backbone = nn.Sequential(Raising(), model.backbone)
        run_job(job_of(model, inputs[kept], labels[kept], dp_sgd=ALL))
    assert bool(sums[0].any())
    assert torch.equal(sums[0], sums[1])


@pytest.mark.parametrize("noise", [0.01, 0.3, 1.0, 3.7, 1000.0])
def test_grid_keeps_the_noise_multiplier(noise: float) -> None:
    grid = GradientGrid.from_settings(DpSgdSection(noise_multiplier=noise, clip=2.0, sampling_rate=1.0))
    assert Fraction(2**20, grid.radius) >= Fraction(noise) > Fraction(2**20, grid.radius + 1)
    assert grid.step * grid.radius == pytest.approx(2.0, rel=1e-3)


def test_step_physical_batches_add_up_to_one(
    sums: list[Tensor], silent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, labels = images(7)
    for size in (7, 3, 1):
        monkeypatch.setattr(steps, "physical_size", lambda *_, size=size: size)
        run_job(job_of(model_of("pfpl"), inputs, labels, dp_sgd=ALL, guide=guide_of("pfpl")))
    for other in sums[1:]:
        assert float((sums[0] - other).norm()) <= 1e-4 * float(sums[0].norm())


@pytest.mark.parametrize(
    ("numbers", "expected", "size"),
    [(1, 1, 8), (1, 50, 64), (1, 500, 112), (10**5, 500, 80), (10**6, 50, 8), (10**7, 500, 1), (10**9, 1, 1)],
)
def test_physical_size_suits_the_agreed_batch_and_the_memory(numbers: int, expected: int, size: int) -> None:
    parameters = [nn.Parameter(torch.empty(numbers, device="meta"))]
    assert physical_size(parameters, CPU, expected) == size


pytestmark = pytest.mark.usefixtures("silent")
OWNERS = np.array([7, 0, 7, 3, 7, 7, 0], dtype=np.int64)
"""Subjects of four, two and one records, in no order."""


class TooSensitiveError(AssertionError):
    """A subject moves a step by more than the clip."""


@pytest.fixture(params=[1, 2, 3, 16], ids=lambda size: f"{size} at once")
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    size: int = request.param
    monkeypatch.setattr(steps, "physical_size", lambda *_: size)
    return size


def owned(settings: DpSgdSection = ALL, **changes: Any) -> Job:
    inputs, labels = images(len(OWNERS))
    own: dict[str, Any] = {"dp_sgd": settings, "owners": OWNERS}
    return job_of(tiny(), inputs, labels, **(own | changes))


def check_step(sums: list[Tensor], job: Job) -> list[float]:
    """Return the change of a step's sum without each of the subjects, in radii."""
    assert job.owners is not None
    assert job.dp_sgd is not None
    found, radius = [], GradientGrid.from_settings(job.dp_sgd).radius
    inputs, labels = job.source.tensors  # type: ignore[attr-defined]  # of a TensorSource
    for owner in np.unique(job.owners):
        sums.clear()
        for kept in (np.ones(len(job.owners), np.bool_), job.owners != owner):
            own = replace(
                job_of(tiny(), inputs[kept], labels[kept], dp_sgd=job.dp_sgd), owners=job.owners[kept]
            )
            run_job(replace(own, objective=job.objective, guide=job.guide))
        change = float((sums[0] - sums[1]).norm()) / radius
        if change > 1:
            raise TooSensitiveError(f"subject {owner} moves a step by {change} of the clip")
        found.append(change)
    return found


@pytest.mark.parametrize("clip", [0.001, 0.5], ids=["all clipped", "some"])
def test_step_one_subject_changes_the_sum_by_the_clip_at_most(
    sums: list[Tensor], at_once: int, clip: float
) -> None:
    changes = check_step(sums, owned(ALL.model_copy(update={"clip": clip}), guide=guide_of("pfpl")))
    assert len(changes) == 3
    if clip == 0.001:
        assert min(changes) > 0.99


@pytest.mark.parametrize("records", [1, 50])
def test_subject_units_are_clipped_as_one_for_any_number_of_records(sums: list[Tensor], records: int) -> None:
    inputs, labels = images(1)
    owners = np.zeros(records, np.int64)
    same = job_of(tiny(), inputs.repeat(records, 1, 1, 1), labels.repeat(records), owners=owners)
    assert check_step(sums, replace(same, dp_sgd=ALL))[0] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", ["pfpl", "fedpc", "feddbp", "fedplcc"])
def test_subject_units_gradient_is_the_mean_of_its_records(name: str, at_once: int) -> None:
    """The clip clips nothing: a step subtracts the subjects' means, but for truncation."""
    inputs, labels = images(len(OWNERS))
    inputs = inputs.double()  # in float32 rounding decides ReLUs at a tie
    loose = ALL.model_copy(update={"clip": 1e3})
    own = {"objective": OBJECTIVES[name], "guide": guide_of(name, dtype=torch.float64)}
    of_subjects = moved(job_of(model_of(name).double(), inputs, labels, dp_sgd=loose, owners=OWNERS, **own))
    expected = torch.zeros_like(of_subjects)
    for owner in np.unique(OWNERS):
        mine = owner == OWNERS
        of_records = moved(job_of(model_of(name).double(), inputs[mine], labels[mine], dp_sgd=loose, **own))
        expected += of_records / int(mine.sum())
    torch.testing.assert_close(of_subjects, expected, rtol=0.0, atol=2 * 3 * 1e3 / 2**20)


def test_subject_units_of_one_record_are_records(sums: list[Tensor]) -> None:
    single = np.arange(len(OWNERS), dtype=np.int64)[::-1].copy()
    for owners in (single, None):
        run_job(owned(owners=owners))
    assert torch.equal(sums[0], sums[1])


def test_subject_units_record_that_is_not_finite_drops_its_subject_alone(sums: list[Tensor]) -> None:
    inputs, labels = images(len(OWNERS))
    spoilt = inputs.clone()
    spoilt[4] = math.inf
    run_job(job_of(tiny(), spoilt, labels, dp_sgd=ALL, owners=OWNERS))
    others = OWNERS != 7
    run_job(job_of(tiny(), inputs[others], labels[others], dp_sgd=ALL, owners=OWNERS[others]))
    assert torch.equal(sums[0], sums[1])


# Samples


def test_subject_units_sample_has_all_records_of_its_subjects() -> None:
    subjects, owners = SubjectUnits(OWNERS), OWNERS.tolist()
    assert subjects.count == 3
    assert subjects.begin_step([0, 2]) == [1, 6, 0, 2, 4, 5]
    assert subjects.begin_step([1]) == [3]
    assert subjects.begin_step([]) == []
    assert {owners[each] for each in subjects.begin_step([2])} == {7}
    assert RecordUnits(4).begin_step([1, 3]) == [1, 3]


def test_step_samples_subjects_independently(monkeypatch: pytest.MonkeyPatch) -> None:
    """600 steps: how often each subject took part, and two of them together; a sample by records would have some of
    a subject's records without the others. By exact tails: a false alarm of 4e-10 at most."""
    found: list[list[int]] = []
    records = SubjectUnits.begin_step

    def keep(subjects: SubjectUnits, chosen: list[int]) -> list[int]:
        found.append(records(subjects, chosen))
        return found[-1]

    monkeypatch.setattr(SubjectUnits, "begin_step", keep)
    run_job(owned(SETTINGS, epochs=150, schedule=replace(owned().schedule, lr=1e-6)))
    took = np.array([[(OWNERS[step] == owner).sum() for owner in (0, 3, 7)] for step in found])
    assert set(took[:, 2].tolist()) == {0, 4}
    assert set(took[:, 0].tolist()) == {0, 2}
    there = took > 0
    times = {0.25: there.sum(axis=0), 1 / 16: (there[:, 0] & there[:, 2]).sum()}
    for rate, counted in times.items():
        least, most = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(found), rate)
        assert np.all((least <= counted) & (counted <= most))


# Weaker doubles: each of them is caught


def test_step_that_clips_records_of_a_subject_is_too_sensitive(
    sums: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = owned(ALL.model_copy(update={"clip": 0.001}))
    check_step(sums, job)
    monkeypatch.setattr(SubjectUnits, "combine", lambda _, rows: rows)
    with pytest.raises(TooSensitiveError):
        check_step(sums, job)


def test_step_that_clips_a_subject_in_each_batch_is_too_sensitive(
    sums: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "physical_size", lambda *_: 2)
    job = owned(ALL.model_copy(update={"clip": 0.001}))
    check_step(sums, job)
    joined = SubjectUnits.combine

    def in_pieces(subjects: SubjectUnits, rows: Tensor) -> Tensor:
        whole = subjects._step_subjects
        subjects._step_subjects = whole[: subjects._next + len(rows)]
        found = joined(subjects, rows)
        subjects._step_subjects = whole
        return found

    monkeypatch.setattr(SubjectUnits, "combine", in_pieces)
    with pytest.raises(TooSensitiveError):
        check_step(sums, job)


def test_agreement_dp_sgd_with_sites_as_units_is_refused() -> None:
    settings: dict[str, Any] = {
        "clip": 1.0,
        "noise_multiplier": 5.0,
        "extractor": Extractor.PRIVATE,
        "dp_sgd": SETTINGS,
    }
    PrivacySection(**settings, unit=Unit.SUBJECT)
    with pytest.raises(ValueError, match="site"):
        PrivacySection(**settings, unit=Unit.SITE)
