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
from agreement.storage.anchor_record import AnchorRecord, Owner, anchor_key
from privacy.errors import RolledBackError
from privacy.ledger.budget_account import Account, read_account
from privacy.ledger.hash_chain import NO_LINE, Anchor
from privacy.ledger.ledger import Ledger
from protoseal_wire.messages import ActiveList, LedgerAnchor, PhaseKey
from secure_client.errors import Violation
from secure_client.privacy.budget import NO_GUARANTEE, BudgetSection, open_site_ledger

_log = logging.getLogger("protoseal.site")
_SEEN, _SHOWN = "anchors of peers", "anchor of the own ledger"
"""Names of the documents in the journal."""
PEERS = ".peers"
"""Suffix of the file beside the ledger with the peers' anchors and the ledger's own, over all runs."""
OWN = ""
"""Name in the record, in place of a site's, for the ledger beside it, whatever the federation."""


def record_beside(ledger: Path) -> Path:
    """Return the path of a ledger's record: beside the file itself if ``ledger`` is a link."""
    real = ledger.resolve()
    return real.with_name(real.name + PEERS)


def own_anchor(dataset: str, anchor: Anchor) -> LedgerAnchor:
    """Return the data set's own row of the record: the same in every federation."""
    return LedgerAnchor(anchor_key(OWN, OWN, dataset), anchor.seq, bytes.fromhex(anchor.head))


def recorded_anchor(record: AnchorRecord, dataset: str) -> Anchor | None:
    """Return the last entry of its ledger that the site has shown, or None."""
    newest = record.newest(OWN, own_anchor(dataset, Anchor(0, NO_LINE)).key)
    return None if newest is None else Anchor(newest.seq, newest.head.hex())


def shown_anchor(account: Account) -> Anchor | None:
    """Return the last entry that the site has shown, by the record beside the ledger; None without a record.

    Raises :class:`agreement.storage.anchor_record.AnchorRecordError` for a record that cannot be read.
    """
    path = record_beside(account.path)
    if not path.exists():
        return None
    with AnchorRecord.open(path, read_only=True) as record:
        return recorded_anchor(record, account.budget.dataset)


def check_shown(account: Account) -> Anchor | None:
    """Return :func:`shown_anchor`; raise :class:`RolledBackError` if the ledger lacks that entry. Changes nothing."""
    shown = shown_anchor(account)
    if shown is not None:
        read_account(account.path).check_anchor(shown)  # read again: a run may have added entries in between
    return shown


def missing_anchor(account: Account) -> Anchor | None:
    """Return the entry that the site has shown and the ledger lacks, or None. Changes nothing."""
    try:
        check_shown(account)
    except RolledBackError:
        return shown_anchor(account)
    return None


class Documents(Protocol):
    """Documents of a site's journal, by name, each with its round."""

    def get(self, name: str) -> tuple[int, bytes] | None:
        """Return (round, content) of the document, or None."""
        ...

    def put(self, name: str, round_number: int, content: bytes) -> None:
        """Store a document, replacing an earlier one of that name."""
        ...


