"""A secret of the whole group, made by one site and sealed to each other one through the coordinator.

The maker signs the ciphertext together with whom it is for, the run, the attempt of the set-up, the roster and the hash
of the public keys that belong to the secret. So the coordinator can neither read a secret, nor seal one of its own
making, nor deliver one of an earlier attempt.
The limit: every member knows the secret, and one of them that works with the coordinator gives it everything
the secret protects.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from crypto.encoding import encode
from crypto.errors import VerificationError
from crypto.keys import ChannelKey, seal
from crypto.pki import Credentials, verify
from crypto.roster import Roster

_LABEL = "group-secret"


@dataclass(frozen=True)
class SealedSecret:
    """A sealed group secret as it travels. ``public_hash``: SHA-256 of the public keys that go with it."""

    maker: str
    recipient: str
    roster_hash: bytes
    public_hash: bytes
    sealed: bytes = field(repr=False)
    signature: bytes = field(repr=False)


def seal_group_secret(
    credentials: Credentials,
    roster: Roster,
    run: str,
    attempt: int,
    *,
    recipient: str,
    secret: bytes,
    public_hash: bytes,
) -> SealedSecret:
    """Seal ``secret`` to a member, as the roster's maker in this attempt (1, 2, …) of the set-up.

    Raises :class:`VerificationError` when these credentials are not the maker's or the recipient is no
    member.
    """
    maker = credentials.identity.name
    _check_maker(maker, roster)
    _check_member(recipient, roster)
    context = _context(maker, recipient, run, attempt, roster.hash, public_hash)
    sealed = seal(roster.members[recipient].channel_key, secret, _info(context))
    signature = credentials.sign(_LABEL, *context, sealed)
    return SealedSecret(maker, recipient, roster.hash, public_hash, sealed, signature)


def open_group_secret(
    sealed: SealedSecret, *, roster: Roster, run: str, attempt: int, recipient: str, channel_key: ChannelKey
) -> tuple[bytes, bytes]:
    """(secret, public hash), from what the coordinator relayed to the member ``recipient``.

    Raises as :func:`verify_sealed` does, and :class:`crypto.errors.DecryptionError` if it does not open with
    this channel key.
    """
    verify_sealed(sealed, roster=roster, run=run, attempt=attempt, recipient=recipient)
    context = _context(roster.maker, recipient, run, attempt, roster.hash, sealed.public_hash)
    return channel_key.open(sealed.sealed, _info(context)), sealed.public_hash


def verify_sealed(sealed: SealedSecret, *, roster: Roster, run: str, attempt: int, recipient: str) -> None:
    """Raise :class:`VerificationError` unless the roster's maker signed it for this recipient, run, attempt and roster.

    That it opens, and what is in it, only the recipient can tell.
    """
    _check_maker(sealed.maker, roster)
    _check_recipient(sealed, recipient)
    _check_roster(sealed, roster)
    # What must hold is taken from the verifier's own knowledge, never from what the secret says of itself.
    context = _context(roster.maker, recipient, run, attempt, roster.hash, sealed.public_hash)
    _check_signature(sealed, roster, context)


def _context(
    maker: str, recipient: str, run: str, attempt: int, roster_hash: bytes, public_hash: bytes
) -> tuple[bytes, ...]:
    number = attempt.to_bytes(8, "big")
    return (maker.encode(), recipient.encode(), run.encode(), number, roster_hash, public_hash)


def _info(context: tuple[bytes, ...]) -> bytes:
    """What the ciphertext itself is bound to (HPKE's ``info``)."""
    return encode("group-secret-info", *context)


def _check_maker(maker: str, roster: Roster) -> None:
    if maker != roster.maker:
        raise VerificationError(f"a group secret of {maker}, but it is for {roster.maker} to make")


def _check_member(name: str, roster: Roster) -> None:
    if name not in roster.members:
        raise VerificationError(f"{name} is not on the roster")


def _check_recipient(sealed: SealedSecret, recipient: str) -> None:
    if sealed.recipient != recipient:
        raise VerificationError(f"a group secret for {sealed.recipient} was given to {recipient}")


def _check_roster(sealed: SealedSecret, roster: Roster) -> None:
    if sealed.roster_hash != roster.hash:
        raise VerificationError("a group secret was sealed for another roster")


def _check_signature(sealed: SealedSecret, roster: Roster, context: tuple[bytes, ...]) -> None:
    """The signer is the maker's certified key, never a key that travels with the secret."""
    maker = roster.members[roster.maker]
    verify(maker.public_key, sealed.signature, _LABEL, *context, sealed.sealed)
