"""Signed class presence: every participant's word, for one attempt, on which classes it holds.

A site takes part in sums only over classes that enough *sites* say they hold, in their own signature. So the
coordinator cannot invent holders. The limits: a site that lies about its own classes is believed, and it
bounds what is uploaded, not what the coordinator answers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.errors import VerificationError
from crypto.pki import Credentials, verify
from crypto.roster import Member, Roster
from protoseal_wire.messages import ActiveList, PhaseKey, PresenceStatement

_LABEL = "presence"


def _fields(site: str, key: PhaseKey, roster_hash: bytes, holds: NDArray[np.bool_]) -> tuple[bytes, ...]:
    return (
        site.encode(),
        key.run.encode(),
        key.round.to_bytes(8, "big"),
        key.attempt.to_bytes(8, "big"),
        roster_hash,
        holds.astype(np.uint8).tobytes(),
    )


def sign_presence(
    credentials: Credentials, key: PhaseKey, roster_hash: bytes, holds: NDArray[np.bool_]
) -> PresenceStatement:
    """State which classes this site holds (bool, shape (K,)) in the attempt that ``key`` names."""
    site = credentials.identity.name
    signature = credentials.sign(_LABEL, *_fields(site, key, roster_hash, holds))
    return PresenceStatement(site, holds, signature)


def verify_presence(member: Member, statement: PresenceStatement, key: PhaseKey, roster_hash: bytes) -> None:
    """Raise :class:`VerificationError` unless ``member`` signed the statement for this very attempt."""
    if statement.site != member.name:
        raise VerificationError(f"a presence statement of {statement.site} where {member.name}'s was due")
    fields = _fields(statement.site, key, roster_hash, statement.holds)
    verify(member.public_key, statement.signature, _LABEL, *fields)


def verify_active_list(active: ActiveList, roster: Roster, key: PhaseKey) -> None:
    """Raise :class:`VerificationError` unless every statement is by a distinct member, for this very attempt."""
    _check_names_distinct([statement.site for statement in active.statements])
    for statement in active.statements:
        verify_presence(_member(roster, statement.site), statement, key, roster.hash)


def _check_names_distinct(names: list[str]) -> None:
    """A site that counted twice would stand for a holder that is not there."""
    if len(set(names)) != len(names):
        raise VerificationError("the active list names a site twice")


def _member(roster: Roster, site: str) -> Member:
    member = roster.members.get(site)
    if member is None:
        raise VerificationError(f"the active list names {site}, which is not on the roster")
    return member
