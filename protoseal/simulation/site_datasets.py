"""Data of the simulated sites: a named data set, divided by a named split, and a file for each site."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from torch.utils.data import TensorDataset

from agreement import InputSection, TableSection
from agreement.schema.agreement import NAME_PATTERN
from agreement.toml_loading import SITES_FORM
from crypto.text_decoding import near_name
from protoseal.splits import SiteArrays, iid, parse_split
from secure_client.data.folder import LEFT_BY_SYSTEMS
from secure_client.data.preprocess import to_dataset
from secure_client.data.samples import Samples, TrainTest, join_samples
from secure_client.data.sources import (
    NO_NAMES,
    check_class_names,
    join_sources,
    list_classes,
    read_sources,
    suggest_preprocessing,
)
from secure_client.data.table_scale import fit_scale
from secure_client.errors import DataError
from secure_client.table_format import format_beside

TABLE_SUFFIXES, ARRAYS = frozenset({".csv", ".tsv", ".txt", ".data"}), ".npz"
NOT_DATA = LEFT_BY_SYSTEMS | {"readme.md", "readme", "license", "license.txt", "license.md"}
"""Names, in lower case, of files beside data that are no data."""
_TEST_STREAM = 2
"""Second seed, so that test samples are drawn independently of the split."""


@dataclass(frozen=True)
class DividedData:
    """Each site's samples, with the agreed classes and preprocessing. ``test`` is the data set's test part, if any."""

    sites: tuple[SiteArrays, ...]
    classes: tuple[str, ...]
    preprocessing: InputSection | None
    test: Samples | None = None

    @cached_property
    def sha256(self) -> str:
        """Return the hash of every sample of every site and of ``test``: the same data and split have the same."""
        parts = [(site.name, kind, part) for site in self.sites for kind, part in site.parts.items()]
        return digest([*parts, *([] if self.test is None else [("", "test", self.test)])])

    def test_of_all(self) -> Samples:
        """Return a test set over all sites: the data set's test part, or all sites' test samples together.

        Only a simulation can do this: no site of a deployment sees another site's samples.
        """
        return self.test if self.test is not None else join_samples([site.test for site in self.sites])

    def overall(self, *, where: str) -> TensorDataset:
        """Return :meth:`test_of_all` as inputs. Where sites scale a table's features, all training rows scale these."""
        agreed = self.preprocessing
        if isinstance(agreed, TableSection):
            rows = np.concatenate([site.train.inputs for site in self.sites])
            return to_dataset(self.test_of_all(), fit_scale(agreed, rows, where=where), where=where)
        return to_dataset(self.test_of_all(), agreed, where=where)


def digest(parts: Iterable[tuple[str, str, Samples]]) -> str:
    """Return the SHA-256, in hexadecimal, over site names, parts, and samples with their shapes and types."""
    hashed = hashlib.sha256()
    for site, kind, part in parts:
        for name in ("inputs", "labels", "domains", "subjects"):
            array = getattr(part, name)
            if array is None:
                continue
            hashed.update(f"{site} {kind} {name} {array.dtype.str} {array.shape}\n".encode())
            hashed.update(np.ascontiguousarray(array).data)
    return hashed.hexdigest()


def divide(
    dataset: str,
    split: str,
    *,
    sites: int,
    seed: int,
    data_root: Path | None = None,
    agreed: InputSection | None = None,
    classes: tuple[str, ...] | None = None,
    class_names: Mapping[str, str] = NO_NAMES,
    tests: int | None = None,
) -> DividedData:
    """Read ``dataset`` and divide it among ``sites`` sites, called site-1 and so on.

    Of the data set's own test part, if it has one that is not dealt out with the rest, at most ``tests`` samples of
    each class and domain are used. With ``sites:DIR`` the split is given: a site for each file, whatever ``sites`` and
    ``split`` say. Classes and preprocessing follow from the data unless given; ``class_names`` renames classes of the
    data. Raises a :class:`secure_client.errors.SiteError`.
    """
    if dataset.startswith(SITES_FORM):
        directory = Path(dataset.removeprefix(SITES_FORM))
        return read_sites(directory, agreed=agreed, classes=classes, class_names=class_names)
    divider = parse_split(split)
    sources = read_sources(dataset, data_root=data_root, agreed=agreed, classes=classes, seed=seed)
    agreed = agreed or suggest_preprocessing(sources)
    data = divider.pool_parts(join_sources(sources, agreed, classes, class_names=class_names))
    if tests is not None and data.test is not None:
        data = replace(data, test=thin_tests(data.test, tests, seed))
    return DividedData(divider(data, sites=sites, seed=seed), data.classes, agreed, data.test)


