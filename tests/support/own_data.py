"""Data sets of a site's own code, read as a site reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from agreement import PreprocessingSection
from secure_client.data.class_names import agree_on_labels
from secure_client.data.dataset_labels import NumberedDataset
from secure_client.data.preprocess import PreprocessedDataset


def preprocessed(
    dataset: Dataset[Any], agreed: PreprocessingSection | None, classes: int, *, where: str
) -> PreprocessedDataset:
    """Return the data set with labels that have no class names, over classes that are called by their numbers."""
    labels = agree_on_labels(None, None, tuple(map(str, range(classes))), {}, where=where)
    return PreprocessedDataset(NumberedDataset(dataset, where), agreed, labels)


class Named(Dataset[Any]):
    """One image for each label, with attributes that name classes."""

    def __init__(self, labels: Sequence[Any], **attributes: Any) -> None:
        self.given = list(labels)
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(self.given)

    def __getitem__(self, index: int) -> Any:
        return torch.full((1, 8, 8), float(self.given[index]) / 10), self.given[index]


def digit_folders(root: Path, digits: Sequence[int]) -> Path:
    """Write one image of each digit into the folder of its name; a pixel is worth the digit."""
    for digit in digits:
        (root / str(digit)).mkdir(parents=True)
        Image.fromarray(np.full((8, 8), digit, np.uint8)).save(root / str(digit) / "1.png")
    return root
