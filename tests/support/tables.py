"""Small tables, and the sections that read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agreement import TableSection
from agreement.toml_loading import validate
from secure_client.data.samples import StoredData
from secure_client.data.table import read_table
from secure_client.table_format import TableFormat
from tests.support.refusals import refuses

CLASSES = ("healthy", "ill")
FOUR = "age;sex;chol;label\n63;1;233;ill\n41;0;?;healthy\n57;1;0;healthy\n"
ROWS = 24
"""Rows of each table of :func:`write_three_dialects`, of which one has no cholesterol."""
AGE: dict[str, Any] = {"name": "age"}
CHOL: dict[str, Any] = {"name": "chol", "missing": "leave out"}
SEX: dict[str, Any] = {"name": "sex", "categories": ["0", "1"], "drop_first": True}
PAIN: dict[str, Any] = {"name": "pain", "categories": ["none", "some", "much"], "missing": {"impute": "some"}}


def section(*columns: Mapping[str, Any]) -> TableSection:
    return validate(TableSection, {"columns": list(columns)}, source="agreement.toml", directory=Path())


def written(**settings: Any) -> TableFormat:
    return validate(TableFormat, settings, source="site.toml", directory=Path())


def save(folder: Path, content: str | bytes, name: str = "north.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def features(path: Path, *columns: Mapping[str, Any], **settings: Any) -> list[list[float]]:
    rows: list[list[float]] = read(path, *columns, **settings).train.inputs.tolist()
    return rows


def refused_at(path: Path, line: int, column: str, *columns: Mapping[str, Any], **settings: Any) -> None:
    """Check that the table is refused by file, line and column."""
    with refuses(f"{path}: line {line}, column {column!r}: "):
        read(path, *columns, **settings)


def read(path: Path, *columns: Mapping[str, Any], **settings: Any) -> StoredData:
    return read_table(path, section(*columns), written(**settings), CLASSES)


def write_three_dialects(folder: Path) -> None:
    """Write three sites' tables: ages 40, 50 and 60 on average, the third site with a test part of its own."""
    rng = np.random.default_rng(0)
    for number, (separator, decimal) in enumerate([(";", "."), (",", "."), ("\t", ",")]):
        name = f"site-{number + 1}"
        rows = []
        for row in range(ROWS):
            ill = row % 2
            age = f"{40 + 10 * number + 8 * ill + rng.normal():.2f}".replace(".", decimal)
            rows.append([f"p{row // 2}", age, str(row % 2), str(200 + 40 * ill), "01"[ill]])
        rows[0][3] = "?"
        text = [separator.join(row) for row in [["id", "age", "sex", "chol", "num"], *rows]]
        save(folder, "\n".join(text), f"{name}.csv")
        part = 'test = "held-out.csv"\n' if number == 2 else ""
        form = f'[table]\nlabel = "num"\nlabels = {{0 = "healthy", 1 = "ill"}}\ndecimal = "{decimal}"\n{part}'
        save(folder, form, f"{name}.toml")
        if part:
            held_out = [
                separator.join([patient, f"{60 + 8 * int(sex)}{decimal}5", sex, *rest])
                for patient, _, sex, *rest in rows[-6:]
            ]
            save(folder, "\n".join([text[0], *held_out]), "held-out.csv")
