"""Scaling of a configuration's noise: all noise multipliers by one factor, so that the run costs a given ε."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agreement.errors import UserError
from agreement.sections.privacy import PrivacySection

_NEAR = 1.0001
"""Largest ratio of the found factor to the least factor."""
_FARTHEST = 2.0**20

Planned = Callable[[PrivacySection], float]
"""Function from a configuration's noise to the ε of a run."""


@dataclass(frozen=True)
class Scaled:
    """Agreed noise times ``factor``; a run takes ε = ``planned``."""

    privacy: PrivacySection
    factor: float
    planned: float


def scaled(agreed: PrivacySection, factor: float) -> PrivacySection:
    """Multiply all noise multipliers by ``factor``, with six digits."""
    changes: dict[str, object] = {"noise_multiplier": _times(agreed.noise_multiplier, factor)}
    training = agreed.dp_sgd
    if training is not None:
        noise = _times(training.noise_multiplier, factor)
        changes["dp_sgd"] = training.model_copy(update={"noise_multiplier": noise})
    return agreed.model_copy(update=changes)


def fitted(agreed: PrivacySection, epsilon: float, planned: Planned) -> Scaled:
    """Return the least noise with which a run takes ``epsilon`` at most, within 0.01 %; raise ``UserError``."""
    fits = _at(agreed, 1.0, planned)
    step = 0.5 if fits.planned <= epsilon else 2.0
    other = fits
    while (fits.planned <= epsilon) == (other.planned <= epsilon):
        if not 1 / _FARTHEST <= other.factor * step <= _FARTHEST:
            raise UserError(
                f"noise multipliers from {1 / _FARTHEST:.0e} to {_FARTHEST:.0e} times the given multipliers do "
                f"not give ε = {epsilon:g}: change the rounds, release_every or the noise multipliers"
            )
        fits, other = other, _at(agreed, other.factor * step, planned)
    low, high = sorted((fits, other), key=lambda each: each.factor)
    while high.factor > _NEAR * low.factor:
        middle = _at(agreed, (low.factor * high.factor) ** 0.5, planned)
        low, high = (low, middle) if middle.planned <= epsilon else (middle, high)
    return high


def _at(agreed: PrivacySection, factor: float, planned: Planned) -> Scaled:
    privacy = scaled(agreed, factor)
    return Scaled(privacy, factor, planned(privacy))


def _times(noise: float, factor: float) -> float:
    return float(f"{noise * factor:.6g}")
