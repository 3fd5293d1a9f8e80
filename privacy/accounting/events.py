"""Privacy events: the mechanisms that an accountant composes, and the unit that their guarantee is for.

A history is a sequence of events over one data set. Neighbouring data sets differ by one unit (a record, a subject or
a site) that is added or removed. Limit: events hold parameters, and do not record the outputs of a mechanism.
Pydantic writes and reads an event as an object of its parameters, with its ``mechanism``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


class Unit(StrEnum):
    """Unit by which neighbouring data sets differ: its participation is protected.

    ``RECORD`` is one record. ``SUBJECT`` is all records that a site has of one person, in all classes. ``SITE`` is all
    records of a site.
    """

    RECORD = "record"
    SUBJECT = "subject"
    SITE = "site"


_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False)
_MOST = 1 << 63
# A multiplier is always stored as a float: 1 and 1.0 are equal, but differ as JSON.
Multiplier = Annotated[float, Field(gt=0, strict=True)]


@dataclass(frozen=True, config=_CONFIG)
class GaussianRelease:
    """One release of the prototype query.

    ``noise_multiplier`` is the noise's standard deviation over the query's L2 sensitivity. ``coordinates`` is the
    number of released integers, each with independent discrete Gaussian noise: K·(d + 1), or 0 for continuous noise.
    Raises ``ValueError`` unless ``noise_multiplier`` is positive and finite and ``coordinates`` from 0 to 2^63.
    """

    mechanism: Literal["gaussian release"] = Field(default="gaussian release", kw_only=True, repr=False)
    noise_multiplier: Multiplier
    coordinates: Annotated[int, Field(ge=0, le=_MOST, strict=True)] = 0


@dataclass(frozen=True, config=_CONFIG)
class DpSgd:
    """Training by ``steps`` of DP-SGD, each on a Poisson sample that has every unit with probability ``sampling_rate``.

    ``noise_multiplier`` is the noise's standard deviation over the norm to which gradients are clipped. Raises
    ``ValueError`` unless ``noise_multiplier`` is positive and finite, ``sampling_rate`` is in (0, 1] and ``steps`` is
    from 1 to 2^63.
    """

    mechanism: Literal["dp-sgd"] = Field(default="dp-sgd", kw_only=True, repr=False)
    noise_multiplier: Multiplier
    sampling_rate: Annotated[float, Field(gt=0, le=1, strict=True)]
    steps: Annotated[int, Field(ge=1, le=_MOST, strict=True)]


Event = GaussianRelease | DpSgd
