"""Methods, protections and the plan of rounds: each allowed pair has a loss, and a class at both parties."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from agreement import (
    CONTROLS,
    DEPLOYABLE,
    METHODS,
    PROTECTIONS,
    Family,
    FedpcSection,
    FedplccSection,
    Method,
    NoSettings,
    Predicts,
    Protection,
)
from agreement.derived.cohorts import first_round, has_common_group
from agreement.registry.compatibility import check_protection_serves, plan_for
from agreement.registry.round_plan import ExchangeKind, PayloadKind, load_half
from algorithms.feddbp import FeddbpLoss
from algorithms.method_losses import (
    CrossEntropyLoss,
    FedpcLoss,
    FedplccLoss,
    FedplvmLoss,
    FedprotoLoss,
    FplLoss,
    PfplLoss,
)
from algorithms.pfpl import Weighting
from crypto.plain import SCHEME as PLAIN
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.local_federation import LocalFederation
from secure_client.exchanges.clusters import ClusterHalf
from secure_client.exchanges.peers import PeerExchange, PeerHalf
from secure_client.exchanges.sum_halves import SumHalf
from secure_client.exchanges.sums import SumExchange
from secure_client.session import _EXCHANGES
from secure_client.training import recipes
from secure_client.training.recipes import build_objective, build_recipe
from secure_server.aggregator import Aggregator
from secure_server.exchanges.exchange import Exchange
from tests.support.small import small_data
from tests.support.summed import method_agreement

OBJECTIVES: dict[Method, Any] = {
    Method.PFPL: PfplLoss,
    Method.FEDPC: FedpcLoss,
    Method.FEDDBP: FeddbpLoss,
    Method.FEDPLCC: FedplccLoss,
    **dict.fromkeys((Method.FEDPROTO, Method.FEDPROTO_AVERAGED), FedprotoLoss),
    Method.FPL: FplLoss,
    Method.FEDPLVM: FedplvmLoss,
    **dict.fromkeys((Method.FEDAVG, Method.FEDPROX, Method.FEDBN), CrossEntropyLoss),
    **dict.fromkeys((Method.FEDPER, Method.FEDREP, Method.DITTO), CrossEntropyLoss),
    **dict.fromkeys((Method.LOCAL, Method.SELF), PfplLoss),
}
AT_A_SITE: dict[Family, Any] = {
    Family.PEERS: PeerExchange,
    Family.GROUPS: SumExchange,
    Family.SUMS: SumExchange,
}
AGREED = [method for method in METHODS.values() if method is not Method.AVERAGE]
"""``average`` is an agreement on ``fedpc``."""
SERVED = [method for method in AGREED if method.traits.family in AT_A_SITE]


@pytest.mark.parametrize("method", AGREED)
def test_every_method_has_its_objective_and_exchanges_what_its_traits_say(method: Method) -> None:
    agreement = method_agreement(method)
    recipe = build_recipe(agreement)
    assert type(recipe.objective) is OBJECTIVES[method]
    assert (recipe.averages, recipe.predicts) == (method.traits.averaged, method.traits.predicts)


@pytest.mark.parametrize("predicts", Predicts)
@pytest.mark.parametrize(
    ("method", "section"), [(Method.FEDPC, FedpcSection), (Method.FEDPLCC, FedplccSection)]
)
def test_a_site_predicts_with_the_model_that_is_agreed_on(
    method: Method, section: Any, predicts: Predicts
) -> None:
    changes: dict[str, Any] = {method.value: section(predicts=predicts)}
    assert build_recipe(method_agreement(method, **changes)).predicts is predicts


def test_sites_of_every_deployable_method_predict_with_the_model_that_they_trained_last() -> None:
    assert {method.traits.predicts for method in DEPLOYABLE} == {Predicts.TRAINED}


@pytest.mark.parametrize("method", SERVED)
def test_method_runs_in_exchange_of_its_family(method: Method) -> None:
    agreement, family = method_agreement(method), method.traits.family
    with LocalFederation(agreement, small_data(agreement)) as federation:
        assert type(federation.sites[0].session._exchange) is AT_A_SITE[family]
    assert first_round(agreement) == (0 if family is Family.GROUPS else 1)
    assert has_common_group(agreement) is (family in (Family.SUMS, Family.CLUSTERS))


def test_methods_differ_in_what_they_exchange_or_compute() -> None:
    """Methods differ in what they exchange or in what a site computes; controls alone train as PFPL does, without its
    answers.
    """
    courses: dict[Method, Hashable] = {
        method: (method.traits, build_recipe(method_agreement(method))) for method in AGREED
    }
    assert len({courses[method] for method in set(AGREED) - CONTROLS}) == len(AGREED) - len(CONTROLS) == 14
    assert {method for method in AGREED if method.traits.family is Family.ALONE} == CONTROLS


def test_deployable_methods_differ_in_family_or_layout() -> None:
    layouts = {(method.traits.family, method_agreement(method).layout) for method in DEPLOYABLE}
    assert len(layouts) == len(DEPLOYABLE) == 4


@pytest.mark.parametrize("method", [Method.PFPL, Method.FEDPC, Method.FEDDBP])
def test_an_unknown_family_is_refused(method: Method, tmp_path: Path) -> None:
    agreement = method_agreement(method)
    pfpl = agreement.pfpl
    another: Any = "another"
    unknown = replace(method, traits=replace(method.traits, family=another))
    with LocalFederation(agreement, small_data(agreement)) as federation:
        session = federation.sites[0].session
        session._agreement = agreement.model_copy(update={"method": unknown})
        with pytest.raises(ValueError, match="rounds"):
            _ = session._agreement.plan
        with pytest.raises(ValueError, match="rounds"):
            Aggregator(session._agreement, tmp_path)
    with pytest.raises(KeyError, match="another"):
        check_protection_serves(unknown, pfpl.weighting, Protection.PLAIN)


@pytest.mark.parametrize("method", AGREED)
def test_an_unknown_method_is_refused(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = method_agreement(method)
    unknown = agreement.model_copy(update={"method": replace(method, name="another")})
    monkeypatch.delitem(recipes.BUILT_IN, method)
    for build in (build_objective, build_recipe):
        for each in (unknown, agreement):
            with pytest.raises(ValueError, match="objective"):
                build(each)


@pytest.mark.parametrize("method", sorted(CONTROLS, key=str))
def test_nobody_runs_what_a_site_does_alone(method: Method, tmp_path: Path) -> None:
    agreement = method_agreement(Method.PFPL)
    with LocalFederation(agreement, small_data(agreement)) as federation:
        session = federation.sites[0].session
        session._agreement = agreement.model_copy(update={"method": method})
        with pytest.raises(ValueError, match="rounds"):
            Aggregator(session._agreement, tmp_path)
        with pytest.raises(ValueError, match="rounds"):
            _ = session._agreement.plan


def test_built_in_methods_are_known_by_name() -> None:
    assert {getattr(Method, name.upper().replace("-", "_")) for name in METHODS} == set(METHODS.values())
    assert [str(method) for method in METHODS.values()] == list(METHODS)
    assert all(method.built_in for method in METHODS.values())
    assert not replace(Method.FEDAVG).built_in


@pytest.mark.parametrize("known", [*METHODS.values(), *PROTECTIONS.values()])
def test_what_is_compared_by_identity_has_no_copies(known: Method | Protection) -> None:
    assert pickle.loads(pickle.dumps(known)) is known  # noqa: S301 (bytes of this very test)
    assert copy.copy(known) is known
    assert copy.deepcopy(known) is known


def test_no_other_method_is_taken_for_a_built_in_one_by_its_name() -> None:
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(replace(Method.PFPL))


@pytest.mark.parametrize("method", AGREED)
def test_a_methods_settings_are_those_of_its_section(method: Method) -> None:
    agreement = method_agreement(method)
    settings = agreement.settings_of(method)
    assert type(settings) is method.settings
    sections = (agreement.pfpl, agreement.fedpc, agreement.feddbp, agreement.fedplcc, agreement.baselines)
    assert any(settings is each for each in sections) is (method.settings is not NoSettings)


def test_every_built_in_method_trains_somehow_at_a_site() -> None:
    assert set(recipes.BUILT_IN) == set(METHODS.values())


def config(sites: int, threshold: float = 1e-4, protection: Protection = Protection.CKKS) -> SimulationConfig:
    return SimulationConfig(
        dataset="digits", sites=sites, agreement_threshold=threshold, protection=protection
    )


def test_a_threshold_below_what_so_many_sites_can_tell_is_refused() -> None:
    config(200)
    config(20, 1e-5)
    with pytest.raises(ValidationError, match=r"agreement_threshold.*2\.391e-05"):
        config(200, 1e-5)
    config(200, 1e-5, Protection.PLAIN)


def test_more_sites_than_the_modulus_has_room_for_are_refused() -> None:
    with pytest.raises(ValidationError, match="257"):
        config(257)
    config(257, protection=Protection.MASKED)


@pytest.mark.parametrize("method", sorted(DEPLOYABLE, key=str))
@pytest.mark.parametrize("protection", PROTECTIONS.values())
@pytest.mark.parametrize("weighting", Weighting)
def test_deployed_method_has_rounds_under_every_protection_that_serves_its_family(
    method: Method, protection: Protection, weighting: Weighting
) -> None:
    if method.traits.family not in protection.families:
        with pytest.raises(ValueError, match=protection.name):
            plan_for(method, protection, weighting)
        return
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


BUILT_IN_HALVES = [
    (protection, family) for protection in PROTECTIONS.values() for family in sorted(protection.families)
]


SITE_HALVES: dict[ExchangeKind, type] = {
    ExchangeKind.PEERS: PeerHalf,
    ExchangeKind.SUMS: SumHalf,
    ExchangeKind.CLUSTERS: ClusterHalf,
}


@pytest.mark.parametrize(("protection", "family"), BUILT_IN_HALVES, ids=str)
def test_built_in_halves_have_one_name_at_both_parties(protection: Protection, family: Family) -> None:
    for uniform in (False, True):
        plan = protection.plan(family, uniform=uniform)
        assert plan is not None
        server = load_half(plan.server_half, Exchange)
        if plan.exchange is not ExchangeKind.PEER_SUMS:  # the site's exchange is masked itself
            site = load_half(plan.site_half, SITE_HALVES[plan.exchange])
            assert site.__name__ == server.__name__


@pytest.mark.parametrize(("protection", "family"), BUILT_IN_HALVES, ids=str)
def test_no_protection_but_plain_has_cleartext_rounds(protection: Protection, family: Family) -> None:
    for uniform in (False, True):
        plan = protection.plan(family, uniform=uniform)
        assert plan is not None
        clear = plan.row_scheme == PLAIN or plan.values in (PayloadKind.VECTOR, PayloadKind.LOCAL_CLUSTERS)
        assert clear is (protection is Protection.PLAIN)


@pytest.mark.parametrize(
    "reference", ["secure_client.exchanges.sums:Forgotten", "secure_client.forgotten:Half", ""]
)
def test_load_half_unknown_reference_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match="half"):
        load_half(reference, object)


def test_site_knows_every_exchange() -> None:
    assert _EXCHANGES.keys() == set(ExchangeKind)
