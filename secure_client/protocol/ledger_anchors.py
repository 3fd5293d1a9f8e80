"""Anchors of privacy ledgers: the site's own anchor, which it shows, and its peers' anchors, which it stores.

Within a run, a site's journal detects that the site's ledger was removed or replaced by an older copy. Across runs,
others detect the rollback: the coordinator reports the entry it has seen, and the peers refuse the round.

A site also stores its own newest anchor: for the run in its journal, and for all runs beside the ledger, in the record
of its peers' anchors. So a ledger that is missing, older, or cut off at its end is detected before another ledger
begins in its place. A site with a ledger shows anchors in runs without noise too, since the release of exact values is
an entry of the ledger.

Limits. The site's record of its own anchor is on the same disk as the ledger. A coordinator can name an entry that
never existed and thereby stop a site, but cannot make a site spend. If the coordinator stays silent, the peers still
detect a rollback. Peers compare entry numbers, and hashes of equal numbers: a ledger that was continued from an older
copy beyond the entry that they saw is detected only by the coordinator's record, which is checked against every line. A
site that lies is believed, since it could equally rename its data set.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from agreement import Agreement
from agreement.storage.ledger_anchors import AnchorRecord, Owner
from privacy.errors import RolledBackError
from privacy.ledger.budget_account import read_account
from privacy.ledger.hash_chain import Anchor
from protoseal_wire.ledger_anchor_key import anchor_key
from protoseal_wire.messages import ActiveList, LedgerAnchor, PhaseKey
from secure_client.errors import Violation
from secure_client.privacy.budget_section import BudgetSection
from secure_client.privacy.releases import NO_GUARANTEE
from secure_client.privacy.rollback_record import OWN, kept_of, own_anchor, record_beside
from secure_client.privacy.site_ledger import site_ledger
from secure_client.protocol.journal import Journal

_SEEN, _SHOWN = "anchors of peers", "anchor of the own ledger"
Seen = dict[Owner, LedgerAnchor]
_log = logging.getLogger("protoseal.site")


class Book(Protocol):
    """Interface of a data set's ledger in a run: of noisy releases, or of runs that release exact values."""

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        ...

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        ...

    @property
    def anchor(self) -> Anchor:
        """The last entry's number and hash."""
        ...

    def check_anchor(self, anchor: Anchor) -> None:
        """Raise :class:`RolledBackError` if the ledger lacks the entry."""
        ...


class OwnAnchor:
    """Anchor of its ledger that a site shows to others and stores."""

    def __init__(
        self,
        agreement: Agreement,
        site: str,
        book: Book | None,
        journal: Journal,
        record: AnchorRecord | None,
    ) -> None:
        """Raise :class:`RolledBackError` if the ledger lacks an entry that it had in this run, or that ``record`` has.

        ``book`` is None if the site has no ledger. ``record`` is stored beside the ledger, over all runs.
        """
        self._releases, self._journal, self._record = book, journal, record
        self._key = b"" if book is None else anchor_key(agreement.federation, site, book.dataset)
        stored = journal.get(_SHOWN)
        if book is not None and stored is not None:
            book.check_anchor(Anchor(*json.loads(stored[1])))
        kept = None if book is None or record is None else kept_of(record, book.dataset)
        if book is not None and kept is not None:
            book.check_anchor(kept)

    @property
    def now(self) -> LedgerAnchor | None:
        """Anchor of the last entry; None if the site has no ledger."""
        if self._releases is None:
            return None
        anchor = self._releases.anchor
        return LedgerAnchor(self._key, anchor.seq, bytes.fromhex(anchor.head))

    def show(self, round_number: int) -> LedgerAnchor | None:
        """Store :attr:`now` at the site, then return it for a statement."""
        anchor = self.now
        if self._releases is None or anchor is None:
            return None
        self._journal.put(_SHOWN, round_number, json.dumps([anchor.seq, anchor.head.hex()]).encode())
        if self._record is not None:
            self._record.note({OWN: own_anchor(self._releases.dataset, self._releases.anchor)})
        return anchor

    def check_kept(self, kept: LedgerAnchor | None) -> None:
        """Compare with the coordinator's record of this ledger, if it has any.

        Raises :class:`RolledBackError` if the ledger lacks that entry, :class:`Violation` if the entry is of another
        ledger.
        """
        if kept is None:
            return
        if self._releases is None or kept.key != self._key:
            raise Violation("the coordinator sent an anchor of another ledger than this site's")
        try:
            self._releases.check_anchor(Anchor(kept.seq, kept.head.hex()))
        except RolledBackError as error:
            raise RolledBackError(
                f"{error} (the coordinator reports entry {kept.seq}; if this ledger never had that entry, the "
                "report is false: it stops this site but spends nothing)"
            ) from error


