"""``client check`` of tables: counts, ranges and missing values of each column, and columns in another unit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agreement import ConfigError, load_agreement
from secure_client.config import load_site
from secure_client.data import load_site_data
from secure_client.data.sources import read_sources
from secure_client.data.table import describe_table, parse_table
from secure_client.site_check import check_site
from tests.support.refusals import refuses
from tests.support.tables import AGE, CHOL, CLASSES, PAIN, SEX, save, section, written

ROWS = "age,sex,chol,pain,label\n30,1,200,none,ill\n50,1,?,?,ill\n40,1,260,much,healthy\n"
AGREEMENT = """
federation = "net"
run = "one"
method = "fedpc"
protection = "plain"
rounds = 1
classes = ["healthy", "ill"]
dim = 4
[averaging]
parameters = 1
[training]
model = "mlp"
[[table.columns]]
name = "age"
scale = [40.0, 5.0]
[[table.columns]]
name = "chol"
missing = "leave out"
"""
SITE = """
agreement = "agreement.toml"
name = "north"
coordinator = "localhost:1"
ca = "ca.pem"
certificate = "certificate.pem"
key = "key.pem"
state_dir = "state"
out = "out"
data = "table:north.csv"
"""


def test_describe_table_has_counts_ranges_and_missing_values(tmp_path: Path) -> None:
    told = describe_table(
        parse_table(save(tmp_path, ROWS), section(AGE, SEX, CHOL, PAIN), written(), CLASSES)
    )
    rows, age, sex, chol, pain = told.split("; ")
    assert rows == "3 rows, 1 of them left out, 7 features"
    assert age == "age: 30 to 50, mean 40"
    assert sex == "sex: '0' 0, '1' 3"
    assert chol == "chol: 200 to 260, mean 230, 1 missing"
    assert pain == "pain: 'none' 1, 'some' 0, 'much' 1, 1 missing"


def test_describe_table_constant_column_is_named(tmp_path: Path) -> None:
    told = describe_table(
        parse_table(save(tmp_path, "age,label\n7,ill\n7,ill\n"), section(AGE), written(), CLASSES)
    )
    assert told.endswith("age: always 7")


def test_check_units_column_in_another_unit_is_refused_until_named(tmp_path: Path) -> None:
    """Cholesterol in mmol/l, where mg/dl is agreed."""
    path = save(tmp_path, "chol,label\n" + "5.1,ill\n4.8,healthy\n" * 5)
    agreed = section(CHOL | {"scale": [210.0, 40.0]})
    with refuses(path, "'chol'"):
        read_sources(f"table:{path}", data_root=None, agreed=agreed, classes=CLASSES)
    named = written(far_from_scale=["chol"])
    assert read_sources(f"table:{path}", data_root=None, agreed=agreed, classes=CLASSES, written=named)


def test_check_units_test_table_in_another_unit_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, "chol,label\n201,ill\n188,ill\n")
    test = save(tmp_path, "chol,label\n" + "5.1,ill\n" * 10, "test.csv")
    with refuses(test):
        read_sources(
            f"table:{path}",
            data_root=None,
            agreed=section(CHOL | {"scale": [210.0, 40.0]}),
            classes=CLASSES,
            written=written(test=str(test)),
        )


def test_read_sources_format_beside_the_table_of_a_site_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, "age,label\n40,ill\n")
    beside = save(tmp_path, "[table]\nmissing_in = {age = ['40']}\n", path.with_suffix(".toml").name)
    with refuses(beside):
        read_sources(f"table:{path}", data_root=None, agreed=section(AGE), classes=CLASSES, written=written())


@pytest.mark.parametrize(
    ("unit", "ok"), [("", True), ("missing_in = {age = ['40']}\n", True), ("decimal = ','\n", False)]
)
def test_check_site_reads_the_table_in_the_format_of_the_site(tmp_path: Path, unit: str, ok: bool) -> None:
    save(tmp_path, AGREEMENT, "agreement.toml")
    save(tmp_path, SITE + f"[table]\n{unit}", "site.toml")
    save(tmp_path, "age;chol;label\n40.5;200;ill\n39;?;ill\n41;0;healthy\n")
    findings = {each.what: each for each in check_site(load_site(tmp_path / "site.toml"), lambda: b"")}
    assert findings["table"].ok == ok
    assert ("chol: 0 to 200, mean 100, 1 missing" in findings["table"].detail) == ok


def test_load_site_format_without_a_table_is_refused(tmp_path: Path) -> None:
    save(tmp_path, AGREEMENT, "agreement.toml")
    site = SITE.replace("table:north.csv", "npz:north.npz") + '[table]\nlabel = "num"\n'
    with pytest.raises(ConfigError) as refused:
        load_site(save(tmp_path, site, "site.toml"))
    assert "[table]" in str(refused.value)


@pytest.mark.parametrize("features", [2, 3])
def test_load_site_data_arrays_are_features_before_scaling(tmp_path: Path, features: int) -> None:
    agreement = load_agreement(save(tmp_path, AGREEMENT, "agreement.toml"))
    np.savez(tmp_path / "a.npz", x_train=np.full((2, features), 45.0), y_train=[0, 1])
    if features == 2:
        data = load_site_data(f"npz:{tmp_path}/a.npz", None, agreement)
        assert data.train[0][0].tolist() == [1.0, 45.0]
        return
    with refuses("a.npz"):
        load_site_data(f"npz:{tmp_path}/a.npz", None, agreement)


def test_load_site_data_user_function_is_no_table(tmp_path: Path) -> None:
    agreement = load_agreement(save(tmp_path, AGREEMENT, "agreement.toml"))
    with refuses("my_rows:build"):
        load_site_data("my_rows:build", None, agreement)
