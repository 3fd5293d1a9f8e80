"""Configuration files in TOML: sections with their types, errors that name the file, the key and the remedy."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo

from agreement.errors import UserError
from crypto.errors import MalformedError
from crypto.text_decoding import decode, near_name

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_QUOTES = re.compile("[\u201c\u201d\u201e\u201f\u2018\u2019\u201a\u00ab\u00bb]")
_SPACES = re.compile("[\u00a0\u2000-\u200b\u202f\u2060\u3000\ufeff]")
_KEY = re.compile(r"\s*((?:[\w.-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*[\w-]+)*)\s*=")
_TABLE = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]")
_WORD = re.compile(r"=\s*([A-Za-z_/~.\\][^\s,#\]]*)")

_REASONS = {
    (
        "Unescaped '\\'",
        "Invalid hex value",
        "Escaped character",
    ): "a backslash in \"...\" begins an escape: write text with backslashes in single quotes, 'C:\\data'",
    ("Illegal character '\\n'", "Unterminated string"): "a text has no closing quotation mark",
}
"""Remedies by the beginnings of the parser's reasons."""


def explain(text: str, error: tomllib.TOMLDecodeError) -> str:
    """Return a phrase that follows the file's name: the line of an error, what is wrong there, and the remedy."""
    lines = text.splitlines() or [""]
    place = _PLACE.search(str(error))
    reason = str(error)[: place.start()] if place else str(error)
    last = max((number for number, line in enumerate(lines, 1) if line.strip()), default=1)
    number = min(int(place[1]), last) if place and place[1] else last
    column = f", column {place[2]}" if place and place[1] else ""
    if not lines[number - 1].strip():  # TOML's parser reports some errors behind the line's end
        number, column = number - 1, ""
    return f"line {number}{column}: {_cause(lines, number, reason)}"


def _cause(lines: list[str], number: int, reason: str) -> str:
    line = lines[number - 1]
    outside = _without_strings(line)
    if quote := _QUOTES.search(outside):
        return f'{quote[0]} is a typographic quotation mark: put text between straight ones, "..."'
    if space := _SPACES.search(outside):
        return f"the space U+{ord(space[0]):04X} is not one of TOML's: replace it by an ordinary space"
    if reason.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate")):
        return _repeated(lines, number)
    if reason.startswith("Invalid value") and (word := _WORD.search(line)):
        return _unquoted(word[1])
    if reason.startswith("Expected '=' after a key") and ":" in outside:
        return "TOML separates key and value by =, not by a colon"
    explained = (text for beginnings, text in _REASONS.items() if reason.startswith(beginnings))
    return next(explained, f"is not TOML: {reason[:1].lower()}{reason[1:]}")


def _unquoted(word: str) -> str:
    if word.lower() in {"true", "false"}:
        return f"write {word.lower()}, in small letters, for {word}"
    return f"{word} is no number, true or false: put text between quotation marks, such as '{word}'"


def _repeated(lines: list[str], number: int) -> str:
    """Name the key or table that is there twice, and the first of its two lines."""
    line, start = lines[number - 1], 0
    if table := _TABLE.match(line):
        noun, pattern, name = "table", _TABLE, table[1]
    elif key := _KEY.match(line):
        noun, pattern, name = "key", _KEY, key[1]
        start = max((place for place in range(number) if _TABLE.match(lines[place])), default=0)
    else:
        return "a key is there twice: remove one of the two"
    before = [
        place for place in range(start, number - 1) if (m := pattern.match(lines[place])) and m[1] == name
    ]
    first = f", first in line {before[0] + 1}" if before else ""
    return f"the {noun} {name} is there twice{first}: remove one of the two, or unite them"


def _without_strings(line: str) -> str:
    """Return a line without its quoted texts and its comment, in which every letter is allowed."""
    return re.sub(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'", "", line).partition("#")[0]


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class ConfigError(UserError):
    """Configuration that cannot be used: a line for each problem, with the file and the key's path."""

    def __init__(self, source: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in self.problems))


class Section(BaseModel):
    """Base of every table: immutable, unknown keys refused, no conversion between types (5 is not "5")."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=False)


_KINDS = {
    "an agreement": {"federation", "rounds"},
    "a site's file": {"coordinator", "data"},
    "a coordinator's file": {"listen", "sites"},
    "a simulation's file": {"dataset", "rounds"},
}
"""Keys that tell the parties' files apart when one is given in another's place."""
SectionT = TypeVar("SectionT", bound=Section)


def read_toml(path: Path, model: type[SectionT]) -> SectionT:
    """Return the validated content of a TOML file; relative paths in it are taken from the file's directory.

    Raises :class:`ConfigError` for a file that is missing, not TOML, or wrong in any of its keys.
    """
    table = parse_toml(path)
    if not table:
        raise ConfigError(str(path), ["is empty: it has no keys"])
    check_kind(path, table, model)
    return validate(model, table, source=str(path), directory=path.parent)


def check_kind(path: Path, table: dict[str, Any], model: type[Section]) -> None:
    """Raise :class:`ConfigError`, one line in the place of one for each key, for a file of another kind."""
    known = set(_keys(model))
    kinds = [kind for kind, keys in _KINDS.items() if keys <= table.keys()]
    if kinds and not any(_KINDS[kind] <= known for kind in kinds):
        due = next((kind for kind, keys in _KINDS.items() if keys <= known), "another file")
        raise ConfigError(str(path), [f"is {kinds[0]}, where {due} is required"])


def parse_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file, not validated; raise :class:`ConfigError` if it is missing or not TOML."""
    try:
        text = decode(path.read_bytes())
    except OSError as error:
        near = near_name(path)
        raise ConfigError(str(path), [f"cannot be read ({error.strerror}){near}"]) from error
    except MalformedError as error:
        raise ConfigError(str(path), [str(error)]) from error
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), [explain(text, error)]) from error


