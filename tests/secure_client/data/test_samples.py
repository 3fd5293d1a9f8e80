"""Samples from raw arrays: each value arrives as it was given, labels are whole numbers, or the place is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, TensorDataset

from agreement import PreprocessingSection
from secure_client.data.dataset_labels import NumberedDataset
from secure_client.data.preprocess import fit_images, read_item, to_tensor
from secure_client.data.samples import make_samples
from secure_client.errors import DataError
from tests.support.refusals import refuses

GREY = PreprocessingSection(image_size=8, channels=1, mean=(0.0,), std=(1.0,))
RGB = PreprocessingSection(image_size=8, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)
RANDOM = np.random.default_rng(0)
DEEP = RANDOM.integers(0, 65536, (3, 8, 8, 1), np.uint16)
UNIT = RANDOM.random((3, 8, 8, 1))
FEATURES = RANDOM.normal(size=(5, 4))
WITH_A_LARGE_NUMBER = np.array([[1, 2], [3, 2**24 + 1]])
DATES = np.column_stack([np.arange(5.0), 1.7e9 + np.arange(5)])


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "uint8", "int32", "int64", "float16", "float32"])
def test_make_samples_features_of_every_type_keep_their_values(dtype: str) -> None:
    given = np.arange(-6, 6).reshape(4, 3).astype(dtype)
    read = make_samples(given, [0] * 4, where="x").inputs
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, given.astype(np.float64))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_make_samples_float_images_keep_single_precision(dtype: str) -> None:
    given = UNIT.astype(dtype)
    np.testing.assert_array_equal(make_samples(given, [0] * 3, where="x").inputs, given.astype(np.float32))


def test_make_samples_16_bit_images_are_scaled_as_tensors_are() -> None:
    from_array = make_samples(DEEP, [0] * 3, where="x").inputs
    np.testing.assert_array_equal(from_array, DEEP.astype(np.float32) / np.float32(65535))
    tensors = torch.from_numpy(DEEP.transpose(0, 3, 1, 2))
    for index, expected in enumerate(from_array):
        item, _ = read_item(NumberedDataset(TensorDataset(tensors, torch.arange(3)), "x"), index)
        np.testing.assert_array_equal(item, expected)


@pytest.mark.parametrize("given", [(DEEP >> 8).astype(np.uint8), DEEP, UNIT.astype(np.float32), FEATURES])
def test_make_samples_byte_order_changes_no_value(given: NDArray[Any]) -> None:
    swapped = given.astype(given.dtype.newbyteorder(">"))
    native, other = (make_samples(array, [0] * len(given), where="x").inputs for array in (given, swapped))
    assert other.dtype == native.dtype
    np.testing.assert_array_equal(other, native)


def test_read_item_bfloat16_keeps_its_values() -> None:
    given = torch.from_numpy(UNIT.transpose(0, 3, 1, 2)).to(torch.bfloat16)
    item, _ = read_item(NumberedDataset(TensorDataset(given, torch.arange(3)), "x"), 1)
    np.testing.assert_array_equal(item, given[1].float().permute(1, 2, 0).numpy())


@pytest.mark.parametrize(
    ("inputs", "place"),
    [
        (DEEP.astype(np.int32), "int32"),
        ((DEEP >> 8).astype(np.int64), "uint8"),
        (DEEP.astype(np.int16), "int16"),
        ((DEEP >> 9).astype(np.int8), "int8"),
        (UNIT > 0.5, "bool"),
        (UNIT.astype(np.complex64), "complex64"),
        (FEATURES.astype(np.complex128), "complex128"),
        (FEATURES.astype(str), "<U"),
        (FEATURES.astype(object), "object"),
        (WITH_A_LARGE_NUMBER, "sample 1: feature 1"),
        (WITH_A_LARGE_NUMBER.astype(np.uint64), "sample 1: feature 1"),
        (DATES, "feature 1"),
        (np.array([[0.0, 1e-300], [0.0, 2e-300]]), "feature 1"),
        (np.array([[0.0, 1.0], [1e300, 1.0]]), "sample 1: feature 0"),
        (np.array([[0.0, 1.0], [1.0, -np.inf]]), "sample 1: feature 1"),
        (UNIT.transpose(0, 3, 1, 2), "(3, 1, 8, 8)"),
        (np.zeros((3, 3, 8, 8), np.uint8), "(3, 3, 8, 8)"),
        (np.ma.masked_less(FEATURES, 0.0), "masked"),
        ([[1.0], [1.0, 2.0]], "shape"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_make_samples_values_that_would_change_are_refused(inputs: Any, place: str) -> None:
    with refuses("clinic.npz", place):
        make_samples(inputs, [0] * len(inputs), where="clinic.npz")


def test_make_samples_samples_on_the_last_axis_are_refused() -> None:
    with refuses("(8, 8, 3, 50)"):
        make_samples(np.zeros((8, 8, 3, 50), np.uint8), [0] * 50, where="clinic.npz")


@pytest.mark.parametrize(
    "image",
    [
        torch.zeros(1, 8, 8, dtype=torch.int64),
        torch.zeros(1, 8, 8, dtype=torch.bool),
        torch.zeros(1, 8, 8, dtype=torch.complex64),
        torch.full((1, 8, 8), 1e300, dtype=torch.float64),
        torch.full((4,), 2**24 + 1),
        torch.zeros(8, 8),
        torch.zeros(8, 8, 3),
        torch.zeros(0),
    ],
    ids=lambda image: f"{image.dtype}-{tuple(image.shape)}",
)
def test_read_item_values_that_would_change_are_refused_with_the_sample(image: torch.Tensor) -> None:
    with refuses("own:data: sample 1"):
        read_item(NumberedDataset([(torch.zeros(1), 0), (image, 0)], "own:data"), 1)  # type: ignore[arg-type]  # is indexed alike


@pytest.mark.parametrize(
    ("images", "agreed"),
    [
        (UNIT * 255, GREY),
        (UNIT * 2 - 1, GREY),
        (UNIT * 1.01, GREY),
        (np.zeros((2, 1, 8, 9)), GREY),  # channels first
        (np.zeros((2, 8, 1, 8)), GREY),  # a tensor (H, W, C)
        (np.zeros((2, 8, 8, 4)), RGB),
        (np.zeros((2, 8, 8, 2)), GREY),
        (np.zeros((2, 64)), GREY),
        (np.zeros((2, 65)), GREY),
    ],
)
def test_to_tensor_images_in_another_form_are_refused(images: Any, agreed: PreprocessingSection) -> None:
    with refuses("clinic.npz"):
        to_tensor(images.astype(np.float32), agreed, where="clinic.npz")


@pytest.mark.parametrize(
    ("images", "agreed", "harmless"),
    [
        (np.zeros((2, 8, 8, 1), np.uint8), RGB, True),
        (np.repeat(DEEP.astype(np.uint8), 3, axis=3), GREY, True),
        (RANDOM.integers(0, 256, (2, 8, 8, 3), np.uint8), GREY, False),
    ],
)
def test_fit_images_advice_loses_no_colours(
    images: Any, agreed: PreprocessingSection, harmless: bool
) -> None:
    """A conversion that is advised keeps every value."""
    with pytest.raises(DataError) as refused:
        fit_images(images, agreed, where="x", convert_channels=False)
    assert ("without loss" in str(refused.value)) == harmless
    converted = fit_images(images, agreed, where="x")
    assert (converted == images[..., :1]).all() == harmless


WHOLE = [2, np.int8(2), np.uint64(2), torch.tensor(2), torch.tensor([2], dtype=torch.uint8), np.array([2])]
WRONG = [
    *(1.9, 2.0, float("nan"), np.float32(2), torch.tensor(1.5), torch.tensor(1.0, dtype=torch.bfloat16)),
    *(True, np.bool_(True), torch.tensor(True), "2", "dog", np.str_("2"), b"2", None, {"label": 2}),
    *([0, 0, 1], torch.tensor([0, 0, 1]), np.eye(3)[2], torch.tensor([[2]]), (), [[1], [1, 2]]),
    *(-1, 3, 2**63, 2**64 + 2, np.uint64(2**64 - 1), np.ma.masked, np.ma.array(2, mask=True)),
    *(np.datetime64("2026-01-01"), 2 + 0j, np.timedelta64(2)),
]


class OneLabel(Dataset[Any]):
    def __init__(self, label: Any) -> None:
        self.label = label

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1, 8, 8), self.label if index else 0


@pytest.mark.parametrize("label", WHOLE, ids=repr)
def test_check_label_whole_number_of_any_type_is_a_label(label: Any, read: Callable[..., list[int]]) -> None:
    assert read(OneLabel(label)) == [0, 2]


@pytest.mark.parametrize("label", WRONG, ids=repr)
def test_check_label_that_would_be_cut_or_cast_is_refused_with_its_sample(
    label: Any, read: Callable[..., list[int]]
) -> None:
    with refuses("sample 1"):
        read(OneLabel(label))


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0.0, 1.0]),
        np.array([0.0, np.nan]),
        np.array([0, 2**64 - 1], np.uint64),
        [0, 2**64],
        np.array([False, True]),
        np.array(["0", "1"]),
        np.array(["bird", "cat"], dtype=object),
        np.eye(2, dtype=np.int64),
        np.array([0, -1]),
        np.ma.array([0, 1], mask=[False, True]),
        np.int64(1),
        [0, None],
    ],
    ids=repr,
)
def test_make_samples_labels_that_are_no_whole_numbers_are_refused(
    labels: Any, read: Callable[..., list[int]]
) -> None:
    with refuses("own_labels:build: train: "):
        read((np.zeros((2, 8, 8), np.uint8), labels))


@pytest.mark.parametrize(
    ("labels", "advises_argmax"),
    [
        (np.eye(2), True),
        (np.eye(2, dtype=bool), True),
        (np.array([[0], [1]]), False),
        (np.array([0.0, 1.0]), False),
    ],
    ids=repr,
)
def test_make_samples_one_hot_labels_are_advised_argmax(
    labels: Any, advises_argmax: bool, read: Callable[..., list[int]]
) -> None:
    with pytest.raises(DataError) as refused:
        read((np.zeros((2, 8, 8), np.uint8), labels))
    assert ("argmax" in str(refused.value)) == advises_argmax
