"""Readings from cosines and clusters' sums together, and from FedPLCC's weights: how far they go, and where they end.

The weight of a cluster is its share of the class's samples. Sites that pool their numbers know the total of the class
from a cluster without the victim, and so the victim's number in all the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import least_squares  # type: ignore[import-untyped]  # it ships no types

from agreement import Method, Protection
from agreement.derived.payload_shapes import limits_of
from algorithms.fedplcc import most_norm_hiding
from algorithms.gram_matrix import Float
from algorithms.kmeans import Labels
from crypto.protection import Cohort
from crypto.rotation import class_key, rotate
from protoseal_wire import codec
from protoseal_wire.messages import AssignedRows, Assignment, Phase, PhaseKey
from secure_client.errors import Violation
from secure_client.exchanges.row_protection import rotation_context
from secure_client.protocol.assignment_checks import check_assignment
from tests.adversary.attack import weaken
from tests.adversary.cluster_attacks import begun
from tests.conformance.federations import data_for, grouped_agreement
from tests.conformance.transcripts import record_cluster_run
from tests.support.grouped import EVERYONE
from tests.support.scripted_clusters import ScriptedClusters, clustered_agreement
from tests.support.scripted_coordinator import Cast

SITES, ROWS, DIM = 12, 4, 64
HELPER = EVERYONE[-1]


def prototypes() -> Float:
    """Return one class's prototypes (48, 64), four of each of twelve sites, close together, of lengths 0.7 to 1.3."""
    rng = np.random.default_rng(4)
    rows = np.maximum(np.abs(rng.normal(size=DIM)) + 0.4 * rng.normal(size=(SITES * ROWS, DIM)), 0.0)
    return np.asarray(
        rows / np.linalg.norm(rows, axis=1, keepdims=True) * rng.uniform(0.7, 1.3, (len(rows), 1))
    )


