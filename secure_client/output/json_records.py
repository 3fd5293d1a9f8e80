"""Records that a run keeps as JSON: validated when they are written and when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agreement.storage.atomic_files import FileError, read_text, write_text

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
