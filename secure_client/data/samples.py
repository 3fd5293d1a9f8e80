"""Labelled samples: arrays checked when they are made, the scaling of stored inputs to floats, and their interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from secure_client.errors import DataError
from secure_client.user_code import describe_value

Inputs = NDArray[Any]
"""uint8 or float32; see :class:`Samples`."""
WHOLE_FLOATS = 2**24
"""Largest whole number up to which float32 has every whole number."""
Labels = NDArray[np.int64]
Indices = NDArray[np.int64]
Subjects = NDArray[np.str_]


@dataclass(frozen=True)
class Samples:
    """Images or rows of features, with their labels. Make them with :func:`make_samples`.

    ``inputs``: images (N, H, W, C), uint8 in [0, 255] or float32; or features (N, F), float32. ``labels``: (N,),
    indices into the class names. ``domains``: (N,), indices into the domain names. ``subjects``: (N,), the subject of
    each sample; None where subjects are unknown. ``sides``: heights and widths of the images as they were stored.
    """

    inputs: Inputs
    labels: Labels
    domains: Labels
    subjects: Subjects | None = None
    sides: frozenset[tuple[int, int]] = frozenset()

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices) -> Samples:
        """Return the samples at ``indices``, in that order."""
        owners = None if self.subjects is None else self.subjects[indices]
        return Samples(self.inputs[indices], self.labels[indices], self.domains[indices], owners, self.sides)

    @property
    def is_images(self) -> bool:
        """True if the inputs are images, not rows of features."""
        return self.inputs.ndim == 4


@dataclass(frozen=True)
class TrainTest:
    """Training and test samples over the same classes and domains; ``test`` is None without a test part.

    ``label_notes`` say how labels were numbered, a sentence for each kind of source.
    """

    train: Samples
    test: Samples | None
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    label_notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoredData:
    """A data set as it was stored, before classes and preprocessing are agreed.

    ``where`` names it in errors; ``classes`` is None where its labels are only numbers. A class with several names has
    a tuple of them. ``doubt`` says why ``classes`` may not name all labels, if so. ``folders`` are those of files whose
    labels have no names, with the label of each.
    """

    where: str
    train: Samples
    test: Samples | None
    classes: tuple[str | tuple[str, ...], ...] | None
    domains: tuple[str, ...]
    doubt: str = ""
    folders: frozenset[tuple[str, int]] = frozenset()

    @property
    def parts(self) -> list[Samples]:
        """Training samples, and test samples if there are any."""
        return [self.train] if self.test is None else [self.train, self.test]

    @property
    def names(self) -> dict[int, tuple[str, ...]] | None:
        """Names of the classes, by number; None where labels are only numbers."""
        if self.classes is None:
            return None
        return {
            number: (name,) if isinstance(name, str) else name for number, name in enumerate(self.classes)
        }


def make_samples(
    inputs: Any, labels: Any, domains: Any = None, subjects: Any = None, *, where: str
) -> Samples:
    """Return samples from raw arrays; ``where`` (a file, a function) opens each error.

    Images may be (N, H, W, C), or (N, H, W) when they are grey, of dtype uint8, uint16 (scaled to [0, 1]) or float;
    features (N, F) of any real dtype; :func:`convert_inputs` says which values are refused. Labels are whole numbers
    from 0. Subjects are text or whole numbers, equal for samples of the same subject. Raises :class:`DataError`.
    """
    try:
        given, inputs = inputs, np.asarray(inputs)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: inputs are no array ({error}); give samples of one shape") from error
    # NumPy drops the mask and keeps what was stored below it, often a filler such as 1e20.
    if np.ma.is_masked(given):
        raise DataError(f"{where}: inputs have masked values; fill them in, or leave their samples out")
    labels = _check_whole_numbers(labels, "labels", where)
    domains = np.zeros_like(labels) if domains is None else _check_whole_numbers(domains, "domains", where)
    if inputs.ndim not in (2, 3, 4):
        raise DataError(
            f"{where}: inputs have shape {inputs.shape}; give images (N, H, W, C) or features (N, F)"
        )
    _check_axes(inputs, len(labels), where)
    if not len(inputs) == len(labels) == len(domains):
        raise DataError(f"{where}: {len(inputs)} inputs, {len(labels)} labels; give as many of each")
    if 0 in inputs.shape:
        raise DataError(f"{where}: holds no samples (shape {inputs.shape})")
    images = inputs[..., np.newaxis] if inputs.ndim == 3 else inputs
    # Torch shares memory only if it is writable.
    writable = np.require(convert_inputs(images, where), requirements="W")
    owners = None if subjects is None else check_subjects(subjects, len(labels), where)
    sides = frozenset({(images.shape[1], images.shape[2])} if images.ndim == 4 else ())
    return Samples(writable, labels, domains, owners, sides)


def _check_axes(inputs: NDArray[Any], labels: int, where: str) -> None:
    """Raise :class:`DataError` for images whose axes are in another order than (N, H, W, C)."""
    # A side of more than 4 pixels cannot be a number of channels, so that these shapes are read in one way alone.
    if inputs.ndim == 4 and inputs.shape[1] in (1, 3, 4) and inputs.shape[2] == inputs.shape[3] > 4:
        raise DataError(
            f"{where}: inputs have shape {inputs.shape}, with the channels first; give x.transpose(0, 2, 3, 1)"
        )
    if inputs.ndim > 2 and len(inputs) != labels == inputs.shape[-1] > 4:
        raise DataError(
            f"{where}: inputs have shape {inputs.shape}, with the {labels} samples last; give numpy.moveaxis(x, -1, 0)"
        )


def check_subjects(subjects: Any, samples: int, where: str) -> Subjects:
    """Return one subject for each of ``samples``, as text: a number and its text are the same subject."""
    array = np.asarray(subjects)
    if array.shape != (samples,) or not (array.dtype.kind == "U" or np.issubdtype(array.dtype, np.integer)):
        raise DataError(
            f"{where}: subjects have shape {array.shape} and dtype {array.dtype}; give {samples} texts or whole"
            " numbers, one for each training sample"
        )
    # Identifiers that one source reads as numbers and another as text are the same people.
    return array.astype(np.str_)


def check_label(label: Any, where: str) -> int:
    """Return the label of one sample, a whole number from 0 that is never cut, rounded or cast.

    Integers of Python, NumPy and torch are taken, also in a tensor or array of one element. Raises :class:`DataError`,
    opened by ``where``, for floats, booleans, text, one-hot rows and anything else.
    """
    try:
        given = label.detach().cpu().numpy() if isinstance(label, Tensor) else label
        array: NDArray[Any] = np.asarray(given)
    except Exception:  # of the site's own type, or a tensor that NumPy has no type for
        array = np.asarray(None)
    if array.size != 1 or array.ndim > 1 or array.dtype.kind not in "iu" or np.ma.is_masked(label):
        remedy = _suggest_labels(array.reshape(1) if array.size == 1 else array[np.newaxis])
        raise DataError(f"{where}: the label is {describe_value(label)}, not a whole number{remedy}")
    return int(array.reshape(1)[0])


def join_samples(parts: Sequence[Samples]) -> Samples:
    """Concatenate samples of equal shapes; images of mixed dtype become float32 in [0, 1].

    Samples of different parts belong to the same subject where both parts name it so, and to none where a part names
    no subjects.
    """
    inputs = [part.inputs for part in parts]
    if len({array.dtype for array in inputs}) > 1:
        inputs = [scale_to_floats(array) for array in inputs]
    owners = [part.subjects for part in parts if part.subjects is not None]
    return Samples(
        np.concatenate(inputs),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.domains for part in parts]),
        np.concatenate(owners) if len(owners) == len(parts) else None,
        frozenset().union(*(part.sides for part in parts)),
    )


def scale_to_floats(inputs: Inputs) -> NDArray[np.float32]:
    """float32, with uint8 scaled from [0, 255] to [0, 1]."""
    if inputs.dtype == np.uint8:
        return inputs.astype(np.float32) / np.float32(255)
    return inputs.astype(np.float32, copy=False)


def _check_whole_numbers(values: Any, what: str, where: str) -> Labels:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or np.ma.is_masked(values):
        raise DataError(
            f"{where}: {what} have shape {array.shape} and dtype {array.dtype}; give a whole number for each sample"
            f"{_suggest_labels(array)}"
        )
    outside = (array < 0) | (array > np.iinfo(np.int64).max)
    if outside.any():
        first = int(outside.argmax())
        raise DataError(
            f"{where}: {what} of sample {first} is {array[first]}; number the {what} from 0, and leave samples without"
            " one out"
        )
    return array.astype(np.int64)


def _suggest_labels(array: NDArray[Any]) -> str:
    """Return the remedy for labels (N, …) that are not N whole numbers."""
    kind, rows = array.dtype.kind, array.ndim > 1
    if array.ndim == 2 and array.shape[1] == 1:
        remedy = "give the only column, labels[:, 0]"
    elif (
        array.ndim == 2 and kind in "iufb" and np.isin(array, (0, 1)).all() and (array.sum(axis=1) == 1).all()
    ):
        remedy = "the labels are one-hot: give their argmax over the last axis"
    elif rows or kind in "iu":
        remedy = "give one number for each sample"
    elif kind == "b":
        remedy = "write booleans as 0 and 1"
    elif kind == "f" and np.isnan(array).any():
        remedy = "some are NaN: leave samples without a label out, and store the others' as integers"
    elif kind == "f" and (array != np.floor(array)).any():
        first = int((array != np.floor(array)).argmax())
        remedy = (
            f"sample {first} has {array[first]:g}, and a score is no class: give the class's number instead"
        )
    elif kind == "f":
        remedy = "store labels as integers"
    else:
        remedy = (
            "number the classes in the order of `classes` in the agreement; in another order, their names in that"
            " order have to be in class_names of the .npz or `classes` of the data set"
        )
    return f"; {remedy}"


def convert_inputs(inputs: NDArray[Any], where: str) -> Inputs:
    """Return images (N, H, W, C) or features (N, F) as uint8 or float32.

    uint16 images are scaled to [0, 1]; whole numbers and bools as features become floats of the same value. Raises
    :class:`DataError` for images of another whole-number type, for values that are NaN or infinite, for whole numbers
    that float32 may not have, and where rounding to float32 moves a value by a thousandth of its column's (of all
    images') range.
    """
    inputs = inputs.astype(inputs.dtype.newbyteorder("="), copy=False)  # torch reads native byte order only
    kind, images = inputs.dtype.kind, inputs.ndim == 4
    if images and inputs.dtype == np.uint8:
        return inputs
    if images and inputs.dtype == np.uint16:
        return inputs.astype(np.float32) / np.float32(65535)
    if kind not in "fiub" or (images and kind != "f"):
        raise DataError(f"{where}: inputs are {inputs.dtype}; {_suggest_type(inputs)}")
    with np.errstate(over="ignore"):  # an overflow becomes infinite and is refused below
        floats = inputs.astype(np.float32, copy=False)
    finite = np.isfinite(floats)
    if not finite.all():
        place = _name_place(np.argwhere(~finite)[0], where, len(inputs))
        raise DataError(f"{place} has a value that is NaN or infinite as float32")
    if not np.can_cast(inputs.dtype, np.float32):
        _check_rounding(inputs, floats, where)
    return floats


def _suggest_type(inputs: NDArray[Any]) -> str:
    if inputs.dtype == np.bool_:
        return "give 255 * x as uint8"
    if inputs.dtype.kind not in "iu":
        return "give uint8, uint16 or floats"
    low, high = int(inputs.min()), int(inputs.max())
    if low >= 0 and high <= 255:
        return f"their values are {low} to {high}: give x.astype(numpy.uint8), for which 255 is white"
    return f"their values are {low} to {high}: scale them to [0, 1] by the same two numbers at every site"


def _check_rounding(inputs: NDArray[Any], floats: NDArray[np.float32], where: str) -> None:
    """Raise :class:`DataError` where the values as float32 lose what the given values tell."""
    exact = inputs.astype(np.float64)
    if inputs.dtype.kind in "iu" and (beyond := np.abs(exact) > WHOLE_FLOATS).any():
        place = _name_place(np.argwhere(beyond)[0], where, len(inputs))
        raise DataError(
            f"{place} has a whole number beyond {WHOLE_FLOATS}, which float32 rounds; subtract or divide by a"
            " number that all sites agree on, or leave the column out if it is an identifier"
        )
    # A time stamp in seconds has 10 digits, of which float32 keeps 7: the rows of a short study would become equal.
    axes = 0 if inputs.ndim == 2 else None
    low, high = exact.min(axis=axes), exact.max(axis=axes)
    rounded = np.abs(exact - floats).max(axis=axes)
    lost = np.atleast_1d((high > low) & (rounded > (high - low) / 1024))
    if lost.any():
        column = int(lost.argmax())
        what = f"feature {column}" if inputs.ndim == 2 else "the images"
        first, last = (float(np.atleast_1d(end)[column]) for end in (low, high))
        raise DataError(
            f"{where}: {what} reach from {first!r} to {last!r}, a range that float32 rounds away; subtract or divide"
            " by a number that all sites agree on"
        )


def _name_place(index: NDArray[np.int64], where: str, samples: int) -> str:
    """Name the value at an index (sample, …); the sample only where there are several."""
    sample, *inner = index.tolist()
    axis = "feature" if len(inner) == 1 else "row, column and channel"
    at = f"{axis} {', '.join(map(str, inner))}"
    return f"{where}: sample {sample}: {at}" if samples > 1 else f"{where}: {at}"
