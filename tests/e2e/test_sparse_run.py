"""A sparse graph between processes, one of which is killed and stays away: the sum of the others, bit for bit.

The run in one process that it is compared with draws other holders, masks and keys.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agreement import Agreement, MaskingSection, Protection
from protoseal_wire.messages import Phase
from tests.conformance.drop_outs import Loss
from tests.e2e.expected_run import check_run, expected, feddbp_excess
from tests.e2e.federations import feddbp_agreement, small_sites
from tests.e2e.killings import see_through_without
from tests.support.forked_processes import Nursery
from tests.support.processes import Federation

pytestmark = pytest.mark.full

SITES = small_sites(7)
LOSSES = (
    Loss("site-3", 1, Phase.VALUES),  # others hold shares of its mask key, and open it
    Loss("site-5", 2, Phase.UNMASK, answer_lost=True),
)


def sparse() -> Agreement:
    """Three of six others hold a site's shares, of which two open a secret; one may drop out."""
    masking = MaskingSection(complete_up_to=4, max_colluding=0.0, max_dropped=0.2)
    assert masking.graph(7, 7).sparse
    return Agreement.model_validate(
        {**dict(feddbp_agreement(rounds=3, protection=Protection.MASKED)), "masking": masking}
    )


def test_sparse_graph_killed_site_is_left_out_of_the_sum(nursery: Nursery, tmp_path: Path) -> None:
    agreement = sparse()
    wanted = expected(agreement, SITES, tmp_path / "simulation", LOSSES)
    with Federation(tmp_path / "run", agreement, SITES, stopped_clock=True, nursery=nursery) as federation:
        see_through_without(federation, LOSSES, wanted, gate="site-1")
        check_run(federation, wanted)
        assert feddbp_excess(federation, "site-1") <= 1.0
        assert feddbp_excess(federation, "site-1", without=["site-3"]) > 1e3
    names = tuple(site.name for site in SITES)
    assert [each.attempt for each in wanted.rounds] == [1, 1, 1]
    assert not any(each.abandoned for each in wanted.rounds)
    answered = wanted.answered(1, Phase.UNMASK)
    assert answered == [name for name in names if name != "site-3"]
