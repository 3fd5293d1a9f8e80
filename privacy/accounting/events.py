"""Privacy events: the mechanisms that an accountant composes, and their JSON form.

A history is a sequence of events over one data set. Neighbouring data sets differ by one unit (a record, a subject or
a site) that is added or removed. Limit: events hold parameters, and do not record the outputs of a mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
_MOST = 1 << 63
# A multiplier is always stored as a float: 1 and 1.0 are equal, but differ as JSON.
Multiplier = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, config=_STRICT)
class GaussianRelease:
    """One release of the prototype query.

    ``noise_multiplier`` is the noise's standard deviation over the query's L2 sensitivity. ``coordinates`` is the
    number of released integers, each with independent discrete Gaussian noise: K·(d + 1), or 0 for continuous noise.
    Raises ``ValueError`` unless ``noise_multiplier`` is positive and finite and ``coordinates`` from 0 to 2^63.
    """

    noise_multiplier: Multiplier
    coordinates: Annotated[int, Field(ge=0, le=_MOST)] = 0


@dataclass(frozen=True, config=_STRICT)
class DpSgd:
    """Training by ``steps`` of DP-SGD, each on a Poisson sample that has every unit with probability ``sampling_rate``.

    ``noise_multiplier`` is the noise's standard deviation over the norm to which gradients are clipped. Raises
    ``ValueError`` unless ``noise_multiplier`` is positive and finite, ``sampling_rate`` is in (0, 1] and ``steps`` is
    from 1 to 2^63.
    """

    noise_multiplier: Multiplier
    sampling_rate: Annotated[float, Field(gt=0, le=1)]
    steps: Annotated[int, Field(ge=1, le=_MOST)]


Event = GaussianRelease | DpSgd

_MECHANISMS: Mapping[str, type[GaussianRelease] | type[DpSgd]] = {
    "gaussian release": GaussianRelease,
    "dp-sgd": DpSgd,
}
_NAMES = {kind: name for name, kind in _MECHANISMS.items()}


def event_to_json(event: Event) -> dict[str, object]:
    """Return the event as a JSON object: parameters by name, and ``mechanism``. Numbers survive the round trip."""
    return {"mechanism": _NAMES[type(event)], **asdict(event)}


def event_from_json(content: object) -> Event:
    """Return the event that :func:`event_to_json` encoded. Raises ``ValueError``, which names the fault, otherwise."""
    if not isinstance(content, dict):
        raise ValueError(f"event is not an object: {content!r:.80}")
    values = dict(content)
    name = values.pop("mechanism", None)
    kind = _MECHANISMS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"unknown mechanism {name!r:.80}")
    try:
        return kind(**values)
    except ValidationError as error:
        wrong = "; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors(include_url=False))
        raise ValueError(f"invalid parameters of {name!r}: {wrong:.200}") from error
