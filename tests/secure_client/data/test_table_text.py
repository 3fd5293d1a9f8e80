"""Files of tables: separators, encodings, quotes and headers as programs write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secure_client.errors import DataError
from tests.support.refusals import refuses
from tests.support.tables import AGE, CHOL, FOUR, SEX, features, read, refused_at, save


@pytest.mark.parametrize("separator", [";", ",", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("after", ["", "\n\n", "\n;;;\n"])
def test_table_text_separator_and_line_ends_are_found(
    tmp_path: Path, separator: str, end: str, after: str
) -> None:
    text = (FOUR + after).replace("\n", end).replace(";", separator)
    assert features(save(tmp_path, text), AGE, SEX, CHOL) == [[63.0, 1.0, 233.0], [57.0, 1.0, 0.0]]


def test_table_text_blanks_separate_if_stated(tmp_path: Path) -> None:
    path = save(tmp_path, "70.0  1.0 ill\n 3.0 0.0  healthy\n")
    stated = {"separator": " ", "header": ["age", "sex", "label"]}
    assert features(path, AGE, SEX, **stated) == [[70.0, 1.0], [3.0, 0.0]]


@pytest.mark.parametrize(
    ("encoding", "stated"),
    [
        ("utf-8", "utf-8"),
        ("utf-8-sig", "utf-8"),
        ("latin-1", "latin-1"),
        ("cp1252", "windows-1252"),
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16"),
    ],
)
def test_table_text_stated_encodings_are_read(tmp_path: Path, encoding: str, stated: str) -> None:
    column = {"name": "Größe", "categories": ["groß", "klein"]}
    path = save(tmp_path, "Größe;label\ngroß;ill\nklein;ill\n".encode(encoding))
    assert features(path, column, encoding=stated) == [[1.0, 0.0], [0.0, 1.0]]


def test_table_text_two_unicode_forms_are_one_text(tmp_path: Path) -> None:
    column = {"name": "Gr\u00f6\u00dfe", "categories": ["gro\u00df", "m\u00e4\u00dfig"]}
    path = save(tmp_path, "Gro\u0308\u00dfe;label\nma\u0308\u00dfig;ill\n")
    assert features(path, column) == [[0.0, 1.0]]


KINDS = (
    b"PK\x03\x04",
    b"\xd0\xcf\x11\xe0",
    b"PAR1",
    b"\x1f\x8b",
    b"SQLite format 3\x00",
    b"\x89HDF\r\n",
    b"<?xml ",
)
UNREAD: list[str | bytes] = [
    *("age;größe;label\n1;2;ill\n".encode(encoding) for encoding in ("latin-1", "utf-16", "utf-16-le")),
    *(start + b"age,label\n1,ill\n" for start in KINDS),
    *("", "\n\n", "age;label\n", "age\n1\n"),
    *("alter;label\n1;ill\n", "age;age;label\n1;2;ill\n", "Age;label\n1;ill\n"),
]
"""Files in another encoding, of another kind, without rows, and without the agreed columns."""


@pytest.mark.parametrize("content", UNREAD)
def test_table_text_file_that_is_no_such_table_is_refused(tmp_path: Path, content: str | bytes) -> None:
    with refuses(tmp_path):
        read(save(tmp_path, content), AGE)


@pytest.mark.parametrize("row", ["1", "1;ill;", ";1;ill", '"1;ill', '"1"2;ill', '1;"a\nb";ill'])
def test_table_text_ragged_row_is_refused_with_its_line(tmp_path: Path, row: str) -> None:
    with refuses("line 3"):
        read(save(tmp_path, f"age;label\n3;ill\n{row}\n4;ill\n"), AGE)


def test_table_text_quotes_that_join_two_rows_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 'age,note,x,label\n4,,1,ill\n5,"abc,2,ill\n6,y",3,healthy\n')
    with refuses(f"{path}: line 3"):
        read(path, AGE)


def test_table_text_value_over_several_lines_is_read(tmp_path: Path) -> None:
    path = save(tmp_path, 'age,note,label\n5,"abc\nfever, cough",ill\n6,"a\n\nb, c, d, e",ill\n')
    assert features(path, AGE) == [[5.0], [6.0]]


def test_table_text_lines_are_those_of_the_file(tmp_path: Path) -> None:
    text = 'note;age;label\n"two\nlines";3;ill\n\n;;\nx;old;ill\n'
    refused_at(save(tmp_path, text), 6, "age", AGE)


def test_table_text_other_columns_are_not_read(tmp_path: Path) -> None:
    path = save(tmp_path, ';"free; text";age;;label\n1;"a ""quoted"" word";3;2020-01-01;ill\n')
    assert features(path, AGE) == [[3.0]]


def test_table_text_announced_separator_is_no_row(tmp_path: Path) -> None:
    assert features(save(tmp_path, "sep=;\r\nage;label\r\n3;ill\r\n"), AGE) == [[3.0]]


def test_table_text_blanks_after_separators_do_not_count(tmp_path: Path) -> None:
    assert features(save(tmp_path, 'age, sex, label\n3, "1", "ill"\n'), AGE, SEX) == [[3.0, 1.0]]


def test_table_text_stated_header_names_the_columns(tmp_path: Path) -> None:
    path = save(tmp_path, "63,1,ill\n41,0,healthy\n")
    assert features(path, SEX, AGE, header=["age", "sex", "label"]) == [[1.0, 63.0], [0.0, 41.0]]


@pytest.mark.parametrize("header", [None, ["age", "label"], ["age", "sex", "pain", "label"]])
def test_table_text_stated_header_of_another_length_is_refused(
    tmp_path: Path, header: list[str] | None
) -> None:
    with refuses(tmp_path):
        read(
            save(tmp_path, "63,1,ill\n41,0,healthy\n"), AGE, **({} if header is None else {"header": header})
        )


def test_table_text_stated_header_beside_one_in_the_file_is_refused(tmp_path: Path) -> None:
    column = {"name": "name", "categories": ["name", "other"]}
    with refuses("header"):
        read(save(tmp_path, "name,label\nother,ill\n"), column, header=["name", "label"])


def test_table_text_names_are_mapped_to_agreed_columns(tmp_path: Path) -> None:
    path = save(tmp_path, "Alter (Jahre);Diagnose\n3;ill\n")
    assert features(path, AGE, names={"Alter (Jahre)": "age"}, label="Diagnose") == [[3.0]]


@pytest.mark.parametrize(
    "settings_",
    [
        {"names": {"Alter": "age"}},
        {"names": {"age": "agee"}},
        {"missing_in": {"agee": ["0"]}},
        {"values": {"sexx": {"m": "1"}}},
        {"values": {"sex": {"m": "2"}}},
        {"values": {"age": {"old": "80"}}},
        {"labels": {"1": "sick"}},
        {"far_from_scale": ["agee"]},
        {"label": "sex"},
        {"label": "gro\u00df\u00e4"},
        {"subject": "age"},
        {"subject": "id"},
        {"label": "num"},
        {"test": "/none.csv"},
    ],
)
def test_table_format_that_does_not_fit_is_refused(tmp_path: Path, settings_: dict[str, Any]) -> None:
    path = save(tmp_path, "age;sex;label;gro\u00df\u00e4\n3;1;ill;ill\n")
    with pytest.raises(DataError):
        read(path, AGE, SEX, {"name": "gro\u00dfa\u0308", "categories": ["ill", "1"]}, **settings_)


def test_table_text_name_over_two_lines_is_shown_in_one(tmp_path: Path) -> None:
    path = save(tmp_path, '"age\n(years)";label\n3;ill\n')
    with pytest.raises(DataError) as refused:
        read(path, AGE)
    assert "\n" not in str(refused.value)
    assert features(path, AGE, names={"age\n(years)": "age"}) == [[3.0]]


def test_table_text_wide_table_is_read(tmp_path: Path) -> None:
    names = [f"gene {number}" for number in range(3000)]
    path = save(tmp_path, ";".join([*names, "label"]) + "\n" + (";".join(["0.5"] * 3000) + ";ill\n") * 3)
    assert read(path, *({"name": name} for name in names)).train.inputs.shape == (3, 3000)


def test_table_text_mapped_column_replaces_one_of_the_agreed_name(tmp_path: Path) -> None:
    path = save(tmp_path, "age;age_years;label\n600;50;ill\n")
    assert features(path, AGE, names={"age_years": "age"}) == [[50.0]]


def test_table_text_long_value_that_is_not_read_is_accepted(tmp_path: Path) -> None:
    assert features(save(tmp_path, f"age,note,label\n5,{'x' * 140_000},ill\n"), AGE) == [[5.0]]


def test_table_text_numbers_among_names_are_a_header(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        read(save(tmp_path, "eid,31,21003,label\n1,0,50,ill\n"), AGE)
    assert "header in [table]" not in str(refused.value)


def test_table_text_rows_of_one_more_value_than_the_header_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        read(save(tmp_path, "age,sex,label\n1,5,1,ill\n2,6,0,ill\n"), AGE, SEX)
    assert str(tmp_path) in str(refused.value)
    assert "line 2" not in str(refused.value)