class OwnAnchor:
    """Anchor of its ledger that a site shows to others and stores."""

    def __init__(
        self,
        agreement: Agreement,
        site: str,
        ledger: Ledger | None,
        journal: Documents,
        record: AnchorRecord | None,
    ) -> None:
        """Raise :class:`RolledBackError` if the ledger lacks an entry that it had in this run, or that ``record`` has.

        ``ledger`` is None if the site has none. ``record`` is stored beside the ledger, over all runs.
        """
        self._ledger = ledger
        self._journal = journal
        self._record = record
        self._key = b"" if ledger is None else anchor_key(agreement.federation, site, ledger.dataset)
        if ledger is None:
            return
        stored = journal.get(_SHOWN)
        if stored is not None:
            ledger.check_anchor(Anchor(*json.loads(stored[1])))
        recorded = None if record is None else recorded_anchor(record, ledger.dataset)
        if recorded is not None:
            ledger.check_anchor(recorded)

    @property
    def now(self) -> LedgerAnchor | None:
        """Anchor of the last entry; None if the site has no ledger."""
        if self._ledger is None:
            return None
        anchor = self._ledger.anchor
        return LedgerAnchor(self._key, anchor.seq, bytes.fromhex(anchor.head))

    def show(self, round_number: int) -> LedgerAnchor | None:
        """Store :attr:`now` at the site, then return it for a statement."""
        anchor = self.now
        if self._ledger is None or anchor is None:
            return None
        # Stored first: a site that dies before it shows the anchor is held to more than others know, and never to less.
        self._journal.put(_SHOWN, round_number, json.dumps([anchor.seq, anchor.head.hex()]).encode())
        if self._record is not None:
            self._record.note({OWN: own_anchor(self._ledger.dataset, self._ledger.anchor)})
        return anchor

    def check_reported(self, reported: LedgerAnchor | None) -> None:
        """Compare with the coordinator's record of this ledger, if it has any.

        Raises :class:`RolledBackError` if the ledger lacks that entry, :class:`Violation` if the entry is of another
        ledger.
        """
        if reported is None:
            return
        if self._ledger is None or reported.key != self._key:
            raise Violation("the coordinator sent an anchor of another ledger than this site's")
        try:
            self._ledger.check_anchor(Anchor(reported.seq, reported.head.hex()))
        except RolledBackError as error:
            raise RolledBackError(
                f"{error} (the coordinator reports entry {reported.seq}; if this ledger never had that entry, the "
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
        self, agreement: Agreement, site: str, journal: Documents, record: AnchorRecord | None
    ) -> None:
        """Load the anchors before this site makes its key for the run. ``record`` is None without a ledger."""
        self._required = agreement.privacy is not None
        self._site = site
        self._journal = journal
        self._record = record
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
        # A list that was already taken may be read again, after a restart, when newer anchors are stored.
        if (key.round, key.attempt) < attempt:
            return
        for site, anchor in listed.items():
            earlier = seen.get((site, anchor.key))
            if earlier is not None and anchor.is_behind(earlier):
                raise Violation(_describe_rollback(site, anchor, earlier))
        newest = seen | {(site, anchor.key): anchor for site, anchor in listed.items()}
        self._keep(key.round, key.attempt, newest)
        # No ledger has two entries of one number, also where a concurrent run has seen the other one.
        for site, other in ({} if self._record is None else self._record.note(listed)).items():
            raise Violation(_describe_rollback(site, listed[site], other))

    def _anchors(self, active: ActiveList) -> dict[str, LedgerAnchor]:
        anchors = {}
        for statement in active.statements:
            if statement.anchor is None and self._required:
                raise Violation(
                    f"{statement.site} states no entry of its privacy ledger, which an agreement with noise requires"
                )
            # The site's own ledger is checked line by line elsewhere. Without noise, a site may have no ledger.
            if statement.anchor is not None and statement.site != self._site:
                anchors[statement.site] = statement.anchor
        return anchors

    def _load(self) -> tuple[tuple[int, int], dict[Owner, LedgerAnchor]]:
        stored = self._journal.get(_SEEN)
        if stored is None:
            raise RuntimeError("the journal lacks the anchors of peers' ledgers that it had")
        content = json.loads(stored[1])
        anchors = (
            (site, LedgerAnchor(bytes.fromhex(key), seq, bytes.fromhex(head)))
            for site, key, seq, head in content["anchors"]
        )
        return (stored[0], content["attempt"]), {(site, anchor.key): anchor for site, anchor in anchors}

    def _keep(self, round_number: int, attempt: int, seen: Mapping[Owner, LedgerAnchor]) -> None:
        rows = [
            [site, anchor.key.hex(), anchor.seq, anchor.head.hex()]
            for (site, _), anchor in sorted(seen.items())
        ]
        content = json.dumps({"attempt": attempt, "anchors": rows}).encode()
        self._journal.put(_SEEN, round_number, content)


def check_recorded(budget: BudgetSection) -> None:
    """Raise :class:`RolledBackError` if the ledger is missing or lacks the last entry that this site has shown.

    Call this function before opening the ledger, which would create a missing ledger.
    With ``ledger_lost`` in the site's file, the ledger continues or begins with a line that records the loss: the data
    set then has no guarantee any more.
    """
    path = record_beside(budget.ledger)
    if not path.exists():
        return
    with AnchorRecord.open(path) as record:
        shown = recorded_anchor(record, budget.dataset)
        fault = None if shown is None else _describe_fault(budget.ledger, shown)
        if shown is None or fault is None:
            return
        if not budget.ledger_lost:
            raise RolledBackError(
                f"{fault}; if the latest copy is lost, set ledger_lost = true in [privacy] of the site's file, after "
                f"which data set {budget.dataset!r} has no guarantee"
            )
        # The line first: a site that dies in between is asked again, and never runs on as if nothing were lost.
        open_site_ledger(budget).record_loss(shown.seq)
        record.forget(OWN, own_anchor(budget.dataset, shown).key)
        _log.warning("%s: entries up to %d of %s are lost", NO_GUARANTEE, shown.seq, budget.ledger)


def _describe_fault(ledger: Path, shown: Anchor) -> str | None:
    """Return what happened to a ledger that lacks the entry of the anchor; None if the ledger has it."""
    if not ledger.exists() or not ledger.stat().st_size:
        return (
            f"{ledger} is missing or empty, and entry {shown.seq} was acknowledged: the ledger was removed after that; "
            "restore the latest copy"
        )
    try:
        read_account(ledger).check_anchor(shown)
    except RolledBackError as error:
        return str(error)
    return None


def _describe_rollback(site: str, anchor: LedgerAnchor, earlier: LedgerAnchor) -> str:
    end = f"ends with entry {anchor.seq}" if anchor.seq < earlier.seq else f"has another entry {anchor.seq}"
    return (
        f"{site}'s privacy ledger {end}, but has had entry {earlier.seq} ({earlier.head.hex()[:16]}): its end was "
        "cut off, or an older copy or a new ledger took its place, which no crash does, since a shown entry is on the "
        f"disk; {site} may release more than its budget; {site} must restore the "
        "latest copy"
    )
