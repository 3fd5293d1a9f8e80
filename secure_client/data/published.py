"""Data sets by name: the bundled digits, and published sets from files that the site has.

``digits`` are scikit-learn's 1797 real scans of 8×8 pixels (Alpaydin and Kaynak, "Optical Recognition of Handwritten
Digits", UCI) as five domains that differ in appearance. The scans are distributed over the domains first and altered
afterwards, so no scan is in two domains.

MNIST, Fashion-MNIST, USPS, SVHN and Flowers102 are read by torchvision's own classes. Its CIFAR classes unpickle, so
CIFAR is read here, from the "binary version" of its archive. Nothing is downloaded, nothing unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agreement import PreprocessingSection
from secure_client.data.folder import fit_image, stack_images
from secure_client.data.samples import Inputs, Labels, Samples, StoredData, TrainTest, make_samples
from secure_client.errors import DataError

Images = NDArray[np.float64]
DIGIT_NAMES = tuple(str(digit) for digit in range(10))
FULL_INK = 16.0
"""The darkest value of a scan."""


def _as_scanned(images: Images, _: np.random.Generator) -> Images:
    return images


def _inverted(images: Images, _: np.random.Generator) -> Images:
    return 1.0 - images


def _blurred(images: Images, _: np.random.Generator) -> Images:
    """Filter with [1, 2, 1]/4 along both axes, edges repeated."""
    for axis in (1, 2):
        padding = [(1, 1) if other == axis else (0, 0) for other in range(3)]
        padded = np.pad(images, padding, mode="edge")
        before, middle, after = (np.take(padded, range(s, s + images.shape[axis]), axis) for s in range(3))
        images = (before + 2.0 * middle + after) / 4.0
    return images


def _noisy_at_low_contrast(images: Images, rng: np.random.Generator) -> Images:
    return 0.3 + 0.4 * images + rng.normal(scale=0.08, size=images.shape)


def _with_gradient(images: Images, _: np.random.Generator) -> Images:
    """Brighter towards the right, as under light from one side."""
    return 0.5 * images + 0.5 * np.linspace(0.0, 1.0, images.shape[2])


APPEARANCES: dict[str, Callable[[Images, np.random.Generator], Images]] = {
    "as scanned": _as_scanned,
    "inverted": _inverted,
    "blurred": _blurred,
    "noisy at low contrast": _noisy_at_low_contrast,
    "with a gradient": _with_gradient,
}


def make_digit_domains(seed: int) -> TrainTest:
    """Return all 1797 scans, float32 (N, 8, 8, 1) in [0, 1], each in one of :data:`APPEARANCES`; no test part.

    ``seed`` determines the appearance of each scan, and the noise. Every domain has 34 to 37 scans of each class.
    """
    from sklearn.datasets import load_digits  # noqa: PLC0415 (slow to import, and most sites never need it)

    scans = load_digits()
    labels = scans.target.astype(np.int64)
    rng = np.random.default_rng(seed)
    domains = _deal_out(labels, len(APPEARANCES), rng)
    images = scans.images / FULL_INK
    for domain, alter in enumerate(APPEARANCES.values()):
        chosen = domains == domain
        images[chosen] = alter(images[chosen], rng)
    pixels = images.clip(0.0, 1.0).astype(np.float32)[..., np.newaxis]
    return TrainTest(Samples(pixels, labels, domains), None, DIGIT_NAMES, tuple(APPEARANCES))


def _deal_out(labels: Labels, piles: int, rng: np.random.Generator) -> Labels:
    """Return the pile of each sample, (N,): each class is shuffled and distributed evenly."""
    dealt = np.empty_like(labels)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        dealt[members] = np.arange(len(members)) % piles
    return dealt


CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
RGB_32 = 3 * 32 * 32
"""Bytes of an image of CIFAR: 32×32, first all red, then green, then blue."""

Part = tuple[Inputs, Any]


class Reader(Protocol):
    """Reader of one published data set, or of several with the same file layout."""

    def check(self, name: str, root: Path) -> None:
        """Raise :class:`DataError` for a missing file."""
        ...

    def classes(self, root: Path) -> tuple[str, ...] | None:
        """Return the class names in label order; None where the labels are only numbers."""
        ...

    def read(self, root: Path, train: bool, agreed: PreprocessingSection | None) -> Part:
        """Read images (N, H, W[, C]) and labels of the training or the test part.

        ``agreed`` matters only to a data set with images of many sizes, which are resized as they are read.
        """
        ...


def read_published(
    name: str, data_root: Path | None, agreed: PreprocessingSection | None = None
) -> StoredData:
    """Read the data set of ``name``, a key of :data:`PUBLISHED`, from its files under ``data_root``.

    ``agreed`` keeps large pictures small as they are read. Raises :class:`DataError` naming the file that is missing,
    damaged or refused, and the remedy.
    """
    if data_root is None:
        raise DataError(f"{name}: needs a folder with its files; set --data-root or data_root")
    reader = PUBLISHED[name]
    reader.check(name, data_root)
    train, test = (_read_part(name, reader, data_root, part, agreed) for part in (True, False))
    return StoredData(name, train, test, reader.classes(data_root), (name,))


@dataclass(frozen=True)
class MnistLike:
    """IDX files by torchvision's MNIST class or one derived from it, in a folder of the class's name."""

    folder: str
    names: tuple[str, ...]

    def check(self, name: str, root: Path) -> None:
        """Raise :class:`DataError` for a missing file, and for older files that torchvision would read instead."""
        for file in ("training.pt", "test.pt"):
            path = root / self.folder / "processed" / file
            if (
                path.exists()
            ):  # torchvision would prefer this file to the IDX files, and read the file by torch.load
                raise DataError(f"{name}: {path} is never read; remove the file, {self.folder}/raw is enough")
        parts = [
            f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
        ]
        _check_files(name, root, (f"{self.folder}/raw/{part}" for part in parts))

    def classes(self, _: Path) -> tuple[str, ...]:
        """Return the class names in label order."""
        return self.names

    def read(self, root: Path, train: bool, _: PreprocessingSection | None) -> Part:
        """Read images (N, 28, 28) and labels."""
        data = getattr(_import_datasets(), self.folder)(root, train=train, download=False)
        return data.data.numpy(), data.targets.numpy()


class Usps:
    """LIBSVM text, compressed, by torchvision's USPS class."""

    def check(self, name: str, root: Path) -> None:
        """Raise :class:`DataError` for a missing file."""
        _check_files(name, root, ("usps.bz2", "usps.t.bz2"))

    def classes(self, _: Path) -> tuple[str, ...]:
        """Return the class names in label order."""
        return DIGIT_NAMES

    def read(self, root: Path, train: bool, _: PreprocessingSection | None) -> Part:
        """Read images (N, 16, 16) and labels."""
        data = _import_datasets().USPS(root, train=train, download=False)
        return data.data, data.targets


