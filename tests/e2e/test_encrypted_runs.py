"""FedDBP, FedPC and FedPLCC under `ckks` between processes, some of which are killed.

Each has a certificate of its own.

Noise in ciphertexts is fresh each time, so that results are those of a simulation under `plain` nearly, and not bit for
bit; accuracies are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agreement import Agreement, Protection
from protoseal.splits import SiteArrays
from protoseal_wire.messages import Phase
from secure_client.output.site_files import read_prototypes
from secure_client.output.site_log import read_site_log
from tests.e2e.expected_run import Expected, expected
from tests.e2e.federations import (
    feddbp_agreement,
    fedpc_agreement,
    fedplcc_agreement,
    small_sites,
    two_kinds_of_sites,
)
from tests.e2e.killings import COORDINATOR, Killings, see_through
from tests.support.forked_processes import Nursery
from tests.support.killed_party import Point, When
from tests.support.processes import Federation

pytestmark = pytest.mark.full

ROUNDS = 2
FURTHEST = {"feddbp": 1e-5, "fedpc": 1e-5, "fedplcc": 1e-2}
"""Bounds for any coordinate after two rounds.

Contrast divides by 0.07 the noise that the first round added, in each training step.
"""
RUNS: dict[str, tuple[Callable[..., Agreement], tuple[SiteArrays, ...], Killings]] = {
    "feddbp": (
        feddbp_agreement,
        small_sites(4),
        (
            ("site-1", Point(When.MADE, Phase.VALUES, 1)),
            (COORDINATOR, Point(When.COMPUTED, Phase.RESULT, 1)),
            ("site-4", Point(When.MADE, Phase.RESULT, 1)),  # it has fused, and is asked again
        ),
    ),
    "fedpc": (
        fedpc_agreement,
        two_kinds_of_sites(7),
        (
            ("site-1", Point(When.MADE, Phase.MEANS, 1)),  # it leads its group
            (COORDINATOR, Point(When.BEGUN, Phase.MEANS, 1)),  # it adds up again
            ("site-2", Point(When.KEPT, Phase.MEANS, 2)),
            ("site-4", Point(When.KEPT, Phase.VALUES, 1)),
        ),
    ),
    "fedplcc": (
        fedplcc_agreement,
        two_kinds_of_sites(12)[::2],
        (
            ("site-3", Point(When.KEPT, Phase.DIRECTIONS, 1)),
            (COORDINATOR, Point(When.BEGUN, Phase.VALUES, 1)),  # it has assigned, and does so again
            ("site-7", Point(When.MADE, Phase.VALUES, 1)),
        ),
    ),
}


@pytest.mark.parametrize("method", RUNS)
def test_processes_under_ckks_give_the_result_of_the_plain_simulation(
    method: str, nursery: Nursery, tmp_path: Path
) -> None:
    make, sites, killings = RUNS[method]
    wanted = expected(make(rounds=ROUNDS, protection=Protection.PLAIN), sites, tmp_path / "simulation")
    agreement = make(rounds=ROUNDS, protection=Protection.CKKS)
    with Federation(tmp_path / "run", agreement, sites, nursery=nursery) as federation:
        see_through(federation, killings)
        check_as_simulated(federation, wanted, sites, FURTHEST[method])


def check_as_simulated(
    federation: Federation, wanted: Expected, sites: tuple[SiteArrays, ...], furthest: float
) -> None:
    """Prototypes nearly, accuracies and withheld classes exactly."""
    for site in sites:
        folder, simulated = federation.folder(site.name), wanted.site(site.name)
        got, want = read_prototypes(folder), read_prototypes(simulated)
        np.testing.assert_array_equal(got.has_personal, want.has_personal)
        np.testing.assert_allclose(got.personal, want.personal, rtol=0.0, atol=furthest)
        log, plain_log = read_site_log(folder), read_site_log(simulated)
        assert [each.round for each in log.rounds] == list(range(1, ROUNDS + 1))
        assert [each.attempt for each in log.rounds] == [1] * ROUNDS
        for each, plain in zip(log.rounds, plain_log.rounds, strict=True):
            assert each.accuracy_classifier == plain.accuracy_classifier
            assert each.accuracy_prototype == plain.accuracy_prototype
            assert each.withheld == plain.withheld
