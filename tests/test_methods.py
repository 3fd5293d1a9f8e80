"""Each method that a deployment runs has a course of its own, and none runs as another for want of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from algorithms.fedpc.objective import Objective as FedpcObjective
from algorithms.pfpl.objective import Objective as PfplObjective
from crypto.protection import PayloadForm
from protoseal import terms
from protoseal.config import SIMULATED, Agreement, Method, Protection
from protoseal.config.capabilities import check_protection_serves
from protoseal.federation import LocalFederation
from secure_client.build import build_objective
from secure_client.methods.fedpc import Fedpc
from secure_client.methods.pfpl import Pfpl
from secure_server.aggregate import Aggregator
from secure_server.exchanges.group_sums import GroupSums
from secure_server.exchanges.peers import Peers
from tests.support.grouped import grouped_agreement
from tests.support.small import small_agreement, small_data

AGREEMENTS = {
    Method.PFPL: small_agreement(Protection.PLAIN),
    Method.FEDPC: grouped_agreement(Protection.PLAIN),
}
OBJECTIVES: dict[Method, Any] = {Method.PFPL: PfplObjective, Method.FEDPC: FedpcObjective}
AT_A_SITE: dict[Method, Any] = {Method.PFPL: Pfpl, Method.FEDPC: Fedpc}
AT_THE_COORDINATOR: dict[Method, Any] = {Method.PFPL: Peers, Method.FEDPC: GroupSums}
DEPLOYED = sorted(set(Method) - SIMULATED)


def another(agreement: Agreement) -> Agreement:
    """On a method that nothing here knows, as if one had been added to the names alone."""
    return agreement.model_copy(update={"method": "another"})


@pytest.mark.parametrize("method", DEPLOYED)
def test_every_method_has_its_own_objective_session_and_exchange(method: Method, tmp_path: Path) -> None:
    agreement = AGREEMENTS[method]
    assert type(build_objective(agreement)) is OBJECTIVES[method]
    assert type(Aggregator(agreement, tmp_path).exchange(1)) is AT_THE_COORDINATOR[method]
    with LocalFederation(agreement, small_data(agreement)) as federation:
        assert type(federation.sites[0].session._method) is AT_A_SITE[method]


def test_no_method_runs_as_another() -> None:
    forms: set[PayloadForm] = {terms.result_form(AGREEMENTS[method]) for method in DEPLOYED}
    assert len(forms) == len(DEPLOYED) == len(set(OBJECTIVES.values())) == len(set(AT_A_SITE.values()))
    assert len(set(AT_THE_COORDINATOR.values())) == len(DEPLOYED)


@pytest.mark.parametrize("method", DEPLOYED)
def test_a_method_that_nothing_knows_is_no_other_methods(method: Method, tmp_path: Path) -> None:
    agreement = AGREEMENTS[method]
    unknown: Any = another(agreement)
    with LocalFederation(agreement, small_data(agreement)) as federation:
        session = federation.sites[0].session
        session._agreement = unknown
        with pytest.raises(AssertionError, match="unreachable"):
            session._build_method(session._method._participants)  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="unreachable"):
        build_objective(unknown)
    is_grouped: Any = Method.is_grouped
    with pytest.raises(AssertionError, match="unreachable"):
        is_grouped.fget("another")
    aggregator = Aggregator(agreement, tmp_path)
    aggregator._agreement = unknown
    with pytest.raises(AssertionError, match="unreachable"):
        aggregator._exchange_of_rounds()
    pfpl = unknown.pfpl
    with pytest.raises(AssertionError, match="unreachable"):
        check_protection_serves(unknown.method, pfpl.weighting, pfpl.squared, Protection.PLAIN)


def test_nobody_runs_what_only_a_simulation_has(tmp_path: Path) -> None:
    agreement = AGREEMENTS[Method.PFPL]
    with LocalFederation(agreement, small_data(agreement)) as federation:
        session = federation.sites[0].session
        for method in SIMULATED:
            session._agreement = agreement.model_copy(update={"method": method})
            with pytest.raises(ValueError, match=f"no coordinator serves method {method.value}"):
                Aggregator(session._agreement, tmp_path)._exchange_of_rounds()
            with pytest.raises(ValueError, match=f"method {method.value} runs in no session"):
                session._build_method(session._method._participants)  # type: ignore[attr-defined]
