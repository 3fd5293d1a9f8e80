"""Sums that sites read, under ``ckks`` or a third party's protection: the coordinator adds up, and hands out the sum.

Under ``ckks`` it sees sizes, times and who holds what. The limits are :mod:`crypto.ckks.sums`'s.
"""

from __future__ import annotations

from agreement import Agreement
from agreement.aggregation.encrypted_sums import EncryptedSum
from crypto.ckks.sums import SummingServer
from crypto.protection import Payload
from crypto.sum_protection import SumServerHalf
from protoseal_wire.codec import Limits
from secure_server.exchanges.base import Attempt, Outcome
from secure_server.exchanges.group_results import for_members
from secure_server.exchanges.single_step import OneStep


class EncryptedSums(OneStep):
    """One step, from everyone; means are the sites' to take."""

    def __init__(self, agreement: Agreement, limits: Limits, server: SumServerHalf | None = None) -> None:
        """``server`` is that of ``ckks`` unless it is given."""
        super().__init__(agreement, limits)
        self._server: SumServerHalf = server or SummingServer(EncryptedSum(agreement).form)

    def validate(self, payload: Payload, _site: str, _attempt: Attempt) -> None:
        """Raise :class:`crypto.errors.MalformedError` unless it can be added to others: what is inside is not seen."""
        self._server.validate(payload)

    def outcome(self, attempt: Attempt) -> Outcome:
        """The sum over its group for each participant."""
        return for_members(attempt.groups, [self.sum_over(attempt, group) for group in attempt.groups])

    def sum_over(self, attempt: Attempt, group: tuple[str, ...]) -> Payload:
        """Of payloads that are read one at a time."""
        return self._server.add(self.payload(attempt, site) for site in group)
