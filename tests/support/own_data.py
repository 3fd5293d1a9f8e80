"""Data sets of a site's own code, read as a site reads them."""

from __future__ import annotations

from typing import Any

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
