"""Anchors of the sites' privacy ledgers, which the coordinator keeps across runs to detect an old copy of a ledger.

A site that joins receives the anchor of its ledger and checks every line of the ledger against it. The anchor is
replaced only by signed presence statements, which a site makes after that check. If a request to join replaced the
anchor, a ledger that continues an older copy would be refused once and accepted the next time.
"""

from __future__ import annotations

import logging

from agreement import Agreement
from agreement.storage.ledger_anchors import AnchorRecord
from protoseal_wire.messages import LedgerAnchor, PresenceStatement
from secure_server.errors import BadPayload

_log = logging.getLogger("protoseal.coordinator")


class LedgerAnchors:
    """Anchors of the sites' ledgers. Without a record, as in a simulation, nothing is kept."""

    def __init__(self, agreement: Agreement, record: AnchorRecord | None) -> None:
        self._required, self._record = agreement.privacy is not None, record

    def kept(self, site: str, joining: LedgerAnchor | None) -> LedgerAnchor | None:
        """Return the anchor for the reply to a site that joins; raise :class:`BadPayload` as :meth:`check` does."""
        self.check(site, joining)
        kept = None if joining is None or self._record is None else self._record.held(site, joining.key)
        if joining is not None and kept is not None and joining.is_behind(kept):
            _log.warning(
                "%s: the privacy ledger ends with entry %d (%s), but had entry %d (%s) before",
                *(site, joining.seq, joining.head.hex()[:16], kept.seq, kept.head.hex()[:16]),
            )
        return kept

    def check(self, site: str, anchor: LedgerAnchor | None) -> None:
        """Raise :class:`BadPayload` for a statement without an anchor where the agreement has noise.

        Without noise a site may keep no ledger. A site that keeps one states where the ledger ends, because exact
        values are a line of the ledger.
        """
        if anchor is None and self._required:
            raise BadPayload(f"{site} must state the last entry of its privacy ledger")

    def note(self, statement: PresenceStatement) -> None:
        """Store the anchor that a site has signed; the anchor is durable when this returns."""
        if statement.anchor is None or self._record is None:
            return
        for site, kept in self._record.note({statement.site: statement.anchor}).items():
            _log.warning("%s: the privacy ledger has another entry %d than before", site, kept.seq)
