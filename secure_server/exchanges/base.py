"""One attempt of a round as an exchange sees it, and what an exchange is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from crypto.protection import Payload
from crypto.roster import Roster
from protoseal_wire.messages import ActiveList, Phase, PhaseKey, PresenceStatement
from secure_server.rounds.state import Groups, Quorum

T = TypeVar("T")


@dataclass(frozen=True)
class Attempt:
    """How far an attempt has come. All that is asked, checked and computed in it follows from this alone.

    ``key`` is that of its PRESENCE. ``active`` holds the participants' statements, by name. ``groups`` are the
    participants by their groups, () without groups. ``survivors``: by step that is over, who answered it.
    ``answer`` reads the content that a site sent for a step, if it has been taken: megabytes, so one at a time.
    """

    key: PhaseKey
    roster: Roster
    active: ActiveList
    groups: Groups
    survivors: Mapping[Phase, tuple[str, ...]]
    answer: Callable[[Phase, str], bytes]

    @property
    def sites(self) -> tuple[str, ...]:
        """The participants."""
        return tuple(statement.site for statement in self.active.statements)

    def group_of(self, site: str) -> tuple[str, ...]:
        """The participants of the site's group, itself among them; ``ValueError`` if it is in none."""
        for group in self.groups:
            if site in group:
                return group
        raise ValueError(f"{site} takes part in no group")

    def statement(self, site: str) -> PresenceStatement:
        """A participant's presence; ``ValueError`` for another site."""
        for statement in self.active.statements:
            if statement.site == site:
                return statement
        raise ValueError(f"{site} takes no part")

    def among(self, group: tuple[str, ...], phase: Phase) -> tuple[str, ...]:
        """Who of the group answered a step that is over."""
        members = frozenset(group)
        return tuple(site for site in self.survivors[phase] if site in members)

    def read_by(self, answer: Callable[[PhaseKey, str], bytes]) -> Attempt:
        """The same with answers from elsewhere, by a step's key and site: from a connection of another thread."""
        return replace(self, answer=lambda phase, site: answer(replace(self.key, phase=phase), site))


class Kept(Generic[T]):
    """What was worked out for one attempt, kept until another is asked about: each of its sites asks for the same."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[object, ...], T] | None = None

    def of(self, about: tuple[object, ...], make: Callable[[], T]) -> T:
        """What ``make`` gave, which follows from ``about`` alone."""
        kept = self._kept  # which another thread may replace meanwhile
        if kept is None or kept[0] != about:
            kept = self._kept = (about, make())
        return kept[1]


@dataclass(frozen=True)
class GroupFailure:
    """A group whose sum did not come out, ``why``, and what of it can be told of its members: for the log alone."""

    group: tuple[str, ...]
    why: str
    suspicions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What an attempt comes to: an answer for each site that is to have one, or the groups of a clustering.

    ``failures``: groups that get nothing. When there is neither an answer nor a group, the attempt has failed.
    """

    results: Mapping[str, Payload] = field(default_factory=dict)
    groups: Groups = ()
    failures: tuple[GroupFailure, ...] = ()


class Exchange(Protocol):
    """The steps of a round between PRESENCE and its outcome."""

    masked: bool
    """Whether sites state keys for masks with their presence."""

    def quorums(self, attempt: Attempt, /) -> tuple[Quorum, ...]:
        """How many answers each step needs of which participants; a step without a quorum needs everyone."""
        ...

    def request(self, attempt: Attempt, phase: Phase, site: str, /) -> bytes:
        """What a step asks of a site: always the same for the same attempt."""
        ...

    def check(self, attempt: Attempt, phase: Phase, site: str, content: bytes, /) -> None:
        """Refuse an answer that is not what was asked, by :class:`secure_server.errors.BadPayload`, a codec error or
        a :class:`crypto.errors.CryptoError`."""
        ...

    def outcome(self, attempt: Attempt, /) -> Outcome:
        """What follows from the answers to all steps. Raises when nothing does."""
        ...
