"""Halves for rows, and the contexts that bind a half to one attempt.

A half gets the secret that the sites share and, for rotations and third parties' protections, a context that no two
attempts have in common.
"""

from __future__ import annotations

from agreement import Agreement
from agreement.registry.round_plan import PayloadKind
from crypto import plain
from crypto.ckks.site import CkksSite
from crypto.keys import encode
from crypto.plain import PlainSite
from crypto.protection import Cohort, Combination, DeclaredHalf, SiteHalf
from crypto.rotation import RotationSite
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.protocol.sent_values import check_cleartext_agreed
from secure_client.protocol.setup import Setup


def check_peer_half(agreement: Agreement) -> None:
    """Raise ``ValueError`` unless the agreed protection has a half for rows, before a run takes any value from data."""
    form, protection = agreement.plan.values, agreement.protection
    if form not in {PayloadKind.EXTENSION, PayloadKind.CIPHERTEXTS, PayloadKind.ROWS}:
        raise ValueError(f"uploads of form {form.name} are no rows")
    if form is PayloadKind.EXTENSION and protection.peers is None:
        raise ValueError(f"protection {protection.value!r} does not serve method {agreement.method.value}")


def build_peer_half(agreement: Agreement, setup: Setup, key: PhaseKey, cohort: Cohort) -> SiteHalf:
    """Return the site half for uploads of the agreed form under ``PEERS``, for the attempt of ``key`` among ``cohort``.

    Raises :class:`secure_client.errors.Violation` when the coordinator skipped the step that delivers its secret.
    """
    match agreement.plan.values:
        case PayloadKind.EXTENSION:
            return _declared_half(agreement, setup, attempt_context(agreement, setup, key, cohort))
        case PayloadKind.CIPHERTEXTS:
            weighting = Combination(agreement.pfpl.weighting.value)
            return CkksSite(setup.ckks_key(), weighting, agreement.agreement_threshold)
        case PayloadKind.ROWS:
            return row_protection(agreement, setup, key)
        case _:
            raise ValueError(f"uploads of form {agreement.plan.values.name} are no rows")


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


def _declared_half(agreement: Agreement, setup: Setup, context: bytes) -> SiteHalf:
    protection = agreement.protection
    if protection.peers is None:
        raise ValueError(f"protection {protection.value!r} does not serve method {agreement.method.value}")
    half = protection.peers.site(agreement.settings_of(protection), setup.group_secret(), context)
    return DeclaredHalf(half)
