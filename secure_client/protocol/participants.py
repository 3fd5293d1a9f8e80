"""Participants of an attempt, proven by their signatures."""

from __future__ import annotations

from dataclasses import replace

from agreement import Agreement
from agreement.derived.payload_shapes import limits_of
from algorithms.gram_matrix import Bool
from crypto.errors import CryptoError
from protoseal_wire import codec
from protoseal_wire.class_presence import verify_active_list
from protoseal_wire.messages import ActiveList, Phase, PhaseKey
from secure_client.errors import Violation
from secure_client.privacy.ledger_anchors import PeerAnchors
from secure_client.protocol.journal import Journal
from secure_client.protocol.setup import Party, Setup


class Participants:
    """Reader of the coordinator's active lists. Limit: a site that lies about its own classes is believed."""

    def __init__(
        self, agreement: Agreement, party: Party, setup: Setup, journal: Journal, anchors: PeerAnchors
    ) -> None:
        self._agreement = agreement
        self._party = party
        self._setup = setup
        self._journal = journal
        self._anchors = anchors
        self._limits = limits_of(agreement)
        self._last: tuple[tuple[PhaseKey, bytes, bytes], ActiveList] | None = None
        self.requested_rows: Bool | None = None
        """Classes (K,), or local prototypes (M,), that the present step asks this site for: a note for the audit."""

    def accepted_list(self, key: PhaseKey, phase: Phase) -> ActiveList:
        """Return the list that this site used for its answer to ``phase`` in the attempt."""
        request = self._journal.request(replace(key, phase=phase))
        if request is None:
            raise Violation(f"{key.phase.name} came before {phase.name}")
        return self.verify_list(key, request)

    def verify_list(self, key: PhaseKey, request: bytes) -> ActiveList:
        """Return the list if all its sites, this one included, signed for this attempt and are enough.

        Raises :class:`Violation` otherwise. All steps of an attempt use the same list, whose signatures are checked
        once.
        """
        begun, roster = replace(key, phase=Phase.PRESENCE), self._setup.roster()
        if self._last is not None and self._last[0] == (begun, roster.hash, request):
            return self._last[1]
        active = codec.decode_active_list(request, self._limits)
        try:
            verify_active_list(active, roster, begun)
        except CryptoError as error:
            raise Violation(f"the active list of round {key.round} is refused: {error}") from error
        least = max(self._agreement.min_sites, self._party.min_sites)
        if len(active.statements) < least:
            raise Violation(
                f"the coordinator asked for values among {len(active.statements)} sites, fewer than the required "
                f"{least}"
            )
        statements = [codec.encode_presence(statement) for statement in active.statements]
        if self._journal.stored_answer(begun) not in statements:
            raise Violation("the active list lacks this site's own presence statement")
        # After the signatures: an anchor is remembered against a peer, who must have stated it.
        self._anchors.check(begun, active)
        self._last = ((begun, roster.hash, request), active)
        return active
