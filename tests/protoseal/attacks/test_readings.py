"""Readings of a victim's prototypes and model: exact where the trust model says so, and useless elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from algorithms import fedpc as fedpc_aggregation
from algorithms.fedpc import Groups, mix_groups
from protoseal.attacks import opened_sums
from protoseal.attacks.exchanged_models import read_average, read_models
from protoseal.attacks.opened_sums import read_assignment
from protoseal.attacks.readings import Adversary, LearnedRows, readings, result_readings
from protoseal.attacks.recorded_run import RecordedRun, compute_features
from protoseal_wire.cluster_assignment import read_clusters
from tests.protoseal.attacks.recorded import (
    FEW_RECORDS,
    record_anew,
    recorded,
    recorded_in_clusters,
    recorded_in_groups,
    recorded_large,
    recorded_peer_sum,
)
from tests.support.marks import full_but

VICTIM = "site-2"
EXACT, NEAR, USELESS = "exact", "near", "useless"
COORDINATOR, PEER, HALF, PEERS, COLLUSION = Adversary

EXPECTED: dict[tuple[str, str], dict[Adversary, str]] = {
    ("pfpl", "plain"): {COORDINATOR: EXACT, PEER: NEAR, HALF: EXACT, PEERS: EXACT, COLLUSION: EXACT},
    ("pfpl", "masked"): {COORDINATOR: USELESS, PEER: NEAR, HALF: EXACT, PEERS: EXACT, COLLUSION: EXACT},
    ("pfpl", "ckks"): {COORDINATOR: USELESS, PEER: NEAR, HALF: EXACT, PEERS: EXACT, COLLUSION: EXACT},
    ("feddbp", "plain"): {COORDINATOR: EXACT, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: EXACT},
    ("feddbp", "masked"): {COORDINATOR: NEAR, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: NEAR},
    ("feddbp", "ckks"): {COORDINATOR: USELESS, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: EXACT},
    ("fedpc", "masked"): {COORDINATOR: NEAR, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: NEAR},
    ("fedplcc", "plain"): {COORDINATOR: EXACT, PEER: NEAR, HALF: NEAR, PEERS: NEAR, COLLUSION: EXACT},
    ("fedplcc", "masked"): {COORDINATOR: NEAR, PEER: NEAR, HALF: NEAR, PEERS: NEAR, COLLUSION: EXACT},
    ("fedplcc", "ckks"): {COORDINATOR: USELESS, PEER: NEAR, HALF: NEAR, PEERS: NEAR, COLLUSION: EXACT},
}
"""Nearness of an adversary's best reading to the victim's prototypes, by method and protection."""
IN_GROUPS: dict[str, dict[Adversary, str]] = {
    "plain": {COORDINATOR: EXACT, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: EXACT},
    "masked": {COORDINATOR: NEAR, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: NEAR},
    "ckks": {COORDINATOR: USELESS, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: EXACT},
}
"""Nearness by protection, for FedPC with two groups."""
IN_FULL = {
    ("pfpl", "plain"),
    ("feddbp", "plain"),
    ("feddbp", "ckks"),
    ("fedplcc", "plain"),
    ("fedplcc", "ckks"),
}
"""Readings of one encrypted run, and of one plain run, are enough for `make test`."""
PAIRS = [pytest.param(*pair, marks=pytest.mark.full if pair in IN_FULL else ()) for pair in EXPECTED]


def nearest(run: RecordedRun, learned: LearnedRows) -> np.ndarray[Any, Any]:
    """Return the cosine of each of the victim's prototypes with the nearest row that was read of its class."""
    site, cosines = run.sites[VICTIM], []
    for own, k in zip(site.rows, site.labels, strict=True):
        rows = learned.of_class(k)
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(own)
        cosines.extend([float((rows @ own / np.maximum(lengths, 1e-12)).max())] * bool(len(rows)))
    return np.array(cosines)


def check_nearness(run: RecordedRun, nearness: Mapping[Adversary, str]) -> None:
    for adversary, expected in nearness.items():
        found = readings(run, adversary, VICTIM)
        cosines = max((nearest(run, each) for each in found), key=lambda each: float(np.median(each)))
        if expected == EXACT:
            assert cosines.min() > 1 - 1e-6, adversary
        elif expected == NEAR:
            assert 0.3 < np.median(cosines) < 1 - 1e-6, adversary
        else:
            assert np.abs(np.median(cosines)) < 0.3, adversary


