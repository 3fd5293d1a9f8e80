"""The coordinator's part in finding out an old copy of a site's privacy ledger: it remembers, across runs.

A site that joins is told what is kept of its ledger, and checks that against every line of it. What is kept moves on
with signed presence statements alone, which a site makes only after that check: were it to move with the request to
join, a ledger that went on from an older copy would be refused once, and be what is kept the next time.
"""

from __future__ import annotations

import logging

from agreement import Agreement
from agreement.storage.ledger_anchors import AnchorRecord
from protoseal_wire.messages import LedgerAnchor, PresenceStatement
from secure_server.errors import BadPayload

_log = logging.getLogger("protoseal.coordinator")


class LedgerAnchors:
    """What is kept of the sites' ledgers; nothing without a record, as in a simulation."""

    def __init__(self, agreement: Agreement, record: AnchorRecord | None) -> None:
        self._required, self._record = agreement.privacy is not None, record

    def kept(self, site: str, joining: LedgerAnchor | None) -> LedgerAnchor | None:
        """For the reply to a site that joins. :class:`BadPayload` as of :meth:`check`."""
        self.check(site, joining)
        kept = None if joining is None or self._record is None else self._record.held(site, joining.key)
        if joining is not None and kept is not None and joining.is_behind(kept):
            _log.warning(
                "%s: its privacy ledger ends with entry %d (%s), and has had entry %d (%s)",
                *(site, joining.seq, joining.head.hex()[:16], kept.seq, kept.head.hex()[:16]),
            )
        return kept

    def check(self, site: str, anchor: LedgerAnchor | None) -> None:
        """Raise :class:`BadPayload` for no anchor where the agreement has noise.

        Without noise a site may keep no ledger; one that does states where it ends, for exact values are a line of it.
        """
        if anchor is None and self._required:
            raise BadPayload(f"{site} must state its ledger's last entry")

    def note(self, statement: PresenceStatement) -> None:
        """Keep what a site has signed; durable when this returns."""
        if statement.anchor is None or self._record is None:
            return
        for site, kept in self._record.note({statement.site: statement.anchor}).items():
            _log.warning("%s: its privacy ledger has another entry %d than it had", site, kept.seq)
