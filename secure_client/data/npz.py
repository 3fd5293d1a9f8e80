"""Reader of data in an ``.npz`` file: ``x_train``, ``y_train`` and, where there are any, ``x_test`` and ``y_test``.

Inputs are images (N, H, W, C), grey ones also (N, H, W), or features (N, F); labels (N,) number the classes from 0.
``class_names`` (K,) names the classes in this order, and these names decide which agreed class a label means. Optional:
``domain_train`` and ``domain_test`` (N,), ``domain_names``, and ``subjects`` (N,), text or whole numbers that name the
subject of each training sample. Nothing is unpickled.
"""

from __future__ import annotations

import zipfile
import zlib
from difflib import get_close_matches
from lzma import LZMAError
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto.text_decoding import near_name
from secure_client.data.class_names import NAME_LISTS
from secure_client.data.samples import Samples, StoredData, TrainTest, make_samples
from secure_client.errors import DataError

KEYS = (
    "x_train",
    "y_train",
    "x_test",
    "y_test",
    "domain_train",
    "domain_test",
    "domain_names",
    "class_names",
    "subjects",
)
Arrays = dict[str, NDArray[Any]]


def read_npz(path: Path) -> StoredData:
    """Return the data in the file; arrays by other names are not read.

    Raises :class:`DataError` for a bad file, and for an array whose name is nearly that of one that the file lacks.
    """
    arrays, where = _load_arrays(path), str(path)
    train = _make_part(arrays, "train", where)
    if train is None:
        raise DataError(f"{where}: has no x_train and y_train; save both arrays in the file")
    test = _make_part(arrays, "test", where)
    count = 1 + max(int(part.domains.max()) for part in (train, test) if part is not None)
    default = (path.stem,) if count == 1 else tuple(str(number) for number in range(count))
    domains = _read_names(arrays, "domain_names", where) or default
    if len(domains) < count:
        raise DataError(
            f"{where}: has {count} domains and {len(domains)} domain_names; give one name for each domain"
        )
    return StoredData(where, train, test, _read_names(arrays, "class_names", where), domains)


def write_npz(path: Path, data: TrainTest) -> None:
    """Write the data in the form that :func:`read_npz` reads."""
    arrays: Arrays = {"class_names": np.array(data.classes), "domain_names": np.array(data.domains)}
    for kind, part in (("train", data.train), ("test", data.test)):
        if part is not None:
            arrays |= {f"x_{kind}": part.inputs, f"y_{kind}": part.labels, f"domain_{kind}": part.domains}
    if data.train.subjects is not None:
        arrays["subjects"] = data.train.subjects
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # no key is its allow_pickle


def _load_arrays(path: Path) -> Arrays:
    try:
        with path.open("rb") as file:
            return _select_arrays(np.load(file, allow_pickle=False), path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: the file does not exist{near_name(path)}") from error
    except NotImplementedError as error:  # zipfile, for a member's compression
        raise DataError(
            f"{path}: {error}; use a Python built with that compression, or save by numpy.savez"
        ) from error
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, LZMAError) as error:
        raise DataError(f"{path}: {_describe_unread(path, error)}") from error


def _describe_unread(path: Path, error: Exception) -> str:
    """Say why numpy cannot read the file, by a cause that is tested."""
    if path.is_dir():
        return "is a folder; give the .npz file, or read a folder of images by folder:PATH"
    if isinstance(error, OSError) and error.errno:  # permissions, a failing disk
        return f"cannot be read ({error.strerror})"
    if zipfile.is_zipfile(path):
        if "allow_pickle" in str(error):
            return "holds Python objects, which are never read; save plain arrays by numpy.savez"
        return f"is damaged ({error}); copy or save the file again"
    with path.open("rb") as file:
        begin = file.read(2)
    causes = {
        b"PK": "is damaged: its end is missing; copy or save it again",
        b"": "is empty; copy or save it again",
    }
    return causes.get(begin, "is no .npz file; save plain arrays by numpy.savez")


def _select_arrays(loaded: Any, path: Path) -> Arrays:
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise DataError(f"{path}: holds a single array; save named arrays by numpy.savez")
    with loaded as archive:
        lacking = [key for key in KEYS if key not in archive.files]
        for name in archive.files:
            near = get_close_matches(name.lower(), lacking, n=1, cutoff=0.85)
            # A misspelt class_names would leave labels unnamed, and unnamed labels are taken as agreed numbers.
            meant = "class_names" if name.lower() in NAME_LISTS else "".join(near)
            if name not in KEYS and meant in lacking:
                raise DataError(f"{path}: {name} is not read; call this array {meant}, or remove the array")
        return {key: archive[key] for key in KEYS if key in archive.files}


def _make_part(arrays: Arrays, kind: str, where: str) -> Samples | None:
    inputs, labels = arrays.get(f"x_{kind}"), arrays.get(f"y_{kind}")
    if inputs is None and labels is None:
        return None
    if inputs is None or labels is None:
        raise DataError(f"{where}: has only one of x_{kind} and y_{kind}; give both")
    subjects = arrays.get("subjects") if kind == "train" else None
    return make_samples(inputs, labels, arrays.get(f"domain_{kind}"), subjects, where=f"{where}: {kind}")


def _read_names(arrays: Arrays, key: str, where: str) -> tuple[str, ...] | None:
    if key not in arrays:
        return None
    names = arrays[key]
    if names.ndim != 1 or names.dtype.kind != "U":
        raise DataError(
            f"{where}: {key} has shape {names.shape} and dtype {names.dtype}, and is not a list of texts; save it as"
            f" {key}=numpy.array(names, dtype=str) of one name for each number"
        )
    return tuple(names.tolist())
