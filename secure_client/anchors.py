"""A site's anchor of its privacy ledger, which it shows to others, and those of its peers, which it remembers.

By its own journal a site notices within a run that its ledger was removed, or an older copy put back. Across runs
others have to: the coordinator, who tells it what it has seen, and the peers, who refuse to go along.

The limits. A coordinator can name an entry that never was, and so stop a site; it can make none spend. It can keep
silent, and then the peers notice. They compare numbers, and hashes of the same number: a ledger that went on from an
older copy until it was longer than what they saw is noticed by the coordinator's word alone, which is checked against
every line. A site that lies is believed, since it could as well give its data set another name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from protoseal.anchors import AnchorRecord, Owner
from protoseal.config import Agreement
from protoseal_wire.anchors import anchor_key
from protoseal_wire.messages import ActiveList, LedgerAnchor, PhaseKey
from secure_client.errors import RolledBackError, Violation
from secure_client.journal import Journal
from secure_client.privacy.chain import Anchor
from secure_client.privacy.releases import Releases

PEERS = ".peers"
"""After the name of the ledger: the file beside it with its peers' anchors, over all runs."""
_SEEN = "anchors of peers"
Seen = dict[Owner, LedgerAnchor]


class OwnAnchor:
    """What a site shows of its ledger."""

    def __init__(self, agreement: Agreement, site: str, releases: Releases | None) -> None:
        self._releases = releases
        self._key = b"" if releases is None else anchor_key(agreement.federation, site, releases.dataset)

    @property
    def now(self) -> LedgerAnchor | None:
        """That of the last entry; None where the agreement has no noise."""
        if self._releases is None:
            return None
        anchor = self._releases.anchor
        return LedgerAnchor(self._key, anchor.seq, bytes.fromhex(anchor.head))

    def check_kept(self, kept: LedgerAnchor | None) -> None:
        """Compare with what the coordinator has kept, if it has anything.

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
    """What a site remembers of its peers' ledgers, in its journal and in a record over all runs.

    The journal begins with what the record has when the run begins here, and each list is held to the journal. Not to
    the record itself: another run over the same ledgers, at the same time, may be ahead. What the record had *then* a
    peer's statement cannot be behind, for it is signed over a roster with this site's key for this run.
    """

    def __init__(
        self, agreement: Agreement, site: str, journal: Journal, record: AnchorRecord | None
    ) -> None:
        """Before this site makes its key for the run."""
        self._wanted, self._site = agreement.privacy is not None, site
        self._journal, self._record = journal, record
        if self._wanted and journal.get(_SEEN) is None:
            self._keep(0, 0, {} if record is None else record.all())

    def check(self, key: PhaseKey, active: ActiveList) -> None:
        """Take a list whose signatures hold, and remember its anchors.

        :class:`Violation` that names a peer whose ledger is not what it was, or that has no anchor where it must.
        """
        if not self._wanted:
            return
        listed = self._anchors(active)
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
            if each.anchor is None:
                raise Violation(
                    f"{each.site} states no entry of its privacy ledger, and the agreement has noise"
                )
            if each.site != self._site:  # its own it checks against every line
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


def _other_ledger(site: str, anchor: LedgerAnchor, kept: LedgerAnchor) -> str:
    found = f"ends with entry {anchor.seq}" if anchor.seq < kept.seq else f"has another entry {anchor.seq}"
    return (
        f"{site}'s privacy ledger {found}, and has had entry {kept.seq} ({kept.head.hex()[:16]}): an older copy was put"
        f" in its place, or it was begun anew, and {site} may release more than its budget; it has to bring the latest"
        " back"
    )
