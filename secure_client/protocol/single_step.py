"""Exchanges of one step: every participant sends its values at once, and a missing one fails the attempt.

The protection's site half does the work; here it gets its secret, and with rotations what binds them to one step.
"""

from __future__ import annotations

from agreement import Agreement
from agreement.round_plan import ExchangeKind
from crypto import plain
from crypto.ckks.site import CkksSite
from crypto.plain import PlainSite
from crypto.protection import Cohort, Combination, SiteHalf
from crypto.rotation import RotationSite
from crypto.signed_encoding import encode
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.protocol.setup import Setup


def site_half(agreement: Agreement, setup: Setup, key: PhaseKey, cohort: Cohort) -> SiteHalf:
    """The agreed protection for the values, and the result, of the attempt that ``key`` is of, among ``cohort``.

    Raises :class:`secure_client.errors.Violation` when the coordinator skipped the step that delivers its secret.
    """
    match agreement.plan.exchange:
        case ExchangeKind.EXTENSION_PEERS:
            return _added_half(agreement, setup, attempt_context(agreement, setup, key, cohort))
        case ExchangeKind.ENCRYPTED_PEERS:
            weighting = Combination(agreement.pfpl.weighting.value)
            return CkksSite(setup.ckks_key(), weighting, agreement.agreement_threshold)
        case _:
            return shown_half(agreement, setup, key)


def shown_half(agreement: Agreement, setup: Setup, key: PhaseKey) -> SiteHalf:
    """Return the protection of values whose inner products the coordinator sees: as they are, or turned."""
    if agreement.plan.row_scheme == plain.SCHEME:
        return PlainSite()
    return RotationSite(setup.rotation_seed(), rotation_context(agreement, setup, key))


def rotation_context(agreement: Agreement, setup: Setup, key: PhaseKey, phase: Phase = Phase.VALUES) -> bytes:
    """What the rotations of one attempt are derived from beside the seed: no two attempts are turned alike.

    It is the same at every site that verified the same roster, and names the ``phase`` in which rows are sent, also
    where a result is turned back.
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
    """What a third party's protection of one attempt is bound to: all that two sites may have been told differently.

    Beside what rotations are bound to, who takes part with which classes, and what they train from.
    """
    return encode(
        "attempt-context",
        rotation_context(agreement, setup, key),
        base,
        cohort.holds.tobytes(),
        *(site.encode() for site in cohort.sites),
    )


def _added_half(agreement: Agreement, setup: Setup, context: bytes) -> SiteHalf:
    protection = agreement.protection
    if protection.peers is None:
        raise ValueError(f"protection {protection.value!r} does not serve method {agreement.method.value}")
    return protection.peers.site(agreement.settings_of(protection), setup.group_secret(), context)
