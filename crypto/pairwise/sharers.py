"""Signatures on whom a member masks with, which a sparse graph needs: that every member was told the same.

In a sparse graph the coordinator knows who holds shares of whose secrets. A member that it tells of others than those
holders are told of would mask with sites that then "drop out", and be left with no mask when its seed is opened. So a
holder gives its share of a seed only under the owner's signature on the set that the holder itself was told.

In a complete graph nothing is signed. There too the coordinator decides whose shares it relays, and so which members a
site i is told of and masks with: U_i, t or more. What holds instead: a member v signs one set of survivors S, itself in
it, and releases shares for no other, and for none that is not within U_v. If the seed of i opens, honest members Q of S
released it with c colluders, |Q| + c ≥ t. If i is one of Q, it masks with all of S; and it has a mask that never opens
with each other one that is in U_i. So it is left alone only if Q and U_i have no member in common, |Q| ≤ n − t, for
which c ≥ 2t − n: against so many a complete graph promises nothing anyway. A sparse one's threshold is far lower.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from crypto.errors import VerificationError
from crypto.pairwise.binding import Binding, check_sharers, encode_names
from crypto.pki import Credentials, verify
from crypto.roster import Member

_LABEL = "mask-sharers"


def sign_sharers(credentials: Credentials, binding: Binding, sharers: Sequence[str]) -> bytes:
    """This member's word that it masks with these, itself among them. **One set per attempt**, as its vector is one.

    Raises :class:`VerificationError` unless sharers are sorted, distinct, members, a quorum, and this site among them.
    """
    check_sharers(binding, sharers)
    _check_among(credentials.identity.name, sharers)
    return credentials.sign(_LABEL, *_fields(binding, sharers))


def verify_sharers(member: Member, binding: Binding, sharers: Sequence[str], signature: bytes) -> None:
    """Raise :class:`VerificationError` unless ``member``, one of the sharers, signed this set in this attempt."""
    check_sharers(binding, sharers)
    _check_among(member.name, sharers)
    verify(member.public_key, signature, _LABEL, *_fields(binding, sharers))


def verify_signed_sharers(
    signatures: Mapping[str, bytes],
    members: Mapping[str, Member],
    binding: Binding,
    sharers: Sequence[str],
    owners: Collection[str],
) -> None:
    """Raise :class:`VerificationError` unless each of ``owners``, and nobody else, signed the set.

    ``owners``: the survivors whose seeds' shares are to be released. ``members``: the roster's.
    """
    _check_of_all(signatures, owners)
    for name, signature in signatures.items():
        member = members.get(name)
        if member is None:
            raise VerificationError(f"{name} is not on the roster")
        verify_sharers(member, binding, sharers, signature)


def _fields(binding: Binding, sharers: Sequence[str]) -> tuple[bytes, ...]:
    return (*binding.fields(), encode_names(sharers))


def _check_among(site: str, sharers: Sequence[str]) -> None:
    if site not in sharers:
        raise VerificationError(f"{site} is not among those who made shares")


def _check_of_all(signatures: Mapping[str, bytes], owners: Collection[str]) -> None:
    if set(signatures) != set(owners):
        odd = ", ".join(sorted(set(signatures) ^ set(owners)))
        raise VerificationError(
            f"signatures on whom the owners of shares mask with: too many or too few, of {odd}"
        )