def in_clusters(number: int) -> Labels:
    """Return each prototype's cluster, site by site: adjacent clusters, each of as many sites as there are clusters
    for.
    """
    of_row = np.arange(SITES * ROWS).reshape(ROWS, SITES).T.ravel()
    return np.minimum(of_row // (SITES * ROWS // number), number - 1)


def solved(cosines: Float, sums: Float, clusters: Labels) -> Float:
    """Return the norms of prototypes that fit the inner products of their clusters' sums."""
    number = len(sums)
    members = (clusters == np.arange(number)[:, None]).astype(np.float64)
    products, pairs = sums @ sums.T, np.triu_indices(number)
    start = np.sqrt(np.diag(products) / np.einsum("gi,ij,gj->g", members, cosines, members))[clusters]

    def off(norms: Float) -> Float:
        weighted = members * norms
        return np.asarray((weighted @ cosines @ weighted.T - products)[pairs])

    def slopes(norms: Float) -> Float:
        across = (members * norms) @ cosines
        first, second = pairs
        return np.asarray(members[first] * across[second] + members[second] * across[first])

    found = least_squares(off, start, jac=slopes, xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=300)
    return np.asarray(found.x)


def error(number: int) -> float:
    """Return the largest error of a norm, as a share of it, that is left to who solves for them."""
    rows, clusters = prototypes(), in_clusters(number)
    norms = np.linalg.norm(rows, axis=1)
    units = rows / norms[:, None]
    sums = np.stack([rows[clusters == g].sum(axis=0) for g in range(number)])
    return float(np.abs(solved(units @ units.T, sums, clusters) / norms - 1.0).max())


def assignment(number: int) -> Assignment:
    clusters = in_clusters(number).reshape(SITES, ROWS)
    return Assignment(
        tuple(
            AssignedRows(f"site-{i:02}", np.zeros(ROWS, dtype=np.int64), each)
            for i, each in enumerate(clusters)
        )
    )


def check(number: int, **bounds: int) -> None:
    """Check the assignment as the first site does."""
    cohort = Cohort(
        tuple(f"site-{i:02}" for i in range(SITES)), np.eye(1, 3, dtype=np.bool_).repeat(SITES, 0), 8
    )
    check_assignment(
        clustered_agreement(fedplcc=bounds),
        "site-00",
        cohort,
        np.zeros(ROWS, dtype=np.int64),
        assignment(number),
    )


def test_the_most_sums_that_minimums_allow_reveal_norms_and_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixteen clusters of three sites: 136 equations in 48 norms."""
    assert error(16) < 1e-6
    with pytest.raises(Violation, match="16 clusters for 48 rows"):
        check(16)
    weaken("secure_client.protocol.assignment_checks.check_few", monkeypatch)
    check(16)


def test_the_most_sums_that_sites_accept_do_not_reveal_norms() -> None:
    most = most_norm_hiding(SITES * ROWS)
    assert most == 9
    check(most)
    assert error(most) > 0.01
    with pytest.raises(Violation, match="norms"):
        check(most + 1)
    with pytest.raises(Violation, match="clusters of a class"):
        check(most, most_clusters=most - 1)


@pytest.fixture
def play(tmp_path: Path, cast: Cast) -> Iterator[ScriptedClusters]:
    with ExitStack() as stack:
        yield stack.enter_context(ScriptedClusters(tmp_path, clustered_agreement(), cast))


def test_the_stated_limit_one_site_that_helps_opens_every_prototype(play: ScriptedClusters) -> None:
    """Its seed undoes the rotation; each cluster's sum, less its own, is then d linear equations in the norms."""
    attempt = begun(play)
    attempt.tell(attempt.honest, *EVERYONE)
    units, clusters, secrets = [], [], []
    seed, context = shared(play)
    for each in attempt.assignment.sites:
        if each.site == HELPER:
            continue
        for k in np.unique(each.classes):
            turned = attempt.directions[each.site].arrays[0][each.classes == k]
            units.append(rotate(class_key(seed, context, int(k)), turned, inverse=True))
        clusters.append(each.clusters)
        secrets.append(play.local(each.site).rows)
    found, cluster_of = np.concatenate(units), np.concatenate(clusters)
    others = attempt.summed(EVERYONE) - attempt.put(HELPER)
    for g, total in enumerate(others):
        own = found[cluster_of == g]
        norms = np.linalg.lstsq(own.T, total)[0]
        want = np.concatenate(secrets)[cluster_of == g]
        np.testing.assert_allclose(own * norms[:, None], want, rtol=0.0, atol=1e-7)


def shared(play: ScriptedClusters) -> tuple[bytes, bytes]:
    """Return what every site derives the rotations of the first attempt's directions from."""
    setup, key = play.site(HELPER).session._setup, PhaseKey("run-1", 1, 1, Phase.DIRECTIONS)
    return setup.rotation_seed(), rotation_context(play.agreement, setup, key, key.phase)


def read_exactly(folder: Path, *, weighted: bool) -> tuple[int, int]:
    """Return how many pairs of class and site have all their numbers read in two rounds, and how many there are."""
    holds = np.ones((7, 3), bool)
    holds[:2, 0] = False
    agreement = grouped_agreement(
        Protection.MASKED,
        method=Method.FEDPLCC,
        classes=3,
        dim=12,
        rounds=2,
        norm_bound=40.0,
        fedplcc={"weighted": weighted},
    )
    run = record_cluster_run(agreement, data_for(agreement, holds), folder)
    read = pairs = 0
    for number in (1, 2):
        (told,) = run.told[number, 1]
        assigned = {each.site: each for each in codec.decode_assignment(told, limits_of(agreement)).sites}
        _, labels, weights, _ = run.results[number, "site-7"]
        for k in range(3):
            clusters = np.flatnonzero(labels == k)
            samples = {}
            for site, rows in assigned.items():
                at = rows.clusters[rows.classes == k]
                counts = run.local[number, 1, site].counts[rows.classes == k]
                if len(at):
                    samples[site] = np.array([counts[at == cluster].sum() for cluster in clusters])
            for victim, true in samples.items():
                others = np.sum([each for site, each in samples.items() if site != victim], axis=0)
                without = np.flatnonzero(true == 0)
                pairs += 1
                if len(without):
                    total = others[without[0]] / weights[clusters][without[0]]
                    read += np.array_equal(np.rint(weights[clusters] * total - others), true)
    return int(read), pairs


@pytest.mark.full
def test_the_stated_limit_holders_of_a_class_read_a_sites_numbers_of_samples(tmp_path: Path) -> None:
    assert read_exactly(tmp_path, weighted=True) == (14, 38)


@pytest.mark.full
def test_equal_weights_tell_no_number_of_samples(tmp_path: Path) -> None:
    assert read_exactly(tmp_path, weighted=False) == (0, 38)
