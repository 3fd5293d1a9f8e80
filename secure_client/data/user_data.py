"""Data from a site's own code, ``module:function``: arrays, or torch data sets that are read as needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from secure_client.data.arrays import Samples, Source, checked_samples
from secure_client.data.preprocess import read_item
from secure_client.errors import DataError
from secure_client.user_code import call_function, load_function

OwnPart = Dataset[Any] | Samples


def call_own(spec: str, data_root: Path | None) -> tuple[OwnPart, OwnPart | None]:
    """Call ``module:function`` with ``data_root=`` and return its result: (train, test).

    Each part is a map-style torch ``Dataset`` or a pair of arrays (inputs, labels); test may be None. Where the unit
    of privacy is a subject, the training part names each sample's subject: a data set by an attribute ``subjects``,
    arrays as the third of (inputs, labels, subjects). Raises :class:`DataError` for anything else,
    :class:`secure_client.errors.PluginError` when there is no such function.
    """
    returned = call_function(load_function(spec, "dataset"), spec, data_root=data_root)
    if not (isinstance(returned, tuple | list) and len(returned) == 2):
        raise DataError(f"{spec}: returned {type(returned).__name__}; return the pair (train, test)")
    train, test = returned
    return _adopt(train, f"{spec}: train"), None if test is None else _adopt(test, f"{spec}: test")


def read_own(spec: str, data_root: Path | None) -> Source:
    """Return the data as arrays in memory; a data set is read once, in full."""
    train, test = call_own(spec, data_root)
    name = spec.partition(":")[0]
    return Source(
        spec, _as_samples(train, spec), None if test is None else _as_samples(test, spec), None, (name,)
    )


def _adopt(part: object, where: str) -> OwnPart:
    if isinstance(part, Dataset) and hasattr(part, "__len__"):
        if not len(part):
            raise DataError(f"{where}: holds no samples")
        return part
    match part:
        case (Tensor(), _):
            raise DataError(
                f"{where}: is a pair of tensors; wrap it: TensorDataset(images (N, C, H, W), labels)"
            )
        case (inputs, labels):
            return checked_samples(inputs, labels, where=where)
        case (inputs, labels, subjects):
            return checked_samples(inputs, labels, subjects=subjects, where=where)
    raise DataError(
        f"{where}: is {type(part).__name__}; return a torch Dataset with a length, or (inputs, labels)"
    )


def _as_samples(part: OwnPart, where: str) -> Samples:
    if isinstance(part, Samples):
        return part
    items = [read_item(part, index, where=where) for index in range(len(part))]  # type: ignore[arg-type]  # checked
    shapes = sorted({inputs.shape for inputs, _ in items})
    if len(shapes) > 1:
        raise DataError(f"{where}: samples differ in shape ({shapes[0]}, {shapes[-1]}); resize them alike")
    inputs = np.stack([inputs for inputs, _ in items])
    labels = np.array([label for _, label in items])
    return checked_samples(inputs, labels, subjects=getattr(part, "subjects", None), where=where)
