"""Secrets of a site for one attempt, and the shares of them that a peer holds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from crypto.errors import MalformedError, VerificationError
from crypto.keys import KEY_BYTES, ChannelKey, check_channel_public, check_distinct
from crypto.pairwise.attempt_binding import Binding, check_member
from crypto.pairwise.wire_values import MaskKeys
from crypto.shamir import SHARE_BYTES, check_share


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


def agree(private: bytes, peer: bytes) -> bytes:
    """Return the X25519 shared secret (32 bytes, never zero) of a private mask key and a peer's public key.

    Raises :class:`VerificationError` for a public key of low order, with which everyone would know the secret.
    """
    check_channel_public(peer)
    return agreement_with(private)(peer)


def agreement_with(private: bytes) -> Callable[[bytes], bytes]:
    """Return :func:`agree` for one private key, loaded once, and public keys that :func:`check_public` accepted."""
    key = X25519PrivateKey.from_private_bytes(private)

    def agree_with(peer: bytes) -> bytes:
        try:
            return key.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:
            raise VerificationError("a mask key gives a shared secret of zero") from error

    return agree_with


def check_public(binding: Binding, public: Mapping[str, MaskKeys]) -> None:
    """Raise :class:`VerificationError` unless each member has two usable keys, and all keys are distinct.

    A key repeated for two members or two purposes would count one party twice. Limit: the signatures on the statements,
    which the caller must check, show that a key belongs to its member.
    """
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
