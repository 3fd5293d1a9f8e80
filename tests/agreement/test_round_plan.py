"""The table of rounds has a row, and both parties a class, for every pair that an agreement allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agreement import DEPLOYABLE, METHODS, PROTECTIONS, Family, Method, Protection
from agreement import CONTROLS
from agreement.registry.round_plan import _PLANS, ExchangeKind, PayloadKind, plan_for
from algorithms.pfpl import Weighting
from crypto.plain import SCHEME as PLAIN
from secure_client.session import _EXCHANGES


@pytest.mark.parametrize("method", sorted(DEPLOYABLE, key=str))
@pytest.mark.parametrize("protection", PROTECTIONS.values())
@pytest.mark.parametrize("weighting", Weighting)
def test_a_deployed_method_has_rounds_under_every_protection(
    method: Method, protection: Protection, weighting: Weighting
) -> None:
    plan = plan_for(method, protection, weighting)
    peers = method.traits.family is Family.PEERS
    alike = peers and weighting is Weighting.UNIFORM and protection is Protection.MASKED
    assert plan.masked is (protection is Protection.MASKED and (alike or not peers))
    assert plan.sums is (alike or not peers)


def test_masked_sites_share_a_secret_only_for_rotations() -> None:
    rotating = {"fedpc", "average", "fedplcc", "fpl", "fedplvm"}
    for weighting in Weighting:
        sharing = {
            name
            for name, method in METHODS.items()
            if method not in CONTROLS and plan_for(method, Protection.MASKED, weighting).shares_secret
        }
        assert sharing - {"pfpl"} == rotating
        assert ("pfpl" in sharing) is (weighting is not Weighting.UNIFORM)


def test_weights_of_an_extension_need_inner_products() -> None:
    """The agreed weighting is PFPL's, and means nothing where the method weighs by itself."""
    by_itself = replace(
        Method.PFPL, name="by-itself", weights=lambda _settings: lambda gram, _holds: np.ones_like(gram)
    )
    plan = plan_for(by_itself, Protection.MASKED, Weighting.UNIFORM)
    assert (plan.exchange, plan.sums, plan.shares_secret) == (ExchangeKind.PEERS, False, True)


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("protection", [Protection.MASKED, Protection.CKKS, None])
def test_no_protection_but_plain_has_cleartext_rounds(family: Family, protection: Protection | None) -> None:
    plan = _PLANS.get((family, protection))
    if plan is not None:
        assert plan.row_scheme != PLAIN
        assert plan.values not in (PayloadKind.VECTOR, PayloadKind.LOCAL_CLUSTERS)


def test_site_knows_every_exchange() -> None:
    assert _EXCHANGES.keys() == set(ExchangeKind)
