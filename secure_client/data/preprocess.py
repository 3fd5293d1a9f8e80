"""Preprocessing that all sites agree on: converts images, as read, into a model's input.

Two steps keep stored data small: :func:`fit_images` gives images the agreed size and channels, :func:`to_tensor`
scales, normalises and moves the channels first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from agreement import PreprocessingSection
from secure_client.data.class_names import AgreedLabels
from secure_client.data.dataset_labels import NumberedDataset
from secure_client.data.samples import Inputs, Samples, check_label, convert_inputs, scale_to_floats
from secure_client.data.table_scale import scale_rows
from secure_client.errors import DataError
from secure_client.table_format import TableScale
from secure_client.user_code import describe_failure, describe_failures, describe_value

_log = logging.getLogger("protoseal.site")
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey (ITU-R BT.601)."""

_CONVERT = "convert_channels = true in the site's file (predict: --convert-channels)"

CHUNK = 1024
"""Number of images resized at once, which bounds the memory for intermediate floats."""


def fit_images(
    images: Inputs, agreed: PreprocessingSection, *, where: str, convert_channels: bool = True
) -> Inputs:
    """Convert (N, H, W, C) to (N, S, S, C′) with the agreed size S and channels C′; the dtype is kept.

    Resizing is bilinear with antialiasing and makes images square whatever their aspect ratio. Grey becomes RGB by
    repetition, RGB becomes grey by BT.601. Images that already fit are returned unchanged, so the function is
    idempotent. Raises :class:`DataError` for any other change of channels, and for any change without
    ``convert_channels``.
    """
    _check_channels(images, agreed.channels, where, convert=convert_channels)
    if images.shape[1:] == (agreed.image_size, agreed.image_size, agreed.channels):
        return images
    fitted = np.empty((len(images), agreed.image_size, agreed.image_size, agreed.channels), images.dtype)
    for start in range(0, len(images), CHUNK):
        fitted[start : start + CHUNK] = _fit_chunk(images[start : start + CHUNK], agreed)
    return fitted


def describe_resizing(sides: Collection[tuple[int, int]], agreed: PreprocessingSection | None) -> str:
    """Say which images, by height and width, are resized to the agreed size; the empty string if none is."""
    if agreed is None or set(sides) <= {(agreed.image_size, agreed.image_size)}:
        return ""
    least, largest = (f"{height}×{width}" for height, width in (min(sides), max(sides)))
    size = f"{agreed.image_size}×{agreed.image_size}"
    stored = least if least == largest else f"{least} to {largest}"
    text = f"images of {stored} (height × width) are resized to {size}"
    distorted = [(height, width) for height, width in sorted(sides) if height != width]
    if distorted:
        text += f"; WARNING: images that are not square are distorted, as those of {'×'.join(map(str, distorted[0]))}"
    if any(min(pair) < agreed.image_size for pair in sides):
        text += "; WARNING: images that are smaller are enlarged"
    return text


Preprocessing: TypeAlias = PreprocessingSection | TableScale
"""Agreed preprocessing of images, or the scale of a table's features at a site."""


def to_tensor(
    inputs: Inputs, agreed: Preprocessing | None, *, where: str, convert_channels: bool = True
) -> Tensor:
    """Return the model's input: float32 (N, C, S, S), normalised, for images; (N, F) for features.

    A table's features are scaled. Without an agreed preprocessing floats stay as they are and uint8 is scaled to
    [0, 1]. Raises :class:`DataError` for features where images are agreed, for float images outside [0, 1], and as
    :func:`fit_images` does.
    """
    if isinstance(agreed, TableScale):
        return torch.from_numpy(scale_rows(inputs, agreed, where))
    if agreed is None:
        floats = torch.from_numpy(scale_to_floats(inputs))
        return floats if inputs.ndim == 2 else floats.permute(0, 3, 1, 2).contiguous()
    if inputs.ndim == 2:
        side, channels = agreed.image_size, agreed.channels
        flat = inputs.shape[1] == side * side * channels
        raise DataError(
            f"{where}: holds rows of {inputs.shape[1]} features, and images are agreed; "
            + (f"give x.reshape(-1, {side}, {side}, {channels})" if flat else "give images (N, H, W, C)")
        )
    # Before resizing, whose averages could bring values outside [0, 1] back inside.
    _check_range(inputs, where)
    images = fit_images(inputs, agreed, where=where, convert_channels=convert_channels)
    fitted = torch.from_numpy(scale_to_floats(images)).permute(0, 3, 1, 2)
    mean, std = torch.tensor(agreed.mean), torch.tensor(agreed.std)
    return ((fitted - mean[:, None, None]) / std[:, None, None]).contiguous()


