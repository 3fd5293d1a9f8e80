"""Messages between sites and coordinator, as plain values.

:mod:`protoseal_wire.codec` converts the values to protobuf messages and back; no other module uses message fields. A
value that came from the wire has passed the codec's bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from crypto.pairwise.attempt import MaskKeys
from crypto.pairwise.shares import ReleasedShare, SealedShare
from crypto.protection import Payload
from crypto.roster import Statement
from crypto.sealed_group_secret import SealedSecret

PROTOCOL_VERSION = 8


class Phase(IntEnum):
    """Step of an attempt; a site downloads the coordinator's request and uploads its answer."""

    ROSTER = 1
    """Request: :class:`Roster`. Answer: :class:`RosterAnswer`."""
    SECRET = 2
    """Request: the :class:`crypto.sealed_group_secret.SealedSecret` for this site. Answer: :class:`Acknowledgement`."""
    PRESENCE = 3
    """Request: :class:`RoundStart`; the site trains. Answer: :class:`PresenceStatement`."""
    VALUES = 4
    """Request: :class:`ActiveList`, or with masks :class:`ReceivedShares`.

    Answer: :class:`crypto.protection.Payload`, or in a sparse graph :class:`MaskedValues`.
    """
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
    """Request: the group's sum, a :class:`crypto.protection.Payload`. Answer: another payload."""


@dataclass(frozen=True, order=True)
class PhaseKey:
    """Key of one phase in one attempt; attempts count from 1.

    Round 0 comes before training: it has the set-up (ROSTER, SECRET) and, if the method groups sites, their clustering
    (PRESENCE, VALUES).
    """

    run: str
    round: int
    attempt: int
    phase: Phase


@dataclass(frozen=True)
class LedgerAnchor:
    """Anchor of a site's privacy ledger: the number of its last entry, from 0, and that entry's hash (32 bytes).

    The hash covers all earlier entries. ``key`` (32 bytes) identifies the federation, the site and the data set:
    :func:`agreement.storage.anchor_record.anchor_key`.
    """

    key: bytes
    seq: int
    head: bytes

    def is_behind(self, kept: LedgerAnchor) -> bool:
        """Return True if a ledger with the entry ``kept`` cannot end with this entry: it was rolled back."""
        return self.seq < kept.seq or (self.seq == kept.seq and self.head != kept.head)


class RunStage(IntEnum):
    """Stage of a run, as far as a site that may join must know."""

    JOINING = 1
    UNDER_WAY = 2
    FINISHED = 3
    STOPPED = 4


@dataclass(frozen=True)
class CheckRequest:
    """Question of a site, before it joins, for the run that the coordinator serves; it changes no state."""

    protocol: int


@dataclass(frozen=True)
class AgreementField:
    """Field of an agreement.

    ``path`` has the keys from the top, joined by dots; ``sha256`` (32 bytes) is of the field's canonical JSON, and
    ``text`` the beginning of that JSON, printable ASCII.
    """

    path: str
    sha256: bytes
    text: str


@dataclass(frozen=True)
class Listing:
    """Answer of the coordinator to a site on its list; ``round`` is 0 until the set-up is over."""

    agreement_hash: bytes
    fields: tuple[AgreementField, ...]
    stage: RunStage
    round: int
    may_join: bool


@dataclass(frozen=True)
class CheckReply:
    """Run that a coordinator serves; ``listing`` is None for a site that is not on the coordinator's list."""

    protocol: int
    run: str
    listing: Listing | None


@dataclass(frozen=True)
class JoinRequest:
    """Request of a site to join: the SHA-256 (32 bytes) of its agreement and its signed channel key.

    ``anchor`` is that of the site's ledger, None if the agreement has no noise. ``left`` is the PRESENCE key of the
    last attempt whose secrets the site erased when it left, or None; it stays true however late the request arrives.
    """

    protocol: int
    run: str
    agreement_hash: bytes
    statement: Statement
    anchor: LedgerAnchor | None = None
    left: PhaseKey | None = None


@dataclass(frozen=True)
class JoinReply:
    """Reply to a join, with the number ``session`` of this Join, from 1.

    ``poll_seconds`` is how long the coordinator holds a NextTask call open. ``anchor`` is the last anchor that the
    coordinator kept of the site's ledger, in this run or an earlier one, or None.
    """

    protocol: int
    poll_seconds: float
    session: int
    anchor: LedgerAnchor | None = None


@dataclass(frozen=True)
class LeaveRequest:
    """Notice that a site leaves; it ends ``session``, and no session that was joined later."""

    session: int


@dataclass(frozen=True)
class TaskRequest:
    """Question of a site for its next task."""

    protocol: int
    run: str


@dataclass(frozen=True)
class Wait:
    """Task to ask again: there is nothing to do now."""


@dataclass(frozen=True)
class Work:
    """Task to answer a phase, after downloading its request of ``size`` bytes and this SHA-256."""

    key: PhaseKey
    size: int
    sha256: bytes
    seconds_left: float


