"""Other ways to the same numbers: closed forms, sums of chances, and accountants that are wrong in one way each."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import NormalDist

from opacus.accountants import PRVAccountant
from scipy.special import log_ndtr, ndtr  # type: ignore[import-untyped]

from privacy.accounting.events import DpSgd, Event, GaussianRelease
from tests.support.composed import epsilon

Accountant = Callable[[Sequence[Event], float], float]
PHI = NormalDist().cdf


def prv(history: Sequence[Event], delta: float, error: float) -> float:
    """Return Opacus's bound of ε from above, within ``error``. A release is a step with every record in the batch."""
    steps: Counter[tuple[float, float]] = Counter()
    for event in history:
        if isinstance(event, DpSgd):
            steps[event.noise_multiplier, event.sampling_rate] += event.steps
        else:
            steps[event.noise_multiplier, 1.0] += 1
    accountant = PRVAccountant()
    accountant.history = [(*kind, count) for kind, count in steps.items()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its orders, which it only takes a domain's size from
        return float(accountant.get_epsilon(delta, eps_error=error, delta_error=delta / 10_000))


def one_step_delta(noise: float, rate: float, epsilon: float) -> float:
    """Return δ of one DP-SGD step from the definition: N(0, σ²) and (1 − q)·N(0, σ²) + q·N(1, σ²), both ways round."""
    # Removing: the mixture over e^ε times N(0, σ²), which is where the loss log(1 − q + q·e^((2x − 1)/2σ²)) is over ε.
    threshold = noise**2 * math.log((math.exp(epsilon) - 1 + rate) / rate) + 0.5
    mixture = (1 - rate) * PHI(-threshold / noise) + rate * PHI((1 - threshold) / noise)
    removing = mixture - math.exp(epsilon) * PHI(-threshold / noise)
    adding = 0.0
    inner = (math.exp(-epsilon) - 1 + rate) / rate
    if inner > 0:
        threshold = noise**2 * math.log(inner) + 0.5
        mixture = (1 - rate) * PHI(threshold / noise) + rate * PHI((threshold - 1) / noise)
        adding = PHI(threshold / noise) - math.exp(epsilon) * mixture
    return max(removing, adding)


def replace_one(history: Sequence[Event], delta: float) -> float:
    """Count neighbours that differ in one record's content, whose sensitivity is twice as large."""
    return epsilon([_with_noise(event, event.noise_multiplier / 2) for event in history], delta)


def half_a_record(history: Sequence[Event], delta: float) -> float:
    """Count half of the true sensitivity."""
    return epsilon([_with_noise(event, event.noise_multiplier * 2) for event in history], delta)


def without_the_last(history: Sequence[Event], delta: float) -> float:
    return epsilon(history[:-1], delta)


def without_training(history: Sequence[Event], delta: float) -> float:
    return epsilon([event for event in history if isinstance(event, GaussianRelease)], delta)


def apart(history: Sequence[Event], delta: float) -> float:
    """Add up releases and training, each at the whole δ, which is neither the cost nor a bound of it."""
    training = [event for event in history if isinstance(event, DpSgd)]
    return without_training(history, delta) + epsilon(training, delta)


def all_in_the_batch(history: Sequence[Event], delta: float) -> float:
    """Count no gain from sampling."""
    return epsilon(
        [DpSgd(e.noise_multiplier, 1.0, e.steps) if isinstance(e, DpSgd) else e for e in history], delta
    )


WRONG: dict[str, Accountant] = {
    "replace one": replace_one,
    "half a record": half_a_record,
    "without the last": without_the_last,
    "without training": without_training,
    "apart": apart,
    "all in the batch": all_in_the_batch,
}


def _with_noise(event: Event, noise: float) -> Event:
    if isinstance(event, DpSgd):
        return DpSgd(noise, event.sampling_rate, event.steps)
    return GaussianRelease(noise, event.coordinates)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the least δ of Gaussian noise at ε: Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) (Balle and Wang 2018, theorem 8)."""
    near, far = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    return float(max(0.0, ndtr(near) - math.exp(epsilon + log_ndtr(-far))))
