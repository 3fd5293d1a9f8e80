"""The record beside a site's privacy ledger: the ledger's last entry that the site has shown, over all runs.

It lies in the record of its peers' anchors, so that a ledger which is gone, older, or torn at its end is noticed by the
site and by who reads the ledger there. The limit: the record lies on one disk with the ledger, and may be lost with it.
"""

from __future__ import annotations

from pathlib import Path

from agreement.storage.ledger_anchors import AnchorRecord
from privacy.errors import RolledBackError
from privacy.ledger.hash_chain import NO_LINE, Anchor
from privacy.ledger.ledger import Account, read_account
from protoseal_wire.ledger_anchor_key import anchor_key
from protoseal_wire.messages import LedgerAnchor

PEERS = ".peers"
"""After the name of the ledger: the file beside it with its peers' anchors, and its own, over all runs."""
OWN = ""
"""In place of a site's name in the record: the ledger beside it, whatever the federation."""


def record_beside(ledger: Path) -> Path:
    """Return where the record of a ledger is: beside the file itself, where ``ledger`` is a link to it."""
    real = ledger.resolve()
    return real.with_name(real.name + PEERS)


def own_anchor(dataset: str, anchor: Anchor) -> LedgerAnchor:
    """Return the data set's own row of the record: the same in every federation."""
    return LedgerAnchor(anchor_key(OWN, OWN, dataset), anchor.seq, bytes.fromhex(anchor.head))


def kept_of(record: AnchorRecord, dataset: str) -> Anchor | None:
    """Return the last entry that the site has shown of its ledger; None where it has shown none."""
    kept = record.held(OWN, own_anchor(dataset, Anchor(0, NO_LINE)).key)
    return None if kept is None else Anchor(kept.seq, kept.head.hex())


def lacking(account: Account) -> Anchor | None:
    """Return the entry that the site has shown and the ledger lacks; None where it lacks none. Changes nothing.

    :class:`agreement.storage.ledger_anchors.AnchorRecordError` where there is a record that cannot be read.
    """
    path = record_beside(account.path)
    if not path.exists():
        return None
    with AnchorRecord.open(path, read_only=True) as record:
        kept = kept_of(record, account.budget.dataset)
    if kept is None:
        return None
    try:
        read_account(account.path).check_anchor(kept)  # read again: a run may have gone on between the two
    except RolledBackError:
        return kept
    return None
