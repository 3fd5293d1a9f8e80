"""Mechanism of a step of DP-SGD: the distribution of its samples and of its noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor, nn

from agreement import DpSgdSection
from secure_client.models.prototype_model import SplitModel
from secure_client.training.dp_sgd import steps
from secure_client.training.dp_sgd.mechanism import draw_noise, poisson_sample
from secure_client.training.job import Job, Losses
from secure_client.training.loop import run_job
from tests.secure_client.training.dp_sgd.private_training import (
    ALL,
    FALSE_ALARM,
    OBJECTIVES,
    SETTINGS,
    images,
    job_of,
    moved,
    silence,
    tiny,
)


class _Watched:
    """A source that keeps which records are asked for, with the step's number; ``steps`` grows by one with each."""

    def __init__(self, job: Job) -> None:
        self._source = job.source
        self.steps: list[int] = []
        self.asked: list[tuple[int, list[int]]] = []

    def __len__(self) -> int:
        return len(self._source)

    def batches(self, groups: Any) -> Any:
        self.asked.append((len(self.steps), [each for group in groups for each in group]))
        return self._source.batches(groups)


Sampler = Callable[[int, float], list[int]]


def check_poisson(samples: NDArray[np.float64], rate: float) -> None:
    """Check that steps (T, N) have each record by itself with that rate; a false alarm has a chance of 6e-10 at most.

    Sizes have the mean and the variance of a binomial distribution, no record is favoured, and neither two records of a
    step nor a record in two steps have to do with each other.
    """
    steps, records = samples.shape
    total = steps * records

    def near(value: float, mean: float, deviation: float) -> None:
        assert abs(value - mean) < stats.norm.isf(FALSE_ALARM / 2) * deviation

    near(float(samples.sum()), total * rate, math.sqrt(total * rate * (1 - rate)))
    sizes = (samples.sum(axis=1) - records * rate) ** 2 / (records * rate * (1 - rate))
    near(float(sizes.mean()), 1.0, math.sqrt(3 / steps))
    each = (samples.sum(axis=0) - steps * rate) ** 2 / (steps * rate * (1 - rate))
    near(float(each.mean()), 1.0, math.sqrt(3 / records))
    centred = samples - rate
    spread = rate * (1 - rate) * math.sqrt(total)
    near(float((centred[:, 1:] * centred[:, :-1]).sum()), 0.0, spread)
    near(float((centred[1:] * centred[:-1]).sum()), 0.0, spread)
    near(float((centred[4:] * centred[:-4]).sum()), 0.0, spread)


def sampled(
    sampler: Sampler, records: int = 400, steps: int = 4000, rate: float = 0.25
) -> NDArray[np.float64]:
    samples = np.zeros((steps, records))
    for number in range(steps):
        samples[number, sampler(records, rate)] = 1
    return samples


def shuffled(records: int, rate: float) -> list[int]:
    """Return shuffled batches of one size."""
    chosen: list[int] = np.random.default_rng().permutation(records)[: int(records * rate)].tolist()
    return chosen


def in_epochs() -> Sampler:
    """Return steps with each record once in 1/rate steps."""
    order: list[int] = []

    def batch(records: int, rate: float) -> list[int]:
        if not order:
            order.extend(np.random.default_rng().permutation(records).tolist())
        size = int(records * rate)
        taken = order[:size]
        del order[:size]
        return taken

    return batch


def test_poisson_sample_draws_each_record_by_itself() -> None:
    check_poisson(sampled(poisson_sample), 0.25)


