"""Each method has a loss and a course of its own, and none runs as another for want of one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agreement import CONTROLS, DEPLOYABLE, Agreement, Family, Method, Protection, methods
from agreement.compatibility import check_protection_serves
from agreement.phases import first_round, has_common_group
from algorithms.baselines import cross_entropy
from algorithms.baselines.fedplvm import Objective as FedplvmObjective
from algorithms.baselines.fedproto import Objective as FedprotoObjective
from algorithms.baselines.fpl import Objective as FplObjective
from algorithms.feddbp.objective import Objective as FeddbpObjective
from algorithms.fedpc.objective import Objective as FedpcObjective
from algorithms.fedplcc.objective import Objective as FedplccObjective
from algorithms.pfpl.objective import Objective as PfplObjective
from protoseal.simulation.local_federation import LocalFederation
from secure_client.methods.pfpl import Pfpl
from secure_client.methods.sums import Sums
from secure_client.training.objectives import build_objective, build_recipe
from secure_server.aggregator import Aggregator
from secure_server.exchanges.peer_combinations import Peers
from secure_server.exchanges.plain_sums import GroupSums
from tests.support.small import small_data
from tests.support.summed import method_agreement

OBJECTIVES: dict[Method, Any] = {
    Method.PFPL: PfplObjective,
    Method.FEDPC: FedpcObjective,
    Method.FEDDBP: FeddbpObjective,
    Method.FEDPLCC: FedplccObjective,
    **dict.fromkeys((Method.FEDPROTO, Method.FEDPROTO_AVERAGED), FedprotoObjective),
    Method.FPL: FplObjective,
    Method.FEDPLVM: FedplvmObjective,
    **dict.fromkeys((Method.FEDAVG, Method.FEDPROX, Method.FEDBN), cross_entropy.Objective),
    **dict.fromkeys((Method.FEDPER, Method.FEDREP, Method.DITTO), cross_entropy.Objective),
    **dict.fromkeys((Method.LOCAL, Method.SELF), PfplObjective),
}
AT_A_SITE: dict[Family, Any] = {Family.PEERS: Pfpl, Family.GROUPS: Sums, Family.SUMS: Sums}
AT_THE_COORDINATOR: dict[Family, Any] = {
    Family.PEERS: Peers,
    Family.GROUPS: GroupSums,
    Family.SUMS: GroupSums,
}
METHODS = sorted(set(Method) - {Method.AVERAGE})
"""``average`` is an agreement on ``fedpc``."""
SERVED = [method for method in METHODS if method.traits.family in AT_A_SITE]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_objective_and_exchanges_what_its_traits_say(method: Method) -> None:
    agreement = method_agreement(method)
    recipe = build_recipe(agreement)
    assert type(recipe.objective) is OBJECTIVES[method]
    assert (recipe.averages, recipe.predicts) == (method.traits.averaged, method.traits.predicts)


@pytest.mark.parametrize("method", SERVED)
def test_every_method_has_its_familys_session_and_exchange(method: Method, tmp_path: Path) -> None:
    agreement, family = method_agreement(method), method.traits.family
    assert type(Aggregator(agreement, tmp_path).exchange(1)) is AT_THE_COORDINATOR[family]
    with LocalFederation(agreement, small_data(agreement)) as federation:
        assert type(federation.sites[0].session._method) is AT_A_SITE[family]
    assert first_round(agreement) == (0 if family is Family.GROUPS else 1)
    assert has_common_group(agreement) is (family in (Family.SUMS, Family.CLUSTERS))


def test_no_method_is_another() -> None:
    """In what it exchanges and what a site does with it; controls alone train as PFPL does, without its answers."""
    courses: dict[Method, Hashable] = {
        method: (method.traits, build_recipe(method_agreement(method))) for method in METHODS
    }
    assert len({courses[method] for method in set(METHODS) - CONTROLS}) == len(METHODS) - len(CONTROLS) == 14
    assert {method for method in METHODS if method.traits.family is Family.ALONE} == CONTROLS


def test_deployable_methods_differ_in_family_or_layout() -> None:
    layouts = {(method.traits.family, method_agreement(method).layout) for method in DEPLOYABLE}
    assert len(layouts) == len(DEPLOYABLE) == 4


@pytest.mark.parametrize("method", [Method.PFPL, Method.FEDPC, Method.FEDDBP])
def test_a_family_that_nothing_knows_is_no_other_family(
    method: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = method_agreement(method)
    pfpl = agreement.pfpl
    another: Any = "another"
    with LocalFederation(agreement, small_data(agreement)) as federation:
        session = federation.sites[0].session
        monkeypatch.setitem(methods._TRAITS, method, replace(method.traits, family=another))
        with pytest.raises(ValueError, match="has no rounds"):
            session._build_method(session._method._participants)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="has no rounds"):
        Aggregator(agreement, tmp_path)
    with pytest.raises(KeyError, match="another"):
        check_protection_serves(method, pfpl.weighting, pfpl.squared, Protection.PLAIN)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_nothing_knows_is_no_other_method(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = method_agreement(method)
    unknown: Agreement = agreement.model_copy(update={"method": "another"})
    for build in (build_objective, build_recipe):
        with pytest.raises((ValueError, AttributeError), match=r"no objective|no attribute 'traits'"):
            build(unknown)
    monkeypatch.delitem(methods._TRAITS, method)
    with pytest.raises(KeyError):
        build_recipe(agreement)


@pytest.mark.parametrize("method", sorted(CONTROLS))
def test_nobody_runs_what_a_site_does_alone(method: Method, tmp_path: Path) -> None:
    agreement = method_agreement(Method.PFPL)
    with LocalFederation(agreement, small_data(agreement)) as federation:
        session = federation.sites[0].session
        session._agreement = agreement.model_copy(update={"method": method})
        with pytest.raises(ValueError, match="has no rounds"):
            Aggregator(session._agreement, tmp_path)
        with pytest.raises(ValueError, match="has no rounds"):
            session._build_method(session._method._participants)  # type: ignore[attr-defined]
