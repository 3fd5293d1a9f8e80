"""``plain``: no protection. The server sees every row; what it does with them is what the others must match.

The limit is the name: whoever runs the server, or reads its disk, has every site's prototypes. It is meant for
tests, for federations whose sites trust the coordinator, and as the reference of the conformance suite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from crypto.errors import MalformedError, UnknownSchemeError
from crypto.protection import Cohort, Payload, Rows
from crypto.rows import check_rows, contributed

SCHEME = "plain/1"

Weights = Callable[[NDArray[np.float64], NDArray[np.bool_]], NDArray[np.float64]]
"""(Gram matrices (K, n, n), holds (n, K)) -> weights (K, n, n); row i of class k is what site i receives."""


class PlainSite:
    """The site's half: rows out, rows in."""

    scheme = SCHEME

    def protect(self, rows: Rows, site: str, cohort: Cohort) -> Payload:
        """The rows, with zeros for classes that the site does not hold. Raises :class:`MalformedError`."""
        return Payload(SCHEME, arrays=(contributed(rows, site, cohort),))

    def unprotect(self, answer: Payload, rows: Rows, site: str, cohort: Cohort) -> Rows:
        """The combination of peers; the site's own row for a class it does not hold.

        Raises :class:`MalformedError`, also for a row longer than 1: weights are convex.
        """
        combined = _only_array(answer)
        check_rows(combined, cohort)
        holds = cohort.holds[cohort.index(site)]
        return np.where(holds[:, None], combined, rows)


class PlainServer:
    """The server's half: Gram matrices, weights, linear combinations."""

    scheme = SCHEME

    def __init__(self, weights: Weights) -> None:
        """``weights`` belongs to the method, and decides what happens without peers or when all of them agree."""
        self._weights = weights

    def validate(self, payload: Payload, site: str, cohort: Cohort) -> None:
        """Raise :class:`MalformedError` unless the payload is rows, and zeros where the site holds no class."""
        rows = _only_array(payload)
        check_rows(rows, cohort)
        _check_absent(rows, cohort.holds[cohort.index(site)])

    def combine(self, payloads: Mapping[str, Payload], cohort: Cohort) -> dict[str, Payload]:
        """Σ_m W[k, i, m] C_m^k for each site i and class k, in float64."""
        by_class = np.stack([_only_array(payloads[site]) for site in cohort.sites], axis=1)
        gram = by_class @ by_class.transpose(0, 2, 1)
        combined = self._weights(gram, cohort.holds) @ by_class
        return {site: Payload(SCHEME, arrays=(combined[:, i],)) for i, site in enumerate(cohort.sites)}


def _only_array(payload: Payload) -> Rows:
    if payload.scheme != SCHEME:
        raise UnknownSchemeError(f"expected a payload of scheme {SCHEME!r}, not {payload.scheme!r}")
    if len(payload.arrays) != 1 or payload.blobs:
        raise MalformedError(f"a payload of scheme {SCHEME!r} is one array")
    return payload.arrays[0]


def _check_absent(rows: Rows, holds: NDArray[np.bool_]) -> None:
    """A row for a class that nobody expects from this site would enter no one's count of holders."""
    if rows[~holds].any():
        raise MalformedError("a row stands where the site does not hold the class")
