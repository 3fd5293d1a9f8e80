"""Record beside a site's privacy ledger of the ledger's last entry that the site has shown, over all runs.

The entry is stored with the peers' anchors. From it the site, and any reader of the ledger there, detect a ledger that
is missing, older, or cut off at its end. Limit: the record is on the same disk as the ledger and may be lost together
with the ledger.
"""

from __future__ import annotations

from pathlib import Path

from agreement.storage.ledger_anchors import AnchorRecord
from privacy.errors import RolledBackError
from privacy.ledger.budget_account import Account, read_account
from privacy.ledger.hash_chain import NO_LINE, Anchor
from protoseal_wire.ledger_anchor_key import anchor_key
from protoseal_wire.messages import LedgerAnchor

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


def kept_of(record: AnchorRecord, dataset: str) -> Anchor | None:
    """Return the last entry of its ledger that the site has shown, or None."""
    kept = record.held(OWN, own_anchor(dataset, Anchor(0, NO_LINE)).key)
    return None if kept is None else Anchor(kept.seq, kept.head.hex())


def shown(account: Account) -> Anchor | None:
    """Return the last entry that the site has shown, by the record beside the ledger; None without a record.

    Raises :class:`agreement.storage.ledger_anchors.AnchorRecordError` for a record that cannot be read.
    """
    path = record_beside(account.path)
    if not path.exists():
        return None
    with AnchorRecord.open(path, read_only=True) as record:
        return kept_of(record, account.budget.dataset)


def check_shown(account: Account) -> Anchor | None:
    """Return :func:`shown`; raise :class:`RolledBackError` if the ledger lacks that entry. Changes nothing."""
    kept = shown(account)
    if kept is not None:
        read_account(account.path).check_anchor(kept)  # read again: a run may have added entries in between
    return kept


def lacking(account: Account) -> Anchor | None:
    """Return the entry that the site has shown and the ledger lacks, or None. Changes nothing."""
    try:
        check_shown(account)
    except RolledBackError:
        return shown(account)
    return None