def validate(model: type[SectionT], table: dict[str, Any], *, source: str, directory: Path) -> SectionT:
    """Return the validated table. ``source`` names it in errors; relative paths are taken from ``directory``.

    Validation goes through JSON, because there a list may become a tuple, and a string an enum, without any other
    conversion being allowed. Raises :class:`ConfigError`.
    """
    for key, value in table.items():
        try:
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                source, [f"{key}: '{value}' has bytes that are not UTF-8: rename the file or folder"]
            ) from error
    try:
        text = json.dumps(table, allow_nan=True)
    except TypeError as error:
        raise ConfigError(source, ["this file has no dates and times: write them as text"]) from error
    try:
        return model.model_validate_json(text, context={"source": source, "directory": directory.absolute()})
    except ValidationError as error:
        raise ConfigError(source, [_line(model, table, problem) for problem in error.errors()]) from error


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known name nearest to this one, or the list of all known names."""
    names = sorted(known)
    matches = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else f"; known: {', '.join(names)}"


def directory_of(info: ValidationInfo) -> Path | None:
    """Return the directory that relative paths are taken from; None for a model that was made without a file."""
    return (info.context or {}).get("directory")


def source_of(info: ValidationInfo) -> str:
    """Return the name of the content under validation, for errors."""
    return str((info.context or {}).get("source", ""))


DATA_ROOT = "DATA_ROOT/"
"""Prefix of a data set's path that is relative to the data root, wherever that is."""


SITES_FORM = "sites:"
"""Prefix of a data set that is a folder with a file for each site."""


def data_spec(spec: str, directory: Path | None) -> str:
    """Return a data set's name with its relative paths (as in ``npz:PATH``) taken from ``directory``.

    Paths that begin with ``DATA_ROOT/`` stay: they are under the data root. Domains joined by ``+`` are treated one
    by one; other forms stay as they are.
    """
    check_path(spec)
    if directory is None:
        return spec
    return "+".join(_domain_spec(part, directory) for part in spec.split("+"))


def _domain_spec(spec: str, directory: Path) -> str:
    kind, separator, path = spec.partition(":")
    if separator and kind in {"npz", "folder", "table", "sites"} and not path.startswith(DATA_ROOT):
        return f"{kind}:{directory / Path(path).expanduser()}"
    return spec


def check_path(path: str) -> None:
    """Raise ``ValueError`` for a path with a tab or a line end, which TOML makes of a backslash before t or n."""
    control = next((letter for letter in path if unicodedata.category(letter) == "Cc"), None)
    if control is not None:
        raise ValueError(
            f'{path!r} has the control character {control!r}, which a backslash in "..." made: write paths with '
            "backslashes in single quotes"
        )


def _from_directory(path: Path, info: ValidationInfo) -> Path:
    check_path(str(path))
    directory = directory_of(info)
    return path if directory is None else directory / path.expanduser()


LocalPath = Annotated[Path, AfterValidator(_from_directory)]
"""Path that, when relative, is taken from the directory of the file that names it."""


def _line(model: type[BaseModel], table: dict[str, Any], problem: Any) -> str:
    location = tuple(problem["loc"])
    path = ".".join(str(part) for part in location)
    message = _message(model, table, problem, location)
    message += _misplaced(model, table, location, message)
    return f"{path}: {message}" if path else message


def _message(model: type[BaseModel], table: dict[str, Any], problem: Any, location: tuple[Any, ...]) -> str:
    kind, message = problem["type"], str(problem["msg"])
    if kind == "extra_forbidden":
        return _unknown_key(model, location)
    if kind == "missing":
        return "is missing"
    if kind in {"model_type", "dict_type"}:
        return f"has to be a table{_found(table, location)}"
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    return f"{message[:1].lower()}{message[1:]}{_found(table, location)}"


def _unknown_key(model: type[BaseModel], location: tuple[Any, ...]) -> str:
    name = str(location[-1])
    if homes := _homes(model, name):
        return f"unknown key here: {name} is a key {homes}"
    return "unknown key" + nearest(name, _keys(_table_at(model, location[:-1])))


def _homes(model: type[BaseModel], name: str) -> str:
    """Return where in the file a key of this name belongs; empty if nowhere."""
    tables = {
        key: _model_of(field.annotation) for key, field in model.model_fields.items() if key != "agreement"
    }
    homes = [f"of [{key}]" for key, inner in tables.items() if inner is not None and name in _keys(inner)]
    if name in _keys(model):
        homes.insert(0, "above the first [table] of the file")
    return " or ".join(homes)


def _misplaced(model: type[BaseModel], table: dict[str, Any], location: tuple[Any, ...], message: str) -> str:
    """Return a hint if the problem is about a top-level key's name in a table with free keys, such as [pins]."""
    for key, field in model.model_fields.items():
        inner = table.get(key)
        if isinstance(inner, dict) and _model_of(field.annotation) is None:
            for name in _keys(model):
                if name in inner and (name in location[1:] or repr(name) in message):
                    return f"; if {name} is the setting, write it above the first [table] of the file"
    return ""


def _found(table: Any, location: tuple[Any, ...]) -> str:
    for part in location:
        try:
            table = table[part]
        except (KeyError, IndexError, TypeError):
            return ""
    return "" if isinstance(table, dict | list) else f", not {table!r}"


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _table_at(model: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel]:
    for part in location:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        if part in fields:
            model = _model_of(fields[part].annotation) or model
    return model


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_of(part))), None)