@pytest.mark.parametrize(
    "sampler",
    [
        shuffled,
        in_epochs(),
        lambda records, rate: poisson_sample(records, 1.02 * rate),
        lambda records, rate: [2 * each + k for each in poisson_sample(records // 2, rate) for k in (0, 1)],
        lambda records, rate: poisson_sample(records - 1, rate),
    ],
    ids=["one size", "shuffled epochs", "another rate", "in pairs", "one left out"],
)
def test_poisson_sample_check_detects_other_sampling(sampler: Sampler) -> None:
    with pytest.raises(AssertionError):
        check_poisson(sampled(sampler), 0.25)


def test_poisson_sample_is_what_training_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is sampled anew, and the seed does not decide the samples.

    An empty sample asks for nothing: with so many records that there is none in 600 steps, but for 1.6e-11.
    """
    inputs, labels = images(140)
    model = SplitModel(nn.Sequential(nn.AvgPool2d(16), nn.Flatten()), nn.Linear(1, 3))
    settings = SETTINGS.model_copy(update={"sampling_rate": 0.2})
    job = job_of(model, inputs, labels, dp_sgd=settings, epochs=120)
    drawn: list[int] = []
    silence(monkeypatch, drawn)
    watched = _Watched(job)
    watched.steps = drawn
    run_job(replace(job, source=watched))
    assert len(drawn) == 600
    samples = np.zeros((600, 140))
    for number, asked in watched.asked:
        samples[number, asked] += 1
    assert samples.max() == 1
    check_poisson(samples, 0.2)


@pytest.mark.parametrize(("rate", "expected"), [(1.0, 5), (1e-12, 0)])
def test_poisson_sample_of_extreme_rates(rate: float, expected: int) -> None:
    assert len(poisson_sample(5, rate)) == expected


def check_spread(values: NDArray[np.float64], sigma: float) -> None:
    """Check that values have the mean 0 and the deviation sigma of a Gaussian, with a false alarm of 3e-10 at most."""
    count = len(values)
    squares = float(np.square(values / sigma).sum())
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], count)
    assert low < squares < high
    assert abs(float(values.mean())) < stats.norm.isf(FALSE_ALARM / 2) * sigma / math.sqrt(count)
    assert stats.kstest(values / sigma, "norm").pvalue > FALSE_ALARM


def noise_in_parameters(settings: DpSgdSection, batch_size: int) -> NDArray[np.float64]:
    """Return the change of the parameters by a step on an empty sample: noise alone."""
    inputs, labels = images(1)
    rare = settings.model_copy(update={"sampling_rate": 1.0})
    job = job_of(tiny(), inputs, labels, dp_sgd=rare)
    job = replace(job, schedule=replace(job.schedule, batch_size=batch_size), objective=_no_loss)
    return moved(job).numpy()


def _no_loss(outputs: Any, labels: Tensor, guide: object) -> Any:
    """Return a loss with gradients of zero."""
    return OBJECTIVES["pfpl"](outputs, labels, None)._replace(total=0.0 * outputs.logits.sum())


@pytest.mark.parametrize(("noise", "clip", "divisor"), [(1.0, 0.5, 1), (2.5, 0.1, 7), (0.7, 30.0, 1)])
def test_noise_that_reaches_the_parameters_has_the_agreed_deviation(
    noise: float, clip: float, divisor: int
) -> None:
    settings = DpSgdSection(noise_multiplier=noise, clip=clip, sampling_rate=1.0)
    check_spread(noise_in_parameters(settings, divisor), noise * clip / divisor)


@pytest.mark.parametrize("wrong", [2 / 3, 3 / 2])
def test_noise_check_detects_other_noise(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "draw_noise", lambda count: np.rint(wrong * draw_noise(count)))
    values = noise_in_parameters(ALL, 1)
    with pytest.raises(AssertionError):
        check_spread(values, ALL.noise_multiplier * ALL.clip)


def test_draw_noise_is_whole_steps_and_fresh() -> None:
    first, second = draw_noise(2000), draw_noise(2000)
    check_spread(first, 2.0**20)
    np.testing.assert_array_equal(first, np.rint(first))
    assert len(np.intersect1d(first, second)) < 40
    # Of 2000 values on a grid of 2^20 steps a hundredth of the spread holds more than a few: the last bit is free too.
    assert 800 < int((first % 2).sum()) < 1200


def test_draw_noise_does_not_follow_the_seed() -> None:
    """Neither the job's nor torch's nor numpy's."""
    values = []
    for _ in range(2):
        torch.manual_seed(5)
        np.random.seed(5)
        values.append(noise_in_parameters(ALL, 1))
    assert float((values[0] != values[1]).mean()) > 0.99
    assert np.corrcoef(values[0], values[1])[0, 1] < 0.2


def test_step_of_an_empty_sample_is_noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "poisson_sample", lambda records, rate: [])
    inputs, labels = images(1)
    job = job_of(tiny(), inputs, labels, dp_sgd=ALL)
    check_spread(moved(job).numpy(), ALL.noise_multiplier * ALL.clip)
    assert run_job(job) == Losses(0.0, 0.0, 0.0)
