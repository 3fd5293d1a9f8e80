"""Data sets of a site's own code, and samples that carry a number of their own to tell where each of them went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, TensorDataset

from agreement import PreprocessingSection
from protoseal.splits import SiteArrays
from secure_client.data.class_names import agree_on_labels
from secure_client.data.dataset_labels import NumberedDataset
from secure_client.data.preprocess import PreprocessedDataset
from secure_client.data.samples import Samples, TrainTest


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


def digit_scans(start: int, stop: int) -> TensorDataset:
    """Return scikit-learn's real scans, N×1×8×8 in [0, 1]."""
    scans = load_digits()
    images = torch.tensor(scans.images[start:stop] / 16, dtype=torch.float32)
    return TensorDataset(images.unsqueeze(1), torch.tensor(scans.target[start:stop]))


def digit_folders(root: Path, digits: Sequence[int]) -> Path:
    """Write one image of each digit into the folder of its name; a pixel is worth the digit."""
    for digit in digits:
        (root / str(digit)).mkdir(parents=True)
        Image.fromarray(np.full((8, 8), digit, np.uint8)).save(root / str(digit) / "1.png")
    return root


OFFICIAL = 100_000
"""The number of the first test sample."""


def numbered(per_cell: int, domains: int, classes: int, first: int = 0) -> Samples:
    """``per_cell`` samples of each domain and class, each with a number of its own as its only feature."""
    cells = [(d, k) for d in range(domains) for k in range(classes) for _ in range(per_cell)]
    numbers = np.arange(first, first + len(cells), dtype=np.float32)[:, np.newaxis]
    return Samples(numbers, np.array([k for _, k in cells]), np.array([d for d, _ in cells]))


def data(per_cell: int, domains: int = 2, classes: int = 4, *, test: int = 0) -> TrainTest:
    """Such samples of every domain and class; ``test`` of each also in a test part, 0 for none."""
    return TrainTest(
        numbered(per_cell, domains, classes),
        numbered(test, domains, classes, first=OFFICIAL) if test else None,
        tuple("abcdefghij"[:classes]),
        tuple(f"domain {d}" for d in range(domains)),
    )


def ids(samples: Samples) -> list[int]:
    """Return the samples' numbers."""
    return [int(row[0]) for row in samples.inputs]


def per_class(samples: Samples, classes: int) -> NDArray[np.int64]:
    """Samples of each class, (classes,)."""
    return np.bincount(samples.labels, minlength=classes)


def all_ids(sites: Sequence[SiteArrays], *, with_test: bool) -> list[int]:
    """Return the numbers of all that the sites have, training parts alone or test parts too."""
    return [i for site in sites for part in (site.train, site.test)[: 1 + with_test] for i in ids(part)]
