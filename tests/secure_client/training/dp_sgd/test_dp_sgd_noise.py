"""The noise of DP-SGD that reaches the parameters: as agreed, by the operating system, also for an empty sample."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor

from agreement import DpSgdSection
from secure_client.training.dp_sgd import steps
from secure_client.training.dp_sgd.mechanism import draw_noise
from secure_client.training.job import Losses
from secure_client.training.loop import run_job
from tests.secure_client.training.dp_sgd.private_training import (
    ALL,
    FALSE_ALARM,
    OBJECTIVES,
    images,
    job_of,
    moved,
    tiny,
)


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
def test_the_noise_that_reaches_the_parameters(noise: float, clip: float, divisor: int) -> None:
    settings = DpSgdSection(noise_multiplier=noise, clip=clip, sampling_rate=1.0)
    check_spread(noise_in_parameters(settings, divisor), noise * clip / divisor)


@pytest.mark.parametrize("wrong", [2 / 3, 3 / 2])
def test_another_noise_would_be_seen(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "draw_noise", lambda count: np.rint(wrong * draw_noise(count)))
    values = noise_in_parameters(ALL, 1)
    with pytest.raises(AssertionError):
        check_spread(values, ALL.noise_multiplier * ALL.clip)


def test_noise_is_whole_steps_and_each_draw_another() -> None:
    first, second = draw_noise(2000), draw_noise(2000)
    check_spread(first, 2.0**20)
    np.testing.assert_array_equal(first, np.rint(first))
    assert len(np.intersect1d(first, second)) < 40
    # Of 2000 values on a grid of 2^20 steps a hundredth of the spread holds more than a few: the last bit is free too.
    assert 800 < int((first % 2).sum()) < 1200


def test_noise_does_not_follow_the_seed() -> None:
    """Neither the job's nor torch's nor numpy's."""
    values = []
    for _ in range(2):
        torch.manual_seed(5)
        np.random.seed(5)
        values.append(noise_in_parameters(ALL, 1))
    assert float((values[0] != values[1]).mean()) > 0.99
    assert np.corrcoef(values[0], values[1])[0, 1] < 0.2


def test_an_empty_sample_takes_its_noisy_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "poisson_sample", lambda records, rate: [])
    inputs, labels = images(1)
    job = job_of(tiny(), inputs, labels, dp_sgd=ALL)
    check_spread(moved(job).numpy(), ALL.noise_multiplier * ALL.clip)
    assert run_job(job) == Losses(0.0, 0.0, 0.0)
