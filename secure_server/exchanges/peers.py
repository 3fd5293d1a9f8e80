"""PFPL: each site's rows in, for each site a combination of its peers' out; ``plain``, ``masked`` or ``ckks``."""

from __future__ import annotations

from agreement import Agreement
from agreement.derived.cohorts import cohort_of
from crypto.protection import Payload, ServerHalf
from protoseal_wire.codec import Limits
from secure_server.exchanges.exchange import Attempt, Outcome, SinglePhaseExchange


class PeerExchange(SinglePhaseExchange):
    """Exchange in which the protection's server half combines rows by the method's weights."""

    def __init__(self, agreement: Agreement, limits: Limits, server: ServerHalf) -> None:
        super().__init__(agreement, limits)
        self._server = server

    def validate(self, payload: Payload, site: str, attempt: Attempt) -> None:
        """Validate a payload, as the protection does."""
        self._server.validate(payload, site, cohort_of(attempt.active, self._agreement))

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return one answer for each participant."""
        cohort = cohort_of(attempt.active, self._agreement)
        return Outcome(self._server.combine(self.payloads(attempt), cohort))