def thin_tests(samples: Samples, limit: int, seed: int) -> Samples:
    """Return at most ``limit`` samples of each class and domain, drawn by the seed, in the order of the data."""
    # A stream of its own, so that limiting tests does not change the split.
    rng = np.random.default_rng((seed, _TEST_STREAM))
    # By class and domain, so that the share of each is not left to chance.
    cells = np.stack([samples.domains, samples.labels])
    drawn = [
        rng.permutation(np.flatnonzero((cells == cell[:, np.newaxis]).all(axis=0)))[:limit]
        for cell in np.unique(cells, axis=1).T
    ]
    return samples.take(np.sort(np.concatenate(drawn)))


def read_sites(
    directory: Path,
    *,
    agreed: InputSection | None = None,
    classes: tuple[str, ...] | None = None,
    class_names: Mapping[str, str] = NO_NAMES,
) -> DividedData:
    """Read a file for each site: ``directory/NAME.npz``, in the form of :mod:`secure_client.data.npz`, or tables.

    A table is ``NAME.csv`` (``.tsv``, ``.txt``, ``.data``) in the format of ``NAME.toml`` beside it; tables that others
    name as their test part are no sites. If a site has no test part, a quarter of each of its classes becomes the test
    part; the choice depends on the file alone. Raises :class:`DataError`, also for a file that would not be read: a
    misspelt name would leave a site out, or its format unused.
    """
    if not directory.is_dir():
        raise DataError(f"{SITES_FORM}{directory}: there is no such folder{near_name(directory)}")
    files = _site_files(directory, agreed)
    if not files:
        kinds = " and no table (.csv)" if isinstance(agreed, TableSection) else ""
        tables = any(file.suffix.lower() in TABLE_SUFFIXES for file in directory.glob("*")) and not kinds
        advice = (
            "add the section [table], by which tables are read" if tables else "it needs one for each site"
        )
        raise DataError(f"{SITES_FORM}{directory}: holds no .npz file{kinds}; {advice}")
    for file in files:
        if not re.fullmatch(NAME_PATTERN, file.stem):
            raise DataError(
                f"{file}: a site's name may only have lower-case letters, digits, dots and hyphens; rename the "
                "file"
            )
    if len({file.stem for file in files}) < len(files):
        raise DataError(f"{SITES_FORM}{directory}: holds two files of one site; keep one for each site")
    form = "npz" if files[0].suffix.lower() == ARRAYS else "table"
    sources = [
        source
        for file in files
        for source in read_sources(f"{form}:{file}", data_root=None, agreed=agreed, classes=classes)
    ]
    agreed, classes = agreed or suggest_preprocessing(sources), classes or list_classes(sources, class_names)
    check_class_names(sources, class_names)
    data = [
        join_sources([source], agreed, classes, class_names=class_names, allow_unused_names=True)
        for source in sources
    ]
    sites = (_alone(file, part) for file, part in zip(files, data, strict=True))
    return DividedData(tuple(sites), classes, agreed)


def _site_files(directory: Path, agreed: InputSection | None) -> list[Path]:
    """Return the tables of a folder, or else its .npz files, one for each site; raise for any other file."""
    visible = sorted(file for file in directory.glob("[!.]*") if file.is_file())
    tables = [file for file in visible if file.suffix.lower() in TABLE_SUFFIXES]
    if not isinstance(agreed, TableSection):
        tables = []
    tests = [test.resolve() for file in tables if (test := format_beside(file).test) is not None]
    for test in tests:
        if tests.count(test) > 1 or test.with_suffix(".toml").exists():
            raise DataError(
                f"{test}: is a test table that two sites name, or has a format of its own as a site has: give each site"
                " its own rows to test on"
            )
    files = [file for file in tables if file.resolve() not in tests]
    read = {*tables, *(file.with_suffix(".toml") for file in files)}
    if not files:
        read = set(files := [file for file in visible if file.suffix.lower() == ARRAYS])
    unread = [file for file in visible if file not in read and file.name.lower() not in NOT_DATA]
    if files and unread:
        raise DataError(
            f"{unread[0]}: is neither a site's file nor the format of one, and would not be read: rename or move it "
            f"(sites' files: {', '.join(file.name for file in files)})"
        )
    return files


def _alone(file: Path, data: TrainTest) -> SiteArrays:
    if data.test is not None:
        return SiteArrays(file.stem, data.train, data.test, data.domains)
    try:
        (site,) = iid(data, sites=1, seed=0)
    except DataError as error:
        what = "samples" if data.train.subjects is None else "subjects"
        raise DataError(
            f"{file}: has no test part, and too few {what} of any class to set a quarter aside: add a test part"
        ) from error
    return replace(site, name=file.stem)