class PeerAnchors:
    """Anchors of the peers' ledgers that a site remembers, in its journal and in a record over all runs.

    When the run begins at this site, the journal copies the record's anchors, and each later list is compared with the
    journal. Lists are not compared with the record itself, since a concurrent run over the same ledgers may be ahead. A
    peer's statement cannot be older than the copied record, because the statement is signed over a roster with this
    site's key for this run.
    """

    def __init__(
        self, agreement: Agreement, site: str, journal: Journal, record: AnchorRecord | None
    ) -> None:
        """Load the anchors before this site makes its key for the run. ``record`` is None without a ledger."""
        self._required, self._site = agreement.privacy is not None, site
        self._journal, self._record = journal, record
        if journal.get(_SEEN) is None:
            self._keep(0, 0, {} if record is None else record.all())

    def check(self, key: PhaseKey, active: ActiveList) -> None:
        """Check a list with valid signatures, and store its anchors.

        Raises :class:`Violation`, naming a peer whose ledger was rolled back or whose required anchor is missing.
        """
        listed = self._anchors(active)
        if not listed:
            return
        attempt, seen = self._load()
        if (key.round, key.attempt) < attempt:  # a list that was already taken
            return
        for site, anchor in listed.items():
            kept = seen.get((site, anchor.key))
            if kept is not None and anchor.is_behind(kept):
                raise Violation(_other_ledger(site, anchor, kept))
        self._keep(
            *(key.round, key.attempt), seen | {(site, each.key): each for site, each in listed.items()}
        )
        for site, kept in ({} if self._record is None else self._record.note(listed)).items():
            raise Violation(_other_ledger(site, listed[site], kept))

    def _anchors(self, active: ActiveList) -> dict[str, LedgerAnchor]:
        found = {}
        for each in active.statements:
            if each.anchor is None and self._required:
                raise Violation(
                    f"{each.site} states no entry of its privacy ledger, which an agreement with noise requires"
                )
            # The site's own ledger is checked line by line elsewhere. Without noise, a site may have no ledger.
            if each.anchor is not None and each.site != self._site:
                found[each.site] = each.anchor
        return found

    def _load(self) -> tuple[tuple[int, int], Seen]:
        stored = self._journal.get(_SEEN)
        if stored is None:
            raise RuntimeError("the journal lacks the anchors of peers' ledgers that it had")
        content = json.loads(stored[1])
        anchors = (
            (site, LedgerAnchor(bytes.fromhex(key), seq, bytes.fromhex(head)))
            for site, key, seq, head in content["anchors"]
        )
        return (stored[0], content["attempt"]), {(site, each.key): each for site, each in anchors}

    def _keep(self, round_number: int, attempt: int, seen: Mapping[Owner, LedgerAnchor]) -> None:
        rows = [[site, each.key.hex(), each.seq, each.head.hex()] for (site, _), each in sorted(seen.items())]
        content = json.dumps({"attempt": attempt, "anchors": rows}).encode()
        self._journal.put(_SEEN, round_number, content)


def check_kept_beside(budget: BudgetSection) -> None:
    """Raise :class:`RolledBackError` if the ledger is missing or lacks the last entry that this site has shown.

    Call this function before opening the ledger, which would create a missing ledger.
    With ``ledger_lost`` in the site's file, the ledger continues or begins with a line that records the loss: the data
    set then has no guarantee any more.
    """
    path = record_beside(budget.ledger)
    if not path.exists():
        return
    with AnchorRecord.open(path) as record:
        kept = kept_of(record, budget.dataset)
        fault = None if kept is None else _fault(budget.ledger, kept)
        if kept is None or fault is None:
            return
        if not budget.ledger_lost:
            raise RolledBackError(
                f"{fault}; if the latest copy is lost, set ledger_lost = true in [privacy] of the site's file, after "
                f"which data set {budget.dataset!r} has no guarantee"
            )
        site_ledger(budget).lose(kept.seq)
        record.forget(OWN, own_anchor(budget.dataset, kept).key)
        _log.warning("%s: entries up to %d of %s are lost", NO_GUARANTEE, kept.seq, budget.ledger)


def _fault(ledger: Path, kept: Anchor) -> str | None:
    """Return what happened to a ledger that lacks the entry of the anchor; None if the ledger has it."""
    if not ledger.exists() or not ledger.stat().st_size:
        return (
            f"{ledger} is missing or empty, and entry {kept.seq} was acknowledged: the ledger was removed after that; "
            "restore the latest copy"
        )
    try:
        read_account(ledger).check_anchor(kept)
    except RolledBackError as error:
        return str(error)
    return None


def _other_ledger(site: str, anchor: LedgerAnchor, kept: LedgerAnchor) -> str:
    found = f"ends with entry {anchor.seq}" if anchor.seq < kept.seq else f"has another entry {anchor.seq}"
    return (
        f"{site}'s privacy ledger {found}, but has had entry {kept.seq} ({kept.head.hex()[:16]}): its end was "
        "cut off, or an older copy or a new ledger took its place, which no crash does, since a shown entry is on the "
        f"disk; {site} may release more than its budget; {site} must restore the "
        "latest copy"
    )
