"""Hidden presence at a site: it sends what it has, encrypted, and learns of each class that it has how many others do.

A class with too few holders is not withheld before it is sent, for nobody can tell. The site takes nothing of it; that
is its own doing, and no other's guarantee (:mod:`crypto.ckks.hidden`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from algorithms.linear import Bool
from crypto.ckks.hidden_site import HiddenSite
from crypto.protection import Cohort, Combination, Payload, Rows
from protoseal_wire.messages import ActiveList, PhaseKey
from secure_client.exchanges.pairwise import Group
from secure_client.methods.encrypted_sums import EncryptedSums
from secure_client.methods.pfpl import Pfpl


class HiddenPfpl(Pfpl):
    """PFPL, with a count of holders in each answer."""

    def _cohort(self, active: ActiveList) -> Cohort:
        """Everyone on the list, with this site's own classes alone."""
        cohort = super()._cohort(active)
        holds = cohort.holds.copy()
        holds[cohort.index(self._site)] = self._trainee.held_classes()
        return replace(cohort, holds=holds)

    def _read(self, key: PhaseKey, payload: Payload, rows: Rows, cohort: Cohort) -> tuple[Rows, Bool]:
        return self._half(key, cohort).read(payload, rows, self._site, cohort)

    def _given(self, cohort: Cohort) -> Bool:
        """None: how many hold them is what the decryption was to tell."""
        return np.zeros(cohort.classes, dtype=np.bool_)

    def _half(self, _key: PhaseKey, _cohort: Cohort) -> HiddenSite:
        agreement = self._agreement
        return HiddenSite(
            self._setup.ckks_key(),
            Combination(agreement.pfpl.weighting.value),
            agreement.agreement_threshold,
            agreement.min_holders,
        )


class HiddenSums(EncryptedSums):
    """Sums over all sites, which say of themselves how many added to each class."""

    def _adds_to(self, group: Group) -> Bool:  # noqa: ARG002 (what every sum is asked)
        """All that it has; of models alone nobody needs to know who adds to which class."""
        held = self._trainee.held_classes()
        return held if self._agreement.layout.classes else np.zeros_like(held)