@pytest.mark.parametrize(("method", "protection"), PAIRS)
def test_readings_are_as_near_as_the_trust_model_says(method: str, protection: str) -> None:
    # Few records leave classes with two holders to PFPL, and clusters of one prototype to FedPLCC: other readings.
    record = recorded_large if method in ("pfpl", "fedplcc") else recorded
    check_nearness(record(method, protection), EXPECTED[method, protection])


def test_readings_peer_sum_is_exact_to_all_other_sites_alone() -> None:
    expected = {COORDINATOR: NEAR, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: NEAR}
    check_nearness(recorded_peer_sum(), expected)


@pytest.mark.parametrize("protection", full_but(["plain", "masked", "ckks"], "masked"))
def test_readings_groups_are_as_near_as_the_trust_model_says(protection: str) -> None:
    check_nearness(recorded_in_groups(protection), IN_GROUPS[protection])


@pytest.mark.parametrize("protection", full_but(["plain", "masked"], "masked"))
def test_readings_all_other_sites_solve_for_the_victim(protection: str) -> None:
    """Decryption and rotation do not matter here: the results themselves determine the one unknown site."""
    run = recorded("pfpl", protection)
    (learned,) = readings(run, PEERS, VICTIM)
    np.testing.assert_allclose(learned.rows, run.sites[VICTIM].rows[learned.labels], rtol=0, atol=1e-3)


def test_record_run_ends_with_the_last_round_that_sends_rows() -> None:
    """The second of two rounds of frozen features sends zeros, on which every attack would fail."""
    frozen = {"frozen_extractor": True, "norm": "group"}
    run = record_anew("fedproto", "plain", split=FEW_RECORDS, rounds=2, training=frozen)
    assert run.result(VICTIM)[0].round == 1
    check_nearness(run, {COORDINATOR: EXACT})


# Means of groups and clusters, against means of the sites' true prototypes and models


COORDINATOR, PEER, HALF, PEERS, COLLUSION = Adversary
LARGE, SMALL = ["site-2", "site-4", "site-6", "site-7", "site-8"], ["site-1", "site-3", "site-5"]
FULL = pytest.mark.full
ERROR = 1e-3
"""Fixed-point numbers are multiples of 2⁻¹⁶, and solving and subtracting multiply their error."""

OF_GROUPS: list[tuple[str, Adversary, str, list[str]]] = [
    ("plain", COORDINATOR, "site-2", LARGE),
    ("plain", PEERS, "site-2", ["site-2"]),
    ("plain", PEERS, "site-3", ["site-3"]),
    ("masked", COORDINATOR, "site-2", LARGE),
    ("masked", COORDINATOR, "site-3", SMALL),
    ("plain", HALF, "site-3", ["site-3"]),
    ("masked", HALF, "site-2", ["site-2", "site-8"]),
    ("masked", HALF, "site-3", ["site-3"]),
    ("masked", PEERS, "site-2", ["site-2"]),
    ("masked", PEERS, "site-3", ["site-3"]),
    ("masked", COLLUSION, "site-3", ["site-3", "site-5"]),
    ("ckks", HALF, "site-2", ["site-2", "site-8"]),
    ("ckks", HALF, "site-3", ["site-3"]),
    ("ckks", PEERS, "site-2", ["site-2"]),
    ("ckks", PEERS, "site-3", ["site-3"]),
    ("ckks", PEER, "site-3", ["site-3", "site-5"]),
    ("ckks", COLLUSION, "site-3", ["site-3"]),
]
"""Sites whose mean an adversary reads. Under ``ckks`` site 1 leads its group, and site 2, the victim, its own."""


def mean_over(run: RecordedRun, sites: Sequence[str], number: int) -> np.ndarray[Any, Any]:
    """Return the mean (d,) of a class's true prototypes over those of ``sites`` that have some."""
    rows = [run.sites[site].rows[run.sites[site].labels == number] for site in sites]
    return np.asarray(np.concatenate(rows).mean(axis=0))


def check_rows(learned: LearnedRows, expected: Sequence[np.ndarray[Any, Any]]) -> None:
    assert len(learned.labels)
    np.testing.assert_allclose(learned.rows, np.array(expected), rtol=0, atol=ERROR)


