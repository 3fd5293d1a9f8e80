"""Methods between processes with certificates of their own, some of which are killed: the simulated run, bit for bit.

Noise in ciphertexts is fresh each time, so that results under `ckks` are those of a simulation under `plain` nearly;
accuracies are the same. FedPC and PFPL die in more phases in :mod:`tests.e2e.test_killed_in_each_phase`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agreement import Agreement, MaskingSection, Protection
from protoseal.splits import SiteArrays
from protoseal_wire.messages import Phase
from secure_client.output.site_files import read_prototypes
from secure_client.output.site_log import read_site_log
from tests.conformance.drop_outs import Loss
from tests.e2e.expected_run import Expected, check_run, expected, feddbp_excess
from tests.e2e.federations import (
    check_predictions,
    feddbp_agreement,
    fedpc_agreement,
    fedplcc_agreement,
    small_sites,
    two_kinds_of_sites,
)
from tests.e2e.killings import COORDINATOR, Killings, see_through, see_through_without
from tests.support.forked_processes import Nursery
from tests.support.killed_party import Point, When
from tests.support.processes import Federation

MASKED, PLAIN = Protection.MASKED, Protection.PLAIN
DIRECTIONS, SHARES, VALUES, UNMASK, RESULT = (
    Phase.DIRECTIONS,
    Phase.SHARES,
    Phase.VALUES,
    Phase.UNMASK,
    Phase.RESULT,
)
ROUNDS = 2
FEDDBP_SITES = small_sites(4)
FEDDBP_DIES: dict[Protection, Killings] = {
    MASKED: (
        ("site-1", Point(When.MADE, VALUES, 1)),  # trained, with its scores
        ("site-3", Point(When.SENT, UNMASK, 1)),
        (COORDINATOR, Point(When.COMPUTED, RESULT, 1)),
        ("site-4", Point(When.MADE, RESULT, 1)),  # it has fused, and is asked again
    ),
    PLAIN: (
        (COORDINATOR, Point(When.COMPUTED, RESULT, 1)),
        ("site-3", Point(When.KEPT, RESULT, 1)),
    ),
}
FEDPLCC_SITES = two_kinds_of_sites(12)[::2]
"""Six of one kind: so alike that a class's prototypes make several clusters with three sites each."""
FEDPLCC_DIES: dict[Protection, Killings] = {
    MASKED: (
        ("site-3", Point(When.KEPT, DIRECTIONS, 1)),
        (COORDINATOR, Point(When.BEGUN, SHARES, 1)),  # it has assigned, and does so again
        ("site-5", Point(When.MADE, SHARES, 1)),  # it was told
        ("site-7", Point(When.KEPT, VALUES, 1)),
    ),
    PLAIN: (
        ("site-1", Point(When.MADE, VALUES, 1)),
        (COORDINATOR, Point(When.COMPUTED, RESULT, 1)),
        ("site-5", Point(When.KEPT, RESULT, 1)),
    ),
}
ENCRYPTED: dict[str, tuple[Callable[..., Agreement], tuple[SiteArrays, ...], Killings]] = {
    "feddbp": (
        feddbp_agreement,
        FEDDBP_SITES,
        (
            ("site-1", Point(When.MADE, VALUES, 1)),
            (COORDINATOR, Point(When.COMPUTED, RESULT, 1)),
            ("site-4", Point(When.MADE, RESULT, 1)),  # it has fused, and is asked again
        ),
    ),
    "fedpc": (
        fedpc_agreement,
        two_kinds_of_sites(7),
        (
            ("site-1", Point(When.MADE, Phase.MEANS, 1)),  # it leads its group
            (COORDINATOR, Point(When.BEGUN, Phase.MEANS, 1)),  # it adds up again
            ("site-2", Point(When.KEPT, Phase.MEANS, 2)),
            ("site-4", Point(When.KEPT, VALUES, 1)),
        ),
    ),
    "fedplcc": (
        fedplcc_agreement,
        FEDPLCC_SITES,
        (
            ("site-3", Point(When.KEPT, DIRECTIONS, 1)),
            (COORDINATOR, Point(When.BEGUN, VALUES, 1)),  # it has assigned, and does so again
            ("site-7", Point(When.MADE, VALUES, 1)),
        ),
    ),
}
FURTHEST = {"feddbp": 1e-5, "fedpc": 1e-5, "fedplcc": 1e-2}
"""Bounds for any coordinate after two rounds.

Contrast divides by 0.07 the noise that the first round added, in each training step.
"""
SPARSE_SITES = small_sites(7)
SPARSE_LOSSES = (
    Loss("site-3", 1, VALUES),  # others hold shares of its mask key, and open it
    Loss("site-5", 2, UNMASK, answer_lost=True),
)


