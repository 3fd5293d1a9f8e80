"""Bounds between ``max_colluding`` of ``[masking]`` and ``min_holders``, the fewest sites in a sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agreement import ConfigError, MaskingSection, Protection
from agreement.derived.cohorts import min_group_size
from crypto.pairwise.attempt import threshold
from tests.support.config_files import AGREEMENT, COORDINATOR, FEDPC, load_party, write
from tests.support.grouped import grouped_agreement
from tests.support.simulations import config_in


def test_no_list_that_a_large_run_takes_has_too_many_who_collude() -> None:
    masking, roster = MaskingSection(), 500
    colluding = masking.colluding(roster)
    short = [n for n in range(2, roster + 1) if colluding >= 2 * threshold(n) - n]
    assert (colluding, short[-1]) == (50, 148)
    assert masking.min_group_size(roster) == 149
    assert not [n for n in range(149, roster + 1) if n - colluding < 2]


@pytest.mark.parametrize(("roster", "fewest"), [(2, 1), (100, 1), (101, 32), (256, 77)])
def test_where_no_graph_is_sparse_any_list_will_do(roster: int, fewest: int) -> None:
    assert MaskingSection().min_group_size(roster) == fewest
    assert MaskingSection(complete_up_to=roster).min_group_size(roster) == 1


def test_a_site_insists_on_the_larger_of_both_under_masks_alone() -> None:
    masked, plain = grouped_agreement(), grouped_agreement(Protection.PLAIN)
    assert [min_group_size(masked, roster) for roster in (10, 500)] == [3, 149]
    assert [min_group_size(plain, roster) for roster in (10, 500)] == [3, 3]
    holders = grouped_agreement(min_holders=200, min_sites=200)
    assert min_group_size(holders, 500) == 200


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, False),
        ({"protection": "plain"}, True),
        ({"fedpc": {"groups": 1}}, True),
        ({"method": "feddbp", "averaging": {}}, True),
        ({"min_holders": 44, "min_sites": 44}, True),
        ({"min_holders": 43, "min_sites": 43}, False),
        ({"masking": {"max_colluding": 0.005}}, True),
        ({"masking": {"complete_up_to": 150}}, True),
    ],
)
def test_groups_that_may_be_too_small_are_refused_where_the_roster_is_known(
    tmp_path: Path, changes: dict[str, Any], fits: bool
) -> None:
    """15 of 150 may collude, which takes 44."""
    write(tmp_path / "agreement.toml", AGREEMENT | FEDPC | {"protection": "masked"} | changes)
    sites = [f"site-{n}" for n in range(150)]
    if fits:
        assert len(load_party(tmp_path, COORDINATOR, sites=sites).sites) == 150
        return
    with pytest.raises(
        ConfigError,
        match=r"15 of 150 sites, and a group of \d+ does not resist them: set min_holders to 44 or more",
    ):
        load_party(tmp_path, COORDINATOR, sites=sites)


def test_a_run_too_small_against_its_colluders_is_refused(tmp_path: Path) -> None:
    """A third, rounded up, is one too many."""
    masking = {"max_colluding": 0.333}
    write(tmp_path / "agreement.toml", AGREEMENT | FEDPC | {"protection": "masked", "masking": masking})
    with pytest.raises(
        ConfigError,
        match="35 of 103 sites, and a group of 3 does not resist them: lower max_colluding, or raise",
    ):
        load_party(tmp_path, COORDINATOR, sites=[f"site-{n}" for n in range(103)])


@pytest.mark.parametrize("method", ["average", "feddbp", "pfpl"])
def test_simulation_refuses_a_group_too_small_for_its_colluders(tmp_path: Path, method: str) -> None:
    flags = {"protection": "masked", "sites": 150, "rounds": 1, "dataset": "digits"}
    with pytest.raises(ConfigError, match="15 of 150 sites, and a group of 3 does not resist them"):
        config_in("", tmp_path / "out", method=method, compare=("fedpc",), **flags)
    assert config_in("", tmp_path / "out", method=method, **flags).sites == 150
    assert (
        config_in("", tmp_path / "out", method=method, compare=("fedpc",), **flags | {"sites": 100}).sites
        == 100
    )
