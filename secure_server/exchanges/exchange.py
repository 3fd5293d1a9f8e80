"""Abstract exchange at the coordinator, the parts that it is built of, and the view of an attempt that it works on.

An exchange checks what sites send in a round and computes their results. Except for FedPC's grouping of sites
(:mod:`secure_server.exchanges.site_grouping`), each exchange is the coordinator's half of a protection, for methods of
one family. The class of a half has the name of its counterpart at the site, if there is one. Halves are in
:mod:`secure_server.exchanges.peers`, :mod:`secure_server.exchanges.sums` and :mod:`secure_server.exchanges.clusters`. A
half is built when a run starts, so that a missing half ends the run there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from agreement import Agreement, Protection
from agreement.derived.payload_shapes import directions_shape, limits_of, values_shape
from agreement.registry.round_plan import load_half
from crypto import plain
from crypto.errors import UnknownSchemeError
from crypto.protection import Payload, PayloadShape, Pool
from crypto.roster import Roster
from protoseal_wire import codec
from protoseal_wire.codec import Limits
from protoseal_wire.messages import ActiveList, Phase, PhaseKey, PresenceStatement
from secure_server.rounds.state import Groups, Quorum

T = TypeVar("T")


@dataclass(frozen=True)
class Attempt:
    """Progress of an attempt. Every request, check and result of the attempt follows from this object alone.

    ``key`` is that of its PRESENCE. ``active`` holds the participants' statements, by name. ``groups`` are the
    participants by their groups, () without groups. ``survivors`` names, for each step that is over, the sites that
    answered it. ``answer`` reads the content that a site sent for a step, if the coordinator has it. A
    content can have megabytes, so read one at a time. ``last_sum`` reads the last of :attr:`Outcome.sums` of a group's
    members, from an earlier round; None before the first.
    """

    key: PhaseKey
    roster: Roster
    active: ActiveList
    groups: Groups
    survivors: Mapping[Phase, tuple[str, ...]]
    answer: Callable[[Phase, str], bytes]
    last_sum: Callable[[tuple[str, ...]], bytes | None] = lambda group: None

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the participants."""
        return tuple(statement.site for statement in self.active.statements)

    def group_of(self, site: str) -> tuple[str, ...]:
        """Return the participants of the site's group, the site included; raise ``ValueError`` if it is in none."""
        for group in self.groups:
            if site in group:
                return group
        raise ValueError(f"{site} takes part in no group")

    def statement(self, site: str) -> PresenceStatement:
        """Return a participant's presence statement; raise ``ValueError`` for another site."""
        for statement in self.active.statements:
            if statement.site == site:
                return statement
        raise ValueError(f"{site} is not a participant")

    def among(self, group: tuple[str, ...], phase: Phase) -> tuple[str, ...]:
        """Return the members of the group that answered a step that is over."""
        members = frozenset(group)
        return tuple(site for site in self.survivors[phase] if site in members)

    def read_by(self, answer: Callable[[PhaseKey, str], bytes]) -> Attempt:
        """Return the same attempt with answers read, by a step's key and site, from another thread's connection."""
        return replace(self, answer=lambda phase, site: answer(replace(self.key, phase=phase), site))

    def with_last_sums(self) -> Attempt:
        """Return the same attempt with its last sums read now, for another thread."""
        sums = {group: self.last_sum(group) for group in self.groups}
        return replace(self, last_sum=sums.get)


def repeated_sum(
    agreement: Agreement, attempt: Attempt, group: tuple[str, ...], form: PayloadShape, limits: Limits
) -> Payload | None:
    """Return the group's last sum of rows, in a round whose sums have no prototypes.

    None in other rounds, and before the first such sum.
    """
    content = None if agreement.sends_rows(attempt.key.round) else attempt.last_sum(group)
    return None if content is None else codec.decode_payload(content, limits, form)


