"""Interface of a protection of rows: a site half, a server half, and the public facts that both use.

A protection encodes a site's rows (one per class) into a payload, lets the server combine the payloads of a cohort, and
decodes the server's answer into rows. It handles arrays and bytes only, and knows neither the method nor the round.
Every protection checks rows alike: float64, shape (K, d), finite, Euclidean norm at most 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crypto.errors import MalformedError

__all__ = ["Axis", "Cohort", "Payload", "PayloadShape", "Rows", "ServerHalf", "SiteHalf", "UpTo", "Words"]

Rows = NDArray[np.float64]
"""A site's rows (K, d), one for each class."""
Words = NDArray[np.uint32] | NDArray[np.uint64]
"""Words of a ring, modulo 2^32 or 2^64."""


class Combination(StrEnum):
    """Combination of peers that a protection may be able to compute without seeing a Gram matrix."""

    DISTANCE = "distance"
    COMPLEMENT = "complement"
    UNIFORM = "uniform"


class Offer(StrEnum):
    """Operation that a server half can apply to payloads."""

    GRAM = "gram"
    """Inner products are visible to the server, which can apply any weights that follow from them."""
    DISTANCE_WEIGHTS = "distance weights"
    """Combinations of :class:`Combination` are evaluated blindly."""
    SUM = "sum"
    """Payloads of a group's sites are added."""
    CLUSTERING = "clustering"
    """Inner products of hidden rows are visible to the server in a separate step, and nothing else of the rows is."""
    COSINE_WEIGHTS = "cosine weights"
    """Groups' sums are mixed by their cosines."""


