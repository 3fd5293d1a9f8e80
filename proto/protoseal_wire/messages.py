"""What the two sides say to each other, as plain values.

:mod:`protoseal_wire.codec` turns these into protobuf messages and back; nothing else touches message fields.
Every value here has passed the codec's bounds when it came from the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from crypto.pairwise.parts import MaskKeys, ReleasedShare, SealedShare
from crypto.protection import Payload
from crypto.roster import Statement
from crypto.sealed import SealedSecret

PROTOCOL_VERSION = 6


class Phase(IntEnum):
    """One request/answer step. The coordinator's request is downloaded, the site's answer uploaded."""

    ROSTER = 1
    """Request: :class:`Roster`. Answer: :class:`RosterAnswer`."""
    SECRET = 2
    """Request: the :class:`crypto.sealed.SealedSecret` for this site. Answer: :class:`Acknowledgement`."""
    PRESENCE = 3
    """Request: :class:`RoundStart`; the site trains. Answer: :class:`PresenceStatement`."""
    VALUES = 4
    """Request: :class:`ActiveList`, or :class:`ReceivedShares` where masks are used. Answer:
    :class:`crypto.protection.Payload`, or in a sparse graph :class:`MaskedValues`."""
    RESULT = 5
    """Request: the :class:`crypto.protection.Payload` for this site. Answer: :class:`Acknowledgement`."""
    SHARES = 6
    """Request: :class:`ActiveList`, or after DIRECTIONS :class:`Assignment`. Answer: :class:`SharesMade`."""
    SURVIVORS = 7
    """Request: :class:`SurvivorSet`. Answer: :class:`SurvivorSignature`."""
    UNMASK = 8
    """Request: :class:`SignedSurvivors`. Answer: :class:`ReleasedShares`."""
    DIRECTIONS = 9
    """Request: :class:`ActiveList`. Answer: :class:`crypto.protection.Payload`."""
    MEANS = 10
    """Request: the group's sum, a :class:`crypto.protection.Payload`. Answer: another."""


@dataclass(frozen=True, order=True)
class PhaseKey:
    """Which step of which attempt; attempts count from 1.

    Round 0 is what comes before training: the set-up (ROSTER, SECRET) and, where the method groups sites, their
    clustering (PRESENCE, VALUES).
    """

    run: str
    round: int
    attempt: int
    phase: Phase


@dataclass(frozen=True)
class LedgerAnchor:
    """The last entry of a site's privacy ledger: its number from 0, and its hash (32 bytes), which stands for all.

    ``key`` (32 bytes) stands for the federation, the site and the data set: :func:`protoseal_wire.anchors.anchor_key`.
    """

    key: bytes
    seq: int
    head: bytes

    def is_behind(self, kept: LedgerAnchor) -> bool:
        """Whether a ledger of which ``kept`` was seen can no longer, or never could, end with this entry."""
        return self.seq < kept.seq or (self.seq == kept.seq and self.head != kept.head)


class RunStage(IntEnum):
    """The stage of a run, as far as a site that may join has to know."""

    JOINING = 1
    UNDER_WAY = 2
    FINISHED = 3
    STOPPED = 4


@dataclass(frozen=True)
class CheckRequest:
    """A site asks what the coordinator serves, before it joins. The coordinator's state stays as it is."""

    protocol: int
    site: str


@dataclass(frozen=True)
class AgreementField:
    """One field of an agreement: keys from the top joined by dots, SHA-256 (32 bytes) of its canonical JSON, and the
    beginning of that JSON, printable ASCII.
    """

    path: str
    sha256: bytes
    text: str


@dataclass(frozen=True)
class Listing:
    """The coordinator's answer to a site on its list. ``round`` is 0 until the set-up is over."""

    agreement_hash: bytes
    fields: tuple[AgreementField, ...]
    stage: RunStage
    round: int
    may_join: bool


@dataclass(frozen=True)
class CheckReply:
    """The run that a coordinator serves. ``listing`` is None for a site that is not on the coordinator's list."""

    protocol: int
    run: str
    listing: Listing | None


@dataclass(frozen=True)
class JoinRequest:
    """A site's wish to take part: the agreement it holds (SHA-256, 32 bytes) and its signed channel key.

    ``anchor``: its ledger's, where the agreement has noise; else None. ``left``: PRESENCE of the last attempt whose
    secrets the site erased as it left; None where there is none. It stays true, however late the request arrives.
    """

    protocol: int
    run: str
    site: str
    agreement_hash: bytes
    statement: Statement
    anchor: LedgerAnchor | None = None
    left: PhaseKey | None = None


@dataclass(frozen=True)
class JoinReply:
    """``poll_seconds``: how long the coordinator holds a NextTask call open. ``session``: number of this Join, from 1.

    ``anchor``: what it has kept of the site's ledger, from this run and earlier ones; None where that is nothing.
    """

    protocol: int
    poll_seconds: float
    session: int
    anchor: LedgerAnchor | None = None


