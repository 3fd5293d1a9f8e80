"""Published data sets by name, from files that the site has: nothing is downloaded, nothing unpickled.

MNIST, Fashion-MNIST, USPS and SVHN are read by torchvision's own classes. Its CIFAR classes unpickle, so
CIFAR is read here, from the "binary version" of its archive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torchvision.datasets

from secure_client.data.arrays import Inputs, Samples, Source, checked_samples
from secure_client.errors import DataError

DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
RGB_32 = 3 * 32 * 32
"""Bytes of an image of CIFAR: 32×32, first all red, then green, then blue."""

Part = tuple[Inputs, Any]


def read_published(name: str, data_root: Path | None) -> Source:
    """The data set that ``name``, a key of :data:`PUBLISHED`, stands for, from its files under ``data_root``.

    Raises :class:`DataError` naming the file that is missing, damaged or refused, and what to do.
    """
    if data_root is None:
        raise DataError(f"{name}: is read from a folder that you have; name it by --data-root or data_root")
    reader = PUBLISHED[name]
    reader.check(name, data_root)
    train, test = (_read(name, reader, data_root, part) for part in (True, False))
    return Source(name, train, test, reader.classes(data_root), (name,))


@dataclass(frozen=True)
class MnistLike:
    """IDX files by torchvision's MNIST class or one derived from it."""

    dataset: type[Any]
    folder: str
    names: tuple[str, ...]

    def check(self, name: str, root: Path) -> None:
        """:class:`DataError` for a missing file, and for older files that would be read instead."""
        for file in ("training.pt", "test.pt"):
            path = root / self.folder / "processed" / file
            if path.exists():  # torchvision would prefer it to the IDX files, and read it by torch.load
                raise DataError(f"{name}: {path} is not read; remove it, {self.folder}/raw is enough")
        parts = [
            f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
        ]
        _check_files(name, root, (f"{self.folder}/raw/{part}" for part in parts))

    def classes(self, _: Path) -> tuple[str, ...]:
        """Names in the order of the labels."""
        return self.names

    def read(self, root: Path, train: bool) -> Part:
        """Images (N, 28, 28) and labels."""
        data = self.dataset(root, train=train, download=False)
        return data.data.numpy(), data.targets.numpy()


class Usps:
    """LIBSVM text, compressed, by torchvision's USPS class."""

    def check(self, name: str, root: Path) -> None:
        """:class:`DataError` for a missing file."""
        _check_files(name, root, ("usps.bz2", "usps.t.bz2"))

    def classes(self, _: Path) -> tuple[str, ...]:
        """Names in the order of the labels."""
        return DIGITS

    def read(self, root: Path, train: bool) -> Part:
        """Images (N, 16, 16) and labels."""
        data = torchvision.datasets.USPS(root, train=train, download=False)
        return data.data, data.targets


class Svhn:
    """MATLAB files by torchvision's SVHN class, which checks that they are the published ones."""

    def check(self, name: str, root: Path) -> None:
        """:class:`DataError` for a missing file."""
        _check_files(name, root, ("train_32x32.mat", "test_32x32.mat"))

    def classes(self, _: Path) -> tuple[str, ...]:
        """Names in the order of the labels."""
        return DIGITS

    def read(self, root: Path, train: bool) -> Part:
        """Images (N, 32, 32, 3) and labels."""
        data = torchvision.datasets.SVHN(root, split="train" if train else "test", download=False)
        return data.data.transpose(0, 2, 3, 1), data.labels


@dataclass(frozen=True)
class Cifar:
    """CIFAR's binary version: records of ``label_bytes`` labels, the finest last, and the pixels."""

    folder: str
    pickled_folder: str
    train_files: tuple[str, ...]
    test_file: str
    names_file: str
    label_bytes: int

    def check(self, name: str, root: Path) -> None:
        """:class:`DataError` for a missing file, saying which archive has it."""
        if not (root / self.folder).is_dir() and (root / self.pickled_folder).is_dir():
            raise DataError(
                f"{name}: {root / self.pickled_folder} holds pickles, which are never read; get the archive's"
                f" binary version, {self.folder}"
            )
        files = (*self.train_files, self.test_file, self.names_file)
        _check_files(name, root, (f"{self.folder}/{file}" for file in files))

    def classes(self, root: Path) -> tuple[str, ...]:
        """Names in the order of the labels, from the archive's own list."""
        return tuple((root / self.folder / self.names_file).read_text(encoding="ascii").split())

    def read(self, root: Path, train: bool) -> Part:
        """Images (N, 32, 32, 3) and labels."""
        files = self.train_files if train else (self.test_file,)
        content = np.concatenate([np.fromfile(root / self.folder / file, dtype=np.uint8) for file in files])
        records = content.reshape(-1, self.label_bytes + RGB_32)
        images = records[:, self.label_bytes :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return images, records[:, self.label_bytes - 1]


CIFAR10 = Cifar(
    "cifar-10-batches-bin",
    "cifar-10-batches-py",
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test_batch.bin",
    "batches.meta.txt",
    label_bytes=1,
)
CIFAR100 = Cifar(
    "cifar-100-binary", "cifar-100-python", ("train.bin",), "test.bin", "fine_label_names.txt", label_bytes=2
)
PUBLISHED: dict[str, MnistLike | Usps | Svhn | Cifar] = {
    "mnist": MnistLike(torchvision.datasets.MNIST, "MNIST", DIGITS),
    "fashion-mnist": MnistLike(torchvision.datasets.FashionMNIST, "FashionMNIST", CLOTHES),
    "usps": Usps(),
    "svhn": Svhn(),
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
}


def _read(name: str, reader: MnistLike | Usps | Svhn | Cifar, root: Path, train: bool) -> Samples:
    where = f"{name} ({'training' if train else 'test'} part in {root})"
    try:
        images, labels = reader.read(root, train)
    except (RuntimeError, ValueError, IndexError, OSError, EOFError) as error:
        raise DataError(f"{where}: is damaged or not as published ({error}); get its files again") from error
    return checked_samples(images, np.asarray(labels, dtype=np.int64), where=where)


def _check_files(name: str, root: Path, files: Iterable[str]) -> None:
    for file in files:
        path = root / file
        if not path.is_file():
            packed = path.with_name(path.name + ".gz")
            remedy = f"run: gunzip -k {packed}" if packed.is_file() else "put it there or correct --data-root"
            raise DataError(f"{name}: {path} is missing; {remedy}")
