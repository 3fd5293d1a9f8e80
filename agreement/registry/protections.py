"""Protections: the built-in ones, and the type of built-in and third parties' protections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from agreement.registry.named_component import Named
from crypto.keys import KEY_BYTES, LEAST_SECRET_BYTES
from crypto.plain import Weights
from crypto.protection import Offer, PayloadShape, ServerHalf, SiteHalf
from crypto.sum_protection import SumFacts, SumServerHalf, SumSiteHalf

MOST_SECRET_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class PeersHalves:
    """Halves of a protection for ``PEERS``: the coordinator sees inner products, and combines by any weights.

    Each function gets the protection's settings. ``site`` makes a site's half from the secret that the sites share
    and a context that no other attempt has; ``server`` makes the coordinator's half from the method's weights.
    ``form`` returns, for K classes and d features, the form of a payload in both directions, which the codec
    enforces.
    """

    site: Callable[[Any, bytes, bytes], SiteHalf]
    server: Callable[[Any, Weights], ServerHalf]
    form: Callable[[Any, int, int], PayloadShape]


@dataclass(frozen=True, kw_only=True, eq=False)
class SumHalves:
    """Halves of a protection for ``SUMS``, in one step. Each function gets the protection's settings and a sum's facts.

    ``site`` also gets the secret that the sites share. ``form`` is that of a payload, in both directions; it is
    called when an agreement is loaded, and raises :class:`crypto.errors.PrecisionError` for sums that exceed its
    range.
    """

    site: Callable[[Any, bytes, SumFacts], SumSiteHalf]
    server: Callable[[Any, SumFacts], SumServerHalf]
    form: Callable[[Any, SumFacts], PayloadShape]


@dataclass(frozen=True, kw_only=True, eq=False)
class Protection(Named):
    """Protection of prototypes and models against the coordinator. Raises ``ValueError`` if it serves no family.

    A third party states its ``peers``, its ``sums``, or both. A built-in protection may do so too; else it has classes
    of its own at both parties (:mod:`agreement.registry.round_plan`), and states in ``computes`` what the coordinator
    can compute under it.

    ``secret_bytes`` is the number of random bytes that all sites share and the coordinator lacks, in runs whose plan
    needs them (:mod:`agreement.registry.round_plan`): 0, or 16 and more. It has no default, since everybody could
    derive the keys of a protection that forgot its secret. One site makes the bytes and seals them to each other site.
    The limit: one site that helps the coordinator gives them away. ``ckks_key``: a CKKS key follows these bytes.
    ``settings`` and ``deployable`` are as in :class:`agreement.Method`.

    ``sums_hide_terms``: nobody reads a term of a sum, not even a coordinator that a site helps, so that sites may
    share noise; only a built-in protection is believed. ``summary`` is the line of a built-in protection in ``--help``.
    """

    PLAIN: ClassVar[Protection]
    """No protection: the coordinator sees every site's prototypes."""
    MASKED: ClassVar[Protection]
    """Sums under pairwise masks, of which the coordinator sees the sum; vectors rotated by a secret matrix, of which it
    sees the inner products, where a method needs these."""
    CKKS: ClassVar[Protection]
    """The coordinator computes on ciphertexts and sees no values or sample counts; inner products of rotated vectors
    where a method clusters."""

    peers: PeersHalves | None = None
    sums: SumHalves | None = None
    secret_bytes: int
    ckks_key: bool = False
    computes: frozenset[Offer] = frozenset()
    sums_hide_terms: bool = False
    summary: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.offers:
            raise ValueError("a protection must serve peers, sums, or both")
        if self.secret_bytes and not LEAST_SECRET_BYTES <= self.secret_bytes <= MOST_SECRET_BYTES:
            raise ValueError(
                f"secret_bytes must be 0, or from {LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES}, not {self.secret_bytes}"
            )

    @property
    def built_in(self) -> bool:
        """Return whether this is one of :data:`PROTECTIONS`, and not a third party's."""
        return PROTECTIONS.get(self.name) is self

    @property
    def offers(self) -> frozenset[Offer]:
        """Return what the coordinator can compute."""
        served = ((self.peers, Offer.GRAM), (self.sums, Offer.SUM))
        return self.computes | {offer for halves, offer in served if halves is not None}


_OF_ALL = frozenset({Offer.SUM, Offer.CLUSTERING, Offer.COSINE_WEIGHTS})
Protection.PLAIN = Protection(
    name="plain",
    secret_bytes=0,
    computes=_OF_ALL | {Offer.GRAM},
    summary="protects nothing: the coordinator reads every upload",
)
Protection.MASKED = Protection(
    name="masked",
    computes=_OF_ALL | {Offer.GRAM},
    secret_bytes=KEY_BYTES,
    sums_hide_terms=True,
    summary="the coordinator reads sums alone, and rows rotated by a secret matrix (pfpl unless weighting is"
    " 'uniform', fedpc once, fedplcc); one site that helps the coordinator lets it read the rotated rows of every site",
)
Protection.CKKS = Protection(
    name="ckks",
    computes=_OF_ALL | {Offer.DISTANCE_WEIGHTS},
    secret_bytes=KEY_BYTES,
    ckks_key=True,
    summary="the coordinator computes on ciphertexts; one site that helps the coordinator lets it read every upload",
)
PROTECTIONS: Mapping[str, Protection] = {
    each.name: each for each in (Protection.PLAIN, Protection.MASKED, Protection.CKKS)
}
"""The built-in protections, by name."""
