"""What a protection is: a site half, a server half, and the public facts both work from.

A protection turns a site's rows (one per class) into a payload, lets the server combine the payloads of a
cohort, and turns the server's answer back into rows. It sees arrays and bytes only: which method asked, and in
which round, is not its business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
Words = NDArray[np.uint32] | NDArray[np.uint64]


class Combination(StrEnum):
    """The combinations of peers that a protection may be able to compute without seeing a Gram matrix."""

    DISTANCE = "distance"
    COMPLEMENT = "complement"
    UNIFORM = "uniform"


class Offer(StrEnum):
    """What a server half can do with payloads."""

    GRAM = "gram"
    """It sees inner products, so any weights that follow from them can be used."""
    DISTANCE_WEIGHTS = "distance weights"
    """It can evaluate :class:`Combination` blindly."""
    SUM = "sum"
    """It can add up what the sites of a group sent."""
    CLUSTERING = "clustering"
    """It sees inner products of rows that it does not see, in a step of their own, and computes on nothing else of
    them."""
    COSINE_WEIGHTS = "cosine weights"
    """It can mix what groups' sums come to by their cosines."""


@dataclass(frozen=True)
class Payload:
    """What travels: a scheme marker with float64 arrays, ciphertexts as blobs, or words of a ring (uint32, uint64)."""

    scheme: str
    arrays: tuple[Rows, ...] = ()
    blobs: tuple[bytes, ...] = field(default=(), repr=False)
    words: tuple[Words, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class UpTo:
    """An axis whose length is the sender's to choose, 0 to ``most``: the same for all such axes of one payload."""

    most: int


Axis = int | UpTo


@dataclass(frozen=True)
class PayloadForm:
    """What a payload must consist of, from public facts alone: one of the three is not empty.

    The shape of each array; (bits, length) of each vector of words; at most how many blobs.
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
            raise ValueError("a cohort's sites are sorted, distinct and not empty")
        if self.holds.ndim != 2 or self.holds.shape[0] != len(self.sites) or self.holds.dtype != np.bool_:
            raise ValueError("holds is a bool array with a row for each site")
        if self.dim < 1:
            raise ValueError("the feature dimension is at least 1")

    @property
    def classes(self) -> int:
        """K."""
        return int(self.holds.shape[1])

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of holders of each class, shape (K,)."""
        return np.asarray(self.holds.sum(axis=0), dtype=np.int64)

    def index(self, site: str) -> int:
        """Row of a site; ``ValueError`` when it is not in the cohort."""
        return self.sites.index(site)


class SiteHalf(Protocol):
    """A protection at a site. Rows are float64 of shape (K, d) with Euclidean norm at most 1."""

    scheme: str

    def protect(self, rows: Rows, site: str, cohort: Cohort) -> Payload:
        """Rows of classes the site does not hold in the cohort are sent as zeros, whatever they contain."""
        ...

    def unprotect(self, answer: Payload, rows: Rows, site: str, cohort: Cohort) -> Rows:
        """The combination of peers for each class the site holds; its own row where there is nothing to combine.

        ``rows`` are the very rows that were protected. Raises :class:`crypto.errors.MalformedError` for an answer
        that is not what the scheme prescribes, and :class:`crypto.errors.ImplausibleError` for one that only
        its decryption shows to be wrong: the server must not learn of that.
        """
        ...


class ServerHalf(Protocol):
    """A protection at the server."""

    scheme: str

    def validate(self, payload: Payload, site: str, cohort: Cohort) -> None:
        """Raise :class:`crypto.errors.MalformedError` or a subclass unless the payload may enter ``combine``."""
        ...

    def combine(self, payloads: Mapping[str, Payload], cohort: Cohort) -> dict[str, Payload]:
        """One answer for each site of the cohort, from the payloads of all of them."""
        ...
