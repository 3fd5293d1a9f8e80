"""Shares of a site's two secrets: sealed to other members and signed, and later released, one kind for each owner.

The coordinator relays sealed shares and can neither read, swap nor forge them, provided that the members' public keys
are authentic. Limit: nothing shows that the sealed shares are correct. A member with wrong shares spoils the sum, which
is detected at the end and not attributed.

A survivor's seed opens its self-mask, and its pairwise masks cancel. A drop-out's key removes the masks that others
have with it; the drop-out's own vector, should it arrive late, stays hidden under the self-mask. Seed and key together
open a vector, so no member releases both: not in one answer (the survivors alone determine the kind), and not in two
(a member answers once per attempt, which the session must remember).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from secrets import SystemRandom

from crypto.errors import MalformedError, VerificationError
from crypto.keys import encode, seal
from crypto.pairwise.attempt import (
    AttemptSecrets,
    Binding,
    MaskKeys,
    SharePair,
    check_mask_keys,
    check_member,
    check_own,
    check_survivors,
)
from crypto.pairwise.neighbour_graph import Graph, graph_among
from crypto.pki import Credentials, verify
from crypto.roster import Member
from crypto.shamir import check_share, split

_LABEL = "mask-share"


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


def make_shares(
    credentials: Credentials,
    secrets: AttemptSecrets,
    binding: Binding,
    public: Mapping[str, MaskKeys],
    graph: Graph | None = None,
) -> tuple[tuple[SealedShare, ...], SharePair]:
    """Return a sealed share for each other member, by name, and the site's own pair.

    With a sparse ``graph`` the recipients are as many others as it says, drawn now, when the group is already fixed.
    ``public`` has each member's keys from statements whose signatures were checked. Shares and holders are random: call
    this once per attempt. Raises :class:`VerificationError` for keys that are missing, unusable, repeated, or not this
    site's own.
    """
    site = credentials.identity.name
    # Before anything is sealed: a repeated or foreign key would give one party two shares of each secret.
    check_mask_keys(binding, public)
    check_own(secrets, binding, site, public)
    graph = graph_among(len(binding.group), graph)
    holders = draw_holders(binding, site, graph) if graph.sparse else binding.group
    # A share's x is its holder's position in the whole group, so that the coordinator knows it from the name.
    places = {name: binding.position(name) for name in sorted({site, *holders})}
    seeds = split(secrets.seed, graph.threshold, tuple(places.values()))
    keys = split(secrets.mask, graph.threshold, tuple(places.values()))
    pairs = {name: SharePair(seeds[x], keys[x]) for name, x in places.items()}
    sealed = list[SealedShare]()
    for recipient, pair in pairs.items():
        if recipient != site:
            content = seal(public[recipient].share, pair.to_bytes(), _info(binding, site, recipient))
            signature = credentials.sign(_LABEL, *_context(binding, site, recipient), content)
            sealed.append(SealedShare(site, recipient, content, signature))
    return tuple(sealed), pairs[site]


def draw_holders(binding: Binding, site: str, graph: Graph) -> tuple[str, ...]:
    """Draw the other members that will hold a site's shares, uniformly among sets of that size; return them sorted."""
    others = [name for name in binding.group if name != site]
    return tuple(sorted(SystemRandom().sample(others, graph.holders)))


def verify_share(share: SealedShare, member: Member, binding: Binding, recipient: str) -> None:
    """Raise :class:`VerificationError` unless ``member``, of the group, signed it for ``recipient`` in this attempt.

    Limit: only the recipient can check the content.
    """
    check_member(binding, member.name)
    check_member(binding, recipient)
    if (share.sender, share.recipient) != (member.name, recipient) or member.name == recipient:
        raise VerificationError(
            f"found a share from {share.sender} to {share.recipient}, where one from {member.name} to {recipient} "
            "was due"
        )
    # The context is built from the verifier's own knowledge, never from the share's fields.
    verify(
        member.public_key, share.signature, _LABEL, *_context(binding, member.name, recipient), share.sealed
    )


def open_share(share: SealedShare, secrets: AttemptSecrets, binding: Binding) -> SharePair:
    """Decrypt the pair in a share that :func:`verify_share` accepted.

    Raises :class:`crypto.errors.DecryptionError` if the share does not decrypt with this attempt's key and binding, and
    :class:`crypto.errors.MalformedError` if the content is not a pair of shares.
    """
    return SharePair.from_bytes(secrets.open(share.sealed, _info(binding, share.sender, share.recipient)))


def _context(binding: Binding, sender: str, recipient: str) -> tuple[bytes, ...]:
    return (*binding.fields(), sender.encode(), recipient.encode())


def _info(binding: Binding, sender: str, recipient: str) -> bytes:
    """Return HPKE's ``info``, to which the ciphertext is bound."""
    return encode("mask-share-info", *_context(binding, sender, recipient))


def release(
    binding: Binding,
    site: str,
    sharers: Sequence[str],
    survivors: Sequence[str],
    held: Mapping[str, SharePair],
) -> tuple[ReleasedShare, ...]:
    """Return one share for each of the sharers of which the site holds a pair, by name.

    Call this **once per attempt**, for survivors with enough signatures; with a sparse graph only after
    :func:`crypto.pairwise.member_signatures.verify_signed_sharers` accepted the survivors' signatures. ``held`` has
    this site's pair of each of the sharers, or of those whose holder the site is, its own included. Leave out a peer
    whose share did not open, so that one member's bad share does not keep others from answering. Raises
    :class:`VerificationError` unless survivors and sharers are sorted, distinct and quorums, survivors are among the
    sharers, and the site is a survivor and holds its own pair.
    """
    check_survivors(binding, sharers, survivors)
    # The coordinator counts on a survivor's values; a site that it calls dropped owes no answer.
    if site not in survivors:
        raise VerificationError(f"{site} is not among the survivors and has nothing to release")
    if site not in held:
        raise VerificationError(f"{site} does not hold its own shares")
    staying, released = frozenset(survivors), list[ReleasedShare]()
    for owner in sharers:
        if owner in held:
            seed = ReleasedShare(owner, ShareKind.SEED, held[owner].seed)
            key = ReleasedShare(owner, ShareKind.KEY, held[owner].key)
            # Exactly one of the two: together they open the owner's vector.
            released += [seed if owner in staying else key]
    return tuple(released)


def check_released(
    released: Sequence[ReleasedShare], binding: Binding, sharers: Sequence[str], survivors: Sequence[str]
) -> None:
    """Raise :class:`MalformedError` unless ``released`` has one share, of the required kind, for each of some sharers.

    Limit: only reconstruction of the secrets shows that the shares are enough and correct.
    """
    check_survivors(binding, sharers, survivors)
    owners, staying = {item.owner for item in released}, frozenset(survivors)
    due = [
        (owner, ShareKind.SEED if owner in staying else ShareKind.KEY) for owner in sharers if owner in owners
    ]
    if not released or [(item.owner, item.kind) for item in released] != due:
        raise MalformedError(
            "released shares must be one for each of some who made shares, sorted by name, of the required kind"
        )
    for item in released:
        check_share(item.share)
