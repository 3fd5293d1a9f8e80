"""Anchors of privacy ledgers: the site's own, which it shows to others, and its peers', which it stores.

By its own journal a site notices within a run that its ledger was removed, or an older copy put back. Across runs
others have to: the coordinator, who tells it what it has seen, and the peers, who refuse to go along.

A site keeps its own newest anchor too: in its journal for the run, and for all runs beside the ledger, in the record of
its peers. So a ledger that is gone, older, or torn at its end is noticed before another begins in its place. A run
without noise shows anchors as others do, where a site keeps a ledger: that exact values left is a line of it.

The limits. What the site keeps of itself lies on one disk with the ledger. A coordinator can name an entry that never
was, and so stop a site; it can make none spend. It can keep silent, and then the peers notice. They compare numbers,
and hashes of the same number: a ledger that went on from an older copy until it was longer than what they saw is
noticed by the coordinator's word alone, which is checked against every line. A site that lies is believed, since it
could as well give its data set another name.
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
from privacy.ledger.hash_chain import Anchor
from privacy.ledger.ledger import read_account
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
    """A data set's ledger, as a run uses it: of noisy releases, or of the runs in which exact values leave."""

    @property
    def dataset(self) -> str:
        """The data set's name."""
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
        """Raise :class:`RolledBackError` where the ledger lacks the entry."""
        ...


class OwnAnchor:
    """The anchor that a site shows of its ledger, and keeps for itself."""

    def __init__(
        self,
        agreement: Agreement,
        site: str,
        book: Book | None,
        journal: Journal,
        record: AnchorRecord | None,
    ) -> None:
        """Raise :class:`RolledBackError` where the ledger lacks what it had earlier in this run.

        ``book`` is None where the site keeps no ledger. ``record`` is kept beside the ledger, over all runs.
        """
        self._releases, self._journal, self._record = book, journal, record
        self._key = b"" if book is None else anchor_key(agreement.federation, site, book.dataset)
        stored = journal.get(_SHOWN)
        if book is not None and stored is not None:
            book.check_anchor(Anchor(*json.loads(stored[1])))

    @property
    def now(self) -> LedgerAnchor | None:
        """The anchor of the last entry; None where the site keeps no ledger."""
        if self._releases is None:
            return None
        anchor = self._releases.anchor
        return LedgerAnchor(self._key, anchor.seq, bytes.fromhex(anchor.head))

    def show(self, round_number: int) -> LedgerAnchor | None:
        """Return :attr:`now` for a statement, once the site has kept it for itself."""
        anchor = self.now
        if self._releases is None or anchor is None:
            return None
        self._journal.put(_SHOWN, round_number, json.dumps([anchor.seq, anchor.head.hex()]).encode())
        if self._record is not None:
            self._record.note({OWN: own_anchor(self._releases.dataset, self._releases.anchor)})
        return anchor

    def check_kept(self, kept: LedgerAnchor | None) -> None:
        """Compare with the coordinator's record of this ledger, if it has any.

        :class:`RolledBackError` where the ledger has not that entry, :class:`Violation` where it is of another ledger.
        """
        if kept is None:
            return
        if self._releases is None or kept.key != self._key:
            raise Violation("the coordinator sent an anchor that is not of this site's ledger")
        try:
            self._releases.check_anchor(Anchor(kept.seq, kept.head.hex()))
        except RolledBackError as error:
            raise RolledBackError(
                f"{error} (the coordinator has kept entry {kept.seq}; if it is known never to have been there, the"
                " coordinator lies: that stops this site, and makes it spend nothing)"
            ) from error


class PeerAnchors:
    """Anchors of the peers' ledgers that a site remembers, in its journal and in a record over all runs.

    The journal begins with the record's anchors when the run begins here, and each list is compared with the journal.
    It is not compared with the record itself: another run over the same ledgers, at the same time, may be ahead. A
    peer's statement cannot be behind the record of *then*, for it is signed over a roster with this site's key for
    this run.
    """

    def __init__(
        self, agreement: Agreement, site: str, journal: Journal, record: AnchorRecord | None
    ) -> None:
        """Before this site makes its key for the run. ``record``: None at a site that keeps no ledger."""
        self._required, self._site = agreement.privacy is not None, site
        self._journal, self._record = journal, record
        if journal.get(_SEEN) is None:
            self._keep(0, 0, {} if record is None else record.all())

    def check(self, key: PhaseKey, active: ActiveList) -> None:
        """Take a list whose signatures hold, and remember its anchors.

        :class:`Violation` that names a peer whose ledger is not what it was, or that has no anchor where it must.
        """
        listed = self._anchors(active)
        if not listed:
            return
        attempt, seen = self._load()
        if (key.round, key.attempt) < attempt:  # one that was taken before, read again
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
                    f"{each.site} states no entry of its privacy ledger, and the agreement has noise"
                )
            # Its own it checks against every line. Without noise, a site may keep no ledger.
            if each.anchor is not None and each.site != self._site:
                found[each.site] = each.anchor
        return found

    def _load(self) -> tuple[tuple[int, int], Seen]:
        stored = self._journal.get(_SEEN)
        if stored is None:
            raise RuntimeError("the journal lost what it had of peers' ledgers")
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
    """Raise :class:`RolledBackError` where the ledger is gone, or lacks the last entry that this site has shown of it.

    Call it before the ledger is opened, which would begin another in its place, or drop a torn end. With
    ``ledger_lost`` in the site's file the ledger goes on, or begins, with a line that says what is lost: then nothing
    of the data set has a guarantee any more.
    """
    path = record_beside(budget.ledger)
    if not path.exists():
        return
    with AnchorRecord.open(path) as record:
        kept = kept_of(record, budget.dataset)
        if kept is None or _has(budget.ledger, kept):
            return
        if not budget.ledger_lost:
            raise RolledBackError(
                f"{budget.ledger} lacks entry {kept.seq}, which data set {budget.dataset!r} has had: it was removed, an"
                " older copy was put in its place, or its end was cut off; bring the latest back, or, if that is lost,"
                " say ledger_lost = true in [privacy] of the site's file: nothing of it has a guarantee then"
            )
        site_ledger(budget).lose(kept.seq)
        record.forget(OWN, own_anchor(budget.dataset, kept).key)
        _log.warning("%s: entries up to %d of %s are lost", NO_GUARANTEE, kept.seq, budget.ledger)


def _has(ledger: Path, kept: Anchor) -> bool:
    if not ledger.exists() or not ledger.stat().st_size:
        return False
    try:
        read_account(ledger).check_anchor(kept)
    except RolledBackError:
        return False
    return True


def _other_ledger(site: str, anchor: LedgerAnchor, kept: LedgerAnchor) -> str:
    found = f"ends with entry {anchor.seq}" if anchor.seq < kept.seq else f"has another entry {anchor.seq}"
    return (
        f"{site}'s privacy ledger {found}, and has had entry {kept.seq} ({kept.head.hex()[:16]}): an older copy was put"
        f" in its place, or it was begun anew, and {site} may release more than its budget; it has to bring the latest"
        " back"
    )
