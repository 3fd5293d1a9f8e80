"""What travels between the members of a masked sum: public keys, sealed shares, released shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


@dataclass(frozen=True)
class MaskKeys:
    """A site's public X25519 keys (32 bytes each) for one attempt.

    Masks come from ``mask``; shares are sealed to ``share``. They are two, because the private half of ``mask`` is
    put together again when its owner drops out, and must open nothing.
    """

    mask: bytes
    share: bytes


@dataclass(frozen=True)
class SealedShare:
    """The sender's shares of its two secrets, sealed to the recipient and signed by the sender."""

    sender: str
    recipient: str
    sealed: bytes = field(repr=False)
    signature: bytes = field(repr=False)


class ShareKind(IntEnum):
    """Which of a site's two secrets a share is of."""

    SEED = 1
    """The seed of its self-mask: released for a site whose values are in the sum."""
    KEY = 2
    """The private half of its mask key: released for a site that dropped out after it made shares."""


@dataclass(frozen=True)
class ReleasedShare:
    """One share of one of ``owner``'s secrets, given to the coordinator."""

    owner: str
    kind: ShareKind
    share: bytes = field(repr=False)
