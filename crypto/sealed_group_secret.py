"""Group secret that one site makes, seals to each other member, and sends through the coordinator.

The maker signs the ciphertext together with the recipient, the run, the attempt of the set-up, the roster and the hash
of the public keys that belong to the secret. So the coordinator can neither read a secret, nor substitute its own, nor
replay one of an earlier attempt. Limit: every member knows the secret, so a single member that colludes with the
coordinator reveals everything that the secret protects.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from crypto.errors import VerificationError
from crypto.keys import ChannelKey, encode, seal
from crypto.pki import Credentials, verify
from crypto.roster import Roster

_LABEL = "group-secret"


@dataclass(frozen=True)
class SealedSecret:
    """Sealed group secret in transit; ``public_hash`` is the SHA-256 of the public keys that belong to the secret."""

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

    Raises :class:`VerificationError` if the credentials are not the maker's or the recipient is not a member.
    """
    maker = credentials.identity.name
    _check_maker(maker, roster)
    if recipient not in roster.members:
        raise VerificationError(f"{recipient} is not on the roster")
    context = _context(maker, recipient, run, attempt, roster.hash, public_hash)
    sealed = seal(roster.members[recipient].channel_key, secret, _info(context))
    signature = credentials.sign(_LABEL, *context, sealed)
    return SealedSecret(maker, recipient, roster.hash, public_hash, sealed, signature)


def open_group_secret(
    sealed: SealedSecret, *, roster: Roster, run: str, attempt: int, recipient: str, channel_key: ChannelKey
) -> tuple[bytes, bytes]:
    """Return the secret and the public hash from the message that the coordinator relayed to ``recipient``.

    Raises as :func:`verify_sealed`, and :class:`crypto.errors.DecryptionError` if the message does not decrypt with
    this channel key.
    """
    verify_sealed(sealed, roster=roster, run=run, attempt=attempt, recipient=recipient)
    context = _context(roster.maker, recipient, run, attempt, roster.hash, sealed.public_hash)
    return channel_key.open(sealed.sealed, _info(context)), sealed.public_hash


def verify_sealed(sealed: SealedSecret, *, roster: Roster, run: str, attempt: int, recipient: str) -> None:
    """Raise :class:`VerificationError` unless the roster's maker signed it for this recipient, run, attempt and roster.

    Limit: only the recipient can check that the message decrypts, and its content.
    """
    # These fields are only claims: the signature below is checked over the verifier's own facts, never over them.
    _check_maker(sealed.maker, roster)
    if sealed.recipient != recipient:
        raise VerificationError(f"a group secret for {sealed.recipient} was given to {recipient}")
    if sealed.roster_hash != roster.hash:
        raise VerificationError("a group secret was sealed for another roster")
    # The context is built from the verifier's own knowledge, never from the message's fields.
    context = _context(roster.maker, recipient, run, attempt, roster.hash, sealed.public_hash)
    # The key is the maker's certified one; a key that travels with the secret would prove nothing.
    maker_key = roster.members[roster.maker].public_key
    verify(maker_key, sealed.signature, _LABEL, *context, sealed.sealed)


def _context(
    maker: str, recipient: str, run: str, attempt: int, roster_hash: bytes, public_hash: bytes
) -> tuple[bytes, ...]:
    number = attempt.to_bytes(8, "big")
    return (maker.encode(), recipient.encode(), run.encode(), number, roster_hash, public_hash)


def _info(context: tuple[bytes, ...]) -> bytes:
    """Return HPKE's ``info``, to which the ciphertext is bound."""
    return encode("group-secret-info", *context)


def _check_maker(maker: str, roster: Roster) -> None:
    if maker != roster.maker:
        raise VerificationError(f"the group secret was made by {maker}, but it is for {roster.maker} to make")