def to_dataset(
    samples: Samples, agreed: Preprocessing | None, *, where: str, convert_channels: bool = True
) -> TensorDataset:
    """Return an in-memory data set of (float32 tensor, int64 label); raise as :func:`to_tensor` does."""
    inputs = to_tensor(samples.inputs, agreed, where=where, convert_channels=convert_channels)
    return TensorDataset(inputs, torch.from_numpy(samples.labels))


class PreprocessedDataset(Dataset[tuple[Tensor, int]]):
    """A site's own data set under the agreed preprocessing, one sample at a time, none kept in memory.

    The data set gives (tensor, label) with images (C, H, W) of floats in [0, 1] or uint8, as torchvision's ``ToTensor``
    does, or features (F,). ``labels`` gives the agreed number of each label. Raises :class:`DataError` for any other
    sample when that sample is read, and for one that cannot be read, that has another label than before, or another
    shape than the first sample read. The length is that of the beginning.
    """

    def __init__(
        self,
        dataset: NumberedDataset,
        agreed: Preprocessing | None,
        labels: AgreedLabels,
        *,
        convert_channels: bool = True,
    ) -> None:
        self._dataset = dataset
        self._agreed = agreed
        self._labels = labels
        self._convert_channels = convert_channels
        self._labels_read = np.full(len(dataset), -1, np.int32)
        self._shape: torch.Size | None = None
        self._logs_colours = isinstance(agreed, PreprocessingSection) and agreed.channels == 1
        self.sides: set[tuple[int, int]] = set()
        """Heights and widths of the images that were read."""

    def __len__(self) -> int:
        return len(self._labels_read)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        inputs, label = read_item(self._dataset, index)
        place = f"{self._dataset.where}: sample {index}"
        number = self._labels.number(label, place)
        tensor = to_tensor(
            inputs[np.newaxis], self._agreed, where=place, convert_channels=self._convert_channels
        )
        # Class counts and prototypes divide by labels read earlier, which a random data set would contradict.
        self._check_unchanged(index, tensor[0], number, place)
        if self._logs_colours and count_coloured(inputs[np.newaxis]):
            _log.warning("%s: has colours, which convert_channels removes; later ones are not logged", place)
            self._logs_colours = False
        if inputs.ndim == 3:
            self.sides.add((inputs.shape[0], inputs.shape[1]))
        return tensor[0], number

    def _check_unchanged(self, index: int, tensor: Tensor, label: int, place: str) -> None:
        """Raise unless the sample has the label by which classes were counted, and the shape of other samples."""
        before = int(self._labels_read[index])
        if before not in (-1, label):
            raise DataError(
                f"{place}: had label {before} when it was first read, and now has label {label}; return the same"
                " label for an index at every read"
            )
        self._labels_read[index], self._shape = label, self._shape or tensor.shape
        if tensor.shape != self._shape:
            raise DataError(
                f"{place}: has shape {tuple(tensor.shape)}, but an earlier sample had {tuple(self._shape)}; return"
                " one shape for all samples"
            )


def read_item(dataset: NumberedDataset, index: int) -> tuple[Inputs, int]:
    """Read one sample of a site's own data set: an array, (H, W, C) or (F,), and its label, numbered by names.

    Raises :class:`DataError`, which names the sample, for anything else than (tensor, label) and for an exception of
    the data set.
    """
    place = f"{dataset.where}: sample {index}"
    with describe_failures(DataError, place):
        try:
            item = dataset.dataset[index]
        except BaseException as error:
            raise describe_failure(DataError, f"{place}{dataset.describe_file(index)}", error) from error
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise DataError(f"{place}: is {describe_value(item)}, not the pair (tensor, label)")
        if not isinstance(item[0], Tensor):
            raise DataError(
                f"{place}: the first of the pair is {describe_value(item[0])}, not a tensor; make images tensors with"
                " ToTensor(), arrays with torch.from_numpy"
            )
        return _convert_tensor(item[0], place), dataset.number(index, check_label(item[1], place), place)


def _convert_tensor(tensor: Tensor, place: str) -> Inputs:
    if tensor.ndim not in (1, 3):
        raise DataError(f"{place}: has shape {tuple(tensor.shape)}; give images (C, H, W) or features (F,)")
    if tensor.ndim == 3 and tensor.shape[2] in (1, 3, 4) and tensor.shape[0] == tensor.shape[1] > 4:
        raise DataError(
            f"{place}: has shape {tuple(tensor.shape)}, with the channels last; give x.permute(2, 0, 1)"
        )
    if tensor.is_complex():
        raise DataError(f"{place}: is {describe_value(tensor)}; give real numbers")
    try:
        plain = tensor.detach().cpu()
        plain = plain.to(torch.float32) if plain.dtype == torch.bfloat16 else plain
        array: NDArray[Any] = (plain.permute(1, 2, 0) if plain.ndim == 3 else plain).numpy()
    except Exception as error:  # a sparse or quantised tensor, or one without values
        raise describe_failure(DataError, f"{place}: {describe_value(tensor)}", error) from error
    if 0 in array.shape:
        raise DataError(f"{place}: has shape {tuple(tensor.shape)}, which holds no values")
    return cast("Inputs", convert_inputs(array[np.newaxis], place)[0])


