"""Data sets by name: the bundled digits, and published sets from files that the site has.

``digits`` are scikit-learn's 1797 real scans of 8×8 pixels (Alpaydin and Kaynak, "Optical Recognition of Handwritten
Digits", UCI) as five domains that differ in appearance. The scans are distributed over the domains first and altered
afterwards, so no scan is in two domains.

MNIST, Fashion-MNIST, USPS, SVHN and Flowers102 are read by torchvision's own classes. Its CIFAR classes unpickle, so
CIFAR is read here, from the "binary version" of its archive. Nothing is downloaded, nothing unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def _blur(images: Images) -> Images:
    """Filter with [1, 2, 1]/4 along both axes, edges repeated."""
    for axis in (1, 2):
        padding = [(1, 1) if other == axis else (0, 0) for other in range(3)]
        padded = np.pad(images, padding, mode="edge")
        before, middle, after = (np.take(padded, range(s, s + images.shape[axis]), axis) for s in range(3))
        images = (before + 2.0 * middle + after) / 4.0
    return images


APPEARANCES: dict[str, Callable[[Images, np.random.Generator], Images]] = {
    "as scanned": lambda images, _: images,
    "inverted": lambda images, _: 1.0 - images,
    "blurred": lambda images, _: _blur(images),
    "noisy at low contrast": lambda images, rng: (
        0.3 + 0.4 * images + rng.normal(scale=0.08, size=images.shape)
    ),
    # brighter towards the right, as under light from one side
    "with a gradient": lambda images, _: 0.5 * images + 0.5 * np.linspace(0.0, 1.0, images.shape[2]),
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
    # Class by class, so that domains differ in appearance alone and not in their shares of the classes.
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
"""Images (N, H, W[, C]) and labels of one part."""


@dataclass(frozen=True)
class PublishedSet:
    """A published data set: its ``folder`` below the data root, and its ``files`` below that folder.

    ``read_part`` reads the training part (True) or the test part from the data root. The agreed preprocessing matters
    only to a data set with images of many sizes, which are resized as they are read. ``read_classes`` returns the class
    names in label order, None where labels are only numbers. ``refuse`` returns what is wrong with files below the root
    that must not be read, and the remedy; None if there are none.
    """

    folder: str
    files: tuple[str, ...]
    read_part: Callable[[Path, bool, PreprocessingSection | None], Part]
    read_classes: Callable[[Path], tuple[str, ...] | None]
    refuse: Callable[[Path], str | None] = lambda _: None


def read_published(
    name: str, data_root: Path | None, agreed: PreprocessingSection | None = None
) -> StoredData:
    """Read the data set of ``name``, a key of :data:`PUBLISHED`, from its files under ``data_root``.

    ``agreed`` keeps large pictures small as they are read. Raises :class:`DataError` naming the file that is missing,
    damaged or refused, and the remedy.
    """
    if data_root is None:
        raise DataError(f"{name}: needs a folder with its files; set --data-root or data_root")
    published = PUBLISHED[name]
    refusal = published.refuse(data_root)
    if refusal is not None:
        raise DataError(f"{name}: {refusal}")
    for path in (data_root / published.folder / file for file in published.files):
        if not path.is_file():
            packed = path.with_name(path.name + ".gz")
            remedy = "copy the file there or correct --data-root"
            remedy = f"run: gunzip -k {packed}" if packed.is_file() else remedy
            raise DataError(f"{name}: {path} is missing; {remedy}")
    parts: list[Samples] = []
    for is_training in (True, False):
        where = f"{name} ({'training' if is_training else 'test'} part in {data_root})"
        try:
            images, labels = published.read_part(data_root, is_training, agreed)
        except (RuntimeError, ValueError, IndexError, OSError, EOFError) as error:
            raise DataError(
                f"{where}: is damaged or not as published ({error}); download the files again"
            ) from error
        parts.append(make_samples(images, np.asarray(labels, dtype=np.int64), where=where))
    return StoredData(name, parts[0], parts[1], published.read_classes(data_root), (name,))


def _import_datasets() -> Any:
    import torchvision.datasets  # noqa: PLC0415 (slow to import, and most sites have their own data)

    return torchvision.datasets


def _mnist_like(folder: str, classes: tuple[str, ...]) -> PublishedSet:
    """Return IDX files by torchvision's MNIST class or one derived from it, in a folder of the class's name."""

    def read_part(root: Path, is_training: bool, _: PreprocessingSection | None) -> Part:
        data = getattr(_import_datasets(), folder)(root, train=is_training, download=False)
        return data.data.numpy(), data.targets.numpy()

    files = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]

    def refuse(root: Path) -> str | None:
        for path in (root / folder / "processed" / file for file in ("training.pt", "test.pt")):
            # Torchvision would prefer this file to the IDX files, and read it by torch.load.
            if path.exists():
                return f"{path} is never read; remove the file, {folder}/raw is enough"
        return None

    return PublishedSet(f"{folder}/raw", tuple(files), read_part, lambda _: classes, refuse)


def _read_usps(root: Path, is_training: bool, _: PreprocessingSection | None) -> Part:
    """Read images (N, 16, 16) from compressed LIBSVM text."""
    data = _import_datasets().USPS(root, train=is_training, download=False)
    return data.data, data.targets


def _read_svhn(root: Path, is_training: bool, _: PreprocessingSection | None) -> Part:
    """Read images (N, 32, 32, 3) from MATLAB files, whose published hashes torchvision checks."""
    data = _import_datasets().SVHN(root, split="train" if is_training else "test", download=False)
    return data.data.transpose(0, 2, 3, 1), data.labels


def _read_flowers(root: Path, is_training: bool, agreed: PreprocessingSection | None) -> Part:
    """Read images (N, S, S, 3) of the agreed size; :func:`secure_client.data.sources.join_sources` converts channels.

    The published training and validation parts, each with 10 images a class, are the training part here.
    """
    where = f"flowers102 in {root / 'flowers-102'}"
    sized = None if agreed is None else agreed.model_copy(update={"channels": 3})
    parts = [
        _import_datasets().Flowers102(
            root,
            split=split,
            transform=lambda picture: fit_image(np.array(picture), sized, where=where),
            download=False,
        )
        for split in (("train", "val") if is_training else ("test",))
    ]
    labels: list[int] = []  # filled as the images are read, so that each picture is decoded once

    def read_images() -> Iterator[Inputs]:
        for part in parts:
            for index in range(len(part)):
                image, label = part[index]
                labels.append(label)
                yield image

    return stack_images(read_images(), range(sum(map(len, parts))), where), labels


def _name_flowers(_: Path) -> tuple[str, ...] | None:
    """Return the class names, if torchvision is new enough to have them."""
    names = getattr(_import_datasets().Flowers102, "classes", None)
    return None if names is None else tuple(names)


def _cifar(
    folder: str,
    pickled_folder: str,
    train_files: tuple[str, ...],
    test_file: str,
    names_file: str,
    *,
    label_bytes: int,
) -> PublishedSet:
    """Return CIFAR's binary version: records of ``label_bytes`` labels, the finest last, and the pixels."""

    def read_part(root: Path, is_training: bool, _: PreprocessingSection | None) -> Part:
        files = train_files if is_training else (test_file,)
        content = np.concatenate([np.fromfile(root / folder / file, dtype=np.uint8) for file in files])
        records = content.reshape(-1, label_bytes + RGB_32)
        images = records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return images, records[:, label_bytes - 1]

    def read_classes(root: Path) -> tuple[str, ...]:
        return tuple((root / folder / names_file).read_text(encoding="ascii").split())

    def refuse(root: Path) -> str | None:
        if (root / folder).is_dir() or not (root / pickled_folder).is_dir():
            return None
        return (
            f"{root / pickled_folder} holds pickles, which are never read; get the archive's binary version,"
            f" {folder}"
        )

    files = (*train_files, test_file, names_file)
    return PublishedSet(folder, files, read_part, read_classes, refuse)


PUBLISHED: Mapping[str, PublishedSet] = {
    "mnist": _mnist_like("MNIST", DIGIT_NAMES),
    "fashion-mnist": _mnist_like("FashionMNIST", CLOTHES),
    "usps": PublishedSet(".", ("usps.bz2", "usps.t.bz2"), _read_usps, lambda _: DIGIT_NAMES),
    "svhn": PublishedSet(".", ("train_32x32.mat", "test_32x32.mat"), _read_svhn, lambda _: DIGIT_NAMES),
    "cifar10": _cifar(
        "cifar-10-batches-bin",
        "cifar-10-batches-py",
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        "test_batch.bin",
        "batches.meta.txt",
        label_bytes=1,
    ),
    "cifar100": _cifar(
        "cifar-100-binary",
        "cifar-100-python",
        ("train.bin",),
        "test.bin",
        "fine_label_names.txt",
        label_bytes=2,
    ),
    "flowers102": PublishedSet(
        "flowers-102",
        ("imagelabels.mat", "setid.mat", "jpg/image_00001.jpg"),  # of the images, only the first is checked
        _read_flowers,
        _name_flowers,
    ),
}