def mixed_by_hand(run: RecordedRun, number: int) -> np.ndarray[Any, Any]:
    """Return equation 7 for the large group and a class that both groups have."""
    large, small = (
        np.concatenate(
            [mean_over(run, group, k) if has[k] else np.zeros(run.agreement.dim) for k in range(10)]
        )
        for group, has in ((LARGE, held(run, LARGE)), (SMALL, held(run, SMALL)))
    )
    cosine = large @ small / np.linalg.norm(large) / np.linalg.norm(small)
    mean, other = mean_over(run, LARGE, number), mean_over(run, SMALL, number)
    return np.asarray((mean + cosine * other) / (1 + cosine))


def held(run: RecordedRun, group: Sequence[str]) -> list[bool]:
    """Return which classes have a mean in a group: those of three members or more."""
    return [sum(k in run.sites[site].labels for site in group) >= 3 for k in range(10)]


@pytest.mark.parametrize(
    ("protection", "adversary", "victim", "sites"),
    [pytest.param(*row, marks=FULL if row[0] == "ckks" else ()) for row in OF_GROUPS],
)
def test_readings_group_mean_less_the_colluding_sites(
    protection: str, adversary: Adversary, victim: str, sites: list[str]
) -> None:
    run = recorded_in_groups(protection)
    learned, model = readings(run, adversary, victim)[-1], [*read_models(run, adversary, victim)][-1]
    check_rows(learned, [mean_over(run, sites, int(k)) for k in learned.labels])
    assert model.sites == len(sites)
    expected = np.mean([run.sites[site].averaged for site in sites], axis=0)
    np.testing.assert_allclose(model.vector, expected, rtol=0, atol=ERROR)


@pytest.mark.parametrize("protection", ["plain", "masked", pytest.param("ckks", marks=FULL)])
def test_readings_one_site_reads_a_mixture_of_groups(protection: str) -> None:
    run = recorded_in_groups(protection)
    (learned,), (model,) = readings(run, PEER, "site-2"), read_models(run, PEER, "site-2")
    both = [int(k) for k in learned.labels if held(run, SMALL)[k]]
    found = np.concatenate([learned.of_class(k) for k in both])
    np.testing.assert_allclose(found, [mixed_by_hand(run, k) for k in both], rtol=0, atol=ERROR)
    assert model.sites == len(run.sites)


COALITION = ("site-2", "site-3", "site-5")
"""The small group without its leader, site 1, and one site of the large one: g + J − 2 = 3 of 8 sites."""


@pytest.mark.parametrize(
    ("protection", "victim", "sites"),
    [
        ("masked", "site-1", COALITION),
        pytest.param("ckks", "site-1", COALITION, marks=FULL),
        pytest.param("ckks", "site-3", ("site-1", "site-5"), marks=FULL),
    ],
)
def test_result_readings_leader_or_one_site_of_each_group_reads_the_last_member(
    protection: str, victim: str, sites: tuple[str, ...]
) -> None:
    run = recorded_in_groups(protection)
    (learned,) = result_readings(run, victim, sites)
    check_rows(learned, [mean_over(run, [victim], int(k)) for k in learned.labels])
    assert learned.details == {"solutions of the groups' mixtures": 1.0}
    model = read_average(run, victim, sites, coordinator=False)
    np.testing.assert_allclose(model.vector, run.sites[victim].averaged, rtol=0, atol=ERROR)


def test_result_readings_sites_of_one_group_solve_nothing() -> None:
    (learned,) = result_readings(recorded_in_groups("masked"), "site-3", ("site-1", "site-5"))
    assert learned.reading == "a mixture of all groups' means"
    assert learned.details == {"solutions of the groups' mixtures": 0.0}


def test_solve_means_other_weights_have_no_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    """The double weighs all groups equally, as no coordinator does that follows the method."""
    monkeypatch.setattr(
        fedpc_aggregation, "similarity_weights", lambda rows: np.full((len(rows),) * 2, 1 / len(rows))
    )
    assert opened_sums.solve_means(replace(recorded_in_groups("masked")), "site-1", COALITION) == ()


@pytest.mark.parametrize("groups", [3, 4])
def test_unmix_groups_three_and_four_groups_have_one_solution(groups: int) -> None:
    """Solve mixtures of groups, two of which lack a class."""
    random = np.random.default_rng(groups)
    has = np.ones((groups, 5), bool)
    has[0, 1] = has[2, 3] = False
    rows = random.uniform(size=(groups, 5, 12)) * has[:, :, None]
    mixed = mix_groups(Groups(rows, has, random.normal(size=(groups, 7))))
    agreement = recorded_in_groups("masked").agreement
    (solution,) = opened_sums.unmix_groups(agreement, mixed, has)
    np.testing.assert_allclose(solution.rows, rows, rtol=0, atol=1e-6)
    np.testing.assert_allclose(mix_groups(solution).theta, mixed.theta, rtol=0, atol=1e-9)


