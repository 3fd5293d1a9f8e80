"""A site in a sum over all sites: who is in it, what a result may say, and what it reports as withheld."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agreement import Agreement, FeddbpSection, Method, Protection
from crypto.protection import Payload
from protoseal_wire.messages import RoundStart
from secure_client.errors import Violation
from secure_client.exchanges.sums import SumExchange
from secure_client.output.site_log import SiteRound
from tests.algorithms import feddbp_reference as paper
from tests.secure_client.conftest import OpenSites
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.scripted_sums import ScriptedSums
from tests.support.small import DIM
from tests.support.summed import method_agreement

A, B, C, D = EVERYONE


def feddbp(**changes: Any) -> Agreement:
    section = FeddbpSection(own=0.75, top_channels=3)
    return grouped_agreement(Protection.MASKED, method=Method.FEDDBP, feddbp=section, **changes)


@pytest.fixture
def play(open_sites: OpenSites) -> ScriptedSums:
    opened = open_sites(feddbp())
    opened.set_up(*EVERYONE)
    return opened


def method_of(play: ScriptedSums, name: str) -> SumExchange:
    method = play.site(name).session._exchange
    assert isinstance(method, SumExchange)
    return method


@pytest.mark.parametrize("groups", [((A, B, C),), ((A, B, D),), ((A, C, D),)])
def test_all_members_of_the_roster_are_the_group(
    play: ScriptedSums, groups: tuple[tuple[str, ...], ...]
) -> None:
    with pytest.raises(Violation, match="members"):
        play.presence(A, start=RoundStart(groups, b""))
    play.presence(A, start=RoundStart((EVERYONE,), b""))  # nothing of them is kept


def test_a_method_that_groups_sites_takes_the_coordinators_word(open_sites: OpenSites) -> None:
    play = open_sites(grouped_agreement())
    play.set_up(*EVERYONE)
    assert play.presence(A, start=RoundStart(((A, B, C),), b"")).site == A


def test_a_site_fuses_what_it_is_given_with_its_own_and_trains_towards_that(play: ScriptedSums) -> None:
    begun = play.attempt(*EVERYONE)
    result = play.result_of(begun.carried_out(EVERYONE), begun, EVERYONE)
    vector, has = result.arrays
    for name in EVERYONE:
        learner = play.site(name).learner
        rows, counts = learner.train_round(1)
        wanted = paper.fused(
            rows.tolist(),
            (counts > 0).tolist(),
            learner.values.scores().tolist(),
            vector.reshape(3, DIM).tolist(),
            (has > 0).tolist(),
            0.75,
            3,
        )
        play.give_result(name, result)
        base = learner.received.base
        assert base is not None
        np.testing.assert_allclose(base.rows, wanted, rtol=1e-12, atol=1e-15)
        play.restart(name)
        restarted = play.site(name).learner.received.base
        assert restarted is not None
        np.testing.assert_array_equal(restarted.rows, base.rows)
    bases = [play.site(name).learner.received.base for name in EVERYONE]
    assert len({base.rows.tobytes() for base in bases if base is not None}) == len(EVERYONE)
    assert len({base.hash for base in bases if base is not None}) == 1  # all were given the same


def test_a_mean_that_nobody_within_the_bounds_has_is_refused(play: ScriptedSums) -> None:
    begun = play.attempt(*EVERYONE)
    result = play.result_of(begun.carried_out(EVERYONE), begun, EVERYONE)
    vector, has = result.arrays
    long = vector.copy()
    long[:DIM] = play.agreement.norm_bound
    with pytest.raises(Violation, match="norm"):
        play.give_result(A, Payload(result.scheme, arrays=(long, has)))
    assert play.site(A).learner.received.base_hash == b""


# Models alone


@pytest.fixture
def fedavg(open_sites: OpenSites) -> ScriptedSums:
    opened = open_sites(method_agreement(Method.FEDAVG, Protection.MASKED))
    opened.set_up(*EVERYONE)
    return opened


def result_for(play: ScriptedSums, has: float) -> Payload:
    averaged = play.site(A).learner.values.averaged_part()
    return Payload("pairwise/1", arrays=(averaged, np.array([has, 0.0, 0.0])))


def test_prototypes_that_nobody_adds_up_are_refused(
    fedavg: ScriptedSums, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = fedavg.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    with pytest.raises(Violation, match="prototypes"):
        fedavg.give_result(A, result_for(fedavg, 1.0))
    monkeypatch.setattr(fedavg.site(A).session, "_on_round", lambda _: None)
    fedavg.give_result(A, result_for(fedavg, 0.0))
    assert fedavg.site(A).learner.received.base_hash != b""


@pytest.mark.parametrize(
    ("method", "withheld"), [(Method.FEDAVG, ()), (Method.FEDBN, ()), (Method.FEDPROTO, ("1", "2"))]
)
def test_only_prototypes_can_be_withheld(
    open_sites: OpenSites, method: Method, withheld: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    play = open_sites(method_agreement(method, Protection.MASKED))
    play.set_up(*EVERYONE)
    told: list[SiteRound] = []
    monkeypatch.setattr(play.site(A).session, "_on_round", told.append)
    play.attempt(*EVERYONE).share(*EVERYONE)
    layout = play.agreement.layout
    has = np.array([1.0, 0.0, 0.0]) if layout.classes else np.zeros(3)
    vector = layout.contribution(
        np.zeros((layout.classes, DIM)), play.site(A).learner.values.averaged_part(), 1
    )
    play.give_result(A, Payload("pairwise/1", arrays=(vector[: layout.means], has)))
    assert [each.withheld for each in told] == [withheld]


def test_a_site_with_more_samples_than_are_agreed_counts_as_one_with_the_most(open_sites: OpenSites) -> None:
    """clinic-a has 18, clinic-c 12: the weight that each adds, and what its model is multiplied by."""
    fields = method_agreement(Method.FEDAVG).averaging.model_copy(update={"most_samples": 15})
    play = open_sites(method_agreement(Method.FEDAVG, Protection.PLAIN, averaging=fields))
    play.set_up(*EVERYONE)
    active = play.attempt(*EVERYONE).active
    for name, weight in ((A, 15), (C, 12)):
        payload = play.values(name, active)
        vector = payload.arrays[0]
        assert vector[-1] == weight
        np.testing.assert_allclose(
            vector[:-1] / weight, play.site(name).learner.values.averaged_part(), rtol=1e-12
        )
