"""Data from a site's own code, ``module:function``: arrays, or torch data sets that are read as needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from agreement.toml_loading import nearest
from secure_client.data.class_names import MIXED, AgreedLabels, Names, agree_on_labels, check_keys
from secure_client.data.dataset_labels import NumberedDataset, number_classes
from secure_client.data.preprocess import read_item
from secure_client.data.samples import Samples, StoredData, make_samples
from secure_client.errors import DataError, PluginError
from secure_client.user_code import call_function, describe_failure, load_function

UserPart = NumberedDataset | Samples
FILE_FORMS = frozenset({"npz", "folder", "table", "sites"})
"""First words of a data set's name that are no module."""


@dataclass(frozen=True)
class UserData:
    """Data from a site's own code; ``names`` are those of the classes that all labels number, or None."""

    where: str
    train: UserPart
    test: UserPart | None
    names: Names | None

    @property
    def parts(self) -> list[UserPart]:
        """Training part, and test part if there is any."""
        return [self.train] if self.test is None else [self.train, self.test]

    @property
    def doubt(self) -> str:
        """Cause for which ``names`` may not be those of all labels; the empty string if there is none."""
        if self.names is None:
            return ""
        if any(isinstance(part, Samples) or part.has_unnamed_labels for part in self.parts):
            return MIXED
        return next(
            (part.doubt for part in self.parts if isinstance(part, NumberedDataset) and part.doubt), ""
        )

    @property
    def folders(self) -> frozenset[tuple[str, int]]:
        """Folders of files whose labels have no names, with the label of each."""
        return frozenset().union(*(part.folders for part in self.parts if isinstance(part, NumberedDataset)))

    def agree(
        self, classes: tuple[str, ...], class_names: Mapping[str, str], *, allow_unused_names: bool = False
    ) -> AgreedLabels:
        """Return the agreed number of every label; raise :class:`DataError` as :func:`agree_on_labels` does.

        Unless ``allow_unused_names``, raise :class:`DataError` also for a key of ``class_names`` that is no class.
        """
        if not allow_unused_names:
            check_keys(class_names, [self.names, *([None] if self.doubt else [])], self.where)
        return agree_on_labels(
            self.names,
            self._occurring(),
            classes,
            class_names,
            where=self.where,
            doubt=self.doubt,
            folders=self.folders,
        )

    def _occurring(self) -> set[int] | None:
        labels: set[int] = set()
        for part in self.parts:
            stated = (
                set(np.unique(part.labels).tolist()) if isinstance(part, Samples) else part.occurring_labels()
            )
            if stated is None:
                return None
            labels |= stated
        return labels


def call_user_function(spec: str, data_root: Path | None) -> UserData:
    """Call ``module:function`` with ``data_root=`` and return its result.

    The function returns (train, test). Each part is a map-style torch ``Dataset`` or a pair of arrays (inputs, labels);
    test may be None. Where the unit of privacy is a subject, the training part names each sample's subject: a data set
    by an attribute ``subjects``, arrays as the third of (inputs, labels, subjects). Raises :class:`DataError` for
    anything else, also for a mistyped form of file, and :class:`PluginError` when there is no such function.
    """
    try:
        function = load_function(spec, "dataset")
    except PluginError as error:
        form, _, name = spec.partition(":")
        # `nzp:data.npz` has the form of module:function: where it fails, a mistyped form of file is likelier.
        no_module = isinstance(error.__cause__, ModuleNotFoundError)
        if not name.isidentifier() or (no_module and get_close_matches(form.lower(), FILE_FORMS)):
            raise DataError(
                f"{spec}: {form!r} is no form of file{nearest(form, FILE_FORMS)}; {name!r} is read as a function"
                f" of a module {form!r} otherwise, and there is none"
            ) from error
        raise
    returned = call_function(function, spec, data_root=data_root)
    if not (isinstance(returned, tuple | list) and len(returned) == 2):
        raise DataError(f"{spec}: returned {type(returned).__name__}; return the pair (train, test)")
    train, test = returned
    parts = [_adopt(train, f"{spec}: train"), *([] if test is None else [_adopt(test, f"{spec}: test")])]
    datasets = [part for part in parts if isinstance(part, NumberedDataset)]
    names = number_classes(datasets, spec)
    # A doubt about names matters only if they change a number: then some labels might be agreed numbers already.
    user_data = UserData(spec, parts[0], parts[1] if len(parts) > 1 else None, names)
    if user_data.doubt and any(dataset.is_renumbered for dataset in datasets):
        raise DataError(f"{spec}: {user_data.doubt}")
    return user_data


def read_user_data(spec: str, data_root: Path | None) -> StoredData:
    """Return the data as arrays in memory; a data set is read once, in full."""
    user_data = call_user_function(spec, data_root)
    return StoredData(
        spec,
        _read_all(user_data.train, spec),
        None if user_data.test is None else _read_all(user_data.test, spec),
        None
        if user_data.names is None
        else tuple(user_data.names[number] for number in range(len(user_data.names))),
        (spec.partition(":")[0],),
        user_data.doubt,
        user_data.folders,
    )


def _adopt(part: object, where: str) -> UserPart:
    if isinstance(part, IterableDataset):
        raise DataError(
            f"{where}: is {type(part).__name__}, an IterableDataset; return a map-style Dataset, which has __getitem__"
            " and __len__"
        )
    if isinstance(part, Dataset) and hasattr(part, "__len__"):  # torch's Dataset itself has no length
        try:
            number = len(part)
        except BaseException as error:
            raise describe_failure(DataError, f"{where}: its length", error) from error
        if not number:
            raise DataError(f"{where}: holds no samples")
        return NumberedDataset(part, where)
    match part:
        case (Tensor(), _):
            raise DataError(
                f"{where}: is a pair of tensors; wrap it: TensorDataset(images (N, C, H, W), labels)"
            )
        case (inputs, labels):
            return _copy_shared(make_samples(inputs, labels, where=where), inputs)
        case (inputs, labels, subjects):
            return _copy_shared(make_samples(inputs, labels, subjects=subjects, where=where), inputs)
    raise DataError(
        f"{where}: is {type(part).__name__}; return a torch Dataset with a length, or (inputs, labels)"
    )


def _copy_shared(samples: Samples, given: object) -> Samples:
    """Return samples in memory of their own: an array that is mapped from a file, or used again, changes later."""
    shared = isinstance(given, np.ndarray) and np.may_share_memory(samples.inputs, given)
    return replace(samples, inputs=samples.inputs.copy()) if shared else samples


def _read_all(part: UserPart, where: str) -> Samples:
    if isinstance(part, Samples):
        return part
    items = [read_item(part, index) for index in range(len(part))]
    shape = items[0][0].shape
    for index, (inputs, _) in enumerate(items):
        if inputs.shape != shape:
            raise DataError(
                f"{where}: sample {index}: has shape {inputs.shape}, but sample 0 has {shape}; resize them alike"
            )
    inputs = np.stack([inputs for inputs, _ in items])
    labels = np.array([label for _, label in items])
    return make_samples(inputs, labels, subjects=part.subjects, where=where)
