"""Signed presence statements: each participant states, for one attempt, the classes that it holds.

A site takes part in sums only over classes that enough *sites* state with their own signatures, so the coordinator
cannot invent holders. The same signature covers three more facts: the result that the site trained from, so that the
coordinator cannot give sites different results; the site's keys for the attempt's masks, so that the coordinator cannot
replace the keys; and the last entry of the site's privacy ledger, so that other sites notice an older copy.

Limits: a site that lies about its own classes or ledger is believed, and presence bounds the uploads, not the
coordinator's answers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.errors import VerificationError
from crypto.keys import check_channel_public, check_distinct
from crypto.pairwise.attempt import MaskKeys
from crypto.pki import Credentials, verify
from crypto.roster import Member, Roster
from protoseal_wire.messages import ActiveList, LedgerAnchor, PhaseKey, PresenceStatement

_LABEL = "presence"


def sign_presence(
    credentials: Credentials,
    key: PhaseKey,
    roster_hash: bytes,
    holds: NDArray[np.bool_],
    *,
    base: bytes = b"",
    keys: MaskKeys | None = None,
    anchor: LedgerAnchor | None = None,
) -> PresenceStatement:
    """Sign a statement that this site holds the classes ``holds`` (bool, shape (K,)) in the attempt of ``key``.

    ``base`` is the SHA-256 of the result that the site trained from, empty for none; ``keys`` its public keys for the
    attempt's masks, fresh for each attempt; ``anchor`` its privacy ledger's last entry, if there is noise.
    """
    site = credentials.identity.name
    signature = credentials.sign(_LABEL, *_fields(site, key, roster_hash, holds, base, keys, anchor))
    return PresenceStatement(site, holds, signature, base, keys, anchor)


def verify_presence(member: Member, statement: PresenceStatement, key: PhaseKey, roster_hash: bytes) -> None:
    """Raise :class:`VerificationError` unless ``member`` signed the statement for this attempt.

    Keys in the statement must be two different usable ones. Limits: :func:`check_keys_given` checks that keys are
    present where they must be, and only a key's owner knows that it is fresh.
    """
    if statement.site != member.name:
        raise VerificationError(f"a presence statement of {statement.site} where {member.name}'s was due")
    base, keys = statement.base, statement.keys
    fields = _fields(statement.site, key, roster_hash, statement.holds, base, keys, statement.anchor)
    verify(member.public_key, statement.signature, _LABEL, *fields)
    if keys is not None:
        check_channel_public(keys.mask)
        check_channel_public(keys.share)
        # The private half of the mask key may be reconstructed, and must then decrypt nothing.
        check_distinct(
            [keys.mask, keys.share], f"{statement.site} states one key for its masks and for its shares"
        )


def verify_active_list(active: ActiveList, roster: Roster, key: PhaseKey) -> None:
    """Raise :class:`VerificationError` unless every statement is by a distinct member, for this attempt.

    All members' keys must be distinct too.
    """
    # A repeated name would count as an additional holder.
    if len({statement.site for statement in active.statements}) != len(active.statements):
        raise VerificationError("the active list names a site twice")
    for statement in active.statements:
        member = roster.members.get(statement.site)
        if member is None:
            raise VerificationError(f"the active list names {statement.site}, which is not on the roster")
        verify_presence(member, statement, key, roster.hash)
    keys = [statement.keys for statement in active.statements if statement.keys is not None]
    public_keys = [public_key for pair in keys for public_key in (pair.mask, pair.share)]
    check_distinct(public_keys, "the active list names a key twice")


def check_keys_given(active: ActiveList) -> None:
    """Raise :class:`VerificationError` unless every statement on the list has keys, which masks need."""
    for statement in active.statements:
        if statement.keys is None:
            raise VerificationError(f"{statement.site} states no keys for its masks")


def _fields(
    site: str,
    key: PhaseKey,
    roster_hash: bytes,
    holds: NDArray[np.bool_],
    base: bytes,
    keys: MaskKeys | None,
    anchor: LedgerAnchor | None,
) -> tuple[bytes, ...]:
    """Return the signed fields: 7, 2 more with keys, 3 more with an anchor, so that all four kinds differ."""
    return (
        site.encode(),
        key.run.encode(),
        key.round.to_bytes(8, "big"),
        key.attempt.to_bytes(8, "big"),
        roster_hash,
        holds.astype(np.uint8).tobytes(),
        base,
        *(() if keys is None else (keys.mask, keys.share)),
        *(() if anchor is None else (anchor.key, anchor.seq.to_bytes(8, "big"), anchor.head)),
    )