def count_coloured(images: Inputs) -> int:
    """Return the number of images (N, H, W, C) of three channels that are not equal."""
    if images.shape[3] != 3:
        return 0
    return sum(bool((image != image[..., :1]).any()) for image in images)


def log_lost_colours(coloured: int, images: int, where: str) -> None:
    """Log how many of the images lose their colours, unless none does."""
    if coloured:
        _log.warning(
            "%s: %d of %d images have colours, which convert_channels removes", where, coloured, images
        )


def _check_channels(images: Inputs, agreed: int, where: str, *, convert: bool) -> None:
    shape, stored_channels = images.shape[1:], images.shape[3]
    if stored_channels == agreed or ({stored_channels, agreed} == {1, 3} and convert):
        return
    if {stored_channels, agreed} != {1, 3}:
        raise DataError(
            f"{where}: images have shape {shape} (H, W, C), and {agreed} channels are agreed; {_suggest_axes(shape)}"
        )
    coloured = count_coloured(images)
    if coloured:
        raise DataError(
            f"{where}: {coloured} of {len(images)} images have colours, and grey is agreed; agree on channels = 3 in"
            f" [preprocessing], or lose the colours by {_CONVERT}"
        )
    stored = "grey stored as three equal channels" if stored_channels == 3 else "grey"
    raise DataError(
        f"{where}: images are {stored}, and channels = {agreed} is agreed; {_CONVERT} converts them without loss, and"
        " removes the colours of any others"
    )


def _suggest_axes(shape: tuple[int, ...]) -> str:
    """Return the remedy for images (H, W, C) whose last axis is no grey and no RGB."""
    if shape[0] in (1, 3):
        return "if the first axis is the channels, give arrays (N, H, W, C): x.transpose(0, 2, 3, 1)"
    if shape[1] in (1, 3):
        return "if a tensor's last axis is the channels, give tensors (C, H, W): x.permute(2, 0, 1)"
    if shape[2] == 4:
        return "give RGB without an alpha channel"
    return "only grey and RGB are converted into each other"


def _check_range(images: Inputs, where: str) -> None:
    if images.dtype == np.uint8:
        return
    low, high = float(images.min()), float(images.max())
    if low >= 0.0 and high <= 1.0:
        return
    remedy = "scale them to [0, 1] by the same two numbers at every site"
    # Only advice depends on these guesses. Values are never rescaled by a site's own range: sites would differ.
    if low >= 0.0 and 2.0 < high <= 255.0:
        remedy = "give x / 255 if 255 is white, or uint8"
    elif -1.0 <= low <= -0.5 and high <= 1.0:
        remedy = "give (x + 1) / 2 if -1 is black and 1 is white"
    raise DataError(
        f"{where}: float images reach from {low:.4g} to {high:.4g}; {remedy}. The agreed preprocessing normalises them"
    )


def _fit_chunk(images: Inputs, agreed: PreprocessingSection) -> Inputs:
    planes = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float()
    if agreed.channels < planes.shape[1]:
        planes = (planes * torch.tensor(LUMA)[:, None, None]).sum(dim=1, keepdim=True)
    size = (agreed.image_size, agreed.image_size)
    # Antialiasing averages all pixels under a target pixel. Without it a shrunk scan would keep every n-th one only.
    if planes.shape[2:] != size:
        planes = torch.nn.functional.interpolate(
            planes, size, mode="bilinear", align_corners=False, antialias=True
        )
    # Grey is repeated for each channel.
    planes = planes.expand(-1, agreed.channels, -1, -1).permute(0, 2, 3, 1)
    if images.dtype == np.uint8:
        return planes.round().clamp(0, 255).to(torch.uint8).contiguous().numpy()
    # Interpolation can exceed the range by rounding. Each image is clamped to its own range, so that it depends on no
    # other image.
    flat = torch.from_numpy(np.ascontiguousarray(images)).flatten(1)
    low, high = (bound.view(-1, 1, 1, 1) for bound in (flat.amin(dim=1), flat.amax(dim=1)))
    return planes.clamp(low, high).contiguous().numpy()
