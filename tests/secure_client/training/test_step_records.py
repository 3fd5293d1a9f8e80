"""Records of DP-SGD as it ran: what they hold, what they do not, and that training is the same without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privacy.mechanisms.grid import SIGMA
from secure_client.training import step_records
from secure_client.training.dp_sgd import steps
from secure_client.training.dp_sgd.mechanism import draw_noise
from secure_client.training.loop import run_job
from secure_client.training.step_records import StepRecords, TrainingRecord, read_step_records
from tests.secure_client.training.dp_sgd.private_training import flat, images, job_of, tiny
from tests.support.audit_doubles import weaken_training

UNITS, EPOCHS = 40, 3
RADIUS = SIGMA  # at a noise multiplier of 1


def recorded(folder: Path, **changes: Any) -> TrainingRecord:
    """Train a tiny model with a recorder, and return the record that is read back."""
    inputs, labels = images(UNITS)
    run_job(
        job_of(
            tiny(), inputs, labels, epochs=EPOCHS, recorder=StepRecords(folder).open_recorder(1), **changes
        )
    )
    (record,) = read_step_records(folder)
    return record


def test_step_record_has_samples_norms_and_noise_of_every_step(tmp_path: Path) -> None:
    record = recorded(tmp_path / "steps")
    parameters = flat(tiny()).numel()
    assert (record.round, record.steps, record.units, int(record.sizes.sum())) == (1, 12, UNITS, parameters)
    np.testing.assert_array_equal(record.watched.sum(axis=1), record.sampled)
    np.testing.assert_array_equal(record.sampled, record.distinct)
    np.testing.assert_array_equal(record.sampled, record.clipped)
    assert 0.99 * RADIUS < record.largest.max() <= RADIUS
    deviation = float(np.sqrt((record.squares * record.sizes).sum(axis=1).mean() / parameters))
    assert deviation == pytest.approx(1.0, abs=0.02)
    assert record.fourths.mean() == pytest.approx(3.0, abs=0.3)


@pytest.mark.parametrize(("double", "deviation"), [("half", 0.5), ("none", 0.0)])
def test_step_record_noise_is_measured_where_the_optimiser_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: Any, deviation: float
) -> None:
    weaken_training(monkeypatch, double)
    squares = recorded(tmp_path).squares
    assert float(np.sqrt(np.median(squares))) == pytest.approx(deviation, abs=0.05)


def test_step_record_has_the_norm_of_an_unclipped_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weaken_training(monkeypatch, "no clipping")
    assert recorded(tmp_path).largest.max() > 2 * RADIUS


def test_step_recorder_changes_no_bit_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(**changes: Any) -> torch.Tensor:
        drawn = np.random.default_rng(5)
        monkeypatch.setattr(steps, "poisson_sample", lambda units, rate: sorted(drawn.permutation(units)[:9]))
        monkeypatch.setattr(steps, "draw_noise", lambda count: np.rint(drawn.normal(0.0, SIGMA, count)))
        inputs, labels = images(UNITS)
        job = job_of(tiny(), inputs, labels, epochs=EPOCHS, **changes)
        losses = run_job(job)
        return torch.cat([flat(job.model), torch.tensor([losses.total], dtype=torch.float64)])

    assert torch.equal(trained(), trained(recorder=StepRecords(tmp_path).open_recorder(1)))


def test_step_record_units_are_subjects_if_records_have_owners(tmp_path: Path) -> None:
    record = recorded(tmp_path, owners=np.arange(UNITS) // 4)
    assert record.units == UNITS // 4
    np.testing.assert_array_equal(record.sampled, record.clipped)


def test_step_record_places_of_units_are_in_no_file(tmp_path: Path) -> None:
    records = StepRecords(tmp_path)
    assert records.places(500).tolist() == records.places(500).tolist()
    assert records.places(500).tolist() != StepRecords(tmp_path).places(500).tolist()
    assert (records.places(5000) >= 0).sum() == step_records.WATCHED
    assert {name for name in vars(recorded(tmp_path)) if "place" in name} == set()


def test_step_record_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    recorded(tmp_path / "steps")
    (file,) = (tmp_path / "steps").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_step_record_is_bounded_and_counts_later_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_records, "MOST_STEPS", 5)
    record = recorded(tmp_path)
    assert (record.steps, len(record.sampled), len(record.squares)) == (12, 5, 5)


def test_step_record_of_failed_training_has_its_complete_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, calls = draw_noise, iter(range(100))

    def fail_at_the_fifth(count: int) -> Any:
        if next(calls) == 4:
            raise RuntimeError
        return draw(count)

    monkeypatch.setattr(steps, "draw_noise", fail_at_the_fifth)
    inputs, labels = images(UNITS)
    job = job_of(tiny(), inputs, labels, epochs=EPOCHS)
    with pytest.raises(RuntimeError):
        run_job(replace(job, recorder=StepRecords(tmp_path).open_recorder(1)))
    assert read_step_records(tmp_path)[0].steps == 4


def test_step_record_that_cannot_be_written_ends_no_training(tmp_path: Path) -> None:
    taken = tmp_path / "steps"
    taken.write_text("")
    inputs, labels = images(UNITS)
    model = tiny()
    run_job(job_of(model, inputs, labels, recorder=StepRecords(taken).open_recorder(1)))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert taken.read_text() == ""


def test_read_step_records_damaged_file_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ValueError, match=file.name):
        read_step_records(tmp_path)
