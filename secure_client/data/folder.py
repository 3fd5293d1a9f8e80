"""Reader of data in a folder of images, in each of the usual layouts.

===============================  =====================================================================
``train/CLASS/*.png``            and, where there is one, ``test/CLASS/*.png``
``DOMAIN/CLASS/*.jpg``           several domains, as Office and PACS are published (also
                                 ``DOMAIN/images/CLASS/*.jpg``); no test part
``CLASS/*.png``                  one domain, no test part
``train/CLASS/images/*.JPEG``    Tiny-ImageNet: ``val``, with ``val_annotations.txt``, is the test part;
                                 the images in ``test`` have no labels and are left unread
===============================  =====================================================================

Hidden files are skipped, and so are those that operating systems leave (``Thumbs.db``). ``subjects.csv`` beside these
folders, with a header ``file,subject``, names the subject of every training image, whose path is relative to the folder
(``train/CLASS/1.png``).
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from agreement import PreprocessingSection
from crypto.errors import MalformedError
from crypto.text_decoding import decode, near_name
from secure_client.data.image_files import SUFFIXES, describe_unread, read_image
from secure_client.data.preprocess import count_coloured, fit_images, log_lost_colours
from secure_client.data.samples import Inputs, Samples, StoredData, Subjects, make_samples, scale_to_floats
from secure_client.errors import DataError

LEFT_BY_SYSTEMS = frozenset(
    {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r"}
    | {"__macosx", "@eadir", "#recycle", "$recycle.bin", "lost+found", "system volume information"}
)
"""Files and folders that operating systems and storage devices leave beside data, in lower case."""

IMAGES = "images"
"""The folder that Tiny-ImageNet and Office-31 put between a class, or a domain, and its images."""

ANNOTATIONS = Path("val", "val_annotations.txt")
PARTS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"})
"""Names of parts of data sets, of which ``train`` and ``test`` are read."""
SUBJECTS = "subjects.csv"


@dataclass(frozen=True)
class _File:
    """An image file, with the class and domain that its path gives."""

    path: Path
    label: str
    domain: str


@dataclass(frozen=True)
class _Listing:
    """The files of each part; ``test`` is None where the layout has no test part."""

    train: Sequence[_File]
    test: Sequence[_File] | None = None

    def names(self, key: Callable[[_File], str]) -> tuple[str, ...]:
        """Return the classes or domains, sorted."""
        return tuple(sorted({key(file) for file in (*self.train, *(self.test or ()))}))


def read_folder(
    path: Path, agreed: PreprocessingSection | None, *, convert_channels: bool = True
) -> StoredData:
    """Read every image under ``path``, and convert each to the agreed size and channels as soon as it is read.

    The names of the class folders are the classes. All images are kept in memory at the agreed size: for larger data,
    a data set of the site's own by ``module:function`` reads as needed. Raises :class:`DataError` for a folder
    without images, for a file that is no image, for images of different shape without an agreed preprocessing, and
    for an image with other channels than the agreed without ``convert_channels``.
    """
    listing = _list_files(path)
    classes = listing.names(lambda file: file.label)
    domains = listing.names(lambda file: file.domain)

    def read(files: Sequence[_File], kind: str) -> Samples:
        sides: set[tuple[int, int]] = set()
        coloured: list[Path] = []

        def read_file(file: _File) -> Inputs:
            image = read_image(file.path)
            sides.add(image.shape[:2])
            if agreed is not None and agreed.channels == 1 and count_coloured(image[np.newaxis]):
                coloured.append(file.path)
            return fit_image(image, agreed, where=str(file.path), convert_channels=convert_channels)

        where = f"{path}: {kind}"
        inputs = stack_images(map(read_file, files), [file.path for file in files], where)
        labels = np.array([classes.index(file.label) for file in files])
        numbers = np.array([domains.index(file.domain) for file in files])
        log_lost_colours(len(coloured), len(files), where)
        return replace(make_samples(inputs, labels, numbers, where=where), sides=frozenset(sides))

    subjects = _read_subjects(path, listing.train)  # before the images, which are slow to read
    # Sites hold thousands of large pictures: each is shrunk before the next one is read.
    test = None if listing.test is None else read(listing.test, "test")
    train = replace(read(listing.train, "train"), subjects=subjects)
    return StoredData(str(path), train, test, classes, domains)


def list_training_images(path: Path) -> list[Path]:
    """Return the training images under ``path``. Raises :class:`DataError` for a folder without images."""
    return [file.path for file in _list_files(path).train]


def fit_image(
    image: Inputs, agreed: PreprocessingSection | None, *, where: str, convert_channels: bool = True
) -> Inputs:
    """Return the image (H, W, C) with the agreed size and channels, or unchanged if none are agreed."""
    if agreed is None:
        return image
    images = fit_images(image[np.newaxis], agreed, where=where, convert_channels=convert_channels)
    return cast("Inputs", images[0])


def stack_images(images: Iterable[Inputs], names: Sequence[object], where: str) -> Inputs:
    """Stack images (H, W, C), as many as ``names``, into one array, without a second copy in memory.

    The array is float32 in [0, 1] if any image is. Raises :class:`DataError` for images of different shape.
    """
    stacked: Inputs | None = None
    for place, image in enumerate(images):
        if stacked is None:
            stacked = np.zeros((len(names), *image.shape), image.dtype)
        if image.shape != stacked.shape[1:]:
            raise DataError(
                f"{where}: image {names[place]} has shape {image.shape}, and {names[0]} has shape"
                f" {stacked.shape[1:]} (height, width, channels); agree on [preprocessing], or store them alike"
            )
        mixed = image.dtype != stacked.dtype
        stacked = scale_to_floats(stacked) if mixed else stacked
        stacked[place] = scale_to_floats(image) if mixed else image
    if stacked is None:
        raise DataError(f"{where}: holds no images; it needs a folder of them for each class")
    return stacked


def _read_subjects(path: Path, files: Sequence[_File]) -> Subjects | None:
    """Return the subject of each image, (N,), from ``subjects.csv``; None if the folder has no such file.

    The separator may be a comma, a semicolon or a tab. Names are compared in one Unicode form (:func:`_compose_name`).
    """
    where = path / SUBJECTS
    if not where.is_file():
        return None
    text = _read_text(where)
    separator = next((mark for mark in ",;\t" if mark in text.partition("\n")[0]), ",")
    subject_of: dict[str, str] = {}
    try:
        for row in csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=separator):
            file, subject = _compose_name(row["file"]), row["subject"]
            if subject_of.setdefault(file, subject) != subject:
                raise DataError(f"{where}: has two subjects for {file}; remove one of the two rows")
    except (KeyError, csv.Error) as error:
        raise DataError(f"{where}: is not a CSV file with the header file,subject ({error})") from error
    names = [_compose_name(file.path.relative_to(path).as_posix()) for file in files]
    for name in names:
        if not subject_of.get(name):
            raise DataError(f"{where}: has no subject for {name}; add a row for every training image")
    return np.array([subject_of[name] for name in names], dtype=np.str_)


def _read_text(path: Path) -> str:
    """Return a text file's content; raise :class:`DataError` with the line for text that is not UTF-8."""
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except MalformedError as error:
        raise DataError(f"{path}: {error}") from error