def clusters_by_hand(run: RecordedRun, sites: Sequence[str], victim: str) -> list[np.ndarray[Any, Any]]:
    """Return the mean of the true rows of ``sites`` in each cluster with a row of the victim."""
    assignment = read_assignment(run)
    assert assignment is not None
    assert len(read_clusters(assignment).labels) > len(run.agreement.classes)
    clusters = {each.site: each.clusters for each in assignment.sites}
    return [
        np.concatenate([run.sites[site].rows[clusters[site] == number] for site in sites]).mean(axis=0)
        for number in np.unique(clusters[victim])
    ]


@pytest.mark.parametrize("protection", ["masked", pytest.param("ckks", marks=FULL)])
def test_cluster_readings_less_the_colluding_sites_rows(protection: str) -> None:
    run = recorded_in_clusters(protection)
    for victim in run.sites:
        (learned,) = readings(run, PEERS, victim)
        check_rows(learned, clusters_by_hand(run, [victim], victim))
    (learned,) = readings(run, PEER, "site-2")
    check_rows(learned, clusters_by_hand(run, sorted(set(run.sites) - {"site-1"}), "site-2"))


def test_cluster_readings_coordinator_reads_means() -> None:
    run = recorded_in_clusters("masked")
    _, learned = readings(run, COORDINATOR, "site-2")
    check_rows(learned, clusters_by_hand(run, sorted(run.sites), "site-2"))


@pytest.mark.parametrize("protection", ["masked", pytest.param("ckks", marks=FULL)])
def test_cluster_readings_colluding_coordinator_solves_for_rows(protection: str) -> None:
    run, victim = recorded_in_clusters(protection), "site-2"
    *_, learned = readings(run, COLLUSION, victim)
    check_rows(learned, list(run.sites[victim].rows))


def test_read_assignment_plain_run_has_none() -> None:
    run = recorded_in_clusters("plain")
    assert read_assignment(run) is None
    (learned,) = readings(run, PEERS, "site-2")
    assert learned.reading == "the clusters of all sites"


@pytest.mark.parametrize(
    ("protection", "adversary", "left"),
    [
        ("plain", PEER, 5),
        ("masked", COORDINATOR, 6),
        ("masked", PEER, 5),
        ("masked", PEERS, 1),
        ("masked", COLLUSION, 5),
        pytest.param("ckks", PEER, 5, marks=FULL),
        pytest.param("ckks", PEERS, 1, marks=FULL),
        pytest.param("ckks", COLLUSION, 1, marks=FULL),
    ],
)
def test_read_average_less_colluding_models_by_samples(
    protection: str, adversary: Adversary, left: int
) -> None:
    """Site 1 is the one other site."""
    run, victim = recorded_in_clusters(protection), "site-2"
    model = [*read_models(run, adversary, victim)][-1]
    sites = {6: sorted(run.sites), 5: sorted(set(run.sites) - {"site-1"}), 1: [victim]}[left]
    samples = [len(run.sites[site].train) for site in sites]
    expected = np.average([run.sites[site].averaged for site in sites], axis=0, weights=samples)
    assert model.sites == left
    np.testing.assert_allclose(model.vector, expected, rtol=0, atol=ERROR)


# Rounds


SITE = "site-2"


def test_recorded_run_models_give_the_sent_prototypes() -> None:
    run = record_anew("pfpl", "plain", split=FEW_RECORDS, rounds=2)
    train, models = run.sites[SITE].train, run.models(SITE)
    sent = {run.last_round: run.sites[SITE].received, 1: run.earlier[SITE][0].received}
    assert [*models] == [1, 2]
    for number, model in models.items():
        features = compute_features(model, train.inputs)
        means = [features[train.labels == k].mean(axis=0) for k in range(len(run.agreement.classes))]
        np.testing.assert_allclose(means, sent[number].local, atol=1e-5)


def test_recorded_run_round_zero_has_the_initial_model() -> None:
    run = recorded_in_groups("plain")
    assert [*run.models(SITE)] == [0, 1]
    assert run.upload(SITE, number=0).key != run.upload(SITE).key
