"""``plain``: no protection; the server computes on every site's rows in the clear.

It is meant for tests, for federations whose sites trust the coordinator, and as the reference whose results the other
protections must match. Limit: whoever runs the server, or reads its disk, has every site's prototypes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from crypto.errors import MalformedError, UnknownSchemeError
from crypto.protection import Cohort, Payload, Rows, check_rows, rows_to_send

SCHEME = "plain/1"

Weights = Callable[[NDArray[np.float64], NDArray[np.bool_]], NDArray[np.float64]]
"""Function of Gram matrices (K, n, n) and holds (n, K) to weights (K, n, n); row i of class k is for site i."""


class PlainSite:
    """Site half: sends and receives rows in the clear."""

    scheme = SCHEME

    def protect(self, rows: Rows, site: str, cohort: Cohort) -> Payload:
        """Return the rows, with zeros for classes that the site does not hold; raise :class:`MalformedError`."""
        return Payload(SCHEME, arrays=(rows_to_send(rows, site, cohort),))

    def unprotect(self, answer: Payload, rows: Rows, site: str, cohort: Cohort) -> Rows:
        """Return the combination of peers, or the site's own row for a class that it does not hold.

        Raises :class:`MalformedError`, also for a row longer than 1, because weights are convex.
        """
        combined = read_rows(answer, SCHEME, cohort)
        holds = cohort.held_by(site)
        return np.where(holds[:, None], combined, rows)


class PlainValues:
    """Site half of sums and clusters: sends arrays in the clear."""

    scheme = SCHEME

    def protect(self, *arrays: NDArray[np.float64]) -> Payload:
        """Return the arrays as they are."""
        return Payload(SCHEME, arrays=arrays)


class PlainServer:
    """Server half: Gram matrices, weights, linear combinations.

    It serves the schemes whose payloads are rows with unchanged inner products: ``plain``, and ``rotation``, where the
    server's computation commutes with the rotation.
    """

    def __init__(self, weights: Weights, scheme: str = SCHEME) -> None:
        """Take the method's ``weights``, which also cover sites without peers and peers that all agree."""
        self._weights = weights
        self.scheme = scheme

    def validate(self, payload: Payload, site: str, cohort: Cohort) -> None:
        """Raise :class:`MalformedError` unless the payload is rows, with zeros for classes the site does not hold."""
        _check_payload(payload, self.scheme, site, cohort)

    def combine(self, payloads: Mapping[str, Payload], cohort: Cohort) -> dict[str, Payload]:
        """Return Σ_m W[k, i, m] C_m^k for each site i and class k, in float64."""
        by_class = np.stack([only_array(payloads[site], self.scheme) for site in cohort.sites], axis=1)
        gram = by_class @ by_class.transpose(0, 2, 1)
        combined = self._weights(gram, cohort.holds) @ by_class
        return {site: Payload(self.scheme, arrays=(combined[:, i],)) for i, site in enumerate(cohort.sites)}


class GramServer:
    """Server half of a step that computes inner products and returns no payload, such as a clustering.

    The cohort has one class: each site contributes a single row.
    """

    def __init__(self, scheme: str = SCHEME) -> None:
        """Take a scheme whose payloads are rows with unchanged inner products: ``plain`` or ``rotation``."""
        self.scheme = scheme

    def validate(self, payload: Payload, site: str, cohort: Cohort) -> None:
        """Raise :class:`MalformedError` unless the payload is one row, zero if the site does not hold the class.

        Raises ``ValueError`` for a cohort of more than one class.
        """
        _check_one_class(cohort)
        _check_payload(payload, self.scheme, site, cohort)

    def gram(self, payloads: Mapping[str, Payload], cohort: Cohort) -> NDArray[np.float64]:
        """Return ⟨C_i, C_m⟩ for all pairs of the cohort's sites, in their order: float64 (n, n), exactly symmetric.

        Raises ``ValueError`` for a cohort of more than one class.
        """
        _check_one_class(cohort)
        rows = np.concatenate([only_array(payloads[site], self.scheme) for site in cohort.sites])
        products = rows @ rows.T
        return np.asarray((products + products.T) / 2.0)


def read_rows(payload: Payload, scheme: str, cohort: Cohort) -> Rows:
    """Return the rows (K, d) of a payload; raise :class:`MalformedError` for a wrong form or a norm above 1."""
    rows = only_array(payload, scheme)
    check_rows(rows, cohort)
    return rows


def only_array(payload: Payload, scheme: str) -> Rows:
    """Return the payload's single array, whose content is not checked.

    Raises :class:`UnknownSchemeError` for another scheme and :class:`MalformedError` for another number of arrays.
    """
    if payload.scheme != scheme:
        raise UnknownSchemeError(f"expected a payload of scheme {scheme!r}, not {payload.scheme!r}")
    if len(payload.arrays) != 1 or payload.blobs or payload.words:
        raise MalformedError(f"a payload of scheme {scheme!r} must be one array")
    return payload.arrays[0]


def _check_payload(payload: Payload, scheme: str, site: str, cohort: Cohort) -> None:
    rows = read_rows(payload, scheme, cohort)
    # A row of a class that the site says it lacks would enter the sums, and no count of holders would include it.
    if rows[~cohort.held_by(site)].any():
        raise MalformedError("the rows of classes that the site does not hold must be zero")


def _check_one_class(cohort: Cohort) -> None:
    if cohort.classes != 1:
        raise ValueError(f"a Gram matrix of whole rows needs a cohort of one class, not {cohort.classes}")