@pytest.mark.parametrize("protection", [MASKED, pytest.param(PLAIN, marks=pytest.mark.full)])
def test_feddbp_killed_processes_equal_the_simulation(
    protection: Protection, nursery: Nursery, tmp_path: Path
) -> None:
    agreement, sites = feddbp_agreement(rounds=ROUNDS, protection=protection), FEDDBP_SITES
    wanted = expected(agreement, sites, tmp_path / "simulation")
    with Federation(tmp_path / "run", agreement, sites, nursery=nursery) as federation:
        see_through(federation, FEDDBP_DIES[protection])
        check_run(federation, wanted)
        for site in sites:
            assert feddbp_excess(federation, site.name) <= 1.0
        assert feddbp_excess(federation, "site-1", without=["site-3"]) > 1e6
        assert read_site_log(federation.folder("site-1")).rounds[-1].accuracy_prototype is not None
        if protection is MASKED:
            check_predictions(federation, sites[1], wanted.site(sites[1].name), "--by", "prototype")
    check_one_group(wanted, sites)


@pytest.mark.full
@pytest.mark.parametrize("protection", FEDPLCC_DIES)
def test_fedplcc_killed_processes_equal_the_simulation(
    protection: Protection, nursery: Nursery, tmp_path: Path
) -> None:
    agreement, sites = fedplcc_agreement(rounds=ROUNDS, protection=protection), FEDPLCC_SITES
    wanted = expected(agreement, sites, tmp_path / "simulation")
    with Federation(tmp_path / "run", agreement, sites, nursery=nursery) as federation:
        see_through(federation, FEDPLCC_DIES[protection])
        check_run(federation, wanted)
        assert read_site_log(federation.folder("site-1")).rounds[-1].accuracy is not None
        saved = read_prototypes(federation.folder("site-3"))
        assert saved.cluster_labels is not None
        several = np.bincount(saved.cluster_labels, minlength=len(agreement.classes))
        assert several.max() > 1
        assert ((several > 0) == saved.has_personal).all()
        if protection is MASKED:
            check_predictions(federation, sites[1], wanted.site(sites[1].name), "--by", "prototype")
    check_one_group(wanted, sites)


def check_one_group(wanted: Expected, sites: tuple[SiteArrays, ...]) -> None:
    """Check that every round was one attempt of one group of all sites."""
    names = tuple(sorted(site.name for site in sites))
    assert [(each.attempt, each.groups, each.abandoned) for each in wanted.rounds] == [
        (1, (names,), False)
    ] * ROUNDS


@pytest.mark.full
@pytest.mark.parametrize("method", ENCRYPTED)
def test_encrypted_killed_processes_are_near_the_plain_simulation(
    method: str, nursery: Nursery, tmp_path: Path
) -> None:
    make, sites, killings = ENCRYPTED[method]
    wanted = expected(make(rounds=ROUNDS, protection=PLAIN), sites, tmp_path / "simulation")
    agreement = make(rounds=ROUNDS, protection=Protection.CKKS)
    with Federation(tmp_path / "run", agreement, sites, nursery=nursery) as federation:
        see_through(federation, killings)
        for site in sites:
            check_near(federation.folder(site.name), wanted.site(site.name), FURTHEST[method])


def check_near(folder: Path, simulated: Path, furthest: float) -> None:
    """Prototypes nearly, accuracies and withheld classes exactly."""
    got, want = read_prototypes(folder), read_prototypes(simulated)
    np.testing.assert_array_equal(got.has_personal, want.has_personal)
    np.testing.assert_allclose(got.personal, want.personal, rtol=0.0, atol=furthest)
    log, plain_log = read_site_log(folder), read_site_log(simulated)
    assert [(each.round, each.attempt) for each in log.rounds] == [(1, 1), (2, 1)]
    for each, plain in zip(log.rounds, plain_log.rounds, strict=True):
        assert each.accuracy_classifier == plain.accuracy_classifier
        assert each.accuracy_prototype == plain.accuracy_prototype
        assert each.withheld == plain.withheld


@pytest.mark.full
def test_sparse_graph_killed_site_is_left_out_of_the_sum(nursery: Nursery, tmp_path: Path) -> None:
    """Three of six others hold a site's shares, of which two open a secret; one may drop out.

    The run in one process that it is compared with draws other holders, masks and keys.
    """
    masking = MaskingSection(complete_up_to=4, max_colluding=0.0, max_dropped=0.2)
    assert masking.graph(7, 7).sparse
    complete = feddbp_agreement(rounds=3, protection=MASKED)
    agreement, sites = Agreement.model_validate({**dict(complete), "masking": masking}), SPARSE_SITES
    wanted = expected(agreement, sites, tmp_path / "simulation", SPARSE_LOSSES)
    with Federation(tmp_path / "run", agreement, sites, stopped_clock=True, nursery=nursery) as federation:
        see_through_without(federation, SPARSE_LOSSES, wanted, gate="site-1")
        check_run(federation, wanted)
        assert feddbp_excess(federation, "site-1") <= 1.0
        assert feddbp_excess(federation, "site-1", without=["site-3"]) > 1e3
    assert [(each.attempt, each.abandoned) for each in wanted.rounds] == [(1, False)] * 3
    assert wanted.answered(1, UNMASK) == [site.name for site in sites if site.name != "site-3"]
