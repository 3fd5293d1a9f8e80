"""Anchors of ledgers that need not be there."""

from __future__ import annotations

import hashlib

from agreement import Agreement, PrivacySection
from protoseal_wire.messages import LedgerAnchor
from tests.support.small import FEDERATION, small_agreement


def anchor(seq: int, ledger: str = "as it is", key: str = "scans") -> LedgerAnchor:
    """Return an anchor of the entry ``seq`` of one of several ledgers under a key."""
    head = hashlib.sha256(f"{ledger} {seq}".encode()).digest()
    return LedgerAnchor(hashlib.sha256(key.encode()).digest(), seq, head)


def with_noise() -> Agreement:
    """Return the small agreement of :data:`FEDERATION`, with noise."""
    agreed = small_agreement()
    if agreed.federation != FEDERATION:
        raise AssertionError("the small agreement is of another federation")
    return agreed.model_copy(update={"privacy": PrivacySection(clip=1.0, noise_multiplier=2.0)})
