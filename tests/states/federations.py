"""The federations that are walked: four sites or more, three digits, a linear layer, two rounds; one for each kind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from agreement import Agreement, DpSgdSection, Extractor, Method, Noise, PrivacySection, Protection
from algorithms.pfpl import Weighting
from crypto.pki import TrustAnchor
from privacy.accounting.events import Unit
from protoseal.simulation.local_federation import make_parties
from secure_client.data import SiteData
from secure_client.privacy.budget import BudgetSection
from secure_client.protocol.setup import Party
from tests.support.grouped import grouped_agreement
from tests.support.small import HOLDINGS, small_agreement, small_data
from tests.support.summed import method_agreement

_SHARED = PrivacySection(clip=2.0, noise_multiplier=4.0, noise=Noise.DISTRIBUTED, colluding=1)
_LOCAL = PrivacySection(clip=2.0, noise_multiplier=0.05)
_TRAINED = _LOCAL.model_copy(
    update={
        "extractor": Extractor.PRIVATE,
        "dp_sgd": DpSgdSection(noise_multiplier=2.0, clip=1.0, sampling_rate=0.5),
    }
)
_SPARSE = {"complete_up_to": 3, "max_colluding": 0.0, "max_dropped": 0.2}
"""Sparse graph in which three of five sites hold each one's shares and one may drop out; of four sites two hold them.
"""
_FIVE = {**HOLDINGS, "clinic-e": (0, 1, 2)}
_TWO_KINDS = {f"clinic-{letter}": (0, 1, 2) if letter in "aceg" else (3, 4, 5) for letter in "abcdefgh"}
"""Two groups of four, by turns; each can lose one."""


def _pfpl(privacy: PrivacySection | None = None) -> Agreement:
    agreement = small_agreement(Protection.MASKED, Weighting.DISTANCE)
    return Agreement.model_validate({**dict(agreement), "privacy": privacy})


@dataclass(frozen=True)
class Federation:
    """Federation to walk: runs of the same sites, which hold these digits.

    Several runs go on at once, over the same ledgers. With ``has_ledgers`` sites keep a ledger of exact values too.
    """

    agreements: Callable[[], Sequence[Agreement]]
    holdings: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: HOLDINGS)
    has_ledgers: bool = False


def _of(agreement: Callable[[], Agreement], **others: Any) -> Federation:
    return Federation(lambda: (agreement(),), **others)


FEDERATIONS: Mapping[str, Federation] = {
    "fedpc": _of(grouped_agreement),
    "feddbp": _of(lambda: method_agreement(Method.FEDDBP, Protection.MASKED)),
    "fedavg": _of(lambda: method_agreement(Method.FEDAVG, Protection.MASKED)),
    "fedplcc": _of(lambda: method_agreement(Method.FEDPLCC, Protection.MASKED)),
    "shared-noise": _of(lambda: grouped_agreement(privacy=_SHARED)),
    "local-noise": _of(lambda: _pfpl(_LOCAL)),
    "rotated": _of(_pfpl),
    "summed-peers": _of(lambda: small_agreement(Protection.MASKED, Weighting.UNIFORM)),
    "ckks": _of(lambda: small_agreement(Protection.CKKS, Weighting.DISTANCE)),
    "ckks-sums": _of(lambda: method_agreement(Method.FEDDBP, Protection.CKKS)),
    "plain": _of(lambda: method_agreement(Method.FEDDBP, Protection.PLAIN)),
    "plain-peers": _of(small_agreement),
    "sparse": _of(
        lambda: method_agreement(Method.FEDAVG, Protection.MASKED, masking=_SPARSE), holdings=_FIVE
    ),
    "two-groups": _of(lambda: grouped_agreement(classes=tuple("012345")), holdings=_TWO_KINDS),
    "dp-sgd": _of(lambda: _pfpl(_TRAINED)),
    "exact": _of(lambda: method_agreement(Method.FEDDBP, Protection.PLAIN), has_ledgers=True),
    "two-runs": Federation(
        lambda: (_pfpl(_LOCAL), grouped_agreement(privacy=_SHARED).model_copy(update={"run": "run-2"}))
    ),
}
"""Federations by the name that the command takes."""


@dataclass(frozen=True)
class Cast:
    """A run's agreement, data and identities, which every plan of a walk has in common."""

    agreement: Agreement
    data: Mapping[str, SiteData]
    parties: tuple[Party, ...]
    trust: TrustAnchor
    has_ledgers: bool

    @property
    def sites(self) -> tuple[str, ...]:
        """Their names, sorted."""
        return tuple(sorted(self.data))

    def budget(self, site: str, ledger: Path) -> BudgetSection | None:
        """Room for more payments than any plan makes; None where the site keeps no ledger."""
        if not self.has_ledgers:
            return None
        privacy = self.agreement.privacy
        return BudgetSection(
            dataset=site,
            ledger=ledger,
            epsilon=1e6,
            delta=1e-5,
            unit=Unit.RECORD if privacy is None else privacy.unit,
            allow_no_guarantee=True,
            least_colluding=0,
            most_paid_attempts=1000,
        )


@cache
def casts_of(name: str) -> tuple[Cast, ...]:
    """Make a federation's identities, once in a process; a cast for each of its runs."""
    federation = FEDERATIONS[name]
    agreements = federation.agreements()
    data = small_data(agreements[0], federation.holdings)
    with tempfile.TemporaryDirectory(prefix="protoseal-") as folder:
        parties, trust = make_parties(Path(folder), agreements[0], sorted(data))
    return tuple(
        Cast(each, data, tuple(parties), trust, federation.has_ledgers or each.privacy is not None)
        for each in agreements
    )
