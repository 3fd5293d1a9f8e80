"""Data in a folder of images: ``train/CLASS/*.png`` and, where there is one, ``test/CLASS/*.png``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from protoseal.config import PreprocessingSection
from secure_client.data.arrays import Inputs, Samples, Source, as_floats, checked_samples
from secure_client.data.preprocess import fit_images
from secure_client.errors import DataError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"})
DEEP_MODES = frozenset({"I", "I;16", "I;16B", "I;16L"})
"""Pillow's names for 16-bit grey."""


def read_folder(path: Path, agreed: PreprocessingSection | None) -> Source:
    """Every image under ``path``, each given the agreed size and channels as soon as it is read.

    The names of the class folders are the classes. Hidden files are skipped. All images are kept in memory at
    the agreed size: for more than fits, a data set of the site's own by ``module:function`` reads as needed.
    Raises :class:`DataError` for a folder without images, a file that is no image, and, without an agreed
    preprocessing, images of different shape.
    """
    if not (path / "train").is_dir():
        raise DataError(f"{path}: has no folder train with a folder of images for each class")
    parts = [part for part in ("train", "test") if (path / part).is_dir()]
    classes = sorted({folder.name for part in parts for folder in _folders(path / part)})
    train, *rest = (_read_part(path / part, classes, agreed) for part in parts)
    return Source(str(path), train, rest[0] if rest else None, tuple(classes), (path.name,))


def read_image(path: Path) -> Inputs:
    """One image, (H, W, C): grey or RGB, uint8; 16-bit grey as float32 in [0, 1].

    Transparency is dropped. Raises :class:`DataError` for a file that is missing, damaged or no image.
    """
    try:
        with Image.open(path) as image:
            return _pixels(image)
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: cannot be read as an image ({error}); mend or remove it") from error


def _pixels(image: Image.Image) -> Inputs:
    if image.mode in DEEP_MODES:
        return (np.asarray(image).astype(np.float32) / np.float32(65535))[..., np.newaxis]
    if image.mode in {"1", "L", "LA"}:
        return np.array(image.convert("L"))[..., np.newaxis]
    return np.array(image.convert("RGB"))


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _read_part(path: Path, classes: list[str], agreed: PreprocessingSection | None) -> Samples:
    images: list[Inputs] = []
    labels: list[int] = []
    for folder in _folders(path):
        files = _image_files(folder)
        images += [_read_fitted(file, agreed) for file in files]
        labels += [classes.index(folder.name)] * len(files)
    if not images:
        raise DataError(f"{path}: holds no images; it needs a folder of them for each class")
    return checked_samples(_stack(images, path), np.array(labels), where=str(path))


def _image_files(folder: Path) -> list[Path]:
    files = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for file in files:
        if file.suffix.lower() not in SUFFIXES:
            raise DataError(f"{file}: is not an image ({', '.join(sorted(SUFFIXES))}); remove it")
    if not files:
        raise DataError(f"{folder}: holds no images; fill it, or remove it if the site lacks this class")
    return files


def _read_fitted(path: Path, agreed: PreprocessingSection | None) -> Inputs:
    image = read_image(path)
    return image if agreed is None else fit_images(image[np.newaxis], agreed, where=str(path))[0]


def _stack(images: list[Inputs], path: Path) -> Inputs:
    shapes = sorted({image.shape for image in images})
    if len(shapes) > 1:
        raise DataError(
            f"{path}: images differ in shape ({shapes[0]}, {shapes[-1]}); agree on [preprocessing]"
        )
    deep = any(image.dtype != np.uint8 for image in images)
    return np.stack([as_floats(image) if deep else image for image in images])
