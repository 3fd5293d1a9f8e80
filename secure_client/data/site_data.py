"""The data that one site trains and tests on, in the form that the federation agreed on."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch.utils.data import Dataset

from protoseal.config import Agreement
from secure_client.data.arrays import Samples, check_labels
from secure_client.data.own import OwnPart, call_own
from secure_client.data.preprocess import PreprocessedDataset, to_dataset
from secure_client.data.sources import is_own, load


@dataclass(frozen=True)
class SiteData:
    """Map-style data sets of (float32 tensor, int label); ``test`` is None at a site without test samples.

    ``validation`` is what the site keeps aside to decide when to stop training; None where it keeps nothing.
    """

    train: Dataset[Any]
    test: Dataset[Any] | None
    validation: Dataset[Any] | None = None

    @property
    def train_samples(self) -> int:
        """Number of training samples."""
        return len(cast("Sized", self.train))


def load_site_data(spec: str, data_root: Path | None, agreement: Agreement) -> SiteData:
    """What ``spec`` names (see :func:`secure_client.data.sources.read`), as the agreement wants it.

    Arrays are preprocessed now and kept in memory; a torch data set by ``module:function`` is read, checked
    and preprocessed sample by sample as it is used. Raises :class:`DataError` or :class:`PluginError`.
    """
    if is_own(spec):
        train, test = call_own(spec, data_root)
        return SiteData(
            _own_dataset(train, agreement, spec),
            None if test is None else _own_dataset(test, agreement, spec),
        )
    agreed = agreement.preprocessing
    data = load(spec, data_root=data_root, agreed=agreed, classes=agreement.classes)
    return SiteData(
        to_dataset(data.train, agreed, where=spec),
        None if data.test is None else to_dataset(data.test, agreed, where=spec),
    )


def _own_dataset(part: OwnPart, agreement: Agreement, where: str) -> Dataset[Any]:
    if isinstance(part, Samples):
        check_labels(part, agreement.classes, where)
        return to_dataset(part, agreement.preprocessing, where=where)
    return PreprocessedDataset(part, agreement.preprocessing, len(agreement.classes), where=where)
