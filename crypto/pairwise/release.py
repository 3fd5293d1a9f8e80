"""Shares given to the coordinator: for each owner one kind, by whether its vector is in the sum.

The seed of a survivor opens its self-mask, and its pairwise masks cancel; the key of a drop-out takes out the masks
that others have with it, and its own vector, should it come late, stays under the self-mask. Both together open a
vector, so nobody gives both: not in one answer (which kind follows from the survivors alone) and not in two (one
answer per attempt, which is the session's to remember).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from crypto.errors import MalformedError, VerificationError
from crypto.pairwise.binding import Binding, check_survivors
from crypto.pairwise.parts import ReleasedShare, ShareKind
from crypto.pairwise.secrets import SharePair
from crypto.shamir import check_share


def release(
    binding: Binding,
    site: str,
    sharers: Sequence[str],
    survivors: Sequence[str],
    held: Mapping[str, SharePair],
) -> tuple[ReleasedShare, ...]:
    """One share for each of the sharers that it holds a pair of, by name.

    Call it **once per attempt**, for survivors with enough signatures; with a sparse graph only after
    :func:`crypto.pairwise.sharers.verify_signed_sharers` let those through that are survivors. ``held``: this site's
    pair of each of the sharers, or of those whose holder it is, its own among them; a peer whose share did not open is
    left out, so that one member's bad share keeps no other from answering. Raises :class:`VerificationError` unless
    survivors and sharers are sorted, distinct and quorums, survivors are of the sharers, and the site is of the
    survivors and holds its own pair.
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
    """Raise :class:`MalformedError` unless it is one share for each of some sharers, of the kind that is due.

    That they are enough, and good ones, shows only when secrets are put together.
    """
    check_survivors(binding, sharers, survivors)
    owners, staying = {item.owner for item in released}, frozenset(survivors)
    due = [(owner, kind) for owner in sharers if owner in owners for kind in _kinds(owner, staying)]
    if not released or [(item.owner, item.kind) for item in released] != due:
        raise MalformedError(
            "released shares are one for each of some who made shares, by name, of the due kind"
        )
    for item in released:
        check_share(item.share)


def _kinds(owner: str, survivors: Collection[str]) -> tuple[ShareKind, ...]:
    """What is released for an owner: always exactly one kind."""
    return (ShareKind.SEED,) if owner in survivors else (ShareKind.KEY,)


def _share(owner: str, kind: ShareKind, pair: SharePair) -> ReleasedShare:
    return ReleasedShare(owner, kind, pair.seed if kind is ShareKind.SEED else pair.key)


def _check_among(site: str, survivors: Sequence[str]) -> None:
    if site not in survivors:
        raise VerificationError(f"{site} is not among the survivors and has nothing to release")


def _check_own(site: str, held: Mapping[str, SharePair]) -> None:
    if site not in held:
        raise VerificationError(f"{site} does not hold its own shares")
