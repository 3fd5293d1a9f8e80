"""Training and test data of one site, in the form that the federation agreed on."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from agreement import Agreement
from secure_client.data.class_names import log_labels
from secure_client.data.preprocess import PreprocessedDataset, count_coloured, log_lost_colours, to_dataset
from secure_client.data.samples import Samples, Subjects, check_subjects
from secure_client.data.sources import NO_NAMES, is_user_function, load_sources
from secure_client.data.table_scale import fit_inputs
from secure_client.data.user_data import UserPart, call_user_function
from secure_client.errors import DataError
from secure_client.table_format import TableFormat, TableScale
from secure_client.user_code import describe_failures


@dataclass(frozen=True)
class SiteData:
    """Map-style data sets of (float32 tensor, int label); ``test`` is None at a site without test samples.

    ``validation`` are samples that the site keeps aside for early stopping, or None. ``subjects`` int64 (N,) has the
    number of each training sample's subject, in the order of ``train``; None if subjects are unknown. ``root`` is the
    folder or file from which ``train`` is read as needed; None if it is in memory, or the site's file names no such.
    ``where`` names the data in errors. ``label_notes`` say how labels were numbered.
    """

    train: Dataset[Any]
    test: Dataset[Any] | None
    validation: Dataset[Any] | None = None
    subjects: NDArray[np.int64] | None = None
    scale: TableScale | None = None
    """Scale of a table's features, by which the site's model predicts too."""
    root: Path | None = None
    where: str = ""
    label_notes: tuple[str, ...] = ()
    sides: tuple[AbstractSet[tuple[int, int]], ...] = ()
    """Heights and widths of each part's images before they were resized; of a data set those that were read."""

    @property
    def train_samples(self) -> int:
        """Number of training samples."""
        return len(cast("Sized", self.train))


def load_site_data(
    spec: str,
    data_root: Path | None,
    agreement: Agreement,
    *,
    convert_channels: bool = False,
    written: TableFormat | None = None,
    scale: TableScale | None = None,
    class_names: Mapping[str, str] = NO_NAMES,
    allow_unused_names: bool = False,
) -> SiteData:
    """Read the data that ``spec`` names (see :func:`secure_client.data.sources.read_sources`), in the agreed form.

    Arrays are preprocessed now and kept in memory; a torch data set by ``module:function`` is read, checked and
    preprocessed sample by sample as it is used. Grey and RGB are converted only with ``convert_channels``. ``written``
    is the format of tables, by default that in a file beside each; ``scale`` is that of a trained model, by default the
    training rows'. Labels are numbered by the names of their classes, where the data have any; ``class_names`` maps
    names of the data to agreed classes. Each key has to be a class of the data, unless
    ``allow_unused_names``. Raises :class:`secure_client.errors.DataError` or :class:`secure_client.errors.PluginError`.
    """
    if is_user_function(spec):
        if agreement.table is not None:
            raise DataError(
                f"{spec}: the agreement has [table], by which files are read: give the rows as table:PATH"
            )
        with describe_failures(DataError, spec):
            return _load_own(
                spec,
                data_root,
                agreement,
                class_names,
                convert_channels=convert_channels,
                allow_unused_names=allow_unused_names,
            )
    data = load_sources(
        spec,
        data_root=data_root,
        agreed=agreement.inputs,
        classes=agreement.classes,
        convert_channels=convert_channels,
        written=written,
        class_names=class_names,
        allow_unused_names=allow_unused_names,
    )
    # A trained model predicts by the scale of its training rows, never by that of the new ones.
    agreed = scale or fit_inputs(agreement.inputs, data.train.inputs, where=spec)
    # Images have the agreed size and channels since load_sources: to_dataset only normalises them.
    return SiteData(
        to_dataset(data.train, agreed, where=f"{spec}: train"),
        None if data.test is None else to_dataset(data.test, agreed, where=f"{spec}: test"),
        subjects=number_subjects(data.train.subjects),
        scale=agreed if isinstance(agreed, TableScale) else None,
        where=spec,
        label_notes=data.label_notes,
        sides=tuple(part.sides for part in (data.train, data.test) if part is not None),
    )


def _load_own(
    spec: str,
    data_root: Path | None,
    agreement: Agreement,
    class_names: Mapping[str, str],
    *,
    convert_channels: bool,
    allow_unused_names: bool,
) -> SiteData:
    user_data = call_user_function(spec, data_root)
    labels = user_data.agree(agreement.classes, class_names, allow_unused_names=allow_unused_names)
    images = agreement.preprocessing

    def prepare(part: UserPart, where: str) -> Dataset[Any]:
        if isinstance(part, Samples):
            part = replace(part, labels=labels.number_all(part.labels, where))
            dataset = to_dataset(part, images, where=where, convert_channels=convert_channels)
            if part.is_images and images is not None and images.channels == 1:
                log_lost_colours(count_coloured(part.inputs), len(part), where)
            return dataset
        return PreprocessedDataset(part, images, labels, convert_channels=convert_channels)

    subjects: Subjects | None = user_data.train.subjects
    if subjects is not None:
        subjects = check_subjects(subjects, len(user_data.train), spec)
    train = prepare(user_data.train, f"{spec}: train")
    test = None if user_data.test is None else prepare(user_data.test, f"{spec}: test")
    of_images = (user_data.train, user_data.test, train, test)
    return SiteData(
        train,
        test,
        subjects=number_subjects(subjects),
        # Arrays are in memory: no folder that is lost later can take them away.
        root=None if isinstance(user_data.train, Samples) else data_root,
        where=spec,
        label_notes=log_labels([(spec, labels)]),
        sides=tuple(part.sides for part in of_images if isinstance(part, Samples | PreprocessedDataset)),
    )


def number_subjects(subjects: Subjects | None) -> NDArray[np.int64] | None:
    """Return the subjects numbered from 0: names of subjects do not matter."""
    return None if subjects is None else np.unique(subjects, return_inverse=True)[1].astype(np.int64)
