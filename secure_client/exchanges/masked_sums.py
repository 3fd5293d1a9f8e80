"""Sums at a site under ``masked``: the site sends its values under masks that cancel in the sum of its group.

The checks of :mod:`secure_client.exchanges.plain_sums` hold here as well; the steps of a masked sum are in
:mod:`secure_client.protocol.secure_aggregation`.
"""

from __future__ import annotations

from functools import partial

from crypto.pairwise.wire_values import SCHEME as PAIRWISE
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.exchanges.plain_sums import PlainSums
from secure_client.protocol.sent_values import Answer


class MaskedSums(PlainSums):
    """Masked sums of a run: SHARES, VALUES, SURVIVORS and UNMASK, then a result that is the sum."""

    scheme = PAIRWISE

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """Answer the clustering's one step, or one of the masked sum's."""
        if key.round == 0:
            return super().step(key, request)
        group = self._members.asked(key, request) if key.phase is Phase.SHARES else self._members.agreed(key)
        return self._masks.step(key, group, request, partial(self._vector, key))
