"""Small tables, and the sections that read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agreement import TableSection
from agreement.toml_loading import validate
from secure_client.data.arrays import Source
from secure_client.data.table import read_table
from secure_client.table_format import TableFormat

CLASSES = ("healthy", "ill")
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


def read(path: Path, *columns: Mapping[str, Any], **settings: Any) -> Source:
    return read_table(path, section(*columns), written(**settings), CLASSES)
