"""Release of shares to the coordinator, one kind for each owner, depending on whether its vector is in the sum.

A survivor's seed opens its self-mask, and its pairwise masks cancel. A drop-out's key removes the masks that others
have with it; the drop-out's own vector, should it arrive late, stays hidden under the self-mask. Seed and key together
open a vector, so no member releases both: not in one answer (the survivors alone determine the kind), and not in two
(a member answers once per attempt, which the session must remember).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from crypto.errors import MalformedError, VerificationError
from crypto.pairwise.attempt_binding import Binding, check_survivors
from crypto.pairwise.attempt_secrets import SharePair
from crypto.pairwise.wire_values import ReleasedShare, ShareKind
from crypto.shamir import check_share


def release(
    binding: Binding,
    site: str,
    sharers: Sequence[str],
    survivors: Sequence[str],
    held: Mapping[str, SharePair],
) -> tuple[ReleasedShare, ...]:
    """Return one share for each of the sharers of which the site holds a pair, by name.

    Call this **once per attempt**, for survivors with enough signatures; with a sparse graph only after
    :func:`crypto.pairwise.sharer_signatures.verify_signed_sharers` accepted the survivors' signatures. ``held`` has
    this site's pair of each of the sharers, or of those whose holder the site is, its own included. Leave out a peer
    whose share did not open, so that one member's bad share does not keep others from answering. Raises
    :class:`VerificationError` unless survivors and sharers are sorted, distinct and quorums, survivors are among the
    sharers, and the site is a survivor and holds its own pair.
    """
    check_survivors(binding, sharers, survivors)
    _check_among(site, survivors)
    _check_own(site, held)
    staying = frozenset(survivors)
    return tuple(
        _share(owner, kind, held[owner])
        for owner in sharers
        if owner in held
        for kind in _kinds(owner, staying)
    )


def check_released(
    released: Sequence[ReleasedShare], binding: Binding, sharers: Sequence[str], survivors: Sequence[str]
) -> None:
    """Raise :class:`MalformedError` unless ``released`` has one share, of the required kind, for each of some sharers.

    Limit: only reconstruction of the secrets shows that the shares are enough and correct.
    """
    check_survivors(binding, sharers, survivors)
    owners, staying = {item.owner for item in released}, frozenset(survivors)
    due = [(owner, kind) for owner in sharers if owner in owners for kind in _kinds(owner, staying)]
    if not released or [(item.owner, item.kind) for item in released] != due:
        raise MalformedError(
            "released shares must be one for each of some who made shares, sorted by name, of the required kind"
        )
    for item in released:
        check_share(item.share)


def _kinds(owner: str, survivors: Collection[str]) -> tuple[ShareKind, ...]:
    """Return the kind that is released for an owner, always exactly one."""
    return (ShareKind.SEED,) if owner in survivors else (ShareKind.KEY,)


def _share(owner: str, kind: ShareKind, pair: SharePair) -> ReleasedShare:
    return ReleasedShare(owner, kind, pair.seed if kind is ShareKind.SEED else pair.key)


def _check_among(site: str, survivors: Sequence[str]) -> None:
    if site not in survivors:
        raise VerificationError(f"{site} is not among the survivors and has nothing to release")


def _check_own(site: str, held: Mapping[str, SharePair]) -> None:
    if site not in held:
        raise VerificationError(f"{site} does not hold its own shares")
