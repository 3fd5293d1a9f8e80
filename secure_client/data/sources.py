"""Sources of data by name: one reader for each form of data, then the agreed classes and preprocessing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import MappingProxyType

import numpy as np

from agreement import ConfigError, InputSection, PreprocessingSection, TableSection
from agreement.toml_loading import DATA_ROOT, nearest
from secure_client.data.class_names import AgreedLabels, agree_on_labels, check_keys, log_labels
from secure_client.data.folder import list_training_images, read_folder
from secure_client.data.npz import read_npz
from secure_client.data.preprocess import count_coloured, fit_images, log_lost_colours, read_item
from secure_client.data.published import PUBLISHED, make_digit_domains, read_published
from secure_client.data.samples import Inputs, Samples, StoredData, TrainTest, join_samples
from secure_client.data.table import hash_rows, read_table
from secure_client.data.table_scale import check_units
from secure_client.data.user_data import FILE_FORMS, call_user_function, read_user_data
from secure_client.errors import DataError
from secure_client.table_format import TableFormat, format_beside
from secure_client.user_code import describe_failures

DIGITS = "digits"
NAMES = (DIGITS, *PUBLISHED)
TABLE_FORM = "table:"
NO_NAMES: Mapping[str, str] = MappingProxyType({})
MOST_UNNAMED = 1 << 20
"""Largest number of classes that have labels but no names."""


def load_sources(
    spec: str,
    *,
    data_root: Path | None,
    agreed: InputSection | None,
    classes: tuple[str, ...] | None,
    seed: int = 0,
    convert_channels: bool = True,
    written: TableFormat | None = None,
    class_names: Mapping[str, str] = NO_NAMES,
    allow_unused_names: bool = False,
) -> TrainTest:
    """Read and join sources. Without ``convert_channels`` images must already have the agreed channels."""
    sources = read_sources(
        spec,
        data_root=data_root,
        agreed=agreed,
        classes=classes,
        seed=seed,
        convert_channels=convert_channels,
        written=written,
    )
    return join_sources(
        sources,
        agreed,
        classes,
        convert_channels=convert_channels,
        class_names=class_names,
        allow_unused_names=allow_unused_names,
    )


def read_sources(
    spec: str,
    *,
    data_root: Path | None,
    agreed: InputSection | None,
    classes: tuple[str, ...] | None = None,
    seed: int = 0,
    convert_channels: bool = True,
    written: TableFormat | None = None,
) -> list[StoredData]:
    """Read the data set that ``spec`` names, or several data sets joined by ``+``.

    Names are ``digits``, the published ``mnist``, ``fashion-mnist``, ``usps``, ``svhn``, ``cifar10``, ``cifar100``
    and ``flowers102`` (from files under ``data_root``), ``npz:PATH``, ``folder:PATH``, ``table:PATH`` and
    ``module:function``; a PATH that begins with ``DATA_ROOT/`` is under ``data_root`` too.

    ``agreed`` keeps images small while they are read. A table is read by it, and its labels name ``classes``;
    ``written`` is the format of tables, by default that beside each. ``seed`` assigns the digits' appearances. Raises
    :class:`DataError`, or :class:`secure_client.errors.PluginError` for ``module:function``.
    """
    parts = [part.strip() for part in spec.split("+")]
    _check_read_once(parts, data_root, written)
    return [
        _read_table(part, data_root, agreed, classes, written)
        if part.startswith(TABLE_FORM)
        else _read_one(part, data_root, agreed, seed, convert_channels=convert_channels)
        for part in parts
    ]


def join_sources(
    sources: Sequence[StoredData],
    agreed: InputSection | None,
    classes: tuple[str, ...] | None,
    *,
    convert_channels: bool = True,
    class_names: Mapping[str, str] = NO_NAMES,
    allow_unused_names: bool = False,
) -> TrainTest:
    """Join sources over the same classes, their images of the agreed size, each source a domain or more.

    A source's named classes are matched by name, after ``class_names`` has renamed them; labels without names index the
    agreed classes. Without ``classes`` the sources' own classes are used. Raises :class:`DataError` for classes that
    are not agreed, for sources that cannot be joined, and, unless ``allow_unused_names``, for a key of ``class_names``
    that is no class of any source.
    """
    if not allow_unused_names:
        check_class_names(sources, class_names)
    classes = classes or _list_common_classes(sources, class_names)
    matched = [_match_classes(source, classes, class_names) for source in sources]
    adapted = [_fit_source(source, agreed, convert_channels=convert_channels) for source, _ in matched]
    _check_alike(adapted)
    domains: list[str] = []
    train: list[Samples] = []
    test: list[Samples] = []
    for source in adapted:
        # A source numbers its domains from 0: those of the sources before come first.
        train.append(replace(source.train, domains=source.train.domains + len(domains)))
        if source.test is not None:
            test.append(replace(source.test, domains=source.test.domains + len(domains)))
        domains += source.domains
    notes = log_labels((source.where, labels) for source, labels in matched)
    return TrainTest(
        join_samples(train), join_samples(test) if test else None, classes, tuple(domains), notes
    )


def check_class_names(sources: Sequence[StoredData], class_names: Mapping[str, str]) -> None:
    """Raise :class:`DataError` for a key of ``class_names`` that is no class of any source."""
    names = [source.names for source in sources]
    check_keys(
        class_names,
        [*names, None] if any(source.doubt for source in sources) else names,
        " + ".join(source.where for source in sources),
    )


def is_public(spec: str) -> bool:
    """Return True if ``spec`` names the bundled digits or published data sets alone.

    Files and functions of a user count as private. Limit: published records can be about people, too.
    """
    return all(part.strip() in NAMES for part in spec.split("+"))


def is_user_function(spec: str) -> bool:
    """Return True if ``spec`` is a single ``module:function``."""
    form, separator, _ = spec.partition(":")
    return bool(separator) and form not in FILE_FORMS and "+" not in spec


def hash_training_records(
    spec: str, *, data_root: Path | None, agreed: InputSection | None, written: TableFormat | None = None
) -> Iterator[bytes]:
    """Yield the SHA-256 of each training record of ``spec`` as the record is stored, without its label.

    The bytes of an image file, the texts of a table's row, the values of an array's sample, and what a torch data set
    of the site's own returns for a sample are hashed. The hash depends on no agreed class and, except for published
    data whose images differ in size, on no agreed preprocessing. Limits: an image or a row that was stored again in
    another form, or that the site's own code changes at random, has another hash. So has a row under another label's
    column, or in an export with one more column. Raises as :func:`read_sources` does.
    """
    if is_user_function(spec):
        train = call_user_function(spec, data_root).train
        if not isinstance(train, Samples):
            items = (read_item(train, index) for index in range(len(train)))
            yield from (_hash_inputs(inputs) for inputs, _ in items)
            return
        yield from map(_hash_inputs, train.inputs)
        return
    for part in (part.strip() for part in spec.split("+")):
        form, _, path = part.partition(":")
        if form == "folder":
            for file in list_training_images(_resolve_path(path, data_root)):
                yield _hash_file(file)
        elif form == "table":
            table = find_table(part, data_root)
            yield from hash_rows(table, _require_table(part, agreed), written or format_beside(table))
        else:
            source = _read_one(part, data_root, agreed, seed=0, convert_channels=True)
            yield from map(_hash_inputs, source.train.inputs)


def _hash_inputs(inputs: Inputs) -> bytes:
    # Shape and type are hashed too: the same bytes in another shape are another record.
    named = f"{inputs.shape} {inputs.dtype.str} ".encode()
    return hashlib.sha256(named + np.ascontiguousarray(inputs).tobytes()).digest()


def _hash_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def find_table(spec: str, data_root: Path | None) -> Path:
    """Return the path in ``table:PATH``."""
    return _resolve_path(spec.removeprefix(TABLE_FORM), data_root)


def list_classes(sources: Sequence[StoredData], class_names: Mapping[str, str] = NO_NAMES) -> tuple[str, ...]:
    """Return the classes that the sources name, in order; without names, the numbers up to the largest label.

    A class that ``class_names`` renames has its new name. Raises :class:`DataError` for numbers beyond
    :data:`MOST_UNNAMED`, which cannot be classes.
    """
    named = [aliases for source in sources for aliases in (source.names or {}).values()]
    renamed = [
        next((class_names[name] for name in names if name in class_names), names[0]) for names in named
    ]
    if renamed or class_names:
        return tuple(dict.fromkeys(renamed or class_names.values()))
    # An identifier in place of the label, such as 40117, would make as many classes as its number says.
    highest, where = max(
        (int(part.labels.max()), source.where) for source in sources for part in source.parts
    )
    if highest >= MOST_UNNAMED:
        raise DataError(f"{where}: has label {highest}; number the classes from 0, without gaps")
    return tuple(str(label) for label in range(highest + 1))


def _list_common_classes(sources: Sequence[StoredData], class_names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the sources' own classes; raise :class:`DataError` for a source that has none of the others' classes."""
    named = {source.where: set(list_classes([source], class_names)) for source in sources if source.names}
    for where, names in named.items():
        others = [other_names for other, other_names in named.items() if other != where]
        if others and names.isdisjoint(set().union(*others)):
            raise DataError(
                f"{where}: has no class of the other sources ({', '.join(sorted(names)[:3])}, …); map its names to"
                " theirs by class_names, or set classes"
            )
    return list_classes(sources, class_names)


