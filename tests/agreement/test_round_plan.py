"""The table of rounds has a row, and both parties a class, for every pair that an agreement allows."""

from __future__ import annotations

import pytest

from agreement import DEPLOYABLE, PROTECTIONS, Family, Method, Protection
from agreement.round_plan import _PLANS, ExchangeKind, Form, plan_for
from crypto.plain import SCHEME as PLAIN
from secure_client.methods.exchange_factory import _EXCHANGES as _SITE_EXCHANGES
from secure_server.aggregator import _EXCHANGES


@pytest.mark.parametrize("method", sorted(DEPLOYABLE, key=str))
@pytest.mark.parametrize("protection", PROTECTIONS.values())
def test_a_deployed_method_has_rounds_under_every_protection(method: Method, protection: Protection) -> None:
    plan = plan_for(method, protection)
    assert plan.masked is (protection is Protection.MASKED and method.traits.family is not Family.PEERS)


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("protection", [Protection.MASKED, Protection.CKKS, None])
def test_no_protection_but_plain_has_cleartext_rounds(family: Family, protection: Protection | None) -> None:
    plan = _PLANS.get((family, protection))
    if plan is not None:
        assert plan.row_scheme != PLAIN
        assert plan.values not in (Form.VECTOR, Form.LOCAL_CLUSTERS)
        assert not plan.exchange.name.startswith("PLAIN")


def test_both_parties_know_every_exchange() -> None:
    assert _SITE_EXCHANGES.keys() == _EXCHANGES.keys() == set(ExchangeKind)
