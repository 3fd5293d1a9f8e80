"""Tables as hospitals have them: what is read exactly, and what is refused by file, line and column."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secure_client.data.sources import hash_training_records
from secure_client.data.table import parse_table, read_table
from secure_client.data.table_scale import fit_scale, scale_rows
from secure_client.table_format import format_beside
from tests.support.refusals import refuses
from tests.support.tables import (
    AGE,
    CHOL,
    CLASSES,
    FOUR,
    PAIN,
    SEX,
    features,
    read,
    refused_at,
    save,
    section,
    written,
)

# Values


def test_table_rows_become_features_in_the_agreed_order(tmp_path: Path) -> None:
    source = read(save(tmp_path, FOUR), SEX, AGE, CHOL)
    assert source.train.inputs.tolist() == [[1.0, 63.0, 233.0], [1.0, 57.0, 0.0]]
    assert source.train.labels.tolist() == [1, 0]
    assert source.classes == CLASSES
    assert source.test is None


def test_table_classes_and_categories_keep_the_agreed_order(tmp_path: Path) -> None:
    rows = ["pain,label", "much,ill", "none,healthy", "some,ill"]
    one = read(save(tmp_path, "\n".join(rows)), PAIN)
    other = read(save(tmp_path, "\n".join([rows[0], *rows[:0:-1]])), PAIN)
    assert one.train.inputs[::-1].tolist() == other.train.inputs.tolist()
    assert one.train.labels[::-1].tolist() == other.train.labels.tolist()


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        ("leave out", [[1.0], [3.0]]),
        ({"impute": 7.5}, [[1.0, 0.0], [7.5, 1.0], [3.0, 0.0]]),
    ],
)
@pytest.mark.parametrize("code", ["", " ", "?", "NA", "NaN", "nan", "NULL", '""'])
def test_table_missing_value_follows_the_agreed_rule(
    tmp_path: Path, code: str, rule: object, rows: list[list[float]]
) -> None:
    path = save(tmp_path, f"x,label\n1,ill\n{code},ill\n3,healthy\n")
    assert features(path, {"name": "x", "missing": rule}) == rows


def test_table_imputed_category_is_marked(tmp_path: Path) -> None:
    path = save(tmp_path, "pain,label\nmuch,ill\n?,ill\n")
    assert features(path, PAIN) == [[0, 0, 1, 0], [0, 1, 0, 1]]


def test_table_missing_value_without_a_rule_is_refused(tmp_path: Path) -> None:
    refused_at(save(tmp_path, "age,label\n3,ill\n?,ill\n"), 3, "age", AGE)


def test_table_code_in_missing_in_is_missing_in_its_column_alone(tmp_path: Path) -> None:
    path = save(tmp_path, "age,chol,label\n0,0,ill\n1,0.0,ill\n2,200,ill\n3,-9,ill\n")
    stated = {"missing_in": {"chol": ["0", "-9"]}}
    assert features(path, AGE, CHOL, **stated) == [[2.0, 200.0]]
    assert len(features(path, AGE, CHOL)) == 4


@pytest.mark.parametrize(("decimal", "code"), [(",", "-9.0"), (".", "-9,0")])
def test_table_code_is_missing_with_either_decimal_sign(tmp_path: Path, decimal: str, code: str) -> None:
    path = save(tmp_path, "chol;label\n-9;ill\n5;ill\n")
    assert features(path, CHOL, decimal=decimal, missing_in={"chol": [code]}) == [[5.0]]


def test_table_code_without_quotes_is_a_number(tmp_path: Path) -> None:
    path = save(tmp_path, "age,sex,chol,label\n-9,1,-9,0\n7,1,-9.0,0\n8,2,5,0\n")
    stated = {"missing_in": {"chol": [-9.0]}, "values": {"sex": {"1": 0, "2": 1}}, "labels": {"0": "ill"}}
    assert features(path, AGE, SEX, CHOL, **stated) == [[8.0, 1.0, 5.0]]


def test_table_value_that_its_scale_makes_too_large_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, "age,label\n1,ill\n3e38,ill\n")
    refused_at(path, 3, "age", AGE | {"scale": [0.0, 0.001]})


def test_table_stated_codes_replace_the_usual_ones(tmp_path: Path) -> None:
    path = save(tmp_path, "age,chol,label\n1,.,ill\n2,200,ill\n")
    assert features(path, AGE, CHOL, missing=["."]) == [[2.0, 200.0]]
    refused_at(save(tmp_path, "age,chol,label\n1,?,ill\n"), 2, "chol", AGE, CHOL, missing=["."])


NUMBERS = {
    "1": 1,
    "+2": 2,
    "-3": -3,
    " 4 ": 4,
    ".5": 0.5,
    "6.": 6,
    "1e3": 1e3,
    "7E-1": 0.7,
    "008": 8,
    '"9"': 9,
}


@pytest.mark.parametrize(("text", "number"), NUMBERS.items())
def test_table_number_is_read_as_it_is_written(tmp_path: Path, text: str, number: float) -> None:
    assert features(save(tmp_path, f"age,label\n{text},ill\n"), AGE) == [[number]]


@pytest.mark.parametrize(
    "text",
    [
        *("1,5", "1.234,5", "1,234", "1 234", "1'234", "12.5.3", "2020-01-31", "31.01.2020", "12:30", "1/2"),
        *(
            "63 years",
            "63%",
            "<5",
            ">200",
            "1_000",
            "0x1F",
            "1e999",
            "inf",
            "-Infinity",
            "1d5",
            "٣",
            "−5",
            "--5",
            "e5",
        ),
        *("-", ".", "none", "#N/A", "#DIV/0!", "true", "negative", "1e", "½", "1\u200b"),
    ],
)
def test_table_text_in_a_column_of_numbers_is_refused(tmp_path: Path, text: str) -> None:
    refused_at(save(tmp_path, f'age;label\n3;ill\n"{text}";ill\n'), 3, "age", AGE)


def test_table_decimal_comma_is_required_once_stated(tmp_path: Path) -> None:
    path = save(tmp_path, "age;label\n1,5;ill\n-2;ill\n")
    assert features(path, AGE, decimal=",") == [[1.5], [-2.0]]
    refused_at(save(tmp_path, "age;label\n1,5;ill\n250.000;ill\n"), 3, "age", AGE, decimal=",")


def test_table_decimal_comma_between_commas_is_a_ragged_row(tmp_path: Path) -> None:
    with refuses("line 3"):
        read(save(tmp_path, "age,label\n1,ill\n2,5,ill\n"), AGE, decimal=",")


@pytest.mark.parametrize(("text", "feature"), [("1", 1), ("1.0", 1), ("0.00", 0), (" 1", 1)])
def test_table_category_is_recognised_as_a_number(tmp_path: Path, text: str, feature: float) -> None:
    assert features(save(tmp_path, f"sex,label\n{text},ill\n"), SEX) == [[feature]]


@pytest.mark.parametrize("text", ["2", "01", "1e0", "m", "male", "1.5", "-1", "1,0"])
def test_table_unknown_category_is_refused(tmp_path: Path, text: str) -> None:
    refused_at(save(tmp_path, f"sex;label\n{text};ill\n"), 2, "sex", SEX)


def test_table_category_with_leading_zeros_stays_a_text(tmp_path: Path) -> None:
    column = {"name": "ward", "categories": ["01", "1", "1.10", "1.1"]}
    path = save(tmp_path, "ward,label\n01,ill\n1,ill\n1.10,ill\n1.1,ill\n")
    assert features(path, column) == np.eye(4).tolist()
    refused_at(save(tmp_path, "ward,label\n1.100,ill\n"), 2, "ward", column)


def test_table_values_are_mapped_to_agreed_categories(tmp_path: Path) -> None:
    path = save(tmp_path, "sex,label\nm,ill\nW,ill\n1,ill\n")
    assert features(path, SEX, values={"sex": {"m": "1", "W": "0", "1": "1"}}) == [[1.0], [0.0], [1.0]]


@pytest.mark.parametrize("stated", [{"m": "1", "W": "0"}, {"1": "0", "2": "1"}, {"0.0": "1"}])
def test_table_category_that_other_values_are_mapped_to_is_refused(
    tmp_path: Path, stated: dict[str, str]
) -> None:
    path = save(tmp_path, f"sex,label\n{next(iter(stated))},ill\n0,ill\n")
    refused_at(path, 3, "sex", SEX, values={"sex": stated})


def test_table_category_that_is_a_missing_code_is_refused(tmp_path: Path) -> None:
    column = {"name": "country", "categories": ["DE", "NA"], "missing": "leave out"}
    path = save(tmp_path, "country,label\nDE,ill\nNA,ill\n")
    refused_at(path, 3, "country", column)
    assert features(path, column, missing=[""]) == [[1.0, 0.0], [0.0, 1.0]]


# Labels


def test_table_labels_are_mapped_to_agreed_classes(tmp_path: Path) -> None:
    path = save(tmp_path, "age,num\n1,0\n2,1.0\n3,4\n4,ill\n")
    labels = {"0": "healthy", "1": "ill", "4": "ill", "ill": "ill"}
    assert read(path, AGE, label="num", labels=labels).train.labels.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("label", ["3", "sick", "Ill", "0.5", "?", ""])
def test_table_label_without_a_class_is_refused(tmp_path: Path, label: str) -> None:
    path = save(tmp_path, f"age,num\n1,0\n2,{label}\n")
    refused_at(path, 3, "num", AGE, label="num", labels={"0": "healthy", "1": "ill"})


def test_table_class_that_other_labels_are_mapped_to_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, "age,label\n5,1\n6,ill\n")
    refused_at(path, 3, "label", AGE, labels={"1": "ill", "2": "healthy"})


@pytest.mark.parametrize(("labels", "read_as"), [(",?", None), ("ill,healthy", CLASSES[::-1])])
def test_parse_table_unlabelled_empty_labels_are_none(
    tmp_path: Path, labels: str, read_as: tuple[str, ...] | None
) -> None:
    first, second = labels.split(",")
    path = save(tmp_path, f"age,label\n1,{first}\n2,{second}\n")
    assert parse_table(path, section(AGE), written(), CLASSES, labelled=False).labels == read_as


def test_parse_table_unlabelled_some_labels_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, "age,label\n1,ill\n2,\n")
    with refuses(f"{path}: line 3, column 'label'"):
        parse_table(path, section(AGE), written(), CLASSES, labelled=False)


# Subjects


def test_table_subjects_in_both_parts_are_refused(tmp_path: Path) -> None:
    train = save(tmp_path, "id,age,label\n007,1,ill\n7,2,ill\n007,3,healthy\n")
    subjects = read(train, AGE, subject="id").train.subjects
    assert subjects is not None
    assert subjects.tolist() == ["007", "7", "007"]
    test = save(tmp_path, "id,age,label\n8,1,ill\n7,2,ill\n", "test.csv")
    with refuses(f"{test}: line 3"):
        read(train, AGE, subject="id", test=str(test))


@pytest.mark.parametrize("decimal", [".", ","])
def test_table_subject_is_recognised_as_a_number(tmp_path: Path, decimal: str) -> None:
    text = "id;age;label\n7;1;ill\n7.0;2;ill\n7.5;2;ill\n".replace(".", decimal)
    subjects = read(save(tmp_path, text), AGE, subject="id", decimal=decimal).train.subjects
    assert subjects is not None
    assert subjects.tolist() == ["7", "7", f"7{decimal}5"]


def test_table_missing_subject_is_refused(tmp_path: Path) -> None:
    refused_at(save(tmp_path, "id,age,label\n,1,ill\n"), 2, "id", AGE, subject="id")


def test_table_test_file_equal_to_the_training_file_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, "age,label\n1,ill\n")
    with refuses(path):
        read(path, AGE, test=str(tmp_path / "." / "north.csv"))


@pytest.mark.parametrize("rows", ["1,ill\n2.0,healthy\n", "2,healthy\n"])
def test_table_test_file_of_training_rows_is_refused(tmp_path: Path, rows: str) -> None:
    test = save(tmp_path, f"age,label\n{rows}", "test.csv")
    with refuses(test):
        read(save(tmp_path, "age,label\n1,ill\n2,healthy\n"), AGE, test=str(test))


def test_table_test_rows_equal_to_frequent_rows_are_accepted(tmp_path: Path) -> None:
    test = save(tmp_path, "sex,label\n1,ill\n0,healthy\n", "test.csv")
    train = save(tmp_path, "sex,label\n" + "1,ill\n0,healthy\n" * 9)
    assert read(train, SEX, test=str(test)).test is not None


def test_table_test_file_has_the_same_format(tmp_path: Path) -> None:
    test = save(tmp_path, "age;label\n9;ill\n", "test.csv")
    source = read(save(tmp_path, "age;label\n1;ill\n2;healthy\n"), AGE, test=str(test))
    assert source.test is not None
    assert source.test.inputs.tolist() == [[9.0]]


# Any dialect


VALUES = st.one_of(
    st.none(), st.floats(-1e30, 1e30, allow_nan=False), st.integers(-(10**9), 10**9).map(float)
)
TEXTS = ["none", "some", "much", 'a "b"; c', "d, e|f", "g\th"]


@st.composite
def dialects(draw: st.DrawFn) -> dict[str, Any]:
    decimal = draw(st.sampled_from([".", ","]))
    return {
        "separator": draw(st.sampled_from([s for s in (";", ",", "\t", "|") if s != decimal])),
        "decimal": decimal,
        "encoding": draw(st.sampled_from(["utf-8", "latin-1", "windows-1252", "utf-16"])),
        "end": draw(st.sampled_from(["\n", "\r\n", "\r"])),
        "quoting": draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])),
        "missing": draw(st.sampled_from(["", "?", "-999", "missing"])),
        "headed": draw(st.booleans()),
        "stated": draw(st.booleans()),
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(VALUES, st.sampled_from([*TEXTS, None]), st.sampled_from(CLASSES)), min_size=1, max_size=8
    ),
    dialects(),
    st.permutations(["Wert", "pain", "rest", "label"]),
)
def test_table_in_any_dialect_gives_the_same_features(
    tmp_path: Path,
    rows: list[tuple[float | None, str | None, str]],
    dialect: dict[str, Any],
    order: list[str],
) -> None:
    rows = [(None if value == -999 else value, text, label) for value, text, label in rows]
    buffer = io.StringIO()
    writer = csv.writer(
        buffer, delimiter=dialect["separator"], lineterminator=dialect["end"], quoting=dialect["quoting"]
    )
    if dialect["headed"]:
        writer.writerow(order)
    for value, text, label in rows:
        number = dialect["missing"] if value is None else repr(value).replace(".", dialect["decimal"])
        cells = {
            "Wert": number,
            "pain": dialect["missing"] if text is None else text,
            "rest": "x",
            "label": label,
        }
        writer.writerow([cells[name] for name in order])
    path = save(tmp_path, buffer.getvalue().encode(dialect["encoding"]))
    stated = {
        "decimal": dialect["decimal"],
        "encoding": dialect["encoding"],
        "missing": [dialect["missing"]],
        "names": {"Wert": "value"},
        **({"separator": dialect["separator"]} if dialect["stated"] else {}),
        **({} if dialect["headed"] else {"header": order}),
    }
    columns = (
        {"name": "pain", "categories": TEXTS, "missing": {"impute": "some"}},
        {"name": "value", "missing": {"impute": 0.25}},
    )
    source = read(path, *columns, **stated)
    expected = [
        [
            *(float((text or "some") == each) for each in TEXTS),
            float(text is None),
            0.25 if value is None else value,
            float(value is None),
        ]
        for value, text, _ in rows
    ]
    assert source.train.inputs.tolist() == expected
    assert source.train.labels.tolist() == [CLASSES.index(label) for _, _, label in rows]


# Scales


def test_fit_scale_agreed_numbers_scale_and_marks_stay(tmp_path: Path) -> None:
    column = {"name": "x", "scale": [10.0, 4.0], "missing": {"impute": 12.0}}
    path = save(tmp_path, "x,label\n14,ill\n?,ill\n")
    rows = read(path, column).train.inputs
    scale = fit_scale(section(column), rows, where="north")
    assert scale_rows(rows, scale, "north").tolist() == [[1.0, 0.0], [0.5, 1.0]]


def test_fit_scale_statistics_are_of_present_training_values(tmp_path: Path) -> None:
    columns = (
        {"name": "x", "scale": "site", "missing": {"impute": 100.0}},
        {"name": "y", "scale": "site"},
        SEX | {"scale": "site"},
    )
    path = save(tmp_path, "x,y,sex,label\n1,0.1,1,ill\n3,0.1,0,ill\n?,0.1,0,ill\n")
    rows = read(path, *columns).train.inputs
    scale = fit_scale(section(*columns), rows, where="north")
    assert scale.mean == pytest.approx((2.0, 0.0, 0.1, 1 / 3))
    assert scale.deviation == pytest.approx((1.0, 1.0, 1.0, np.sqrt(2) / 3))
    assert scale_rows(rows, scale, "north")[:, :2].tolist() == [[-1.0, 0.0], [1.0, 0.0], [98.0, 1.0]]


def test_scale_rows_values_far_from_zero_keep_their_digits(tmp_path: Path) -> None:
    column = {"name": "x", "scale": [1e9, 1.0]}
    rows = read(save(tmp_path, "x,label\n1000000000.5,ill\n"), column).train.inputs
    assert scale_rows(rows, fit_scale(section(column), rows, where="north"), "north").tolist() == [[0.5]]


def test_fit_scale_column_without_values_is_refused(tmp_path: Path) -> None:
    column = {"name": "x", "scale": "site", "missing": {"impute": 1.0}}
    rows = read(save(tmp_path, "x,label\n?,ill\n"), column).train.inputs
    with refuses("north.csv", "'x'"):
        fit_scale(section(column), rows, where="north.csv")


def test_table_all_rows_left_out_is_refused(tmp_path: Path) -> None:
    with refuses(tmp_path):
        read(save(tmp_path, "chol,label\n?,ill\n"), CHOL)


# Hashes of records


def test_hash_rows_is_independent_of_label_and_agreed_columns(tmp_path: Path) -> None:
    one = save(tmp_path, "age;sex;label\n3;1;ill\n4;0;ill\n", "one.csv")
    two = save(tmp_path, "age,sex,label\n4,0,healthy\n 3,1,ill\n5,1,ill\n", "two.csv")
    mine = set(hash_training_records(f"table:{one}", data_root=None, agreed=section(AGE, SEX)))
    others = set(hash_training_records(f"table:{two}", data_root=None, agreed=section(SEX)))
    assert len(mine) == 2
    bare = save(tmp_path, "ill;1;3\n", "bare.csv")
    form = written(header=["label", "sex", "age"])
    assert (
        len(set(hash_training_records(f"table:{bare}", data_root=None, agreed=section(AGE), written=form)))
        == 1
    )
    assert len(others) == 3
    assert mine < others


def test_format_beside_is_that_of_a_site(tmp_path: Path) -> None:
    path = save(tmp_path, "age;num\n3;1\n")
    save(tmp_path, '[table]\nlabel = "num"\nlabels = {1 = "ill"}\ntest = "t.csv"\n', "north.toml")
    beside = format_beside(path)
    assert beside.labels == {"1": "ill"}
    assert beside.test == tmp_path / "t.csv"
    save(tmp_path, "age;num\n4;1\n", "t.csv")
    assert len(read_table(path, section(AGE), beside, CLASSES).train) == 1