@dataclass(frozen=True)
class LeaveRequest:
    """A site's word that it takes no further part. It ends ``session``, and none that was joined since."""

    site: str
    session: int


@dataclass(frozen=True)
class TaskRequest:
    """A site asks what to do next."""

    protocol: int
    run: str
    site: str


@dataclass(frozen=True)
class Wait:
    """Nothing to do now: ask again."""


@dataclass(frozen=True)
class Work:
    """A phase to answer. The request of ``size`` bytes and this SHA-256 is to be downloaded."""

    key: PhaseKey
    size: int
    sha256: bytes
    seconds_left: float


@dataclass(frozen=True)
class Finished:
    """The run is complete."""

    rounds: int


@dataclass(frozen=True)
class Stopped:
    """The run ended without completing; its state is kept at the coordinator."""

    reason: str


Task = Wait | Work | Finished | Stopped


@dataclass(frozen=True)
class UploadHeader:
    """Announces an answer: what it answers, whose it is, its size in bytes and its SHA-256."""

    key: PhaseKey
    site: str
    size: int
    sha256: bytes


@dataclass(frozen=True)
class DownloadRequest:
    """Asks for the request of a phase."""

    key: PhaseKey
    site: str


@dataclass(frozen=True)
class Roster:
    """The signed statements of every site of the run."""

    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class GroupKeys:
    """From the site that made the group secret: public evaluation keys, and the secret sealed to each other site."""

    evaluation_keys: bytes = field(repr=False)
    sealed: tuple[SealedSecret, ...]


@dataclass(frozen=True)
class RosterAnswer:
    """The hash of the roster that a site verified; with the group's keys when the site is their maker."""

    roster_hash: bytes
    keys: GroupKeys | None = None


@dataclass(frozen=True)
class RoundStart:
    """Train, then say which classes you hold.

    ``groups``: which sites average together, each sorted, by their first names; none where the method has no
    groups. ``base``: SHA-256 of the result that this site's group trains from, empty before the first.
    ``catch_up`` is that result, for a site that did not acknowledge it.
    """

    groups: tuple[tuple[str, ...], ...] = ()
    base: bytes = b""
    catch_up: Payload | None = None


@dataclass(frozen=True)
class PresenceStatement:
    """A site's signed word for one attempt.

    ``holds``: which classes it has, bool of shape (K,). ``base``: SHA-256 of the result that it trained from, empty
    for none. ``keys``: its keys for this attempt's masks, where masks are used. ``anchor``: its privacy ledger's,
    where the agreement has noise.
    """

    site: str
    holds: NDArray[np.bool_]
    signature: bytes
    base: bytes = b""
    keys: MaskKeys | None = None
    anchor: LedgerAnchor | None = None


@dataclass(frozen=True)
class ActiveList:
    """The presence statements of all participants of the attempt: who adds values for which class follows."""

    statements: tuple[PresenceStatement, ...]


@dataclass(frozen=True)
class AssignedRows:
    """The class of each of a site's local prototypes and the cluster that it is in: both int64 (M,)."""

    site: str
    classes: NDArray[np.int64]
    clusters: NDArray[np.int64]


@dataclass(frozen=True)
class Assignment:
    """Which local prototypes of which sites are in which cluster, for all sites that sent directions, sorted."""

    sites: tuple[AssignedRows, ...]


@dataclass(frozen=True)
class SharesMade:
    """Shares of a site's secrets of this attempt, one sealed to each other member of its group."""

    shares: tuple[SealedShare, ...]


@dataclass(frozen=True)
class ReceivedShares:
    """The shares that the other members of a site's group made for it.

    In a complete graph whoever made none is out of the sum. In a sparse one most make none for a site, and
    ``sharers`` are all those that made some, itself among them, sorted; else there are none.
    """

    shares: tuple[SealedShare, ...]
    sharers: tuple[str, ...] = ()


@dataclass(frozen=True)
class MaskedValues:
    """A site's values in a sparse graph, and its signature on whom it masks them with."""

    payload: Payload
    signature: bytes


@dataclass(frozen=True)
class SurvivorSet:
    """The members of a site's group whose masked values are in the sum, sorted."""

    sites: tuple[str, ...]


@dataclass(frozen=True)
class SurvivorSignature:
    """A site's signature over the survivor set that it was told."""

    site: str
    signature: bytes


@dataclass(frozen=True)
class SignedSurvivors:
    """The survivor set again, with the signatures of those who saw the same one.

    ``sharers``: in a sparse graph the signatures, on whom they mask with, of those survivors whose shares the recipient
    was sent; else none.
    """

    sites: tuple[str, ...]
    signatures: tuple[SurvivorSignature, ...]
    sharers: tuple[SurvivorSignature, ...] = ()


@dataclass(frozen=True)
class ReleasedShares:
    """For each member that made shares, one of the two that this site holds of it."""

    shares: tuple[ReleasedShare, ...]


@dataclass(frozen=True)
class Acknowledgement:
    """Received; says nothing about the content."""