def _compose_name(name: str) -> str:
    """Return a name in the Unicode form NFC; a Mac stores names of files decomposed.

    Raises :class:`DataError` for a name that is not UTF-8.
    """
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{name}: the name of this file or folder is not UTF-8; rename it") from error
    return unicodedata.normalize("NFC", name)


def _list_files(path: Path) -> _Listing:
    if not path.is_dir():
        problem = (
            "is a file, not a folder" if path.exists() else f"the folder does not exist{near_name(path)}"
        )
        raise DataError(f"{path}: {problem}")
    # Before the other layouts, since Tiny-ImageNet also has train and test.
    if (path / ANNOTATIONS).is_file():
        return _list_tiny_imagenet(path)
    folders = _list_folders(path)
    _check_parts(path, folders)
    if path / "train" in folders:
        test = path / "test"
        return _Listing(
            _list_classes(path / "train", path.name),
            _list_classes(test, path.name) if test in folders else None,
        )
    if any(map(_list_folders, folders)):
        files: list[_File] = []
        for folder in folders:  # DOMAIN/CLASS/* or DOMAIN/images/CLASS/*
            inside = folder / IMAGES
            has_images = inside.is_dir() and bool(_list_folders(inside))
            files += _list_classes(inside if has_images else folder, folder.name)
        return _Listing(files)
    if not folders:
        raise DataError(
            f"{path}: has no folder train with a folder of images for each class, nor folders DOMAIN/CLASS"
        )
    return _Listing(_list_classes(path, path.name))