def suggest_preprocessing(sources: Sequence[StoredData]) -> PreprocessingSection | None:
    """Return a preprocessing that loses nothing: the longest side and most channels of all images, to [−1, 1].

    Returns None for features. The suggestion uses only the images' shape: statistics of their values are private.
    """
    shapes = [part.inputs.shape[1:] for source in sources for part in source.parts if part.is_images]
    if not shapes:
        return None
    channels = max(shape[2] for shape in shapes)
    half = (0.5,) * channels
    return PreprocessingSection(
        image_size=max(max(shape[:2]) for shape in shapes), channels=channels, mean=half, std=half
    )


def _read_table(
    spec: str,
    data_root: Path | None,
    agreed: InputSection | None,
    classes: tuple[str, ...] | None,
    written: TableFormat | None,
) -> StoredData:
    table, path = _require_table(spec, agreed), find_table(spec, data_root)
    if classes is None:
        raise DataError(f"{spec}: the labels of a table name the agreed classes: set classes")
    # At a site the format is in the site's file, in a simulation beside the table. A site that copied both from a
    # simulation and states nothing in its file would read the table by defaults.
    if written == TableFormat() and _states_format(path):
        raise DataError(
            f"{path.with_suffix('.toml')}: is not read where a site has a file of its own: copy its [table] there"
        )
    written = written or format_beside(path)
    source = read_table(path, table, written, classes)
    for file, part in zip((path, written.test), source.parts, strict=False):
        check_units(part.inputs, table, written, str(file))
    return source


