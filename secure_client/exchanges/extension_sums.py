"""Sums at a site under a protection's declared halves: the site sends its values once and reads the sum in the answer.

Only sites can read the sum, so only they notice a result that is out of bounds. As under ``ckks``, the site
acknowledges such a result like any other, because a refusal would tell the coordinator about it, and trains on from
its earlier result.
"""

from __future__ import annotations

from agreement.derived.encrypted_sums import ExtensionSum
from agreement.derived.means import Means
from crypto.protection import DeclaredHalf, Payload, ProtectedPayload
from crypto.sum_protection import SumSiteHalf
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.exchanges.encrypted_sums import EncryptedSums
from secure_client.exchanges.row_protection import attempt_context
from secure_client.protocol.sent_values import Answer


class ExtensionSums(EncryptedSums):
    """Sums over all sites: VALUES, then a result that is the sum."""

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """See :class:`secure_client.exchanges.exchange.SiteExchange`."""
        if key.phase is not Phase.VALUES:
            return super().step(key, request)
        group, half = self._members.asked(key, request), self._half()
        vector = self._sum(half).vector(self._vector(key, group), self._sent_classes(group))
        context = attempt_context(self._agreement, self._setup, key, group.cohort, group.base)
        return ProtectedPayload(DeclaredHalf(half), vector, self._site, group.cohort, context)

    def _opened(self, payload: Payload) -> Means:
        half = self._half()
        counted = self._sum(half)
        return counted.means(counted.opened(half.unprotect(payload).copy()))

    def _sum(self, half: SumSiteHalf) -> ExtensionSum:
        return ExtensionSum(self._agreement, half.error())

    def _half(self) -> SumSiteHalf:
        protection = self._agreement.protection
        if protection.sums is None:
            raise ValueError(f"protection {protection.value!r} has no halves of sums")
        settings = self._agreement.settings_of(protection)
        return protection.sums.site(settings, self._setup.group_secret(), self._agreement.sum_facts)