def _check_parts(path: Path, folders: Sequence[Path]) -> None:
    """Raise for parts by other names than train and test, which would be read as domains, or not at all.

    A part holds folders of classes; a folder of images is a class, whatever its name.
    """
    for folder in folders:
        if path / "train" in folders:
            if folder.name not in ("train", "test"):
                raise DataError(
                    f"{folder}: is beside {path / 'train'} and is not read; move it elsewhere, or its images into"
                    " train or test"
                )
        elif folder.name.lower() in PARTS and _list_folders(folder):
            raise DataError(
                f"{folder}: has the name of a part of the data; the parts that are read are {path / 'train'} and"
                f" {path / 'test'}"
            )
        elif (folder / "train").is_dir() and _list_folders(folder / "train"):
            raise DataError(f"{path}: holds its parts one folder deeper; give folder:{folder}")


def _list_tiny_imagenet(path: Path) -> _Listing:
    if not (path / "train").is_dir():
        raise DataError(f"{path / 'train'}: is missing; copy Tiny-ImageNet's train and val there")
    train = [
        file
        for folder in _list_folders(path / "train")
        for file in _list_class(folder / IMAGES, folder.name, path.name)
    ]
    classes = {file.label for file in train}
    test = []
    for number, line in enumerate(_read_text(path / ANNOTATIONS).splitlines(), start=1):
        name, _, rest = line.partition("\t")
        label = _compose_name(rest.partition("\t")[0])
        if label not in classes:
            raise DataError(
                f"{path / ANNOTATIONS}: line {number} names class {label!r}, which train lacks; write"
                " FILE, tab, CLASS"
            )
        test.append(_File(path / "val" / IMAGES / name, label, path.name))
    return _Listing(train, test)


def _list_classes(path: Path, domain: str) -> list[_File]:
    listed = [file for folder in _list_folders(path) for file in _list_class(folder, folder.name, domain)]
    if not listed:
        raise DataError(f"{path}: holds no images; it needs a folder of them for each class")
    return listed


def _list_folders(path: Path) -> list[Path]:
    return [entry for entry in _list_entries(path) if entry.is_dir()]


def _list_entries(folder: Path) -> list[Path]:
    return sorted(
        entry
        for entry in folder.iterdir()
        if not entry.name.startswith(".")
        and entry.name.lower() not in LEFT_BY_SYSTEMS
        and not entry.name.endswith(":Zone.Identifier")  # Windows notes where a file came from
    )


def _list_class(folder: Path, label: str, domain: str) -> list[_File]:
    if not folder.is_dir():
        raise DataError(f"{folder}: is missing; put the images of class {label!r} there")
    files = _list_entries(folder)
    for file in files:
        # No file is passed over: an image under another suffix would be missing without a word.
        if file.suffix.lower() in SUFFIXES:
            continue
        if file.is_dir():
            raise DataError(f"{file}: is a folder within a class; put the images themselves into {folder}")
        raise DataError(f"{file}: {describe_unread(file)}")
    if not files:
        raise DataError(
            f"{folder}: holds no images; add images, or remove the folder if the site lacks this class"
        )
    return [_File(file, _compose_name(label), _compose_name(domain)) for file in files]
