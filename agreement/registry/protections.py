"""Protections: the built-in ones, and the type of built-in and third parties' protections.

A protection is registered in one way, whoever wrote it: as a :class:`Protection` that gives its halves for each family
of methods that it serves. A third party gives functions that make halves (:class:`PeersHalves`, :class:`SumHalves`),
and all such halves take the same rounds. A built-in protection may do so too, or give a :class:`RoundPlan` that names
classes of the two parties, for rounds of more steps or results of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agreement.registry.named_component import Named
from agreement.registry.round_plan import (
    CLUSTERED_SUM,
    ENCRYPTED_CLUSTERS,
    ENCRYPTED_GROUPS,
    MASKED_SUM,
    ExchangeKind,
    PayloadKind,
    RoundPlan,
)
from agreement.sections.methods import Family
from crypto import plain
from crypto.keys import KEY_BYTES, LEAST_SECRET_BYTES
from crypto.plain import Weights
from crypto.protection import Offer, PayloadShape, ServerHalf, SiteHalf
from crypto.sum_protection import SumFacts, SumServerHalf, SumSiteHalf

MOST_SECRET_BYTES = 1 << 16

_SITE, _SERVER = "secure_client.exchanges", "secure_server.exchanges"


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

    rounds: ClassVar[RoundPlan] = RoundPlan(
        exchange=ExchangeKind.PEERS,
        values=PayloadKind.EXTENSION,
        result=PayloadKind.EXTENSION,
        carries="the extension's own payloads",
        computes=frozenset({Offer.GRAM}),
        site_half=f"{_SITE}.peers:DeclaredPeerHalf",
        server_half=f"{_SERVER}.peers:DeclaredPeerHalf",
    )
    """Rounds of every protection that gives such halves."""


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

    rounds: ClassVar[RoundPlan] = RoundPlan(
        exchange=ExchangeKind.SUMS,
        values=PayloadKind.EXTENSION,
        result=PayloadKind.EXTENSION,
        carries="the extension's own payloads",
        computes=frozenset({Offer.SUM}),
        site_half=f"{_SITE}.sum_halves:DeclaredSumHalf",
        server_half=f"{_SERVER}.sums:DeclaredSumHalf",
    )
    """Rounds of every protection that gives such halves."""


Halves = RoundPlan | PeersHalves | SumHalves
"""Halves of a protection for one family: named in a plan, or made by functions."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Protection(Named):
    """Protection of prototypes and models against the coordinator. Raises ``ValueError`` if it serves no family.

    ``peers``, ``sums``, ``groups`` and ``clusters`` are the protection's halves for methods of the family of that name.
    A third party gives ``peers``, ``sums``, or both, as functions. ``uniform_peers`` are the rounds of ``peers`` where
    all peers weigh the same, if these are other rounds.

    ``secret_bytes`` is the number of random bytes that all sites share and the coordinator lacks, in runs whose plan
    needs them (``RoundPlan.shares_secret``): 0, or 16 and more. It has no default, since everybody could
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

    peers: RoundPlan | PeersHalves | None = None
    sums: RoundPlan | SumHalves | None = None
    groups: RoundPlan | None = None
    clusters: RoundPlan | None = None
    uniform_peers: RoundPlan | None = None
    secret_bytes: int
    ckks_key: bool = False
    sums_hide_terms: bool = False
    summary: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.families:
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
    def families(self) -> frozenset[Family]:
        """Return the families of methods that the protection has halves for."""
        return frozenset(family for family in Family if self.halves(family) is not None)

    @property
    def offers(self) -> frozenset[Offer]:
        """Return what the coordinator can compute, in the rounds of any family."""
        plans = (self.plan(family) for family in self.families)
        return frozenset(offer for plan in plans if plan is not None for offer in plan.computes)

    def halves(self, family: Family) -> Halves | None:
        """Return the halves for methods of a family; None if the protection does not serve it."""
        match family:
            case Family.PEERS:
                return self.peers
            case Family.SUMS:
                return self.sums
            case Family.GROUPS:
                return self.groups
            case Family.CLUSTERS:
                return self.clusters
            case _:
                return None

    def plan(self, family: Family, *, uniform: bool = False) -> RoundPlan | None:
        """Return the rounds of a family, ``uniform`` for peers that all weigh the same; None if it is not served."""
        halves = self.halves(family)
        if uniform and family is Family.PEERS and self.uniform_peers is not None:
            return self.uniform_peers
        return halves if halves is None or isinstance(halves, RoundPlan) else halves.rounds

    def check_complete(self) -> None:
        """Raise ``ValueError`` unless a third party gives its own halves, each for the family that takes it.

        A plan of rounds names classes of the parties instead, which only a built-in protection may.
        """
        named = (self.peers, self.sums, self.groups, self.clusters, self.uniform_peers)
        if any(isinstance(halves, RoundPlan) for halves in named):
            raise ValueError(
                f"protection {self.name!r} gives a plan of rounds, which only a built-in one may"
            )
        for family, halves, kind in (("peers", self.peers, PeersHalves), ("sums", self.sums, SumHalves)):
            if halves is not None and not isinstance(halves, kind):
                raise ValueError(
                    f"{family} of protection {self.name!r} must be {kind.__name__}, not {type(halves).__name__}"
                )


_IN_GROUPS = frozenset({Offer.SUM, Offer.CLUSTERING, Offer.COSINE_WEIGHTS})
_IN_CLUSTERS = frozenset({Offer.SUM, Offer.CLUSTERING})

_PLAIN_SUMS = RoundPlan(
    exchange=ExchangeKind.SUMS,
    values=PayloadKind.VECTOR,
    result=PayloadKind.MEANS,
    carries="values in clear",
    computes=frozenset({Offer.SUM}),
    site_half=f"{_SITE}.sum_halves:PlainSumHalf",
    server_half=f"{_SERVER}.sums:PlainSumHalf",
    row_scheme=plain.SCHEME,
    shares_secret=False,
)
Protection.PLAIN = Protection(
    name="plain",
    secret_bytes=0,
    summary="protects nothing: the coordinator reads every upload",
    peers=replace(
        _PLAIN_SUMS,
        exchange=ExchangeKind.PEERS,
        values=PayloadKind.ROWS,
        result=PayloadKind.ROWS,
        computes=frozenset({Offer.GRAM}),
        site_half=f"{_SITE}.peers:RowHalf",
        server_half=f"{_SERVER}.peers:RowHalf",
    ),
    sums=_PLAIN_SUMS,
    groups=replace(_PLAIN_SUMS, computes=_IN_GROUPS),
    clusters=replace(
        _PLAIN_SUMS,
        exchange=ExchangeKind.CLUSTERS,
        values=PayloadKind.LOCAL_CLUSTERS,
        result=PayloadKind.CLUSTERS,
        computes=_IN_CLUSTERS,
        site_half=f"{_SITE}.clusters:PlainClusterHalf",
        server_half=f"{_SERVER}.clusters:PlainClusterHalf",
    ),
)

_MASKED_SUMS = RoundPlan(
    exchange=ExchangeKind.SUMS,
    values=PayloadKind.WORDS,
    result=PayloadKind.MEANS,
    carries="pairwise masked sums",
    computes=frozenset({Offer.SUM}),
    phases=MASKED_SUM,
    site_half=f"{_SITE}.sum_halves:MaskedSumHalf",
    server_half=f"{_SERVER}.sums:MaskedSumHalf",
    shares_secret=False,
)
Protection.MASKED = Protection(
    name="masked",
    secret_bytes=KEY_BYTES,
    sums_hide_terms=True,
    summary="the coordinator reads sums alone, and rows rotated by a secret matrix (pfpl unless weighting is"
    " 'uniform', fedpc once, fedplcc); one site that helps the coordinator lets it read the rotated rows of every site",
    peers=RoundPlan(
        exchange=ExchangeKind.PEERS,
        values=PayloadKind.ROWS,
        result=PayloadKind.ROWS,
        carries="rotated rows",
        computes=frozenset({Offer.GRAM}),
        site_half=f"{_SITE}.peers:RowHalf",
        server_half=f"{_SERVER}.peers:RowHalf",
    ),
    # Equal weights need no inner products: each site subtracts its own row from a sum.
    uniform_peers=replace(
        _MASKED_SUMS,
        exchange=ExchangeKind.PEER_SUMS,
        result=PayloadKind.PEER_SUMS,
        site_half="",
        server_half=f"{_SERVER}.sums:PeerSumHalf",
    ),
    sums=_MASKED_SUMS,
    groups=replace(
        _MASKED_SUMS,
        carries="rotated rows once, then pairwise masked sums",
        computes=_IN_GROUPS,
        shares_secret=True,
    ),
    clusters=replace(
        _MASKED_SUMS,
        exchange=ExchangeKind.CLUSTERS,
        result=PayloadKind.CLUSTERS,
        carries="rotated directions, then pairwise masked sums",
        computes=_IN_CLUSTERS,
        phases=CLUSTERED_SUM,
        site_half=f"{_SITE}.clusters:MaskedClusterHalf",
        server_half=f"{_SERVER}.clusters:MaskedClusterHalf",
        shares_secret=True,
    ),
)

_CKKS_SUMS = RoundPlan(
    exchange=ExchangeKind.SUMS,
    values=PayloadKind.CIPHERTEXTS,
    result=PayloadKind.CIPHERTEXTS,
    carries="CKKS ciphertexts",
    computes=frozenset({Offer.SUM}),
    site_half=f"{_SITE}.sum_halves:CkksSumHalf",
    server_half=f"{_SERVER}.sums:CkksSumHalf",
)
Protection.CKKS = Protection(
    name="ckks",
    secret_bytes=KEY_BYTES,
    ckks_key=True,
    summary="the coordinator computes on ciphertexts; one site that helps the coordinator lets it read every upload",
    peers=replace(
        _CKKS_SUMS,
        exchange=ExchangeKind.PEERS,
        computes=frozenset({Offer.DISTANCE_WEIGHTS}),
        site_half=f"{_SITE}.peers:CkksPeerHalf",
        server_half=f"{_SERVER}.peers:CkksPeerHalf",
    ),
    sums=_CKKS_SUMS,
    groups=replace(
        _CKKS_SUMS,
        carries="rotated rows once, then CKKS ciphertexts",
        computes=_IN_GROUPS,
        phases=ENCRYPTED_GROUPS,
        site_half=f"{_SITE}.sum_halves:MixedGroupsHalf",
        server_half=f"{_SERVER}.sums:MixedGroupsHalf",
    ),
    clusters=replace(
        _CKKS_SUMS,
        exchange=ExchangeKind.CLUSTERS,
        result=PayloadKind.LABELLED_CIPHERTEXTS,
        carries="rotated directions, then CKKS ciphertexts",
        computes=_IN_CLUSTERS,
        phases=ENCRYPTED_CLUSTERS,
        site_half=f"{_SITE}.clusters:CkksClusterHalf",
        server_half=f"{_SERVER}.clusters:CkksClusterHalf",
    ),
)
PROTECTIONS: Mapping[str, Protection] = {
    protection.name: protection for protection in (Protection.PLAIN, Protection.MASKED, Protection.CKKS)
}
"""The built-in protections, by name."""
