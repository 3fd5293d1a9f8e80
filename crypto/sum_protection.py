"""Interface of a protection of sums in one step: a site half, a server half, and the public facts that both use.

Every site sends its vector at once, the server adds the payloads, and every site reads the sum. Limit: a site that
drops out after the list of participants was fixed fails the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crypto.fixed_point import Segment
from crypto.protection import Cohort, Payload

__all__ = ["SumFacts", "SumServerHalf", "SumSiteHalf", "Values"]

Values = NDArray[np.float64]
"""Vector (L,) of a sum."""


@dataclass(frozen=True)
class SumFacts:
    """Public facts of a sum: vectors consist of ``segments`` with their bounds, and at most ``terms`` are added."""

    segments: tuple[Segment, ...]
    terms: int

    @property
    def length(self) -> int:
        """Number of values L of all segments together."""
        return sum(segment.length for segment in self.segments)

    @property
    def rounding(self) -> Values:
        """Largest float64 rounding error of each value (L,) of a sum that is scaled and added term by term.

        The error is eps · terms² · bound: each of ``terms`` additions rounds a partial sum of up to terms · bound.
        """
        bounds = [segment.bound for segment in self.segments]
        of_one = np.finfo(np.float64).eps * float(self.terms) ** 2
        return np.asarray(of_one * np.repeat(bounds, [segment.length for segment in self.segments]))


class SumSiteHalf(Protocol):
    """Site half of a protection of sums, without state between calls."""

    def protect(self, values: Values, site: str, cohort: Cohort, context: bytes) -> Payload:
        """Protect the values (L,) of one of the cohort's sites, bound to this attempt.

        ``context`` names the run, the round, the attempt, the participants and the model they train from. It is equal
        at all sites that were given the same facts, and must not be reused for other values. Raises
        :class:`crypto.errors.BoundError`, before anything is sent, for a value that is not finite or beyond its bound.
        """
        ...

    def unprotect(self, answer: Payload) -> Values:
        """Return the sum (L,), within :meth:`error`; a site that added nothing can read it too, even a round later.

        Raises :class:`crypto.errors.MalformedError` for an answer that is not of the scheme's form, and
        :class:`crypto.errors.ImplausibleError` for a fault that only decryption shows, which the server must not learn.
        """
        ...

    def error(self) -> Values:
        """Return the largest error of each value (L,) of a sum with the largest number of terms.

        Float64's own rounding, :attr:`SumFacts.rounding`, comes on top. For counts of sites the error is below 1/4.
        """
        ...


class SumServerHalf(Protocol):
    """Server half of a protection of sums."""

    def validate(self, payload: Payload) -> None:
        """Raise :class:`crypto.errors.MalformedError` or a subclass unless the payload may enter :meth:`add`."""
        ...

    def add(self, payloads: Iterable[Payload]) -> Payload:
        """Add one payload or more, reading one at a time, and return the answer for all sites."""
        ...
