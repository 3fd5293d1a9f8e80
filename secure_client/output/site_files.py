"""A site's output folder: the agreement, the trained model and the prototypes."""

from __future__ import annotations

import json
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from pydantic import TypeAdapter

from agreement import Agreement, ConfigError
from agreement.storage.run_files import AGREEMENT, FileError, first_line, read_text, write_bytes, write_text
from secure_client.output.site_prototypes import SitePrototypes

MODEL, PROTOTYPES = "model.safetensors", "prototypes.safetensors"


def write_agreement(folder: Path, agreement: Agreement) -> Path:
    """Write ``agreement.json`` into a site's folder and return its path."""
    return write_text(folder / AGREEMENT, agreement.to_json() + "\n")


def read_agreement(folder: Path) -> Agreement:
    """Read the agreement under which a site's folder was written; raise :class:`FileError`."""
    path = folder / AGREEMENT
    text = ""
    try:
        text = read_text(path, "give the folder that a site wrote to (out)")
        return Agreement.from_json(text, source=str(path))
    except (ConfigError, ValueError) as error:
        missing = _not_installed(text)
        if missing:
            raise FileError(
                f"{path} needs distributions that are not installed: install {' and '.join(missing)}"
            ) from error
        raise FileError(f"{path} is not an agreement of this version: {first_line(error)}") from error


def _not_installed(text: str) -> list[str]:
    """Return names and versions of the agreement's distributions that are not installed."""
    try:
        stated = TypeAdapter(dict[str, str]).validate_python(json.loads(text).get("distributions", {}))
    except (AttributeError, ValueError):
        return []
    there = {f"{each.name} {each.version}" for each in distributions()}
    return sorted(set(stated.values()) - there)


def write_prototypes(folder: Path, prototypes: SitePrototypes) -> Path:
    """Write ``prototypes.safetensors`` into a site's folder and return its path."""
    arrays = {
        name: np.ascontiguousarray(array) for name, array in vars(prototypes).items() if array is not None
    }
    return write_bytes(folder / PROTOTYPES, safetensors.numpy.save(arrays))


def read_prototypes(folder: Path) -> SitePrototypes:
    """Read the prototypes in a site's folder; raise :class:`FileError`."""
    path = folder / PROTOTYPES
    try:
        return SitePrototypes(**safetensors.numpy.load_file(path))
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing; give the folder that a site wrote to (out)") from error
    except (OSError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise FileError(f"{path} does not hold a site's prototypes: {first_line(error)}") from error
