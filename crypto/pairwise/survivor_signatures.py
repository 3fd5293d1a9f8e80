"""Signatures on the survivors, the members in the sum, which keep the coordinator from showing different sets.

A member signs one set per attempt (the session must remember it), and releases shares only if a threshold of the set's
members signed. Two sets with enough signatures need 2t − n members that signed both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crypto.errors import VerificationError
from crypto.pairwise.attempt_binding import Binding, check_survivors, encode_names
from crypto.pki import Credentials, verify
from crypto.roster import Member

_LABEL = "mask-survivors"


def sign_survivors(credentials: Credentials, binding: Binding, survivors: Sequence[str]) -> bytes:
    """Sign the set of survivors as this member; the caller must ensure **one set per attempt**.

    Raises :class:`VerificationError` unless survivors are sorted, distinct, members, a quorum, and include this site.
    """
    check_survivors(binding, binding.group, survivors)
    _check_among(credentials.identity.name, survivors)
    return credentials.sign(_LABEL, *_fields(binding, survivors))


def verify_survivor(member: Member, binding: Binding, survivors: Sequence[str], signature: bytes) -> None:
    """Raise :class:`VerificationError` unless ``member``, one of the survivors, signed this set in this attempt."""
    check_survivors(binding, binding.group, survivors)
    _check_among(member.name, survivors)
    verify(member.public_key, signature, _LABEL, *_fields(binding, survivors))


def verify_signed_survivors(
    signatures: Mapping[str, bytes], members: Mapping[str, Member], binding: Binding, survivors: Sequence[str]
) -> None:
    """Raise :class:`VerificationError` unless at least the threshold of survivors signed this set.

    ``signatures`` are by name, ``members`` those of the roster. A single invalid signature fails the check, because an
    honest coordinator relays none.
    """
    check_survivors(binding, binding.group, survivors)
    for name, signature in signatures.items():
        verify_survivor(_member(members, name), binding, survivors, signature)
    _check_enough(len(signatures), binding)


def _fields(binding: Binding, survivors: Sequence[str]) -> tuple[bytes, ...]:
    return (*binding.fields(), encode_names(survivors))


def _member(members: Mapping[str, Member], name: str) -> Member:
    member = members.get(name)
    if member is None or member.name != name:
        raise VerificationError(f"{name} is not on the roster")
    return member


def _check_among(site: str, survivors: Sequence[str]) -> None:
    if site not in survivors:
        raise VerificationError(f"{site} is not among the survivors")


def _check_enough(count: int, binding: Binding) -> None:
    if count < binding.threshold:
        raise VerificationError(f"{count} signatures on the survivors; the threshold is {binding.threshold}")
