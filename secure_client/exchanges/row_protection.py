"""Half for rows whose inner products the coordinator sees, and the contexts that bind halves to one attempt."""

from __future__ import annotations

from agreement import Agreement
from crypto import plain
from crypto.keys import encode
from crypto.plain import PlainSite
from crypto.protection import Cohort, SiteHalf
from crypto.rotation import RotationSite
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.protocol.sent_values import check_cleartext_agreed
from secure_client.protocol.setup import Setup


def row_protection(agreement: Agreement, setup: Setup, key: PhaseKey) -> SiteHalf:
    """Return the protection of values whose inner products the coordinator sees: plain or rotated.

    Raises :class:`secure_client.errors.Unprotected` for plain rows under another protection.
    """
    if agreement.plan.row_scheme == plain.SCHEME:
        check_cleartext_agreed(agreement)
        return PlainSite()
    return RotationSite(setup.rotation_seed(), rotation_context(agreement, setup, key))


def rotation_context(agreement: Agreement, setup: Setup, key: PhaseKey, phase: Phase = Phase.VALUES) -> bytes:
    """Return the context from which, with the seed, an attempt's rotations are derived: no two attempts share one.

    The context is the same at every site that verified the same roster. It names the ``phase`` in which rows are sent,
    also when a result is rotated back.
    """
    return encode(
        "rotation-context",
        key.run.encode(),
        key.round.to_bytes(8, "big"),
        key.attempt.to_bytes(8, "big"),
        phase.name.encode(),
        setup.roster().hash,
        agreement.hash(),
    )


def attempt_context(
    agreement: Agreement, setup: Setup, key: PhaseKey, cohort: Cohort, base: bytes = b""
) -> bytes:
    """Return the context that binds a third party's protection to one attempt.

    The context covers everything that a coordinator could send differently to two sites: the context of rotations, the
    participants with their classes, and the base of their training.
    """
    return encode(
        "attempt-context",
        rotation_context(agreement, setup, key),
        base,
        cohort.holds.tobytes(),
        *(site.encode() for site in cohort.sites),
    )
