"""Rounds of every (method family, protection) pair: phases, payload forms and the exchange that runs them.

This table is the only place that says which pair does what, whether a run adds up values, and whether its sites share
a secret. A party maps ``RoundPlan.exchange`` to its class
(:mod:`secure_client.session`, :mod:`secure_server.aggregator`), and ``RoundPlan.values`` to the protection's half;
:mod:`agreement.derived.payload_shapes` maps a :class:`PayloadKind` to sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from agreement.registry.methods import Method
from agreement.registry.protections import Protection
from agreement.sections.methods import Family
from algorithms.pfpl import Weighting
from crypto import plain, rotation
from protoseal_wire.messages import Phase

ONE_STEP = (Phase.VALUES,)
"""Every participant sends its values, and a missing one fails the attempt."""
MASKED_SUM = (Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK)
"""Pairwise masks, which let sites drop out during the round."""
CLUSTERED_SUM = (Phase.DIRECTIONS, *MASKED_SUM)
"""Directions of prototypes, from which the coordinator assigns clusters, then a masked sum over the clusters."""
ENCRYPTED_CLUSTERS = (Phase.DIRECTIONS, Phase.VALUES)
"""Directions of prototypes, then an encrypted sum over the clusters."""
ENCRYPTED_GROUPS = (Phase.VALUES, Phase.MEANS)
"""Encrypted sums; one member of each group then divides them into means and encrypts these again."""


class ExchangeKind(Enum):
    """Exchanges between sites and coordinator. :class:`PayloadKind` tells apart what protects the values."""

    PEERS = auto()
    """Each site's rows in, for each site a combination of its peers' rows out."""
    SUMS = auto()
    """Vectors are added up, over all sites or in groups."""
    PEER_SUMS = auto()
    """One masked sum over all sites, from which each site subtracts its own rows."""
    CLUSTERS = auto()
    """Local prototypes are assigned to clusters, and added up in them."""


class PayloadKind(Enum):
    """Forms of uploads and results; :mod:`agreement.derived.payload_shapes` derives the sizes."""

    ROWS = auto()
    """One row for each class."""
    VECTOR = auto()
    """One site's contribution to a sum."""
    WORDS = auto()
    """A contribution to a masked sum."""
    CIPHERTEXTS = auto()
    LOCAL_CLUSTERS = auto()
    """Local prototypes, their classes and sample counts, and a contribution to a sum."""
    MEANS = auto()
    """Means, and for each class whether it has a prototype."""
    PEER_SUMS = auto()
    """Sums over the holders of each class, the numbers of holders, and the signed members of the sums."""
    CLUSTERS = auto()
    """Centres, classes and weights of clusters, and the mean model."""
    LABELLED_CIPHERTEXTS = auto()
    """Encrypted sums, and the classes of the clusters that they are over."""
    EXTENSION = auto()
    """The form that the protection declares: a third party's, or a built-in one with halves of the same type."""


@dataclass(frozen=True)
class RoundPlan:
    """Rounds of one (method family, protection) pair.

    ``values`` is the form of an upload in VALUES, ``result`` that of a RESULT; ``carries`` says in words what uploads
    are. ``phases`` lie between PRESENCE and the coordinator's computation, in every round but a clustering's round 0.
    ``row_scheme`` is the scheme of rows that the coordinator takes inner products of: as they are, or rotated by a
    secret matrix. ``sums``: values are added up, over all sites or in groups. ``shares_secret``: all sites hold one
    secret that the coordinator lacks, if the protection has one (``Protection.secret_bytes``); with it, one site that
    helps the coordinator reads what the secret protects at every site.
    """

    exchange: ExchangeKind
    values: PayloadKind
    result: PayloadKind
    carries: str
    phases: tuple[Phase, ...] = ONE_STEP
    row_scheme: str = rotation.SCHEME
    sums: bool = True
    shares_secret: bool = True

    @property
    def masked(self) -> bool:
        """Return whether uploads are added up under pairwise masks."""
        return Phase.SHARES in self.phases


