"""TOML files as editors of three systems write them: read, or refused in one line with the file and the line."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agreement.schema.agreement import load_agreement
from agreement.toml_loading import ConfigError, parse_toml
from protoseal.simulation.config import load_simulation
from secure_client.config import load_site
from secure_server.config import load_coordinator
from tests.support.config_files import AGREEMENT, COORDINATOR, SITE, write

TEXT = 'name = "nörth"\nrounds = 3\n'


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode("utf-8-sig"),
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\r\n").encode("utf-8-sig"),
        TEXT.replace("\n", "\r").encode(),
        TEXT.replace(" = ", "\t=\t").encode(),
        TEXT.replace("\n", "  \n\n").encode(),
    ],
    ids=["byte order mark", "CRLF", "mark and CRLF", "CR", "tabs", "spaces and blank lines"],
)
def test_what_editors_add_is_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_bytes(content)
    assert parse_toml(tmp_path / "site.toml") == {"name": "nörth", "rounds": 3}


ENCODINGS = {
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16",
    "utf-16-be": "UTF-16",
    "utf-32": "UTF-32",
    "utf-32-be": "UTF-32",
    "latin-1": "line 1 ",
    "cp1252": "line 1 ",
    "mac-roman": "line 1 ",
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_another_encoding_is_named(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_bytes(TEXT.encode(encoding))
    assert ENCODINGS[encoding] in _refusal(tmp_path / "site.toml")


BROKEN = {
    "a Windows path": ('x = 1\ndata = "C:\\Users\\north"', "line 2", "'C:\\data'"),
    "another Windows path": ('data = "D:\\scans"', "line 1", "'C:\\data'"),
    "typographic quotation marks": ("x = 1\n\nname = “north”", "line 3", "“"),
    "half of them": ('name = "north”\nx = 1', "line 1", "”"),
    "single ones": ("name = ‘north’", "line 1", "‘"),
    "a space of a word processor": ('name\u00a0= "north"', "line 1", "U+00A0"),
    "a key twice": ('name = "a"\nx = 1\nname = "b"\ny = 2\n', "line 3", "key name"),
    "a key twice in a table": ("x = 1\n[t]\nx = 2\nx = 3\n", "line 4", "first in line 3"),
    "a table twice": ("[privacy]\nx = 1\n[privacy]\ny = 2\n", "line 3", "table privacy"),
    "text without quotation marks": ("name = north", "line 1", "north"),
    "a path without quotation marks": ("data = /data/scans", "line 1", "/data/scans"),
    "a capital": ("x = 1\nallow = True", "line 2", "true"),
    "YAML": ("name: north", "line 1", "colon"),
    "an open text": ('name = "north\nx = 1', "line 1", "quotation mark"),
    "an open list": ("sites = [1,\n2\n", "line 2", "array"),
    "a NUL": ("x = 1\ny = '\0'", "line 2", "NUL"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_line_is_named(name: str, tmp_path: Path) -> None:
    text, *named = BROKEN[name]
    (tmp_path / "site.toml").write_text(text, encoding="utf-8")
    refusal = _refusal(tmp_path / "site.toml")
    assert all(part in refusal for part in named)


@pytest.mark.parametrize("content", ["", "\n", "# nothing = 1\n"])
def test_an_empty_file_is_named_once(content: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_site(tmp_path / "site.toml")
    assert len(refused.value.problems) == 1


def test_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    _refusal(tmp_path)
    _refusal(tmp_path / "none.toml")


def _refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        parse_toml(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert len(refused.value.problems) == 1
    assert "\n" not in str(refused.value)
    return refused.value.problems[0]


SIMULATION = {"dataset": "digits", "rounds": 3, "method": "pfpl"}
Load = Callable[[Path], object]


@pytest.mark.parametrize(
    ("content", "load"),
    [
        (AGREEMENT, load_site),
        (AGREEMENT, load_coordinator),
        (SITE, load_agreement),
        (SITE, load_coordinator),
        (COORDINATOR, load_site),
        (COORDINATOR, load_agreement),
        (AGREEMENT, lambda path: load_simulation(path, {})),
        (SITE, lambda path: load_simulation(path, {})),
        (COORDINATOR, lambda path: load_simulation(path, {})),
        (SIMULATION, load_agreement),
        (SIMULATION, load_site),
    ],
)
def test_a_file_in_anothers_place_is_named_once(content: dict[str, Any], load: Load, tmp_path: Path) -> None:
    write(tmp_path / "file.toml", content)
    with pytest.raises(ConfigError) as refused:
        load(tmp_path / "file.toml")
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize("data", ["npz:C:\\new.npz", "folder:D:\\temp"])
def test_a_path_with_what_an_escape_made_is_refused(data: str, tmp_path: Path) -> None:
    write(tmp_path / "agreement.toml", AGREEMENT)
    file = write(tmp_path / "site.toml", SITE | {"agreement": "agreement.toml", "data": data})
    assert load_site(file).data.endswith(data.partition(":")[2])
    text = file.read_text(encoding="utf-8")
    for key in ("data", "out"):
        broken = text.replace("\\\\", "\\") if key == "data" else text.replace('"out"', '"C:\\new"')
        file.write_text(broken, encoding="utf-8")
        with pytest.raises(ConfigError) as refused:
            load_site(file)
        (problem,) = refused.value.problems
        assert problem.startswith(f"{key}: ")


def test_classes_in_two_unicode_forms_agree(tmp_path: Path) -> None:
    hashes = set()
    for form in ("NFC", "NFD"):
        classes = [unicodedata.normalize(form, name) for name in ("Ödem", "normal", "Lungenentzündung")]
        write(tmp_path / "agreement.toml", AGREEMENT | {"classes": classes})
        hashes.add(load_agreement(tmp_path / "agreement.toml").hash())
    assert len(hashes) == 1
    both = [unicodedata.normalize(form, "Ödem") for form in ("NFC", "NFD")]
    write(tmp_path / "agreement.toml", AGREEMENT | {"classes": both})
    with pytest.raises(ConfigError, match="classes"):
        load_agreement(tmp_path / "agreement.toml")