@dataclass(frozen=True)
class Finished:
    """Notice that the run is complete."""

    rounds: int


@dataclass(frozen=True)
class Stopped:
    """Notice that the run ended without completing; the coordinator keeps its state."""

    reason: str


Task = Wait | Work | Finished | Stopped


@dataclass(frozen=True)
class UploadHeader:
    """Announcement of an answer: phase, size in bytes and SHA-256."""

    key: PhaseKey
    size: int
    sha256: bytes


@dataclass(frozen=True)
class DownloadRequest:
    """Question of a site for the request of a phase."""

    key: PhaseKey


@dataclass(frozen=True)
class Roster:
    """Signed statements of every site of the run."""

    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class GroupKeys:
    """Keys from the maker of the group secret: public evaluation keys, and the secret sealed to each other site."""

    evaluation_keys: bytes = field(repr=False)
    sealed: tuple[SealedSecret, ...]


@dataclass(frozen=True)
class RosterAnswer:
    """Hash of the roster that a site verified, with the group's keys if the site is their maker."""

    roster_hash: bytes
    keys: GroupKeys | None = None


@dataclass(frozen=True)
class RoundStart:
    """Request to train, and then to state the classes that the site holds.

    ``groups`` are the sets of sites that average together, each sorted, in the order of their first names; none if the
    method has no groups. ``base`` is the SHA-256 of the result that this site's group trains from, empty before the
    first. ``catch_up`` is that result, for a site that did not acknowledge it.
    """

    groups: tuple[tuple[str, ...], ...] = ()
    base: bytes = b""
    catch_up: Payload | None = None


@dataclass(frozen=True)
class PresenceStatement:
    """Signed statement of a site for one attempt (:mod:`protoseal_wire.class_presence`).

    ``holds`` has the classes of the site, bool of shape (K,); ``base`` is the SHA-256 of the result that it trained
    from, empty for none; ``keys`` are its keys for this attempt's masks, if masks are used; ``anchor`` is that of its
    privacy ledger, if the agreement has noise.
    """

    site: str
    holds: NDArray[np.bool_]
    signature: bytes
    base: bytes = b""
    keys: MaskKeys | None = None
    anchor: LedgerAnchor | None = None


@dataclass(frozen=True)
class ActiveList:
    """Presence statements of all participants of the attempt, which determine who adds values for which class."""

    statements: tuple[PresenceStatement, ...]


@dataclass(frozen=True)
class AssignedRows:
    """Class and cluster of each of a site's local prototypes, both int64 (M,)."""

    site: str
    classes: NDArray[np.int64]
    clusters: NDArray[np.int64]


@dataclass(frozen=True)
class Assignment:
    """Assignment of local prototypes to clusters, for all sites that sent directions, sorted."""

    sites: tuple[AssignedRows, ...]


@dataclass(frozen=True)
class SharesMade:
    """Shares of a site's secrets of this attempt, one sealed to each other member of its group."""

    shares: tuple[SealedShare, ...]


@dataclass(frozen=True)
class ReceivedShares:
    """Shares that the other members of a site's group made for it.

    In a complete graph a member without shares is not in the sum, and ``sharers`` is empty. In a sparse graph most
    members make no share for a given site, and ``sharers`` are all members that made shares, the site included, sorted.
    """

    shares: tuple[SealedShare, ...]
    sharers: tuple[str, ...] = ()


@dataclass(frozen=True)
class MaskedValues:
    """Masked values of a site in a sparse graph, and its signature on the set that it masks with."""

    payload: Payload
    signature: bytes


@dataclass(frozen=True)
class SurvivorSet:
    """Members of a site's group whose masked values are in the sum, sorted."""

    sites: tuple[str, ...]


@dataclass(frozen=True)
class SurvivorSignature:
    """Signature of a site on the survivor set that it received."""

    site: str
    signature: bytes


@dataclass(frozen=True)
class SignedSurvivors:
    """Survivor set with the signatures of the members that received the same set.

    In a sparse graph ``sharers`` has the signatures, on the sets that they mask with, of the survivors whose shares the
    recipient holds; in a complete graph none.
    """

    sites: tuple[str, ...]
    signatures: tuple[SurvivorSignature, ...]
    sharers: tuple[SurvivorSignature, ...] = ()


@dataclass(frozen=True)
class SumMembers:
    """Members of the sum of one attempt, with their signatures; they accompany the sum wherever it is sent.

    ``listed`` are the attempt's participants and ``base`` is the SHA-256 of the result that they trained from: the
    signatures in ``signed`` cover both, so that a site that took no part can verify them.
    """

    round: int
    attempt: int
    listed: tuple[str, ...]
    base: bytes
    signed: SignedSurvivors


@dataclass(frozen=True)
class ReleasedShares:
    """Released shares: for each member that made shares, one of the two that this site holds."""

    shares: tuple[ReleasedShare, ...]


@dataclass(frozen=True)
class Acknowledgement:
    """Acknowledgement of receipt, without a statement about the content."""
