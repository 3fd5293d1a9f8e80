"""Sections [table] and [masking]: features of columns, and bounds between colluding sites and min_holders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agreement import Agreement, ConfigError, MaskingSection, Protection, TableSection
from agreement.derived.cohorts import min_group_size
from agreement.schema.differences import differing_fields, fields_of
from agreement.toml_loading import validate
from crypto.pairwise.attempt import threshold
from protoseal_wire.codec.calls import MOST_FIELDS
from tests.support.config_files import AGREEMENT, COORDINATOR, FEDPC, load_party, write
from tests.support.grouped import grouped_agreement
from tests.support.simulations import config_in

AGE = {"name": "age", "scale": [54.0, 9.0]}
SEX = {"name": "sex", "categories": ["0", "1"]}
CHOL = {"name": "chol", "missing": {"impute": 240.0}}
PAIN = {"name": "cp", "categories": ["1", "2", "3"], "drop_first": True, "missing": {"impute": "2"}}
PRIVACY = {"clip": 1.0, "noise_multiplier": 1.0}


def section(*columns: Mapping[str, Any]) -> TableSection:
    return validate(TableSection, {"columns": list(columns)}, source="agreement.toml", directory=Path())


def agreed(*columns: Mapping[str, Any], **changes: Any) -> Agreement:
    table = AGREEMENT | {
        "preprocessing": None,
        "training": {"model": "mlp"},
        "table": {"columns": list(columns)},
    }
    return validate(Agreement, table | changes, source="agreement.toml", directory=Path())


def test_features_follow_the_order_of_columns_and_categories() -> None:
    assert section(PAIN, AGE, SEX, CHOL).features == (
        *("cp = 2", "cp = 3", "cp is missing"),
        "age",
        *("sex = 0", "sex = 1"),
        *("chol", "chol is missing"),
    )


@pytest.mark.parametrize(
    ("column", "at"),
    [
        ({"name": ""}, "columns.0.name"),
        ({"name": " age"}, "columns.0.name"),
        ({"name": "sex", "categories": ["0"]}, "columns.0"),
        ({"name": "sex", "categories": ["0", "0"]}, "columns.0"),
        ({"name": "sex", "categories": ["0", 1]}, "columns.0.categories.1"),
        ({"name": "age", "missing": {"impute": 1.0, "mark": False}}, "columns.0.missing"),
        ({"name": "age", "scale": [True, 1.0]}, "columns.0.scale"),
        ({"name": "sex", "categories": ["0", "1"], "scale": [0.5, 1.0]}, "columns.0"),
        ({"name": "sex", "categories": ["0", "1"], "missing": {"impute": "2"}}, "columns.0"),
        ({"name": "sex", "categories": ["0", "1"], "missing": {"impute": 1.0}}, "columns.0"),
        ({"name": "age", "drop_first": True}, "columns.0"),
        ({"name": "age", "missing": {"impute": "old"}}, "columns.0"),
        ({"name": "age", "missing": {"impute": 1e999}}, "columns.0.missing"),
        ({"name": "age", "missing": "drop"}, "columns.0.missing"),
        ({"name": "age", "scale": [54.0, 0.0]}, "columns.0.scale"),
        ({"name": "age", "scale": [54.0]}, "columns.0.scale"),
        ({"name": "age", "scale": "sites"}, "columns.0.scale"),
        ({"name": "age", "scales": "site"}, "columns.0.scales"),
    ],
)
def test_a_column_that_makes_no_sense_is_refused_by_its_field(column: dict[str, Any], at: str) -> None:
    with pytest.raises(ConfigError) as refused:
        section(column)
    assert [problem.startswith(at) for problem in refused.value.problems] == [True]


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        section(AGE, SEX, AGE)
    assert "'age'" in str(refused.value)


def test_a_table_of_thousands_of_columns_is_validated_at_once() -> None:
    wide = section(*({"name": f"gene {number}"} for number in range(20_000)))
    assert len(wide.features) == 20_000


@pytest.mark.parametrize(
    "changed",
    [
        [SEX, AGE],
        [AGE],
        [AGE, SEX, CHOL],
        [AGE | {"name": "Age"}, SEX],
        [AGE | {"scale": [54.0, 9.5]}, SEX],
        [AGE | {"scale": [54.5, 9.0]}, SEX],
        [AGE | {"scale": "site"}, SEX],
        [{"name": "age"}, SEX],
        [AGE | {"missing": "leave out"}, SEX],
        [AGE | {"missing": {"impute": 1.0}}, SEX],
        [AGE | {"missing": {"impute": 2.0}}, SEX],
        [AGE, SEX | {"categories": ["1", "0"]}],
        [AGE, SEX | {"categories": ["0", "1", "2"]}],
        [AGE, SEX | {"drop_first": True}],
    ],
)
def test_every_agreed_field_changes_the_hash(changed: list[dict[str, Any]]) -> None:
    assert agreed(*changed).hash() != agreed(AGE, SEX).hash()


def test_a_party_is_told_which_column_differs() -> None:
    other = fields_of(agreed(AGE, SEX | {"categories": ["1", "0"]}))
    (line,) = differing_fields(agreed(AGE, SEX), other)
    assert line.startswith("table.columns.1.categories: ")


def test_the_fields_of_a_wide_table_fit_a_reply() -> None:
    for columns in (50, 51, 5000):
        wide = agreed(*(PAIN | {"name": f"gene {number}"} for number in range(columns)))
        assert len(fields_of(wide)) <= MOST_FIELDS
        assert Agreement.from_json(wide.to_json(), source="") == wide


def test_classes_change_the_hash() -> None:
    assert agreed(AGE, classes=["b", "a"]).hash() != agreed(AGE, classes=["a", "b"]).hash()


def test_statistics_of_a_site_are_refused_by_name_where_noise_is_agreed() -> None:
    private = {"protection": "plain", "privacy": PRIVACY}
    assert agreed(AGE, **private).hash()
    with pytest.raises(ConfigError) as refused:
        agreed(AGE, SEX | {"scale": "site"}, **private)
    assert "'sex'" in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"preprocessing": {"image_size": 8, "channels": 1, "mean": [0.5], "std": [0.5]}}, "[preprocessing]"),
        ({"training": {"model": "small-cnn"}}, "'small-cnn'"),
        ({"table": None}, "'mlp'"),
    ],
)
def test_inputs_and_models_that_do_not_fit_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        agreed(AGE, **changes)
    assert named in str(refused.value)


def test_no_list_that_a_large_run_takes_has_too_many_who_collude() -> None:
    masking, roster = MaskingSection(), 500
    colluding = masking.colluding(roster)
    short = [n for n in range(2, roster + 1) if colluding >= 2 * threshold(n) - n]
    assert (colluding, short[-1]) == (50, 148)
    assert masking.fewest_resisting(roster) == 149
    assert not [n for n in range(149, roster + 1) if n - colluding < 2]


@pytest.mark.parametrize(("roster", "fewest"), [(2, 1), (100, 1), (101, 32), (256, 77)])
def test_where_no_graph_is_sparse_any_list_will_do(roster: int, fewest: int) -> None:
    assert MaskingSection().fewest_resisting(roster) == fewest
    assert MaskingSection(complete_up_to=roster).fewest_resisting(roster) == 1


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
        match="min_holders to 44",
    ):
        load_party(tmp_path, COORDINATOR, sites=sites)


def test_a_run_too_small_against_its_colluders_is_refused(tmp_path: Path) -> None:
    """A third, rounded up, is one too many."""
    masking = {"max_colluding": 0.333}
    write(tmp_path / "agreement.toml", AGREEMENT | FEDPC | {"protection": "masked", "masking": masking})
    with pytest.raises(
        ConfigError,
        match="max_colluding",
    ):
        load_party(tmp_path, COORDINATOR, sites=[f"site-{n}" for n in range(103)])


@pytest.mark.parametrize("method", ["average", "feddbp", "pfpl"])
def test_simulation_refuses_a_group_too_small_for_its_colluders(tmp_path: Path, method: str) -> None:
    flags = {"protection": "masked", "sites": 150, "rounds": 1, "dataset": "digits"}
    with pytest.raises(ConfigError, match="max_colluding"):
        config_in("", tmp_path / "out", method=method, compare=("fedpc",), **flags)
    assert config_in("", tmp_path / "out", method=method, **flags).sites == 150
    assert (
        config_in("", tmp_path / "out", method=method, compare=("fedpc",), **flags | {"sites": 100}).sites
        == 100
    )
