"""Files of a run: text and JSON, each replaced in one durable step, and the agreement that says whose folder it is.

A file that is missing, damaged or of another version raises :class:`FileError`. The databases in a folder decide
whether a run may resume there; its ``agreement.json`` explains a refusal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agreement.errors import UserError
from agreement.schema.agreement import Agreement
from agreement.schema.differences import changed_fields, in_one_line
from crypto.errors import MalformedError
from crypto.text_decoding import decode
from protoseal_files import durable_files


class FileError(UserError):
    """File of a run that is missing or invalid. The message is one line that names the file and the remedy."""


def write_text(path: Path, text: str) -> Path:
    """Replace a file in one durable step, making its folder if need be; returns the path."""
    return write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> Path:
    """Replace a file in one durable step, making its folder if need be; returns the path."""
    durable_files.make_folder(path.parent)
    durable_files.write(path, content)
    return path


def read_text(path: Path, remedy: str) -> str:
    """Return a file's text; raises :class:`FileError` that ends in the ``remedy``."""
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}); {remedy}") from error
    except MalformedError as error:
        raise FileError(f"{path}: {error}") from error


def first_line(error: Exception) -> str:
    """Return an error's message without its further lines."""
    return (str(error).splitlines() or [type(error).__name__])[0]


Share = Annotated[float, Field(ge=0, le=1)]
Bytes = Annotated[int, Field(ge=0)]
Samples = Annotated[int, Field(ge=0)]
Duration = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Record(BaseModel):
    """Base of a run's file or a part of one: frozen, without undeclared fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


RecordT = TypeVar("RecordT", bound=Record)


def write_json(path: Path, record: Record) -> Path:
    """Write a record to a file atomically and durably, and return the file's path."""
    # The record is validated again, since model_copy and model_construct do not validate.
    checked = type(record).model_validate(record.model_dump(by_alias=True))
    return write_text(path, checked.model_dump_json(by_alias=True, indent=2) + "\n")


def read_json(path: Path, model: type[RecordT], remedy: str) -> RecordT:
    """Return the record in a file; raise a :class:`FileError` that ends with the ``remedy``."""
    try:
        return model.model_validate_json(read_text(path, remedy))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise FileError(f"{path} is damaged ({first['msg']}); {remedy}") from error
        where = ".".join(str(part) for part in first["loc"])
        raise FileError(f"{path} is not of this version ({where}: {first['msg']}); {remedy}") from error


AGREEMENT = "agreement.json"


def keep_agreement(folder: Path, agreement: Agreement) -> None:
    """Write the agreement into the folder, unless the folder has it."""
    if not belongs_to(folder, agreement):
        durable_files.write(folder / AGREEMENT, f"{agreement.to_json()}\n".encode())


def belongs_to(folder: Path, agreement: Agreement) -> bool:
    """Return whether the folder was begun under this very agreement."""
    return _read_canonical(folder) == agreement.to_json()


def describe_owner(folder: Path, agreement: Agreement) -> str:
    """Return what the folder belongs to, as the end of a sentence: another run, or one whose agreement has changed."""
    text = _read_canonical(folder)
    run = None if text is None else json.loads(text)["run"]
    if text is None:
        return "another run, agreement or version of protoseal"
    if run != agreement.run:
        return f"run {run!r}, but the agreement is for run {agreement.run!r}"
    changed = changed_fields(text, agreement)
    if not changed:
        return f"another party of run {run!r}, or another version of protoseal"
    return f"run {run!r} under another agreement ({in_one_line(changed)})"


def _read_canonical(folder: Path) -> str | None:
    """Return the canonical text in the folder; None without one, or for a file that is no agreement."""
    try:
        content = json.loads((folder / AGREEMENT).read_text(encoding="utf-8"))
        if isinstance(content["run"], str):
            return json.dumps(content, sort_keys=True, separators=(",", ":"))
    except (OSError, KeyError, TypeError, ValueError):
        pass
    return None
