"""Sums that sites read, under ``ckks`` or a third party's protection: the coordinator adds payloads up.

Under ``ckks`` the coordinator sees sizes, times and which site has which class. Limits: see :mod:`crypto.ckks.sums`.
"""

from __future__ import annotations

from agreement import Agreement
from agreement.aggregation.encrypted_sums import EncryptedSum
from agreement.payload_forms import values_form
from crypto.ckks.sums import SummingServer
from crypto.protection import Payload
from crypto.sum_protection import SumServerHalf
from protoseal_wire.codec import Limits
from secure_server.exchanges.base import Attempt, Outcome, repeated_sum
from secure_server.exchanges.group_results import for_members
from secure_server.exchanges.single_phase_exchange import SinglePhaseExchange


class EncryptedSums(SinglePhaseExchange):
    """One step, from everyone; sites divide the sum into means themselves."""

    def __init__(self, agreement: Agreement, limits: Limits, server: SumServerHalf | None = None) -> None:
        """Use ``server``, by default that of ``ckks``."""
        super().__init__(agreement, limits)
        self._server: SumServerHalf = server or SummingServer(EncryptedSum(agreement).form)

    def validate(self, payload: Payload, _site: str, _attempt: Attempt) -> None:
        """Raise :class:`crypto.errors.MalformedError` unless the payload can be added; its content is encrypted."""
        self._server.validate(payload)

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return the sum over its group for each participant, or the group's last sum if this one has no prototypes.

        Rows that do not change come without models, or with models that do not change either, so that the last sum is
        the whole result.
        """
        sums = [self.last_sum(attempt, group) or self.sum_over(attempt, group) for group in attempt.groups]
        repeated = sums if self._agreement.repeats_rows(attempt.key.round) else ()
        return for_members(attempt.groups, sums, repeated)

    def last_sum(self, attempt: Attempt, group: tuple[str, ...]) -> Payload | None:
        """Return the group's :func:`repeated_sum`."""
        form = values_form(self._agreement, attempt.key.round)
        return repeated_sum(self._agreement, attempt, group, form, self._limits)

    def sum_over(self, attempt: Attempt, group: tuple[str, ...]) -> Payload:
        """Return the sum of payloads that are read one at a time."""
        return self._server.add(self.payload(attempt, site) for site in group)