_PLAIN_SUMS = RoundPlan(
    ExchangeKind.SUMS,
    PayloadKind.VECTOR,
    PayloadKind.MEANS,
    "values in clear",
    ONE_STEP,
    plain.SCHEME,
    shares_secret=False,
)
_PLAIN_PEERS = replace(
    _PLAIN_SUMS, exchange=ExchangeKind.PEERS, values=PayloadKind.ROWS, result=PayloadKind.ROWS, sums=False
)
_MASKED_SUMS = RoundPlan(
    ExchangeKind.SUMS,
    PayloadKind.WORDS,
    PayloadKind.MEANS,
    "pairwise masked sums",
    MASKED_SUM,
    shares_secret=False,
)
_MASKED_PEER_SUMS = replace(_MASKED_SUMS, exchange=ExchangeKind.PEER_SUMS, result=PayloadKind.PEER_SUMS)
_ENCRYPTED_SUMS = RoundPlan(
    ExchangeKind.SUMS, PayloadKind.CIPHERTEXTS, PayloadKind.CIPHERTEXTS, "CKKS ciphertexts"
)
_EXTENSION_SUMS = RoundPlan(
    ExchangeKind.SUMS, PayloadKind.EXTENSION, PayloadKind.EXTENSION, "the extension's own payloads"
)
_PLANS: Mapping[tuple[Family, Protection | None], RoundPlan] = {
    (Family.PEERS, Protection.PLAIN): _PLAIN_PEERS,
    (Family.PEERS, Protection.MASKED): RoundPlan(
        ExchangeKind.PEERS, PayloadKind.ROWS, PayloadKind.ROWS, "rotated rows", sums=False
    ),
    (Family.PEERS, Protection.CKKS): replace(_ENCRYPTED_SUMS, exchange=ExchangeKind.PEERS, sums=False),
    (Family.PEERS, None): replace(_EXTENSION_SUMS, exchange=ExchangeKind.PEERS, sums=False),
    (Family.SUMS, Protection.PLAIN): _PLAIN_SUMS,
    (Family.SUMS, Protection.MASKED): _MASKED_SUMS,
    (Family.SUMS, Protection.CKKS): _ENCRYPTED_SUMS,
    (Family.SUMS, None): _EXTENSION_SUMS,
    (Family.GROUPS, Protection.PLAIN): _PLAIN_SUMS,
    (Family.GROUPS, Protection.MASKED): replace(
        _MASKED_SUMS, carries="rotated rows once, then pairwise masked sums", shares_secret=True
    ),
    (Family.GROUPS, Protection.CKKS): replace(
        _ENCRYPTED_SUMS,
        carries="rotated rows once, then CKKS ciphertexts",
        phases=ENCRYPTED_GROUPS,
    ),
    (Family.CLUSTERS, Protection.PLAIN): replace(
        _PLAIN_SUMS,
        exchange=ExchangeKind.CLUSTERS,
        values=PayloadKind.LOCAL_CLUSTERS,
        result=PayloadKind.CLUSTERS,
    ),
    (Family.CLUSTERS, Protection.MASKED): RoundPlan(
        ExchangeKind.CLUSTERS,
        PayloadKind.WORDS,
        PayloadKind.CLUSTERS,
        "rotated directions, then pairwise masked sums",
        CLUSTERED_SUM,
    ),
    (Family.CLUSTERS, Protection.CKKS): RoundPlan(
        ExchangeKind.CLUSTERS,
        PayloadKind.CIPHERTEXTS,
        PayloadKind.LABELLED_CIPHERTEXTS,
        "rotated directions, then CKKS ciphertexts",
        ENCRYPTED_CLUSTERS,
    ),
}
"""Rounds by family and protection; the key ``None`` stands for third parties' protections."""


def plan_for(method: Method, protection: Protection, weighting: Weighting) -> RoundPlan:
    """Return the rounds of a method under a protection; ``ValueError`` for a pair that has none.

    Equal weights of peers (``weighting``, for a method of ``PEERS`` without weights of its own) need no inner products:
    under ``masked`` each site subtracts its row from a sum.
    """
    row = protection if protection.built_in else None
    by_peers = method.traits.family is Family.PEERS and method.weights is None
    if by_peers and row is Protection.MASKED and weighting is Weighting.UNIFORM:
        return _MASKED_PEER_SUMS
    plan = _PLANS.get((method.traits.family, row))
    if plan is None:
        raise ValueError(f"method {method.value} has no rounds under protection {protection.value!r}")
    return plan
