"""FedPC under ``ckks``: groups' sums, which their leaders turn into means and encrypt again, mixed between groups.

A leader is the first of its group's participants by name. The leader learns its group's means, which other members do
not, and is trusted to return them unchanged. Once a leader has been asked, no other sum of the round is taken: the
leader could subtract the two.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from agreement import Agreement
from agreement.aggregation.encrypted_sums import EncryptedGroups
from agreement.payload_forms import sums_form
from crypto.ckks.group_mixing import MixingServer
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.codec import Limits
from protoseal_wire.messages import Phase
from secure_server.exchanges.base import Attempt, Outcome
from secure_server.exchanges.encrypted_sums import EncryptedSums
from secure_server.exchanges.group_results import for_members


class EncryptedGroupSums(EncryptedSums):
    """VALUES from everyone, then MEANS from each group's leader."""

    def __init__(
        self, agreement: Agreement, limits: Limits, keys_path: Path, executor: Executor | None
    ) -> None:
        super().__init__(agreement, limits)
        self._mixing = MixingServer(EncryptedGroups(agreement).form, keys_path, executor)

    def request(self, attempt: Attempt, phase: Phase, site: str) -> bytes:
        """Return the list of participants; for a leader, its group's sum.

        In a round whose sums have no prototypes, the group's last sum of prototypes precedes it.
        """
        if phase is not Phase.MEANS:
            return super().request(attempt, phase, site)
        group = attempt.group_of(site)
        total, last = self.sum_over(attempt, group), self.last_sum(attempt, group)
        return codec.encode_payload(total if last is None else replace(total, blobs=last.blobs + total.blobs))

    def check(self, attempt: Attempt, phase: Phase, site: str, content: bytes) -> None:
        """Check an answer, as :meth:`secure_server.exchanges.base.Exchange.check` does."""
        if phase is not Phase.MEANS:
            super().check(attempt, phase, site, content)
        else:
            self._mixing.validate(self._means(content))

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return, for each participant, its group's means mixed with those of other groups."""
        leaders = [min(group) for group in attempt.groups]
        means = [self._means(attempt.answer(Phase.MEANS, leader)) for leader in leaders]
        results = self._mixing.mix(means)
        if not self._agreement.repeats_rows(attempt.key.round):
            return for_members(attempt.groups, results)
        return for_members(
            attempt.groups, results, [self.sum_over(attempt, group) for group in attempt.groups]
        )

    def _means(self, content: bytes) -> Payload:
        return codec.decode_payload(content, self._limits, sums_form(self._agreement))
