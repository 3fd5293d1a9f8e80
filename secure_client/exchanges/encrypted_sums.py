"""Sums at a site under ``ckks``: the site decrypts the coordinator's sum and divides it to get the means.

No answer of the site depends on a decryption (Li and Micciancio, eprint 2020/1533): the site acknowledges an
implausible result like any other and keeps its base, but states the result's hash from then on. A group's leader sends
means that the leader encrypted itself, or means without effect.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from agreement.derived.encrypted_sums import EncryptedGroups, EncryptedSum
from agreement.derived.means import Means
from agreement.derived.payload_forms import sums_form
from algorithms.gram_matrix import Bool, Float
from crypto.ckks.group_mixing import MixingSite
from crypto.ckks.sums import SummingSite
from crypto.errors import ImplausibleError
from crypto.protection import Payload, ProtectedPayload
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.error_containment import hide_decryption_errors
from secure_client.errors import Violation
from secure_client.exchanges.plain_sums import PlainSums
from secure_client.protocol.sent_values import Answer

_log = logging.getLogger("protoseal.site")


class EncryptedSums(PlainSums):
    """Sums over all sites: VALUES, then a result that is the sum."""

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """See :class:`secure_client.exchanges.exchange.SiteExchange`."""
        if key.round == 0:
            return super().step(key, request)
        group = self._members.asked(key, request)
        sums = EncryptedSum(self._agreement)
        vector = sums.vector(self._vector(key, group), self._sent_classes(group))
        return ProtectedPayload(SummingSite(self._setup.ckks_key(), sums.form), vector)

    def _read(self, payload: Payload) -> tuple[Float, Bool, Float]:
        """Return the parts of a result; raise :class:`ImplausibleError` for a fault that only decryption reveals."""
        with hide_decryption_errors("a result"):
            means = self._means(payload)
        rows = means.rows if len(means.rows) else np.zeros((len(means.has), self._agreement.dim))
        return rows, means.has, means.model

    def _means(self, payload: Payload) -> Means:
        return self._opened(payload)

    def _opened(self, payload: Payload) -> Means:
        """Return the means of a sum."""
        sums = EncryptedSum(self._agreement)
        values = SummingSite(self._setup.ckks_key(), sums.form).unprotect(payload, self._agreement.max_sites)
        return sums.means(sums.opened(values))


class EncryptedGroupSums(EncryptedSums):
    """FedPC's sums in groups, whose leaders send the groups' means; the result is a mix of these means."""

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """Answer a step; a leader also answers MEANS."""
        if key.phase is not Phase.MEANS:
            return super().step(key, request)
        self._check_leads(key)
        payload = codec.decode_payload(request, self._limits, sums_form(self._agreement))
        groups = EncryptedGroups(self._agreement)
        site = MixingSite(self._setup.ckks_key(), groups.form)
        return ProtectedPayload(site, *self._parts(key, groups, payload))

    def _means(self, payload: Payload) -> Means:
        groups = EncryptedGroups(self._agreement)
        return groups.mixed(MixingSite(self._setup.ckks_key(), groups.form).unprotect(payload))

    def _parts(self, key: PhaseKey, groups: EncryptedGroups, payload: Payload) -> tuple[Float, Float]:
        try:
            with hide_decryption_errors(f"the sum of round {key.round}"):
                return groups.parts(self._means_of_group(key, payload))
        except ImplausibleError as error:
            _log.error("the sum of this site's group in round %d is discarded: %s", key.round, error)
            return groups.nothing()

    def _means_of_group(self, key: PhaseKey, payload: Payload) -> Means:
        """Return the means of the group's sum; prototypes of its last sum of these, in a round whose sums have none."""
        ends = len(EncryptedSum(self._agreement).form.answers)
        now = replace(payload, blobs=payload.blobs[ends:])
        if self._agreement.sends_rows(key.round) or not now.blobs:
            return self._opened(payload)
        last = self._opened(replace(payload, blobs=payload.blobs[:ends]))
        return replace(last, model=self._opened(now).model)

    def _check_leads(self, key: PhaseKey) -> None:
        """Raise :class:`Violation` unless this site is the prescribed leader, which alone reads the sum."""
        leader = min(self._members.agreed(key).cohort.sites)
        if leader != self._site:
            raise Violation(
                f"the coordinator asked this site for its group's means, but {leader} leads the group"
            )
