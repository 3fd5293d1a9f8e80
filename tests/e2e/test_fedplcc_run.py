"""FedPLCC between processes with certificates of their own, some of them killed: the simulated run, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agreement import Protection
from protoseal_wire.messages import Phase
from secure_client.output.site_files import read_prototypes
from secure_client.output.site_log import read_site_log
from tests.e2e.expected_run import check_run, expected
from tests.e2e.federations import check_predictions, fedplcc_agreement, two_kinds_of_sites
from tests.e2e.killings import COORDINATOR, Killings, see_through
from tests.support.forked_processes import Nursery
from tests.support.killed_party import Point, When
from tests.support.processes import Federation

pytestmark = pytest.mark.full

SITES = two_kinds_of_sites(12)[::2]
"""Six of one kind: so alike that a class's prototypes make several clusters with three sites each."""
MASKED_DIES: Killings = (
    ("site-3", Point(When.KEPT, Phase.DIRECTIONS, 1)),
    (COORDINATOR, Point(When.BEGUN, Phase.SHARES, 1)),  # it has assigned, and does so again
    ("site-5", Point(When.MADE, Phase.SHARES, 1)),  # it was told
    ("site-7", Point(When.KEPT, Phase.VALUES, 1)),
)
PLAIN_DIES: Killings = (
    ("site-1", Point(When.MADE, Phase.VALUES, 1)),
    (COORDINATOR, Point(When.COMPUTED, Phase.RESULT, 1)),
    ("site-5", Point(When.KEPT, Phase.RESULT, 1)),
)


@pytest.mark.parametrize(
    ("protection", "killings"),
    [
        pytest.param(Protection.MASKED, MASKED_DIES, id="masked"),
        pytest.param(Protection.PLAIN, PLAIN_DIES, id="plain"),
    ],
)
def test_processes_give_the_result_of_the_simulation(
    protection: Protection, killings: Killings, nursery: Nursery, tmp_path: Path
) -> None:
    agreement = fedplcc_agreement(rounds=2, protection=protection)
    wanted = expected(agreement, SITES, tmp_path / "simulation")
    names = tuple(sorted(site.name for site in SITES))
    with Federation(tmp_path / "run", agreement, SITES, nursery=nursery) as federation:
        see_through(federation, killings)
        check_run(federation, wanted)
        last = read_site_log(federation.folder("site-1")).rounds[-1]
        assert last.accuracy is not None
        saved = read_prototypes(federation.folder("site-3"))
        assert saved.cluster_labels is not None
        several = np.bincount(saved.cluster_labels, minlength=len(agreement.classes))
        assert several.max() > 1
        assert ((several > 0) == saved.has_personal).all()
        if protection is Protection.MASKED:
            check_predictions(federation, SITES[1], wanted.site(SITES[1].name), "--by", "prototype")
    assert [(each.attempt, each.groups, each.abandoned) for each in wanted.rounds] == [
        (1, (names,), False)
    ] * 2
