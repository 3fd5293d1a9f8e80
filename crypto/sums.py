"""What a protection of sums is that takes one step: a site half, a server half, and the public facts both work from.

Every site sends its vector at once, the server adds up what it was sent, and every site reads the sum. Who drops out
after the list of participants was settled fails the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crypto.fixed_point import Segment
from crypto.protection import Cohort, Payload

Values = NDArray[np.float64]


@dataclass(frozen=True)
class SumFacts:
    """Vectors of ``segments``, whose values keep to their bounds, up to ``terms`` of which are added."""

    segments: tuple[Segment, ...]
    terms: int

    @property
    def length(self) -> int:
        """L: the values of all segments together."""
        return sum(segment.length for segment in self.segments)

    @property
    def rounding(self) -> Values:
        """What float64 by itself may put each value (L,) of a sum off by, when it is scaled and added one by one.

        That is eps · terms² · bound: each of as many additions rounds a partial sum, which is up to terms · bound.
        """
        bounds = [segment.bound for segment in self.segments]
        of_one = np.finfo(np.float64).eps * float(self.terms) ** 2
        return np.asarray(of_one * np.repeat(bounds, [segment.length for segment in self.segments]))


class SumSiteHalf(Protocol):
    """A protection of sums at a site. It keeps nothing from one call to the next."""

    def protect(self, values: Values, site: str, cohort: Cohort, context: bytes) -> Payload:
        """Values (L,) of one of the cohort's sites, under what no other attempt is protected with.

        ``context`` names the run, the round, the attempt, the participants and what they train from: it is the same at
        all sites that were told the same, and is never used for other values. Raises, before anything is sent,
        :class:`crypto.errors.BoundError` for a value beyond its bound, which what is no finite number is too.
        """
        ...

    def unprotect(self, answer: Payload) -> Values:
        """The sum (L,), within :meth:`error`. It may be read by a site that added nothing to it, and a round later.

        Raises :class:`crypto.errors.MalformedError` for an answer that is not of the scheme's form, and
        :class:`crypto.errors.ImplausibleError` for what shows only to those who can read it: the server must not learn
        of that.
        """
        ...

    def error(self) -> Values:
        """The most by which each value (L,) of a sum of as many terms as there may be is off.

        That is beside float64's own, :attr:`SumFacts.rounding`. Where sites are counted it is below 1/4.
        """
        ...


class SumServerHalf(Protocol):
    """A protection of sums at the server."""

    def validate(self, payload: Payload) -> None:
        """Raise :class:`crypto.errors.MalformedError` or a subclass unless the payload may enter :meth:`add`."""
        ...

    def add(self, payloads: Iterable[Payload]) -> Payload:
        """What all sites are sent of one payload or more, which are read one after the other."""
        ...
