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
        combined = received(answer, SCHEME, cohort)
        holds = cohort.holds[cohort.index(site)]
        return np.where(holds[:, None], combined, rows)


class PlainServer:
    """The server's half: Gram matrices, weights, linear combinations.

    It serves every scheme under which rows travel as rows with their inner products: ``plain``, and ``rotation``,
    where all that it computes commutes with the rotation.
    """

    def __init__(self, weights: Weights, scheme: str = SCHEME) -> None:
        """``weights`` belongs to the method, and decides what happens without peers or when all of them agree."""
        self._weights = weights
        self.scheme = scheme

    def validate(self, payload: Payload, site: str, cohort: Cohort) -> None:
        """Raise :class:`MalformedError` unless the payload is rows, and zeros where the site holds no class."""
        _check_payload(payload, self.scheme, site, cohort)

    def combine(self, payloads: Mapping[str, Payload], cohort: Cohort) -> dict[str, Payload]:
        """Σ_m W[k, i, m] C_m^k for each site i and class k, in float64."""
        by_class = np.stack([only_array(payloads[site], self.scheme) for site in cohort.sites], axis=1)
        gram = by_class @ by_class.transpose(0, 2, 1)
        combined = self._weights(gram, cohort.holds) @ by_class
        return {site: Payload(self.scheme, arrays=(combined[:, i],)) for i, site in enumerate(cohort.sites)}


class GramServer:
    """The server's half of a step that needs inner products and gives nothing back, such as a clustering.

    One class only: a site's row is all that it puts in.
    """

    def __init__(self, scheme: str = SCHEME) -> None:
        """``scheme``: one whose payloads are rows with their inner products, ``plain`` or ``rotation``."""
        self.scheme = scheme

    def validate(self, payload: Payload, site: str, cohort: Cohort) -> None:
        """Raise :class:`MalformedError` unless the payload is one row, and zero if the site holds no class.

        ``ValueError`` for a cohort of more than one class.
        """
        _check_one_class(cohort)
        _check_payload(payload, self.scheme, site, cohort)

    def gram(self, payloads: Mapping[str, Payload], cohort: Cohort) -> NDArray[np.float64]:
        """⟨C_i, C_m⟩ for all pairs of the cohort's sites, in their order: float64 (n, n), exactly symmetric.

        ``ValueError`` for a cohort of more than one class.
        """
        _check_one_class(cohort)
        rows = np.concatenate([only_array(payloads[site], self.scheme) for site in cohort.sites])
        products = rows @ rows.T
        return np.asarray((products + products.T) / 2.0)


def received(payload: Payload, scheme: str, cohort: Cohort) -> Rows:
    """The rows (K, d) of a payload, checked. Raises :class:`MalformedError`; norms are at most 1."""
    rows = only_array(payload, scheme)
    check_rows(rows, cohort)
    return rows


def only_array(payload: Payload, scheme: str) -> Rows:
    """The payload's one array, unchecked. :class:`UnknownSchemeError`, :class:`MalformedError` if there is none."""
    if payload.scheme != scheme:
        raise UnknownSchemeError(f"expected a payload of scheme {scheme!r}, not {payload.scheme!r}")
    if len(payload.arrays) != 1 or payload.blobs or payload.words:
        raise MalformedError(f"a payload of scheme {scheme!r} is one array")
    return payload.arrays[0]


def _check_payload(payload: Payload, scheme: str, site: str, cohort: Cohort) -> None:
    rows = received(payload, scheme, cohort)
    _check_absent(rows, cohort.holds[cohort.index(site)])


def _check_absent(rows: Rows, holds: NDArray[np.bool_]) -> None:
    """A row for a class that nobody expects from this site would enter no one's count of holders."""
    if rows[~holds].any():
        raise MalformedError("a row stands where the site does not hold the class")


def _check_one_class(cohort: Cohort) -> None:
    if cohort.classes != 1:
        raise ValueError(f"a Gram matrix of whole rows is of one class, not {cohort.classes}")
