"""One attempt of a masked sum: the facts that bind it, the threshold of its group, and a site's fresh secrets.

A member takes the facts (:class:`Binding`) from its own knowledge, never from a message. Its secrets
(:class:`AttemptSecrets`) live for the attempt alone; the shares of them that a peer holds are a :class:`SharePair`.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from crypto.errors import MalformedError, VerificationError
from crypto.keys import KEY_BYTES, ChannelKey, check_channel_public, check_distinct, encode
from crypto.shamir import SHARE_BYTES, check_share

HASH_BYTES = 32


@dataclass(frozen=True)
class Binding:
    """Facts of an attempt, which each member must take from its own knowledge, never from a message.

    ``group`` has the names of all participants of the attempt, sorted and distinct, 2 or more. ``broadcast`` is the
    hash of the model or prototypes that every member was sent before it trained, empty if nothing was sent. The masks
    of members whose facts differ do not cancel, so a coordinator that sends different models to different members gets
    no sum (Pasquini et al. 2021, arXiv 2111.07380).

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
        if len(self.group) < 2 or list(self.group) != sorted(set(self.group)):
            raise MalformedError("a group must be 2 or more names, sorted and distinct")

    @property
    def threshold(self) -> int:
        """Threshold t, the number of members whose shares open a secret of another member."""
        return threshold(len(self.group))

    def fields(self) -> tuple[bytes, ...]:
        """Return the fields as bytes, in the order in which keys and signatures bind them."""
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
        """Return the x of a member's shares, 1 for the first by name; raise :class:`VerificationError` for others."""
        check_member(self, site)
        return self.group.index(site) + 1


@dataclass(frozen=True)
class MaskKeys:
    """Public X25519 keys (32 bytes each) of a site for one attempt.

    Masks come from ``mask``; shares are sealed to ``share``. There are two keys because the private half of ``mask`` is
    reconstructed if its owner drops out, and must then decrypt nothing.
    """

    mask: bytes
    share: bytes


def threshold(members: int) -> int:
    """Return t = ⌊2n/3⌋ + 1, the smallest number above two thirds, so that two quorums share over a third of members.

    To open *both* secrets of a member takes t + t answers. Honest members answer for one kind each, so 2t − n or more
    of the n members must answer for both. 2t − n is at least (n + 2)/3: c members are too few in every group of 3c − 1
    members or more.
    """
    if members < 2:
        raise ValueError(f"a group must have 2 or more members, not {members}")
    return 2 * members // 3 + 1


def fewest_against(colluding: int) -> int:
    """Return max(3c − 1, c + 2), the group size from which c members that collude with the coordinator open nothing.

    In such a group c is below 2t − n, too few for a member's secrets, and an opened sum has at least two other members.
    Limit: a part of a sum to which fewer than c + 2 members contribute is revealed when the c subtract their values.
    """
    if colluding < 0:
        raise ValueError(f"the number of colluding members must be at least 0, not {colluding}")
    return max(3 * colluding - 1, colluding + 2)


# The same few lists of hundreds of names enter every key and signature of an attempt.
@lru_cache(maxsize=8)
def encode_names(names: tuple[str, ...]) -> bytes:
    """Encode names as one field."""
    return encode("pairwise-names", *(name.encode() for name in names))


def check_member(binding: Binding, site: str) -> None:
    """Raise :class:`VerificationError` unless ``site`` is in the group."""
    if site not in binding.group:
        raise VerificationError(f"{site} is not in the group {', '.join(binding.group)}")


def check_sharers(binding: Binding, sharers: Sequence[str]) -> None:
    """Raise :class:`VerificationError` unless sharers are sorted and distinct, members, and a quorum."""
    _check_set(sharers, binding.group, binding.threshold, "those who made shares")


def check_survivors(binding: Binding, sharers: Sequence[str], survivors: Sequence[str]) -> None:
    """Raise :class:`VerificationError` unless survivors are sorted and distinct, sharers, and a quorum.

    A repeated name, or a set below the threshold, would let the coordinator choose a sum of few members.
    """
    check_sharers(binding, sharers)
    _check_set(survivors, sharers, binding.threshold, "the survivors")