class Svhn:
    """MATLAB files by torchvision's SVHN class, which checks the published hashes."""

    def check(self, name: str, root: Path) -> None:
        """Raise :class:`DataError` for a missing file."""
        _check_files(name, root, ("train_32x32.mat", "test_32x32.mat"))

    def classes(self, _: Path) -> tuple[str, ...]:
        """Return the class names in label order."""
        return DIGIT_NAMES

    def read(self, root: Path, train: bool, _: PreprocessingSection | None) -> Part:
        """Read images (N, 32, 32, 3) and labels."""
        data = _import_datasets().SVHN(root, split="train" if train else "test", download=False)
        return data.data.transpose(0, 2, 3, 1), data.labels


class Flowers:
    """Oxford's 102 flowers by torchvision's class: images of many sizes, and MATLAB files with labels and parts.

    The published training and validation parts, each with 10 images a class, are the training part here.
    """

    folder = "flowers-102"

    def check(self, name: str, root: Path) -> None:
        """Raise :class:`DataError` for a missing file; of the images, only the first is checked."""
        files = ("imagelabels.mat", "setid.mat", "jpg/image_00001.jpg")
        _check_files(name, root, (f"{self.folder}/{file}" for file in files))

    def classes(self, _: Path) -> tuple[str, ...] | None:
        """Return the class names in label order, if torchvision is new enough to have them."""
        names = getattr(_import_datasets().Flowers102, "classes", None)
        return None if names is None else tuple(names)

    def read(self, root: Path, train: bool, agreed: PreprocessingSection | None) -> Part:
        """Read images (N, S, S, 3) of the agreed size, and labels.

        :func:`secure_client.data.sources.join_sources` converts channels.
        """
        where = f"flowers102 in {root / self.folder}"
        sized = None if agreed is None else agreed.model_copy(update={"channels": 3})
        parts = [
            _import_datasets().Flowers102(
                root,
                split=split,
                transform=lambda picture: fit_image(np.array(picture), sized, where=where),
                download=False,
            )
            for split in (("train", "val") if train else ("test",))
        ]
        labels: list[int] = []

        def images() -> Iterator[Inputs]:
            for part in parts:
                for index in range(len(part)):
                    image, label = part[index]
                    labels.append(label)
                    yield image

        return stack_images(images(), range(sum(map(len, parts))), where), labels


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
        """Raise :class:`DataError` for a missing file, naming the archive that has the file."""
        if not (root / self.folder).is_dir() and (root / self.pickled_folder).is_dir():
            raise DataError(
                f"{name}: {root / self.pickled_folder} holds pickles, which are never read; get the archive's"
                f" binary version, {self.folder}"
            )
        files = (*self.train_files, self.test_file, self.names_file)
        _check_files(name, root, (f"{self.folder}/{file}" for file in files))

    def classes(self, root: Path) -> tuple[str, ...]:
        """Return the class names in label order, from the archive's own list."""
        return tuple((root / self.folder / self.names_file).read_text(encoding="ascii").split())

    def read(self, root: Path, train: bool, _: PreprocessingSection | None) -> Part:
        """Read images (N, 32, 32, 3) and labels."""
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
PUBLISHED: dict[str, Reader] = {
    "mnist": MnistLike("MNIST", DIGIT_NAMES),
    "fashion-mnist": MnistLike("FashionMNIST", CLOTHES),
    "usps": Usps(),
    "svhn": Svhn(),
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "flowers102": Flowers(),
}


def _import_datasets() -> Any:
    """Return torchvision's module of data sets."""
    import torchvision.datasets  # noqa: PLC0415 (slow to import, and most sites have their own data)

    return torchvision.datasets


def _read_part(
    name: str, reader: Reader, root: Path, train: bool, agreed: PreprocessingSection | None
) -> Samples:
    where = f"{name} ({'training' if train else 'test'} part in {root})"
    try:
        images, labels = reader.read(root, train, agreed)
    except (RuntimeError, ValueError, IndexError, OSError, EOFError) as error:
        raise DataError(
            f"{where}: is damaged or not as published ({error}); download the files again"
        ) from error
    return make_samples(images, np.asarray(labels, dtype=np.int64), where=where)


def _check_files(name: str, root: Path, files: Iterable[str]) -> None:
    for file in files:
        path = root / file
        if not path.is_file():
            packed = path.with_name(path.name + ".gz")
            remedy = (
                f"run: gunzip -k {packed}"
                if packed.is_file()
                else "copy the file there or correct --data-root"
            )
            raise DataError(f"{name}: {path} is missing; {remedy}")
