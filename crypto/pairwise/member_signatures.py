"""Members' signatures on two sets of an attempt: the survivors, and in a sparse graph the sharers.

The *survivors* are the members in the sum. A member signs one set of survivors per attempt (the session must remember
it), and releases shares only if a threshold of the set's members signed. Two sets with enough signatures need 2t − n
members that signed both, so the coordinator cannot show different sets to different members.

The *sharers* are the members that a member masks with. In a sparse graph the coordinator knows who holds shares of
whose secrets. It could show a member a set of sharers that differs from the holders' set; the member would mask with
sites that then "drop out", and have no mask left when its seed is opened. So a holder releases its share of a seed only
under the owner's signature on the holder's own set.

A complete graph needs no signature on the sharers. There too the coordinator decides whose shares it relays, and so the
set U_i of t or more members that site i masks with. But a member v signs one set of survivors S that contains v, and
releases shares for no other set, and for none that is not within U_v. If the seed of i opens, honest members Q of S and
c colluders released it, |Q| + c ≥ t. If i is in Q, i masks with all of S; and with each other member of Q in U_i, i has
a mask that never opens. So i is left without masks only if Q and U_i are disjoint, |Q| ≤ n − t, and then c ≥ 2t − n:
against so many colluders a complete graph gives no guarantee anyway. A sparse graph's threshold is far lower.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from crypto.errors import VerificationError
from crypto.pairwise.attempt import Binding, check_sharers, check_survivors, encode_names
from crypto.pki import Credentials, verify
from crypto.roster import Member

_SHARERS = "mask-sharers"
_SURVIVORS = "mask-survivors"


def sign_sharers(credentials: Credentials, binding: Binding, sharers: Sequence[str]) -> bytes:
    """Sign the set that this member masks with, itself included; sign **one set per attempt**, as for its one vector.

    Raises :class:`VerificationError` unless sharers are sorted, distinct, members, a quorum, and include this site.
    """
    return credentials.sign(_SHARERS, *_sharer_fields(binding, sharers, credentials.identity.name))


def verify_sharers(member: Member, binding: Binding, sharers: Sequence[str], signature: bytes) -> None:
    """Raise :class:`VerificationError` unless ``member``, one of the sharers, signed this set in this attempt."""
    verify(member.public_key, signature, _SHARERS, *_sharer_fields(binding, sharers, member.name))


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
    if set(signatures) != set(owners):
        odd = ", ".join(sorted(set(signatures) ^ set(owners)))
        raise VerificationError(
            f"signatures on the set of sharers are missing or unexpected for the owners of shares {odd}"
        )
    for name, signature in signatures.items():
        verify_sharers(_member(members, name), binding, sharers, signature)


def sign_survivors(credentials: Credentials, binding: Binding, survivors: Sequence[str]) -> bytes:
    """Sign the set of survivors as this member; the caller must ensure **one set per attempt**.

    Raises :class:`VerificationError` unless survivors are sorted, distinct, members, a quorum, and include this site.
    """
    return credentials.sign(_SURVIVORS, *_survivor_fields(binding, survivors, credentials.identity.name))


def verify_survivor(member: Member, binding: Binding, survivors: Sequence[str], signature: bytes) -> None:
    """Raise :class:`VerificationError` unless ``member``, one of the survivors, signed this set in this attempt."""
    verify(member.public_key, signature, _SURVIVORS, *_survivor_fields(binding, survivors, member.name))


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
    # Bonawitz et al., round 4, asks for the signatures of round 3 (consistency check) by t members: with fewer, two
    # sets could each have enough.
    if len(signatures) < binding.threshold:
        raise VerificationError(
            f"{len(signatures)} signatures on the survivors; the threshold is {binding.threshold}"
        )


def _sharer_fields(binding: Binding, sharers: Sequence[str], signer: str) -> tuple[bytes, ...]:
    """Return the signed fields, once the set is checked and the signer is in it."""
    check_sharers(binding, sharers)
    if signer not in sharers:
        raise VerificationError(f"{signer} is not among those who made shares")
    return (*binding.fields(), encode_names(tuple(sharers)))


def _survivor_fields(binding: Binding, survivors: Sequence[str], signer: str) -> tuple[bytes, ...]:
    """Return the signed fields, once the set is checked and the signer is in it."""
    check_survivors(binding, binding.group, survivors)
    # A member that is not in the sum has no reason to sign: its word must not count towards the threshold.
    if signer not in survivors:
        raise VerificationError(f"{signer} is not among the survivors")
    return (*binding.fields(), encode_names(tuple(survivors)))


def _member(members: Mapping[str, Member], name: str) -> Member:
    member = members.get(name)
    if member is None or member.name != name:
        raise VerificationError(f"{name} is not on the roster")
    return member
