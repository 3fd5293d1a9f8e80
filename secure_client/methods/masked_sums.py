"""Sums at a site under ``masked``: the site sends its values under masks that cancel in the sum of its group.

The checks of :mod:`secure_client.methods.plain_sums` hold here as well; the steps of a masked sum are in
:mod:`secure_client.protocol.masked_sum`.
"""

from __future__ import annotations

from crypto.pairwise.scheme import SCHEME as PAIRWISE
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.methods.plain_sums import PlainSums
from secure_client.protocol.sent_values import Answer


class MaskedSums(PlainSums):
    """Masked sums of a run: SHARES, VALUES, SURVIVORS and UNMASK, then a result that is the sum."""

    scheme = PAIRWISE

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """Answer the clustering's one step, or one of the masked sum's."""
        if key.round == 0:
            return super().step(key, request)
        match key.phase:
            case Phase.SHARES:
                return self._masks.shares(key, self._members.asked(key, request))
            case Phase.VALUES:
                group = self._members.agreed(key)
                return self._masks.values(key, group, request, self._vector(key, group))
            case Phase.SURVIVORS:
                return self._masks.survivors(key, self._members.agreed(key), request)
            case Phase.UNMASK:
                return self._masks.unmask(key, self._members.agreed(key), request)
            case _:
                raise ValueError(f"a masked sum has no step {key.phase.name}")
