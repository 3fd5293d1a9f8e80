"""Anchors of the sites' privacy ledgers, which the coordinator keeps across runs to detect an old copy of a ledger.

A site that joins receives the anchor of its ledger and checks every line of the ledger against it. The anchor is
replaced only by signed presence statements, which a site makes after that check. If a request to join replaced the
anchor, a ledger that continues an older copy would be refused once and accepted the next time.

Every peer leaves the run when it is shown an anchor that is behind an earlier one. A statement with such an anchor is
therefore refused here, so that one malicious site cannot end a run. Limits: a peer may remember anchors that this
record has lost. After a restart of the coordinator, the record may have an anchor of a concurrent run over the same
ledger, and an answer that the site signed before that is refused.
"""

from __future__ import annotations

import logging

from agreement import Agreement
from agreement.storage.anchor_record import AnchorRecord, Owner
from protoseal_wire.messages import LedgerAnchor, PresenceStatement
from secure_server.errors import BadPayload

_log = logging.getLogger("protoseal.coordinator")


class LedgerAnchors:
    """Anchors of the sites' ledgers. Without a record, as in a simulation, nothing is kept after the run."""

    def __init__(self, agreement: Agreement, record: AnchorRecord | None) -> None:
        self._required = agreement.privacy is not None
        self._record = record
        self._seen: dict[Owner, LedgerAnchor] = {} if record is None else record.all()

    def report_to_joining(self, site: str, joining: LedgerAnchor | None) -> LedgerAnchor | None:
        """Return the anchor for the reply to a site that joins; raise :class:`BadPayload` as :meth:`check` does."""
        self.check(site, joining)
        newest = None if joining is None or self._record is None else self._record.newest(site, joining.key)
        if joining is not None and newest is not None and joining.is_behind(newest):
            _log.warning(
                "%s: the privacy ledger ends with entry %d (%s), but had entry %d (%s) before",
                site,
                joining.seq,
                joining.head.hex()[:16],
                newest.seq,
                newest.head.hex()[:16],
            )
        return newest

    def check(self, site: str, anchor: LedgerAnchor | None) -> None:
        """Raise :class:`BadPayload` for a statement without an anchor where the agreement has noise.

        Without noise a site may keep no ledger. A site that keeps one states where the ledger ends, because exact
        values are a line of the ledger.
        """
        if anchor is None and self._required:
            raise BadPayload(f"{site} must state the last entry of its privacy ledger")

    def note(self, statement: PresenceStatement) -> None:
        """Store the anchor that a site has signed; the anchor is durable when this returns.

        Raises :class:`BadPayload` for an anchor behind one of this run, or of earlier runs when this one began.
        """
        site, anchor = statement.site, statement.anchor
        if anchor is None:
            return
        earlier = self._seen.get((site, anchor.key))
        if (earlier is None or not anchor.is_behind(earlier)) and self._record is not None:
            # A concurrent run may be ahead, but no ledger has two entries of one number.
            earlier = self._record.note({site: anchor}).get(site)
        if earlier is not None and anchor.is_behind(earlier):
            raise BadPayload(
                f"{site}'s privacy ledger ends with entry {anchor.seq} ({anchor.head.hex()[:16]}), but had entry "
                f"{earlier.seq} ({earlier.head.hex()[:16]}) before, which no crash removes: restore the "
                "latest copy of the ledger"
            )
        self._seen[site, anchor.key] = anchor
