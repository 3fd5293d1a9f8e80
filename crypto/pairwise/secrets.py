"""A site's secrets of one attempt, and the shares of them that a peer holds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from crypto.errors import MalformedError, VerificationError
from crypto.keys import KEY_BYTES, ChannelKey, check_channel_public, check_distinct
from crypto.pairwise.binding import Binding, check_member
from crypto.pairwise.parts import MaskKeys
from crypto.shamir import SHARE_BYTES, check_share


@dataclass(frozen=True)
class AttemptSecrets:
    """The private halves of both X25519 keys and the seed of the self-mask, 32 bytes each.

    For one attempt and one vector: the difference of two vectors under the same masks shows, and ``mask`` becomes
    the coordinator's when its owner drops out. To be erased after the attempt.
    """

    mask: bytes = field(repr=False)
    share: bytes = field(repr=False)
    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if {len(self.mask), len(self.share), len(self.seed)} != {KEY_BYTES}:
            raise MalformedError(f"each secret of an attempt has {KEY_BYTES} bytes")

    @classmethod
    def generate(cls) -> AttemptSecrets:
        """Fresh ones from the operating system's randomness."""
        mask, share = (X25519PrivateKey.generate().private_bytes_raw() for _ in range(2))
        return cls(mask, share, secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_bytes(cls, stored: bytes) -> AttemptSecrets:
        """What :meth:`to_bytes` gave; :class:`MalformedError` unless it has 96 bytes."""
        if len(stored) != 3 * KEY_BYTES:
            raise MalformedError(f"secrets of an attempt have {3 * KEY_BYTES} bytes, not {len(stored)}")
        return cls(*(stored[start : start + KEY_BYTES] for start in range(0, len(stored), KEY_BYTES)))

    def to_bytes(self) -> bytes:
        """All of it, *secret*, 96 bytes. To be stored encrypted only (:class:`crypto.keys.StorageKey`)."""
        return self.mask + self.share + self.seed

    @property
    def public(self) -> MaskKeys:
        """The public halves, to be signed and stated to the group."""
        return MaskKeys(public_of(self.mask), public_of(self.share))

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """What a peer sealed to ``share``; raises as :meth:`crypto.keys.ChannelKey.open`."""
        return ChannelKey.from_private_bytes(self.share).open(sealed, info)

    def __repr__(self) -> str:
        return f"AttemptSecrets(public={self.public.mask.hex()[:16]}…, private=<redacted>)"


@dataclass(frozen=True)
class SharePair:
    """One member's shares of another's two secrets, 33 bytes each. Only one of them may ever be released."""

    seed: bytes = field(repr=False)
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_share(self.seed)
        check_share(self.key)

    @classmethod
    def from_bytes(cls, stored: bytes) -> SharePair:
        """What :meth:`to_bytes` gave; :class:`MalformedError` for anything that is not two shares."""
        return cls(stored[:SHARE_BYTES], stored[SHARE_BYTES:])

    def to_bytes(self) -> bytes:
        """Both, *secret*, 66 bytes."""
        return self.seed + self.key

    def __repr__(self) -> str:
        return "SharePair(<redacted>)"


def public_of(private: bytes) -> bytes:
    """The public half of a X25519 key (32 bytes each)."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, peer: bytes) -> bytes:
    """The X25519 secret (32 bytes) of a private mask key and a peer's public one, never zero.

    Raises :class:`VerificationError` for a public key with which all the world would know the secret.
    """
    check_channel_public(peer)
    return agreeing(private)(peer)


def agreeing(private: bytes) -> Callable[[bytes], bytes]:
    """:func:`agree` with many peers, whose keys :func:`check_public` let through: the private half is read once."""
    own = X25519PrivateKey.from_private_bytes(private)

    def shared(peer: bytes) -> bytes:
        try:
            return own.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:
            raise VerificationError("a mask key gives a shared secret of zero") from error

    return shared


def check_public(binding: Binding, public: Mapping[str, MaskKeys]) -> None:
    """Raise :class:`VerificationError` unless each member has two usable keys that are no one else's.

    A key that stands twice, for two members or two purposes, would be one party counted twice. Whose the keys
    are is for the signatures to show under which they were stated.
    """
    _check_complete(binding, public)
    keys = [key for site in binding.group for key in (public[site].mask, public[site].share)]
    for key in keys:
        check_channel_public(key)
    _check_distinct(keys)


def check_own(own: AttemptSecrets, binding: Binding, site: str, public: Mapping[str, MaskKeys]) -> None:
    """Raise :class:`VerificationError` unless ``site`` is of the group and ``public`` (complete) has its very keys."""
    check_member(binding, site)
    if public[site] != own.public:
        raise VerificationError(f"the keys stated for {site} are not its own of this attempt")


def _check_complete(binding: Binding, public: Mapping[str, MaskKeys]) -> None:
    missing = [site for site in binding.group if site not in public]
    if missing:
        raise VerificationError(f"no mask keys of {', '.join(missing)}")


def _check_distinct(keys: list[bytes]) -> None:
    check_distinct(keys, "a mask key stands twice in one attempt")
