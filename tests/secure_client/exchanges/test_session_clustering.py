"""A site in the clustering: the initial model's prototypes as one row, turned under ``masked``."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import Agreement, Protection
from crypto.protection import Payload
from protoseal_wire.messages import Phase, RoundStart
from secure_client.errors import Violation
from tests.secure_client.conftest import OpenSites
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.scripted_sums import ScriptedSums
from tests.support.small import small_agreement

A, B, C, D = EVERYONE


def rows_of(payloads: dict[str, Payload]) -> NDArray[np.float64]:
    return np.concatenate([payload.arrays[0] for payload in payloads.values()])


def opened(open_sites: OpenSites, agreement: Agreement) -> ScriptedSums:
    play = open_sites(agreement)
    play.set_up(*EVERYONE)
    return play


def test_under_plain_a_site_sends_the_initial_models_prototypes_in_units_of_the_longest(
    open_sites: OpenSites,
) -> None:
    play = opened(open_sites, grouped_agreement(Protection.PLAIN))
    rows = rows_of(play.cluster(*EVERYONE))
    for row, name in zip(rows, EVERYONE, strict=True):
        own, counts = play.site(name).learner.train_round(0)
        np.testing.assert_allclose(row, own.ravel() / (2.0 * np.sqrt(3)), rtol=1e-12)
        np.testing.assert_array_equal(own.any(axis=1), counts > 0)
    assert not rows[2, 16:].any()  # clinic-c has no class 2
    assert (np.linalg.norm(rows, axis=1) <= 1.0).all()


def test_under_masked_the_coordinator_sees_inner_products_alone(open_sites: OpenSites) -> None:
    play = opened(open_sites, grouped_agreement())
    turned = rows_of(play.cluster(*EVERYONE))
    plain = np.stack([play.site(name).learner.train_round(0)[0].ravel() for name in EVERYONE]) / (
        2.0 * np.sqrt(3)
    )
    np.testing.assert_allclose(turned @ turned.T, plain @ plain.T, atol=1e-14)
    assert np.abs(turned - plain).max() > 0.05
    assert np.abs(turned[2, 16:]).max() > 0.001  # where clinic-c has zeros


def test_each_attempt_is_turned_by_a_rotation_of_its_own(
    open_sites: OpenSites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else inner products between attempts, and between rounds, would show how each site moves."""
    play = opened(open_sites, grouped_agreement())
    first, second = (rows_of(play.cluster(*EVERYONE, attempt=attempt)) for attempt in (1, 2))
    np.testing.assert_allclose(second @ second.T, first @ first.T, atol=1e-14)
    assert np.abs(first @ second.T - first @ first.T).max() > 0.05
    monkeypatch.setattr("secure_client.exchanges.row_protection.rotation_context", lambda *_: b"the same")
    third, fourth = (rows_of(play.cluster(*EVERYONE, attempt=attempt)) for attempt in (3, 4))
    np.testing.assert_allclose(third @ fourth.T, first @ first.T, atol=1e-14)


def test_clustering_has_no_result_and_no_steps_of_a_masked_sum(open_sites: OpenSites) -> None:
    play = opened(open_sites, grouped_agreement())
    active = play.begin(*EVERYONE, round_number=0)
    for phase in (Phase.RESULT, Phase.SHARES, Phase.SURVIVORS, Phase.UNMASK):
        with pytest.raises(Violation, match=phase.name):
            play.ask(A, phase, b"", round_number=0)
    play.values(A, active, round_number=0)
    with pytest.raises(Violation, match="RESULT"):
        play.ask(A, Phase.RESULT, b"", round_number=0)


@pytest.mark.parametrize(
    "start", [RoundStart((EVERYONE,)), RoundStart(base=bytes(32))], ids=["groups", "base"]
)
def test_clustering_that_starts_from_groups_or_a_base_is_refused(
    open_sites: OpenSites, start: RoundStart
) -> None:
    play = opened(open_sites, grouped_agreement())
    with pytest.raises(Violation, match="round 0"):
        play.presence(A, round_number=0, start=start)


def test_clustering_is_refused_after_training_began(open_sites: OpenSites) -> None:
    play = opened(open_sites, grouped_agreement())
    play.cluster(*EVERYONE)
    play.attempt(*EVERYONE)
    with pytest.raises(Violation, match="attempt 2"):
        play.presence(A, round_number=0, attempt=2)
    with pytest.raises(Violation, match="begun"):
        play.give_roster(A, play.statements(EVERYONE), attempt=2)


def test_a_roster_after_the_clustering_is_refused(open_sites: OpenSites) -> None:
    """Another roster would bring another seed: the same prototypes under two rotations, among others."""
    play = opened(open_sites, grouped_agreement())
    play.cluster(*EVERYONE)
    with pytest.raises(Violation, match="begun"):
        play.give_roster(A, play.statements((A, B, C)), attempt=2)


def test_a_site_absent_from_the_clustering_takes_part_in_the_rounds(open_sites: OpenSites) -> None:
    play = opened(open_sites, grouped_agreement())
    play.cluster(A, B, C)
    play.play_sum(*EVERYONE)
    assert play.site(D).learner.received.base_hash == play.site(A).learner.received.base_hash


def test_a_method_without_groups_has_no_clustering(open_sites: OpenSites) -> None:
    play = opened(open_sites, small_agreement(Protection.MASKED))
    with pytest.raises(Violation, match="agreed 2"):
        play.presence(A, round_number=0)


def test_a_seed_that_is_none_is_refused(open_sites: OpenSites, monkeypatch: pytest.MonkeyPatch) -> None:
    """A faulty maker sealed the seed, which nobody can use."""
    monkeypatch.setattr("secure_client.protocol.setup.make_group_secret", lambda _: (bytes(31), b""))
    play = open_sites(grouped_agreement())
    with pytest.raises(Violation, match="31"):
        play.set_up(*EVERYONE)