class AttemptCache(Generic[T]):
    """Cache of the value computed for one attempt, because each of its sites asks for the same value."""

    def __init__(self) -> None:
        self._entry: tuple[tuple[object, ...], T] | None = None

    def of(self, about: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return the value of ``make``, which depends on ``about`` alone."""
        entry = self._entry  # another thread may replace the cached value meanwhile
        if entry is None or entry[0] != about:
            entry = self._entry = (about, make())
        return entry[1]


@dataclass(frozen=True)
class GroupFailure:
    """Group whose sum failed: the reason ``why``, and suspicions against its members, for the log alone."""

    group: tuple[str, ...]
    why: str
    suspicions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Outcome of an attempt: an answer for each site that gets one, or the groups of a clustering.

    ``failures`` are groups that get nothing. An attempt without an answer and without a group has failed. ``sums``
    are those of each site's group, for rounds whose sums have no prototypes (:meth:`agreement.Agreement.sends_rows`).
    """

    results: Mapping[str, Payload] = field(default_factory=dict)
    groups: Groups = ()
    failures: tuple[GroupFailure, ...] = ()
    sums: Mapping[str, Payload] = field(default_factory=dict)


@dataclass(frozen=True)
class ExchangeParts:
    """Components of an exchange at the coordinator.

    ``keys_path`` is the file of the group's evaluation keys once a site has made them (``ckks`` only). Heavy work
    goes to ``executor``, or is done in the caller's thread when it is None.
    """

    agreement: Agreement
    limits: Limits
    keys_path: Path
    executor: Pool | None = None


class Exchange(ABC):
    """The coordinator's steps of a round between PRESENCE and its outcome."""

    masked = False
    """True if sites state keys for masks with their presence."""

    def __init__(self, parts: ExchangeParts) -> None:
        self._agreement = parts.agreement
        self._limits = parts.limits
        self._active_list = AttemptCache[bytes]()

    @abstractmethod
    def check(self, attempt: Attempt, phase: Phase, site: str, content: bytes) -> None:
        """Refuse an invalid answer.

        Raises :class:`secure_server.errors.BadPayload`, a codec error or a :class:`crypto.errors.CryptoError`.
        """

    @abstractmethod
    def outcome(self, attempt: Attempt) -> Outcome:
        """Return the outcome of the answers to all steps; raise if there is none."""

    def quorums(self, attempt: Attempt) -> tuple[Quorum, ...]:  # noqa: ARG002 (the interface's argument)
        """Return the answers that each step needs, and of which participants; a step without a quorum needs all."""
        return ()

    def request(self, attempt: Attempt, phase: Phase, site: str) -> bytes:  # noqa: ARG002 (the interface's arguments)
        """Return the request of a step for a site, always the same for the same attempt.

        The first step of every exchange brings the presence of all participants.
        """
        about = (attempt.key, attempt.sites)
        return self._active_list.of(about, lambda: codec.encode_active_list(attempt.active))


def read_upload(agreement: Agreement, key: PhaseKey, content: bytes) -> Payload:
    """Return the payload of an upload of VALUES or DIRECTIONS, whatever the size of the sender's group.

    Raises :class:`protoseal_wire.codec.Malformed` for content of another form. For readers of recorded uploads; an
    exchange reads its own.
    """
    limits = limits_of(agreement)
    shape = (
        directions_shape(agreement) if key.phase is Phase.DIRECTIONS else values_shape(agreement, key.round)
    )
    try:
        return codec.decode_payload(content, limits, shape)
    except codec.Malformed:  # in a sparse graph, a masked vector has its sender's signature beside it
        return codec.decode_masked_values(content, limits, shape).payload


class SinglePhaseExchange(Exchange):
    """VALUES, from every participant: a missing one fails the attempt."""

    def __init__(self, parts: ExchangeParts, *, round_number: int = 1) -> None:
        """Set the form of an upload, which differs in round 0 alone."""
        super().__init__(parts)
        self._values_shape = values_shape(parts.agreement, round_number)

    def check(self, attempt: Attempt, _: Phase, site: str, content: bytes) -> None:
        """Check an answer: decode it, refuse cleartext that is not agreed, then call :meth:`validate`."""
        payload = codec.decode_payload(content, self._limits, self._values_shape)
        # A third party's half may not check this. Limit: the coordinator has seen the values by now.
        if payload.scheme == plain.SCHEME and self._agreement.protection is not Protection.PLAIN:
            raise UnknownSchemeError(
                f"{site} sent values of scheme {plain.SCHEME!r}, but protection "
                f"{self._agreement.protection.value!r} is agreed"
            )
        self.validate(payload, site, attempt)

    def payload(self, attempt: Attempt, site: str) -> Payload:
        """Return the values of one participant."""
        return codec.decode_payload(attempt.answer(Phase.VALUES, site), self._limits, self._values_shape)

    def payloads(self, attempt: Attempt) -> dict[str, Payload]:
        """Return the values of all participants."""
        return {site: self.payload(attempt, site) for site in attempt.survivors[Phase.VALUES]}

    @abstractmethod
    def validate(self, payload: Payload, site: str, attempt: Attempt) -> None:
        """Raise :class:`crypto.errors.MalformedError` unless the payload may enter :meth:`outcome`."""


def build_half(parts: ExchangeParts) -> Exchange:
    """Return the coordinator's half of the agreed protection; raise ``ValueError`` if the protection has none."""
    half: Exchange = load_half(parts.agreement.plan.server_half, Exchange)(parts)
    return half
