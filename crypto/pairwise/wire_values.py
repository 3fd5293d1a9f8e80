"""Values that members of a masked sum exchange: public keys, sealed shares, released shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


@dataclass(frozen=True)
class MaskKeys:
    """Public X25519 keys (32 bytes each) of a site for one attempt.

    Masks come from ``mask``; shares are sealed to ``share``. There are two keys because the private half of ``mask`` is
    reconstructed if its owner drops out, and must then decrypt nothing.
    """

    mask: bytes
    share: bytes


@dataclass(frozen=True)
class SealedShare:
    """Shares of the sender's two secrets, sealed to the recipient and signed by the sender."""

    sender: str
    recipient: str
    sealed: bytes = field(repr=False)
    signature: bytes = field(repr=False)


class ShareKind(IntEnum):
    """Kind of a share: the secret, of a site's two, that it belongs to."""

    SEED = 1
    """Seed of the self-mask, released for a site whose values are in the sum."""
    KEY = 2
    """Private half of the mask key, released for a site that dropped out after it made shares."""


@dataclass(frozen=True)
class ReleasedShare:
    """Share of one of ``owner``'s secrets that a holder gives to the coordinator."""

    owner: str
    kind: ShareKind
    share: bytes = field(repr=False)
