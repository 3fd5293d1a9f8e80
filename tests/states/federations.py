"""The federations that are walked: four sites, three digits, a linear layer, two rounds; one for each kind of run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from algorithms.pfpl import Weighting
from crypto.pki import TrustAnchor
from protoseal.config import Agreement, BudgetSection, Method, Noise, PrivacySection, Protection
from protoseal.federation import make_parties
from secure_client.data import SiteData
from secure_client.setup import Party
from tests.support.grouped import grouped_agreement
from tests.support.small import small_agreement, small_data
from tests.support.summed import method_agreement

_SHARED = PrivacySection(clip=2.0, noise_multiplier=4.0, noise=Noise.DISTRIBUTED, colluding=1)
_LOCAL = PrivacySection(clip=2.0, noise_multiplier=0.05)


def _local() -> Agreement:
    agreement = small_agreement(Protection.MASKED, Weighting.DISTANCE)
    return Agreement.model_validate({**dict(agreement), "privacy": _LOCAL})


FEDERATIONS: Mapping[str, Callable[[], Agreement]] = {
    "fedpc": grouped_agreement,
    "feddbp": lambda: method_agreement(Method.FEDDBP, Protection.MASKED),
    "fedavg": lambda: method_agreement(Method.FEDAVG, Protection.MASKED),
    "fedplcc": lambda: method_agreement(Method.FEDPLCC, Protection.MASKED),
    "shared-noise": lambda: grouped_agreement(privacy=_SHARED),
    "local-noise": _local,
    "rotated": lambda: small_agreement(Protection.MASKED, Weighting.DISTANCE),
    "ckks": lambda: small_agreement(Protection.CKKS, Weighting.DISTANCE),
    "ckks-sums": lambda: method_agreement(Method.FEDDBP, Protection.CKKS),
    "plain": lambda: method_agreement(Method.FEDDBP, Protection.PLAIN),
    "plain-peers": small_agreement,
}
"""By the name that the command takes."""


@dataclass(frozen=True)
class Cast:
    """A federation's agreement, data and identities, which every plan of a walk has in common."""

    agreement: Agreement
    data: Mapping[str, SiteData]
    parties: tuple[Party, ...]
    trust: TrustAnchor

    @property
    def sites(self) -> tuple[str, ...]:
        """Their names, sorted."""
        return tuple(sorted(self.data))

    @property
    def has_ledgers(self) -> bool:
        """Whether sites pay for what they release."""
        return self.agreement.privacy is not None

    def budget(self, site: str, ledger: Path) -> BudgetSection | None:
        """Room for more payments than any plan makes; None where nothing is paid for."""
        privacy = self.agreement.privacy
        if privacy is None:
            return None
        return BudgetSection(
            dataset=site,
            ledger=ledger,
            epsilon=1e6,
            delta=1e-5,
            unit=privacy.unit,
            allow_no_guarantee=True,
            least_colluding=0,
        )


@cache
def cast_of(name: str) -> Cast:
    """Make a federation's identities, once in a process."""
    agreement = FEDERATIONS[name]()
    data = small_data(agreement)
    with tempfile.TemporaryDirectory(prefix="protoseal-") as folder:
        parties, trust = make_parties(Path(folder), agreement, sorted(data))
    return Cast(agreement, data, tuple(parties), trust)
