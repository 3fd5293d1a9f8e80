"""What every key, mask, share and signature of one attempt is bound to, and the threshold of its group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from crypto.encoding import encode
from crypto.errors import MalformedError, VerificationError

HASH_BYTES = 32


@dataclass(frozen=True)
class Binding:
    """The attempt, as one member of the group knows it by itself, never as somebody says it is.

    ``group``: names of all that take part in the sum's attempt, sorted and distinct, 2 or more. ``broadcast``: the
    hash of what every member of the group was sent before it trained, empty if nothing was. Members that differ in
    any of it have masks that do not cancel, so a coordinator that sends different models to different members
    gets no sum of theirs (Pasquini et al. 2021, arXiv 2111.07380).

    Raises :class:`MalformedError` for fields that are not of this form.
    """

    run: str
    round: int
    attempt: int
    roster_hash: bytes
    agreement_hash: bytes
    group: tuple[str, ...]
    broadcast: bytes

    def __post_init__(self) -> None:
        if not (0 <= self.round < 2**64 and 0 <= self.attempt < 2**64):
            raise MalformedError("rounds and attempts are counted from 0, in 64 bits")
        if len(self.roster_hash) != HASH_BYTES or len(self.agreement_hash) != HASH_BYTES:
            raise MalformedError(f"the hashes of a roster and an agreement have {HASH_BYTES} bytes")
        if len(self.broadcast) not in {0, HASH_BYTES}:
            raise MalformedError(f"the hash of a broadcast has {HASH_BYTES} bytes, or none")
        if len(self.group) < 2 or not is_sorted(self.group):
            raise MalformedError("a group is 2 or more names, sorted and distinct")

    @property
    def threshold(self) -> int:
        """t: how many members' shares open a secret of another member."""
        return threshold(len(self.group))

    def fields(self) -> tuple[bytes, ...]:
        """The fields in the order in which everything binds them."""
        return (
            self.run.encode(),
            self.round.to_bytes(8, "big"),
            self.attempt.to_bytes(8, "big"),
            self.roster_hash,
            self.agreement_hash,
            encode_names(self.group),
            self.broadcast,
        )

    def position(self, site: str) -> int:
        """x of a member's shares: 1 for the first by name. :class:`VerificationError` for any other name."""
        check_member(self, site)
        return self.group.index(site) + 1


def threshold(members: int) -> int:
    """t = ⌊2n/3⌋ + 1, the smallest above two thirds: two quorums then share more than a third of the members.

    So one that opens *both* secrets of a member needs t + t answers from n members that give one kind each, and
    2t − n or more of them that give two. That is (n + 2)/3 or more: c members are too few in every group of 3c − 1
    members or more.
    """
    if members < 2:
        raise ValueError(f"a group has 2 or more members, not {members}")
    return 2 * members // 3 + 1


def fewest_against(colluding: int) -> int:
    """max(3c − 1, c + 2): in no group of so many members or more do c that help the coordinator open anything.

    Fewer than 2t − n are too few for a member's secrets, and the sum that opens is of two others at least. The limit:
    of a sum of which a part is of fewer than c + 2 members, that part shows when those c subtract theirs.
    """
    if colluding < 0:
        raise ValueError(f"{colluding} members collude")
    return max(3 * colluding - 1, colluding + 2)


def encode_names(names: Sequence[str]) -> bytes:
    """Names as one field."""
    return _encoded(tuple(names))


@lru_cache(maxsize=8)
def _encoded(names: tuple[str, ...]) -> bytes:
    """There are hundreds of names, and the same few lists of them in every key and signature of an attempt."""
    return encode("pairwise-names", *(name.encode() for name in names))


def is_sorted(names: Sequence[str]) -> bool:
    """Whether names are sorted and distinct."""
    return list(names) == sorted(set(names))


def check_member(binding: Binding, site: str) -> None:
    """Raise :class:`VerificationError` unless ``site`` is of the group."""
    if site not in binding.group:
        raise VerificationError(f"{site} is not of the group {', '.join(binding.group)}")


def check_sharers(binding: Binding, sharers: Sequence[str]) -> None:
    """Raise :class:`VerificationError` unless those who shared are sorted and distinct, members, and a quorum."""
    _check_set(sharers, binding.group, binding.threshold, "those who made shares")


def check_survivors(binding: Binding, sharers: Sequence[str], survivors: Sequence[str]) -> None:
    """Raise :class:`VerificationError` unless survivors are sorted and distinct, of the sharers, and a quorum.

    A name that is there twice, or a set below the threshold, would let the coordinator choose a sum of few.
    """
    check_sharers(binding, sharers)
    _check_set(survivors, sharers, binding.threshold, "the survivors")


def _check_set(names: Sequence[str], within: Collection[str], least: int, what: str) -> None:
    _check_names(names, what)
    _check_within(names, within, what)
    _check_quorum(names, least, what)


def _check_names(names: Sequence[str], what: str) -> None:
    if not is_sorted(names):
        raise VerificationError(f"{what} are not sorted and distinct names")


def _check_within(names: Sequence[str], within: Collection[str], what: str) -> None:
    strangers = sorted(set(names) - set(within))
    if strangers:
        raise VerificationError(f"{', '.join(strangers)}: among {what}, but not of those who may be")


def _check_quorum(names: Sequence[str], least: int, what: str) -> None:
    if len(names) < least:
        raise VerificationError(f"{what} are {len(names)}; the threshold is {least}")