def _check_set(names: Sequence[str], eligible: Collection[str], least: int, what: str) -> None:
    # A repeated name would count one member twice: a "quorum" of one.
    if list(names) != sorted(set(names)):
        raise VerificationError(f"{what} are not sorted and distinct names")
    strangers = sorted(set(names) - set(eligible))
    if strangers:
        raise VerificationError(f"{', '.join(strangers)}: among {what}, but not eligible")
    # In a sum of few, those who know the other terms subtract them.
    if len(names) < least:
        raise VerificationError(f"{what} are {len(names)}; the threshold is {least}")


@dataclass(frozen=True)
class AttemptSecrets:
    """Private halves of both X25519 keys and the seed of the self-mask, 32 bytes each.

    Use the secrets for one attempt and one vector, and erase them afterwards: two vectors under the same masks reveal
    their difference, and the coordinator learns ``mask`` if its owner drops out.
    """

    mask: bytes = field(repr=False)
    share: bytes = field(repr=False)
    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if {len(self.mask), len(self.share), len(self.seed)} != {KEY_BYTES}:
            raise MalformedError(f"each secret of an attempt must have {KEY_BYTES} bytes")

    @classmethod
    def generate(cls) -> AttemptSecrets:
        """Generate secrets from the operating system's randomness."""
        mask, share = (X25519PrivateKey.generate().private_bytes_raw() for _ in range(2))
        return cls(mask, share, secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_bytes(cls, stored: bytes) -> AttemptSecrets:
        """Load the result of :meth:`to_bytes`; raise :class:`MalformedError` unless it has 96 bytes."""
        if len(stored) != 3 * KEY_BYTES:
            raise MalformedError(f"secrets of an attempt must have {3 * KEY_BYTES} bytes, not {len(stored)}")
        mask, share, seed = (stored[start : start + KEY_BYTES] for start in range(0, len(stored), KEY_BYTES))
        return cls(mask, share, seed)

    def to_bytes(self) -> bytes:
        """Return all secrets, 96 bytes, which must be stored encrypted only (:class:`crypto.keys.StorageKey`)."""
        return self.mask + self.share + self.seed

    @property
    def public(self) -> MaskKeys:
        """Public halves, which the site signs and states to the group."""
        return MaskKeys(public_half(self.mask), public_half(self.share))

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """Decrypt what a peer sealed to ``share``; raise as :meth:`crypto.keys.ChannelKey.open`."""
        return ChannelKey.from_private_bytes(self.share).open(sealed, info)

    def __repr__(self) -> str:
        return f"AttemptSecrets(public={self.public.mask.hex()[:16]}…, private=<redacted>)"


@dataclass(frozen=True)
class SharePair:
    """Shares of another member's two secrets, 33 bytes each, of which only one may ever be released."""

    seed: bytes = field(repr=False)
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_share(self.seed)
        check_share(self.key)

    @classmethod
    def from_bytes(cls, stored: bytes) -> SharePair:
        """Load the result of :meth:`to_bytes`; raise :class:`MalformedError` for bytes that are not two shares."""
        return cls(stored[:SHARE_BYTES], stored[SHARE_BYTES:])

    def to_bytes(self) -> bytes:
        """Return both *secret* shares, 66 bytes."""
        return self.seed + self.key

    def __repr__(self) -> str:
        return "SharePair(<redacted>)"


def public_half(private: bytes) -> bytes:
    """Return the public half of an X25519 key (32 bytes each)."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def check_mask_keys(binding: Binding, public: Mapping[str, MaskKeys]) -> None:
    """Raise :class:`VerificationError` unless each member has two usable keys, and all keys are distinct.

    A key repeated for two members would count one party twice; a mask key that is also a share key would open shares
    once it is reconstructed. Limit: this does not show that a key is its member's. The signatures on the statements do,
    and the caller must check them.
    """
    # Every member's keys, also of those that will drop out: a key that is missing now could be chosen later.
    missing = [site for site in binding.group if site not in public]
    if missing:
        raise VerificationError(f"no mask keys of {', '.join(missing)}")
    keys = [key for site in binding.group for key in (public[site].mask, public[site].share)]
    for key in keys:
        check_channel_public(key)
    check_distinct(keys, "a mask key is repeated in one attempt")


def check_own(secret: AttemptSecrets, binding: Binding, site: str, public: Mapping[str, MaskKeys]) -> None:
    """Raise :class:`VerificationError` unless ``site`` is in the group and ``public`` (complete) has its own keys."""
    check_member(binding, site)
    if public[site] != secret.public:
        raise VerificationError(f"the keys stated for {site} are not its own of this attempt")
