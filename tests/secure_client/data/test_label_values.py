"""Labels are whole numbers, which are never cut, rounded or cast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from secure_client.errors import DataError

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
def test_a_whole_number_of_any_type_is_a_label(label: Any, read: Callable[..., list[int]]) -> None:
    assert read(OneLabel(label)) == [0, 2]


@pytest.mark.parametrize("label", WRONG, ids=repr)
def test_a_label_that_would_be_cut_or_cast_is_refused_with_its_sample(
    label: Any, read: Callable[..., list[int]]
) -> None:
    with pytest.raises(DataError, match="sample 1"):
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
def test_labels_in_an_array_are_whole_numbers(labels: Any, read: Callable[..., list[int]]) -> None:
    with pytest.raises(DataError, match=r"^own_labels:build: train: "):
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
def test_argmax_is_advised_for_one_hot_rows_alone(
    labels: Any, advises_argmax: bool, read: Callable[..., list[int]]
) -> None:
    with pytest.raises(DataError) as refused:
        read((np.zeros((2, 8, 8), np.uint8), labels))
    assert ("argmax" in str(refused.value)) == advises_argmax