def _states_format(path: Path) -> bool:
    try:
        return format_beside(path) != TableFormat()
    except ConfigError:  # a file of another kind, such as the site's own
        return False


def _check_read_once(parts: Sequence[str], data_root: Path | None, written: TableFormat | None) -> None:
    """Raise :class:`DataError` for a file that two of the joined parts read: its samples would count twice."""
    read_before: dict[Path, str] = {}
    for part in parts if len(parts) > 1 else ():
        form, _, path = part.partition(":")
        if form not in FILE_FORMS:
            continue
        files = [_resolve_path(path, data_root)]
        if form == "table" and (test := (written or format_beside(files[0])).test) is not None:
            files.append(test)
        for file in files:
            before = read_before.setdefault(file.resolve(), part)
            if before != part or parts.count(part) > 1:
                raise DataError(
                    f"{file}: would be read twice, for {before} and for {part}: name it once, and join tables that"
                    " share a test file into one file"
                )


def _require_table(spec: str, agreed: InputSection | None) -> TableSection:
    if not isinstance(agreed, TableSection):
        raise DataError(f"{spec}: a table is read by the section [table] of the agreement, and there is none")
    return agreed


def _read_one(
    spec: str,
    data_root: Path | None,
    agreed: InputSection | None,
    seed: int,
    *,
    convert_channels: bool,
) -> StoredData:
    images = agreed if isinstance(agreed, PreprocessingSection) else None
    form, separator, rest = spec.partition(":")
    if spec == DIGITS:
        data = make_digit_domains(seed)
        return StoredData(spec, data.train, data.test, data.classes, data.domains)
    if spec in PUBLISHED:
        return read_published(spec, data_root, images)
    if not separator:
        raise DataError(
            f"no data set is called {spec!r}{nearest(spec, NAMES)}; use a built-in name, npz:PATH, folder:PATH, "
            "table:PATH or module:function"
        )
    match form:
        case "npz":
            return read_npz(_resolve_path(rest, data_root))
        case "folder":
            return read_folder(_resolve_path(rest, data_root), images, convert_channels=convert_channels)
        case "sites":  # a simulation takes this form apart itself
            raise DataError(
                f"{spec}: holds several sites' data; to read one site use npz:{Path(rest) / 'NAME.npz'}"
            )
    with describe_failures(DataError, spec):
        return read_user_data(spec, data_root)


