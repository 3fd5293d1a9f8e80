"""What spends privacy: the mechanisms that an accountant composes, and their form in JSON.

A history is a sequence of events over one data set. Neighbouring data sets differ by one unit (a record, a subject or
a site) that is added or removed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class GaussianRelease:
    """One release of the prototype query.

    ``noise_multiplier`` is the noise's standard deviation over the query's L2 sensitivity, ``coordinates`` the number
    of integers released, each with discrete Gaussian noise of its own: K·(d + 1), or 0 for continuous noise.
    ``ValueError`` unless the one is positive and finite and the other from 0 to 2^63.
    """

    noise_multiplier: float
    coordinates: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", _multiplier(self.noise_multiplier))
        object.__setattr__(self, "coordinates", _count("coordinates", self.coordinates, 0))


@dataclass(frozen=True)
class DpSgd:
    """``steps`` of DP-SGD, each on a Poisson sample of which every unit is part with probability ``sampling_rate``.

    ``noise_multiplier`` is the noise's standard deviation over the norm to which gradients are clipped. ``ValueError``
    unless it is positive and finite, the rate is in (0, 1] and there are 1 to 2^63 steps.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", _multiplier(self.noise_multiplier))
        object.__setattr__(self, "sampling_rate", _rate(self.sampling_rate))
        object.__setattr__(self, "steps", _count("steps", self.steps, 1))


Event = GaussianRelease | DpSgd
_MOST = 1 << 63

_MECHANISMS: Mapping[str, type[GaussianRelease] | type[DpSgd]] = {
    "gaussian release": GaussianRelease,
    "dp-sgd": DpSgd,
}
_NAMES = {kind: name for name, kind in _MECHANISMS.items()}


def event_to_json(event: Event) -> dict[str, object]:
    """The event as a JSON object: its parameters by name, and ``mechanism``. Numbers come back as they were."""
    return {"mechanism": _NAMES[type(event)], **asdict(event)}


def event_from_json(content: object) -> Event:
    """What :func:`event_to_json` made; ``ValueError`` that names what is wrong for anything else."""
    if not isinstance(content, dict):
        raise ValueError(f"it is no mechanism: {content!r:.80}")
    values = dict(content)
    name = values.pop("mechanism", None)
    kind = _MECHANISMS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"its mechanism is {name!r:.80}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"these are not the parameters of {name!r}: {', '.join(sorted(values))}") from error


def _multiplier(value: float) -> float:
    number = _real("noise_multiplier", value)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"noise_multiplier is {number}, not positive and finite")
    return number


def _rate(value: float) -> float:
    number = _real("sampling_rate", value)
    if not 0 < number <= 1:
        raise ValueError(f"sampling_rate is {number}, not above 0 and at most 1")
    return number


def _real(name: str, value: object) -> float:
    # Stored as a float whatever it came as: 1 and 1.0 are equal, and differ as JSON.
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise ValueError(f"{name} is {value!r}, not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"{name} is too large") from error


def _count(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise ValueError(f"{name} is {value!r:.80}, not a whole number from {least} to 2^63")
    return value
