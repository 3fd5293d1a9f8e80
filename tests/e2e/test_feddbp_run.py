"""FedDBP between processes with certificates of their own, some of which are killed: the simulated run, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from agreement import Protection
from protoseal_wire.messages import Phase
from secure_client.output.site_log import read_site_log
from tests.e2e.expected_run import check_run, expected, feddbp_excess
from tests.e2e.federations import check_predictions, feddbp_agreement, small_sites
from tests.e2e.killings import COORDINATOR, Killings, see_through
from tests.support.forked_processes import Nursery
from tests.support.killed_party import Point, When
from tests.support.processes import Federation

SITES = small_sites(4)
MASKED_DIES: Killings = (
    ("site-1", Point(When.MADE, Phase.VALUES, 1)),  # trained, with its scores
    ("site-3", Point(When.SENT, Phase.UNMASK, 1)),
    (COORDINATOR, Point(When.COMPUTED, Phase.RESULT, 1)),
    ("site-4", Point(When.MADE, Phase.RESULT, 1)),  # it has fused, and is asked again
)
PLAIN_DIES: Killings = (
    (COORDINATOR, Point(When.COMPUTED, Phase.RESULT, 1)),
    ("site-3", Point(When.KEPT, Phase.RESULT, 1)),
)


@pytest.mark.parametrize(
    ("protection", "killings"),
    [
        pytest.param(Protection.MASKED, MASKED_DIES, id="masked"),
        pytest.param(Protection.PLAIN, PLAIN_DIES, id="plain", marks=pytest.mark.full),
    ],
)
def test_processes_give_the_result_of_the_simulation(
    protection: Protection, killings: Killings, nursery: Nursery, tmp_path: Path
) -> None:
    agreement = feddbp_agreement(rounds=2, protection=protection)
    wanted = expected(agreement, SITES, tmp_path / "simulation")
    names = tuple(site.name for site in SITES)
    with Federation(tmp_path / "run", agreement, SITES, nursery=nursery) as federation:
        see_through(federation, killings)
        check_run(federation, wanted)
        for site in names:
            assert feddbp_excess(federation, site) <= 1.0
        assert feddbp_excess(federation, "site-1", without=["site-3"]) > 1e6
        assert read_site_log(federation.folder("site-1")).rounds[-1].accuracy_prototype is not None
        if protection is Protection.MASKED:
            check_predictions(federation, SITES[1], wanted.site(SITES[1].name), "--by", "prototype")
    assert [(each.attempt, each.groups, each.abandoned) for each in wanted.rounds] == [
        (1, (names,), False)
    ] * 2
