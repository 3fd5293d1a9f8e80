"""Signatures on the set that a member masks with, by which a sparse graph ensures that all members see one set.

In a sparse graph the coordinator knows who holds shares of whose secrets. It could show a member a set of sharers that
differs from the holders' set; the member would mask with sites that then "drop out", and have no mask left when its
seed is opened. So a holder releases its share of a seed only under the owner's signature on the holder's own set.

A complete graph needs no such signature. There too the coordinator decides whose shares it relays, and so the set U_i
of t or more members that site i masks with. But a member v signs one set of survivors S that contains v, and releases
shares for no other set, and for none that is not within U_v. If the seed of i opens, honest members Q of S and c
colluders released it, |Q| + c ≥ t. If i is in Q, i masks with all of S; and with each other member of Q in U_i, i has
a mask that never opens. So i is left without masks only if Q and U_i are disjoint, |Q| ≤ n − t, and then c ≥ 2t − n:
against so many colluders a complete graph gives no guarantee anyway. A sparse graph's threshold is far lower.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from crypto.errors import VerificationError
from crypto.pairwise.attempt_binding import Binding, check_sharers, encode_names
from crypto.pki import Credentials, verify
from crypto.roster import Member

_LABEL = "mask-sharers"


def sign_sharers(credentials: Credentials, binding: Binding, sharers: Sequence[str]) -> bytes:
    """Sign the set that this member masks with, itself included; sign **one set per attempt**, as for its one vector.

    Raises :class:`VerificationError` unless sharers are sorted, distinct, members, a quorum, and include this site.
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

    ``owners`` are the survivors whose seeds' shares are to be released, ``members`` those of the roster.
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
            f"signatures on the set of sharers are missing or unexpected for the owners of shares {odd}"
        )