@dataclass(frozen=True)
class Payload:
    """Message content: a scheme marker with float64 arrays, ciphertexts as blobs, or ring words (uint32, uint64)."""

    scheme: str
    arrays: tuple[Rows, ...] = ()
    blobs: tuple[bytes, ...] = field(default=(), repr=False)
    words: tuple[Words, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class UpTo:
    """Axis whose length the sender chooses, 0 to ``most``; all such axes of one payload have the same length."""

    most: int


Axis = int | UpTo
"""Length of an axis: exact, or a largest one."""


@dataclass(frozen=True)
class PayloadShape:
    """Required form of a payload, from public facts alone; one of the three fields is not empty.

    ``arrays`` are the shapes, ``words`` (bits, length) of each vector of words, ``blobs`` the largest number of blobs.
    """

    arrays: tuple[tuple[Axis, ...], ...] = ()
    words: tuple[tuple[int, Axis], ...] = ()
    blobs: int = 0


@dataclass(frozen=True)
class Cohort:
    """Public facts of one attempt, the same at every site and at the server.

    ``sites`` are sorted and distinct; ``holds`` is bool of shape (n, K): site i contributes to class k. A withheld
    class is a column without a True. ``dim`` is the feature dimension d.
    """

    sites: tuple[str, ...]
    holds: NDArray[np.bool_]
    dim: int

    def __post_init__(self) -> None:
        if list(self.sites) != sorted(set(self.sites)) or not self.sites:
            raise ValueError("a cohort's sites must be sorted, distinct and not empty")
        if self.holds.ndim != 2 or self.holds.shape[0] != len(self.sites) or self.holds.dtype != np.bool_:
            raise ValueError("holds must be a bool array with a row for each site")
        if self.dim < 1:
            raise ValueError("the feature dimension must be at least 1")

    @property
    def classes(self) -> int:
        """Number of classes K."""
        return int(self.holds.shape[1])

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of holders of each class, shape (K,)."""
        return np.asarray(self.holds.sum(axis=0), dtype=np.int64)

    def index(self, site: str) -> int:
        """Return the row of a site; raise ``ValueError`` if the site is not in the cohort."""
        return self.sites.index(site)

    def held_by(self, site: str) -> NDArray[np.bool_]:
        """Return the mask (K,) of the classes that a site contributes to; raise ``ValueError`` for other sites."""
        return np.asarray(self.holds[self.sites.index(site)])


class SiteHalf(Protocol):
    """Site half of a protection. Rows are float64 of shape (K, d) with Euclidean norm at most 1."""

    scheme: str

    def protect(self, rows: Rows, site: str, cohort: Cohort) -> Payload:
        """Protect rows; rows of classes that the site does not hold in the cohort are sent as zeros."""
        ...

    def unprotect(self, answer: Payload, rows: Rows, site: str, cohort: Cohort) -> Rows:
        """Return the combination of peers for each class the site holds, or its own row if there is no combination.

        ``rows`` must be the rows that were protected. Raises :class:`crypto.errors.MalformedError` for an answer that
        does not have the scheme's form, and :class:`crypto.errors.ImplausibleError` for a fault that only decryption
        shows, which the server must not learn.
        """
        ...


class Half(Protocol):
    """Site half of any protection, as :class:`ProtectedPayload` calls it."""

    @property
    def protect(self) -> Callable[..., Payload]:
        """Return the function from values, and the public facts that the half needs, to a payload."""
        ...


@dataclass(frozen=True, init=False)
class ProtectedPayload:
    """Payload that a protection's site half made: the only form in which a session sends values.

    There is no constructor from a :class:`Payload`, so values that no half has protected cannot take this form by
    mistake. ``maker`` is the half's class, which the session compares with the agreement
    (:mod:`secure_client.protocol.sent_values`). ``values`` are what the half protected, in the clear: a secret of the
    site. Limit: nothing here stops code that means to send cleartext.
    """

    maker: type
    payload: Payload = field(repr=False)
    values: tuple[Any, ...] = field(repr=False, compare=False)

    def __init__(self, half: Half, *values: Any) -> None:
        """Call the half's ``protect``; raise as it does, and ``TypeError`` for anything but a payload."""
        payload = half.protect(*values)
        if not isinstance(payload, Payload):
            raise TypeError(
                f"{type(half).__name__}.protect must return a Payload, not {type(payload).__name__}"
            )
        object.__setattr__(self, "maker", type(half))
        object.__setattr__(self, "payload", payload)
        object.__setattr__(self, "values", values)


class DeclaredHalf:
    """Site half that a third party's protection declares: a class of its own, for which no other half passes.

    It wraps a :class:`SiteHalf` or a :class:`crypto.sum_protection.SumSiteHalf`, whose authors need to change nothing.
    """

    scheme = "declared"
    """Name of the half itself; its payloads have the scheme that the third party chose."""

    def __init__(self, half: Any) -> None:
        self._half = half

    def protect(self, *values: Any, **named: Any) -> Payload:
        """Return the third party's payload."""
        payload: Payload = self._half.protect(*values, **named)
        return payload

    def unprotect(self, *values: Any, **named: Any) -> Rows:
        """Return the third party's reading of an answer."""
        rows: Rows = self._half.unprotect(*values, **named)
        return rows


class ServerHalf(Protocol):
    """Server half of a protection."""

    scheme: str

    def validate(self, payload: Payload, site: str, cohort: Cohort) -> None:
        """Raise :class:`crypto.errors.MalformedError` or a subclass unless the payload may enter ``combine``."""
        ...

    def combine(self, payloads: Mapping[str, Payload], cohort: Cohort) -> dict[str, Payload]:
        """Return one answer for each site of the cohort, from the payloads of all its sites."""
        ...


NORM_SLACK = 1e-9
"""Slack for rounding by which a norm may exceed 1."""


def rows_to_send(rows: Rows, site: str, cohort: Cohort) -> Rows:
    """Return a site's checked rows as they are sent, with zeros for classes it does not hold in the cohort.

    The values of those other rows are neither checked nor sent. Raises :class:`MalformedError`.
    """
    check_shape(rows, cohort)
    holds = cohort.held_by(site)
    sent = np.where(holds[:, None], rows, 0.0)
    check_values(sent)
    return sent


def check_rows(rows: Rows, cohort: Cohort) -> None:
    """Raise :class:`MalformedError` unless the rows have the cohort's shape and their norms are at most 1."""
    check_shape(rows, cohort)
    check_values(rows)


def check_shape(rows: Rows, cohort: Cohort) -> None:
    """Raise :class:`MalformedError` unless rows are float64 of shape (K, d)."""
    expected = (cohort.classes, cohort.dim)
    if rows.dtype != np.float64 or rows.shape != expected:
        raise MalformedError(f"rows must be float64 of shape {expected}, not {rows.dtype} of {rows.shape}")


def check_values(rows: Rows) -> None:
    """Raise :class:`MalformedError` for a value that is not finite, or a row longer than 1."""
    if not np.isfinite(rows).all():
        raise MalformedError("a row has a value that is not finite")
    longest = float(np.linalg.norm(rows, axis=1).max(initial=0.0))
    if longest > 1.0 + NORM_SLACK:
        raise MalformedError(f"a row has norm {longest:.9f}, above 1: divide rows by their public norm bound")


def directions(rows: Rows) -> Rows:
    """Scale rows (M, d) to length 1; a zero row stays zero."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(np.where(norms > 0.0, rows / np.where(norms > 0.0, norms, 1.0), 0.0), dtype=np.float64)


def whole_numbers(values: Rows, below: int) -> NDArray[np.int64]:
    """Convert float64 values to integers; raise :class:`MalformedError` unless all are whole, from 0 to below − 1."""
    if not ((values >= 0) & (values < below) & (values == np.rint(values))).all():
        raise MalformedError(f"a number is not whole, or not from 0 to {below - 1}")
    return values.astype(np.int64)


class Pool(Executor):
    """Executor with a known number of workers; callers split work into ``workers`` pieces, not one per core."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """Number of tasks that run in parallel, at least 1."""
