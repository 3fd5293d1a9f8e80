"""A site's data: where it comes from, and the form that the agreed preprocessing gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset


@dataclass(frozen=True)
class SiteData:
    """Map-style data sets of (float32 tensor, int label); ``test`` is None at a site without test samples."""

    train: Dataset[Any]
    test: Dataset[Any] | None
