"""Sites and the coordinator killed in every phase of a run: the exact result, or a round given up cleanly.

All runs are masked but for one, since masking has the most phases.

Each process dies between two named steps of its own (:mod:`tests.support.killed_party`), and comes back by the plain
command. What must come out is a run of the same agreement in one process, in which nobody dies, or in which the same
answers stay away: all keys, masks and rotations are other ones there, so no mask can be left in what is equal.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from agreement import Protection
from agreement.derived.payload_shapes import limits_of
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.output.site_files import read_prototypes
from tests.conformance.drop_outs import Loss
from tests.e2e.expected_run import check_rounds, check_run, expected, fedpc_excess, pfpl_excess
from tests.e2e.federations import (
    fedpc_agreement,
    peer_sum_agreement,
    small_agreement,
    small_sites,
    two_kinds_of_sites,
)
from tests.e2e.killings import COORDINATOR, Killings, see_through, see_through_without
from tests.support.forked_processes import Nursery
from tests.support.killed_party import Point, When
from tests.support.processes import Federation

pytestmark = pytest.mark.full

PRESENCE, SHARES, VALUES = Phase.PRESENCE, Phase.SHARES, Phase.VALUES
SURVIVORS, UNMASK, RESULT = Phase.SURVIVORS, Phase.UNMASK, Phase.RESULT

SITES_DIE: Killings = (
    ("site-1", Point(When.MADE, Phase.ROSTER, 0)),  # it has made the group's secret
    ("site-2", Point(When.KEPT, Phase.SECRET, 0)),
    ("site-3", Point(When.MADE, PRESENCE, 0)),
    ("site-4", Point(When.KEPT, PRESENCE, 0)),
    ("site-5", Point(When.MADE, VALUES, 0)),
    ("site-6", Point(When.KEPT, VALUES, 0)),
    ("site-7", Point(When.SENT, VALUES, 0)),
    ("site-8", Point(When.ASKED, PRESENCE, 1)),
    ("site-1", Point(When.MADE, PRESENCE, 1)),
    ("site-2", Point(When.KEPT, PRESENCE, 1)),
    ("site-3", Point(When.MADE, SHARES, 1)),
    ("site-4", Point(When.KEPT, SHARES, 1)),
    ("site-5", Point(When.SENT, SHARES, 1)),
    ("site-6", Point(When.MADE, VALUES, 1)),
    ("site-7", Point(When.KEPT, VALUES, 1)),
    ("site-8", Point(When.SENT, VALUES, 1)),
    ("site-1", Point(When.MADE, SURVIVORS, 1)),
    ("site-2", Point(When.KEPT, SURVIVORS, 1)),
    ("site-3", Point(When.SENT, SURVIVORS, 1)),
    ("site-4", Point(When.MADE, UNMASK, 1)),
    ("site-5", Point(When.KEPT, UNMASK, 1)),
    ("site-6", Point(When.SENT, UNMASK, 1)),
    ("site-2", Point(When.NOTING, RESULT, 1)),
    ("site-7", Point(When.MADE, RESULT, 1)),
    ("site-8", Point(When.KEPT, RESULT, 1)),
    ("site-1", Point(When.SENT, RESULT, 1)),
)

COORDINATOR_DIES: Killings = tuple(
    (COORDINATOR, point)
    for point in (
        Point(When.RECEIVED, Phase.ROSTER, 0, "site-1"),  # with the group's secret
        Point(When.TAKEN, Phase.ROSTER, 0, "site-1"),
        Point(When.RECEIVED, Phase.SECRET, 0, "site-2"),
        Point(When.TAKEN, Phase.SECRET, 0, "site-2"),
        Point(When.BEGUN, PRESENCE, 0),
        Point(When.TAKEN, PRESENCE, 0, "site-2"),
        Point(When.RECEIVED, VALUES, 0, "site-3"),
        Point(When.COMPUTED, RESULT, 0),
        Point(When.BEGUN, PRESENCE, 1),  # with the groups
        Point(When.BEGUN, SHARES, 1),
        Point(When.TAKEN, SHARES, 1, "site-4"),
        Point(When.BEGUN, VALUES, 1),
        Point(When.BEGUN, SURVIVORS, 1),
        Point(When.RECEIVED, SURVIVORS, 1, "site-5"),
        Point(When.BEGUN, UNMASK, 1),
        Point(When.TAKEN, UNMASK, 1, "site-6"),
        Point(When.COMPUTED, RESULT, 1),
        Point(When.BEGUN, RESULT, 1),
        Point(When.RECEIVED, RESULT, 1, "site-1"),
    )
)


PLAIN_DIES: Killings = (
    ("site-3", Point(When.KEPT, VALUES, 0)),
    (COORDINATOR, Point(When.COMPUTED, RESULT, 0)),
    ("site-2", Point(When.MADE, VALUES, 1)),
    (COORDINATOR, Point(When.COMPUTED, RESULT, 1)),
    ("site-5", Point(When.KEPT, RESULT, 1)),
)


@pytest.mark.parametrize(
    ("protection", "count", "killings"),
    [
        pytest.param(Protection.MASKED, 8, SITES_DIE, id="sites"),
        pytest.param(Protection.MASKED, 6, COORDINATOR_DIES, id="coordinator"),
        pytest.param(Protection.PLAIN, 6, PLAIN_DIES, id="plain"),
    ],
)
def test_fedpc_killed_in_each_phase_gives_the_same_result(
    protection: Protection, count: int, killings: Killings, nursery: Nursery, tmp_path: Path
) -> None:
    agreement, sites = fedpc_agreement(rounds=2, protection=protection), two_kinds_of_sites(count)
    wanted = expected(agreement, sites, tmp_path / "undisturbed")
    with Federation(tmp_path / "run", agreement, sites, nursery=nursery) as federation:
        see_through(federation, killings)
        check_run(federation, wanted)
        assert fedpc_excess(federation) <= 1.0
        assert (
            fedpc_excess(federation, without=["site-3"]) > 1e6
        )  # it would show if one's values were missing
    assert [(each.attempt, len(each.groups), each.abandoned) for each in wanted.rounds] == [(1, 2, False)] * 2


LOSSES = (
    Loss("site-10", 0, PRESENCE),
    Loss("site-9", 0, VALUES),  # the clustering is repeated without it
    Loss("site-3", 1, PRESENCE),
    Loss("site-4", 1, RESULT),
    Loss("site-5", 2, SHARES),
    Loss("site-2", 2, UNMASK, answer_lost=True),
    Loss("site-7", 3, VALUES, answer_lost=True),
    Loss("site-8", 3, SURVIVORS, answer_lost=True),
    Loss("site-3", 4, SURVIVORS),
    Loss("site-4", 4, PRESENCE, answer_lost=True),
)
"""The first two join the odd sites, of whom then five of six go on each time, and three of the four even ones."""


def test_fedpc_round_without_absent_sites_completes(nursery: Nursery, tmp_path: Path) -> None:
    agreement, sites = fedpc_agreement(rounds=5), two_kinds_of_sites(10)
    wanted = expected(agreement, sites, tmp_path / "simulation", LOSSES)
    with Federation(tmp_path / "run", agreement, sites, stopped_clock=True, nursery=nursery) as federation:
        see_through_without(federation, LOSSES, wanted, gate="site-1")
        check_run(federation, wanted)
        assert fedpc_excess(federation) <= 1.0
    assert [len(each.sites) for each in wanted.rounds] == [9, 10, 10, 9, 10]
    assert all(each.attempt == 1 and not each.abandoned for each in wanted.rounds)
    assert [len(group) for group in wanted.rounds[-1].groups] == [6, 4]


TOO_MANY_LOSSES = (
    Loss("site-2", 1, UNMASK),
    Loss("site-4", 1, UNMASK, answer_lost=True),  # of its group two are left, who cannot unmask the sum
    Loss("site-6", 3, SHARES),  # of the holders of class 4 two are left, too few to hide in a sum
    Loss("site-3", 4, VALUES),
    Loss("site-5", 4, VALUES, answer_lost=True),  # of its group two are left, too few to hide in a sum
)


def test_fedpc_round_with_too_many_absent_is_repeated_or_abandoned(nursery: Nursery, tmp_path: Path) -> None:
    agreement, sites = fedpc_agreement(rounds=5), two_kinds_of_sites(8)
    wanted = expected(agreement, sites, tmp_path / "simulation", TOO_MANY_LOSSES)
    with Federation(tmp_path / "run", agreement, sites, stopped_clock=True, nursery=nursery) as federation:
        see_through_without(federation, TOO_MANY_LOSSES, wanted, gate="site-1")
        check_run(federation, wanted)
        assert fedpc_excess(federation) <= 1.0
    odd, even = ("site-1", "site-3", "site-5", "site-7"), ("site-2", "site-4", "site-6", "site-8")
    assert [(each.attempt, each.groups, each.withheld, each.abandoned) for each in wanted.rounds] == [
        (1, (odd, even), (), True),
        (1, (odd,), ("3", "4"), False),  # the two are not asked again yet, and so their group sits out
        (2, (odd, ("site-2", "site-4", "site-8")), ("4",), False),
        (2, (even,), (), False),
        (1, (odd, even), (), False),
    ]


PFPL_DIES: Killings = (
    ("site-1", Point(When.MADE, VALUES, 1)),
    ("site-2", Point(When.KEPT, VALUES, 1)),
    (COORDINATOR, Point(When.COMPUTED, RESULT, 1)),
    ("site-3", Point(When.MADE, RESULT, 1)),
    ("site-4", Point(When.KEPT, RESULT, 1)),
    (COORDINATOR, Point(When.BEGUN, VALUES, 2)),
    ("site-1", Point(When.SENT, VALUES, 2)),
    (COORDINATOR, Point(When.TAKEN, VALUES, 2, "site-2")),
    (COORDINATOR, Point(When.BEGUN, RESULT, 2)),
    ("site-2", Point(When.SENT, RESULT, 2)),
)


def test_pfpl_killed_in_each_phase_gives_the_same_result(nursery: Nursery, tmp_path: Path) -> None:
    agreement, sites = small_agreement(rounds=2, protection=Protection.MASKED), small_sites(4)
    wanted = expected(agreement, sites, tmp_path / "undisturbed")
    with Federation(tmp_path / "run", agreement, sites, nursery=nursery) as federation:
        see_through(federation, PFPL_DIES)
        check_rounds(federation, wanted)
        assert pfpl_excess(federation, sites) <= 1.0
        for site in sites:  # trained on targets that another rotation left off by its rounding
            saved, simulated = federation.prototypes(site.name), read_prototypes(wanted.site(site.name))
            np.testing.assert_allclose(saved.local, simulated.local, atol=1e-6)


PEERS_DIE: Killings = (
    ("site-1", Point(When.MADE, Phase.ROSTER, 0)),
    ("site-2", Point(When.KEPT, PRESENCE, 1)),
    ("site-3", Point(When.MADE, SHARES, 1)),
    ("site-4", Point(When.KEPT, SHARES, 1)),
    ("site-1", Point(When.MADE, VALUES, 1)),
    (COORDINATOR, Point(When.TAKEN, VALUES, 1, "site-2")),
    ("site-2", Point(When.KEPT, VALUES, 1)),
    ("site-3", Point(When.KEPT, SURVIVORS, 1)),
    (COORDINATOR, Point(When.BEGUN, UNMASK, 1)),
    ("site-4", Point(When.KEPT, UNMASK, 1)),
    (COORDINATOR, Point(When.COMPUTED, RESULT, 1)),
    ("site-1", Point(When.MADE, RESULT, 1)),
    ("site-2", Point(When.KEPT, RESULT, 1)),
    ("site-3", Point(When.SENT, VALUES, 2)),
    (COORDINATOR, Point(When.BEGUN, RESULT, 2)),
    ("site-4", Point(When.SENT, RESULT, 2)),
)


def test_peer_sum_killed_in_each_phase_leaves_no_group_secret_on_disk(
    nursery: Nursery, tmp_path: Path
) -> None:
    agreement, sites = peer_sum_agreement(rounds=2), small_sites(4)
    wanted = expected(agreement, sites, tmp_path / "undisturbed")
    with Federation(tmp_path / "run", agreement, sites, nursery=nursery) as federation:
        see_through(federation, PEERS_DIE)
        check_run(federation, wanted)
        assert pfpl_excess(federation, sites) <= 1.0
        assert not sealed_on_disk(federation)


PEERS_LOST = (
    Loss("site-5", 1, SHARES),
    Loss("site-4", 2, VALUES, answer_lost=True),
    Loss("site-5", 3, SURVIVORS, answer_lost=True),
    Loss("site-4", 4, UNMASK),
)


def test_peer_sum_without_an_absent_site_completes(nursery: Nursery, tmp_path: Path) -> None:
    agreement, sites = peer_sum_agreement(rounds=5), small_sites(5)
    wanted = expected(agreement, sites, tmp_path / "simulation", PEERS_LOST)
    with Federation(tmp_path / "run", agreement, sites, stopped_clock=True, nursery=nursery) as federation:
        see_through_without(federation, PEERS_LOST, wanted, gate="site-1")
        check_run(federation, wanted)
        assert pfpl_excess(federation, sites) <= 1.0
    # The first two losses leave two holders of a class, which the second attempt withholds.
    assert [(each.attempt, each.withheld) for each in wanted.rounds] == [
        (2, ("9",)),
        (2, ("5", "6")),
        *[(1, ())] * 3,
    ]
    assert not any(each.abandoned for each in wanted.rounds)


def test_search_of_disks_finds_the_secret_of_rotations(nursery: Nursery, tmp_path: Path) -> None:
    agreement, sites = small_agreement(rounds=1, protection=Protection.MASKED), small_sites(3)
    with Federation(tmp_path / "run", agreement, sites, nursery=nursery) as federation:
        see_through(federation, ())
        assert sealed_on_disk(federation)


def sealed_on_disk(federation: Federation) -> set[str]:
    """Return the parties whose database has a request or an answer of SECRET, or a maker's sealed secrets."""
    found, limits = set(), limits_of(federation.agreement)
    tables = {"coordinator": ("uploads", "content"), **dict.fromkeys(federation.names, ("answers", "answer"))}
    for name, (table, column) in tables.items():
        state = (
            federation.root / "coordinator" if name == "coordinator" else federation.folder(name)
        ) / "state"
        (path,) = state.glob("*.sqlite")
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            rows = database.execute(f"SELECT phase, {column} FROM {table}").fetchall()  # noqa: S608 (names above)
        assert any(phase == Phase.ROSTER for phase, _ in rows)
        rosters = [
            codec.decode_roster_answer(bytes(kept), limits)
            for phase, kept in rows
            if phase == Phase.ROSTER and kept
        ]
        if any(phase == Phase.SECRET for phase, _ in rows) or any(each.keys for each in rosters):
            found.add(name)
    return found
