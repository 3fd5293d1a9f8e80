"""Plan of the rounds in which a protection's two halves meet: the exchange, its phases, its payloads and the halves.

A protection has one plan for each method family that it serves (:mod:`agreement.registry.protections`). A site maps
``RoundPlan.exchange`` to a class (:mod:`secure_client.session`), which then takes the half that the plan names. At the
coordinator the half that the plan names is the whole exchange (:mod:`secure_server.exchanges.exchange`).
:mod:`agreement.derived.payload_shapes` maps a :class:`PayloadKind` to sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from pkgutil import resolve_name
from typing import Any

from crypto import rotation
from crypto.protection import Offer
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
    """The form that the protection's own halves declare."""


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """Rounds of a protection for one method family, and the halves that take them, by name.

    ``site_half`` and ``server_half`` name classes as ``module:class``, because this package may import neither party. A
    party loads its half when a run starts (:func:`load_half`). ``site_half`` is empty for an exchange that protects its
    values itself. ``computes`` is what the coordinator can compute in these rounds.

    ``values`` is the form of an upload in VALUES, ``result`` that of a RESULT; ``carries`` says in words what uploads
    are. ``phases`` lie between PRESENCE and the coordinator's computation, in every round but a clustering's round 0.
    ``row_scheme`` is the scheme of rows that the coordinator takes inner products of: as they are, or rotated by a
    secret matrix. ``shares_secret``: all sites hold one secret that the coordinator lacks, if the protection has one
    (``Protection.secret_bytes``); with it, one site that helps the coordinator reads what the secret protects at every
    site.
    """

    exchange: ExchangeKind
    values: PayloadKind
    result: PayloadKind
    carries: str
    computes: frozenset[Offer]
    site_half: str
    server_half: str
    phases: tuple[Phase, ...] = ONE_STEP
    row_scheme: str = rotation.SCHEME
    shares_secret: bool = True

    @property
    def masked(self) -> bool:
        """True if uploads are added up under pairwise masks."""
        return Phase.SHARES in self.phases

    @property
    def sums(self) -> bool:
        """True if values are added up, over all sites or in groups."""
        return self.exchange is not ExchangeKind.PEERS


def load_half(reference: str, kind: type) -> type[Any]:
    """Return the class ``module:class``, a subclass of ``kind``; raise ``ValueError`` if there is none.

    A party calls this when a run starts, before the run takes any value from data.
    """
    try:
        half = resolve_name(reference)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"a protection names a half {reference!r} that cannot be loaded: {error}") from error
    if not (isinstance(half, type) and issubclass(half, kind)):
        raise ValueError(f"a protection names {reference!r}, which is no {kind.__name__}")
    return half