def _resolve_path(path: str, data_root: Path | None) -> Path:
    """Return the path itself, or under the data root where it begins with ``DATA_ROOT/``."""
    if not path.startswith(DATA_ROOT):
        return Path(path)
    if data_root is None:
        raise DataError(f"{path}: is relative to the data root; set --data-root or data_root")
    return data_root / path.removeprefix(DATA_ROOT)


def _match_classes(
    source: StoredData, classes: tuple[str, ...], class_names: Mapping[str, str]
) -> tuple[StoredData, AgreedLabels]:
    """Return the source with labels that number ``classes``, and how they were numbered."""
    occurring = {int(label) for part in source.parts for label in np.unique(part.labels)}
    agreed = agree_on_labels(
        source.names,
        occurring,
        classes,
        class_names,
        where=source.where,
        doubt=source.doubt,
        folders=source.folders,
    )
    numbered = _change_parts(
        source, lambda part, where: replace(part, labels=agreed.number_all(part.labels, where))
    )
    return numbered, agreed


def _fit_source(source: StoredData, agreed: InputSection | None, *, convert_channels: bool) -> StoredData:
    # Fitted source by source: joined first, images of different sizes would not make one array.
    if not isinstance(agreed, PreprocessingSection):
        return source

    def fit(part: Samples, where: str) -> Samples:
        if not part.is_images:
            return part
        images = fit_images(part.inputs, agreed, where=where, convert_channels=convert_channels)
        if agreed.channels == 1:
            log_lost_colours(count_coloured(part.inputs), len(part), where)
        return replace(part, inputs=images)

    return _change_parts(source, fit)


def _change_parts(source: StoredData, change: Callable[[Samples, str], Samples]) -> StoredData:
    train = change(source.train, f"{source.where}: train")
    test = None if source.test is None else change(source.test, f"{source.where}: test")
    return replace(source, train=train, test=test)


def _check_alike(sources: Sequence[StoredData]) -> None:
    """Raise :class:`DataError` unless samples have one shape, and all sources or none a test part, and subjects.

    A subject's samples are either for training or for tests, over all sources.
    """
    # A test part of some sources would tell the accuracy on their domains as that on all.
    if len({source.test is None for source in sources}) > 1:
        without = next(source.where for source in sources if source.test is None)
        raise DataError(
            f"{without}: has no test part, but other sources have one; join data sets that all have a test part, or "
            "none"
        )
    # The unit of privacy is one for all sources: without a subject a record could only be a unit by itself.
    if len({source.train.subjects is None for source in sources}) > 1:
        without = next(source.where for source in sources if source.train.subjects is None)
        raise DataError(
            f"{without}: names no subjects, but other sources name theirs; join data sets that all name the subject of "
            "each training sample, or none"
        )
    # A model that has seen a subject's training samples recognises the subject, so that its test would be too good.
    for source, other in permutations(sources, 2):
        if source.test is None or source.test.subjects is None or other.train.subjects is None:
            continue
        common = int(np.isin(source.test.subjects, other.train.subjects).sum())
        if common:
            raise DataError(
                f"{source.where}: {common} of its test samples are of subjects that have training samples in"
                f" {other.where}: keep all samples of a subject in one part"
            )
    first = sources[0]
    shape = first.train.inputs.shape[1:]
    for source in sources:
        for name, part in zip(("training", "test"), source.parts, strict=False):
            if part.inputs.shape[1:] != shape:
                remedy = (
                    "agree on [preprocessing]"
                    if part.is_images == first.train.is_images
                    else "store both alike"
                )
                raise DataError(
                    f"{source.where}: the {name} samples have shape {part.inputs.shape[1:]}, but the training samples "
                    f"of {first.where} have {shape}; {remedy}"
                )
