"""Data sets by name: published ones, written as their authors distribute them, and the bundled digits."""

import bz2
import gzip
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io  # type: ignore[import-untyped]  # it ships no types
import torchvision.datasets
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from agreement import PreprocessingSection
from secure_client.data.published import (
    APPEARANCES,
    CLOTHES,
    make_digit_domains,
    read_published,
)
from secure_client.data.samples import StoredData
from secure_client.data.sources import load_sources
from tests.support.refusals import refuses


def idx(path: Path, array: NDArray[np.uint8]) -> None:
    """Return the format of MNIST's files: magic with dtype (8 = uint8) and rank, sizes, bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = np.array(array.shape, dtype=">i4").tobytes()
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())


def random_bytes(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, size=shape, dtype=np.uint8)


def make_mnist(root: Path, folder: str) -> None:
    for part, count in (("train", 5), ("t10k", 3)):
        idx(root / folder / "raw" / f"{part}-images-idx3-ubyte", random_bytes(count, 28, 28))
        idx(root / folder / "raw" / f"{part}-labels-idx1-ubyte", np.arange(count, dtype=np.uint8))


def sizes(source: StoredData) -> tuple[tuple[int, ...], tuple[int, ...]]:
    assert source.test is not None
    return source.train.inputs.shape, source.test.inputs.shape


@pytest.mark.parametrize(
    ("name", "folder", "first"), [("mnist", "MNIST", "0"), ("fashion-mnist", "FashionMNIST", CLOTHES[0])]
)
def test_published_mnist_and_fashion_mnist_are_read(
    tmp_path: Path, name: str, folder: str, first: str
) -> None:
    make_mnist(tmp_path, folder)
    source = read_published(name, tmp_path)
    assert sizes(source) == ((5, 28, 28, 1), (3, 28, 28, 1))
    assert (source.train.inputs[..., 0] == random_bytes(5, 28, 28)).all()
    assert source.train.labels.tolist() == [0, 1, 2, 3, 4]
    assert source.classes is not None
    assert (source.classes[0], len(source.classes), source.domains) == (first, 10, (name,))


def test_published_packed_file_names_the_command_that_unpacks_it(tmp_path: Path) -> None:
    make_mnist(tmp_path, "MNIST")
    path = tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte"
    Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    with refuses(f"gunzip -k {path}.gz"):
        read_published("mnist", tmp_path)


def test_published_damaged_file_is_named_in_one_line(tmp_path: Path) -> None:
    make_mnist(tmp_path, "MNIST")
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 9]))
    with refuses("mnist (training part"):
        read_published("mnist", tmp_path)


def test_published_older_file_that_torchvision_would_unpickle_is_refused(tmp_path: Path) -> None:
    make_mnist(tmp_path, "MNIST")
    old = tmp_path / "MNIST/processed/training.pt"
    old.parent.mkdir()
    old.write_bytes(b"")
    with refuses(old):
        read_published("mnist", tmp_path)


def test_published_usps_is_read(tmp_path: Path) -> None:
    for file, count in (("usps.bz2", 2), ("usps.t.bz2", 1)):
        pixels = " ".join(f"{pixel + 1}:{-1 + 2 * (pixel % 2)}" for pixel in range(256))
        lines = "".join(f"{label + 1} {pixels}\n" for label in range(count))
        (tmp_path / file).write_bytes(bz2.compress(lines.encode()))
    source = read_published("usps", tmp_path)
    assert sizes(source) == ((2, 16, 16, 1), (1, 16, 16, 1))
    assert source.train.labels.tolist() == [0, 1]
    assert source.train.inputs[0, 0, :4, 0].tolist() == [0, 255, 0, 255]


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def make_svhn(root: Path) -> dict[str, list[str]]:
    checksums = {}
    for part, labels in (("train", [[10], [1], [9]]), ("test", [[2], [10]])):
        path = root / f"{part}_32x32.mat"
        images = random_bytes(32, 32, 3, len(labels))
        scipy.io.savemat(path, {"X": images, "y": np.array(labels, dtype=np.uint8)})
        checksums[part] = ["", path.name, md5(path)]
    return checksums


def test_published_svhn_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", make_svhn(tmp_path))
    source = read_published("svhn", tmp_path)
    assert sizes(source) == ((3, 32, 32, 3), (2, 32, 32, 3))
    assert source.train.labels.tolist() == [0, 1, 9]
    assert (source.train.inputs[1] == random_bytes(32, 32, 3, 3)[..., 1]).all()


def test_published_svhn_other_file_is_refused(tmp_path: Path) -> None:
    make_svhn(tmp_path)
    with refuses("svhn"):
        read_published("svhn", tmp_path)


def record(labels: list[int], colour: tuple[int, int, int]) -> bytes:
    return bytes(labels) + b"".join(bytes([value]) * 1024 for value in colour)


def test_published_cifar10_is_read_from_its_binary_version(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "batches.meta.txt").write_text("airplane\nautomobile\n\n")
    for number, file in enumerate([*(f"data_batch_{batch}.bin" for batch in range(1, 6)), "test_batch.bin"]):
        (folder / file).write_bytes(record([number % 2], (number, 50, 200)))
    source = read_published("cifar10", tmp_path)
    assert sizes(source) == ((5, 32, 32, 3), (1, 32, 32, 3))
    assert source.classes == ("airplane", "automobile")
    assert source.train.labels.tolist() == [0, 1, 0, 1, 0]
    assert source.train.inputs[3, 7, 9].tolist() == [3, 50, 200]


def test_published_cifar100_has_the_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "fine_label_names.txt").write_text("apple\nbaby\n")
    (folder / "train.bin").write_bytes(record([7, 1], (1, 2, 3)) + record([3, 0], (4, 5, 6)))
    (folder / "test.bin").write_bytes(record([9, 1], (7, 8, 9)))
    assert read_published("cifar100", tmp_path).train.labels.tolist() == [1, 0]
    (folder / "test.bin").write_bytes(record([9, 1], (7, 8, 9))[:-1])
    with refuses("cifar100 (test part"):
        read_published("cifar100", tmp_path)


def test_published_pickled_cifar_is_refused_unread(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(pickle.dumps({"data": 1}))
    with refuses("cifar-10-batches-bin"):
        read_published("cifar10", tmp_path)


FLOWERS_AGREED = PreprocessingSection(image_size=8, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)


def make_flowers(root: Path) -> dict[str, tuple[str, str]]:
    """Write six pictures of unequal sizes: the published layout, MATLAB lists from 1, these files' checksums."""
    folder = root / "flowers-102"
    (folder / "jpg").mkdir(parents=True)
    for number in range(1, 7):
        picture = Image.new("RGB", (20 + number, 30), (40 * number, 0, 0))
        picture.save(folder / f"jpg/image_{number:05d}.jpg", quality=100, subsampling=0)
    scipy.io.savemat(folder / "imagelabels.mat", {"labels": np.array([[102, 1, 3, 2, 102, 1]], np.uint8)})
    lists = {"trnid": [[1, 6]], "valid": [[2, 3]], "tstid": [[5, 4]]}
    scipy.io.savemat(folder / "setid.mat", {key: np.array(value, np.uint16) for key, value in lists.items()})
    names = {"label": "imagelabels.mat", "setid": "setid.mat"}
    return {key: (name, md5(folder / name)) for key, name in names.items()}


def test_published_flowers_are_resized_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision checks that the lists are the published ones: here that they are the ones just made."""
    monkeypatch.setattr(torchvision.datasets.Flowers102, "_file_dict", make_flowers(tmp_path))
    source = read_published("flowers102", tmp_path, FLOWERS_AGREED)
    assert sizes(source) == ((4, 8, 8, 3), (2, 8, 8, 3))
    assert source.test is not None
    assert source.train.labels.tolist() == [101, 0, 0, 2]  # train, then val
    assert source.test.labels.tolist() == [101, 1]
    reds = [40, 240, 80, 120]
    np.testing.assert_allclose(source.train.inputs[:, 4, 4, 0], reds, atol=2)  # as exact as JPEG is
    assert source.classes is None or (len(source.classes), source.classes[101]) == (102, "blackberry lily")
    with refuses("flowers102", ": image 1"):
        read_published("flowers102", tmp_path)
    (tmp_path / "flowers-102/jpg/image_00004.jpg").unlink()
    with refuses("flowers102 (test part", "image_00004.jpg"):
        read_published("flowers102", tmp_path, FLOWERS_AGREED)


def test_published_flowers_other_lists_are_refused(tmp_path: Path) -> None:
    make_flowers(tmp_path)
    with refuses("flowers102"):
        read_published("flowers102", tmp_path, FLOWERS_AGREED)


def test_published_flowers_by_name_have_the_agreed_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchvision.datasets.Flowers102, "_file_dict", make_flowers(tmp_path))
    data = load_sources("flowers102", data_root=tmp_path, agreed=FLOWERS_AGREED, classes=None)
    assert data.train.inputs.shape == (4, 8, 8, 3)


@pytest.mark.parametrize(
    "name", ["mnist", "fashion-mnist", "usps", "svhn", "cifar10", "cifar100", "flowers102"]
)
def test_published_missing_file_or_root_is_named(tmp_path: Path, name: str) -> None:
    with refuses(f"{name}: {tmp_path}/"):
        read_published(name, tmp_path)
    with refuses(f"{name}: ", "data_root"):
        read_published(name, None)


def scans_of(seed: int, domain: int) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Return the scans of one domain, as scanned and as altered."""
    data = make_digit_domains(seed).train
    chosen = data.domains == domain
    return load_digits().images[chosen] / 16.0, data.inputs[chosen, ..., 0]


def test_digits_every_scan_is_in_one_domain_with_every_class() -> None:
    data = make_digit_domains(3)
    assert data.test is None
    assert data.train.inputs.shape == (1797, 8, 8, 1)
    assert (data.train.labels == load_digits().target).all()
    assert data.train.inputs.min() >= 0.0
    assert data.train.inputs.max() <= 1.0
    counts = np.zeros((5, 10), dtype=int)
    np.add.at(counts, (data.train.domains, data.train.labels), 1)
    assert counts.min() >= 34
    assert counts.max() <= 37
    assert data.domains == tuple(APPEARANCES)


def test_digits_same_seed_gives_the_same_domains() -> None:
    first, again, other = (make_digit_domains(seed) for seed in (1, 1, 2))
    assert (first.train.inputs == again.train.inputs).all()
    assert (first.train.domains != other.train.domains).mean() > 0.5


def test_digits_appearances_are_what_they_are_called() -> None:
    scanned, as_scanned = scans_of(0, 0)
    np.testing.assert_allclose(as_scanned, scanned, atol=1e-7)
    scanned, inverted = scans_of(0, 1)
    np.testing.assert_allclose(inverted, 1.0 - scanned, atol=1e-7)
    scanned, gradient = scans_of(0, 4)
    np.testing.assert_allclose(gradient[..., 0], 0.5 * scanned[..., 0], atol=1e-7)
    np.testing.assert_allclose(gradient[..., 7], 0.5 * scanned[..., 7] + 0.5, atol=1e-7)


def test_digits_blurring_is_the_binomial_filter() -> None:
    scanned, blurred = scans_of(0, 2)
    kernel = np.outer([1, 2, 1], [1, 2, 1]) / 16
    for row, column in np.ndindex(8, 8):
        expected = 0.0
        for dy, dx in np.ndindex(3, 3):
            y, x = min(max(row + dy - 1, 0), 7), min(max(column + dx - 1, 0), 7)
            expected += kernel[dy, dx] * scanned[5, y, x]
        assert blurred[5, row, column] == pytest.approx(expected, abs=1e-6)


def test_digits_noisy_domain_is_low_in_contrast_and_noisy() -> None:
    scanned, noisy = scans_of(0, 3)
    residue = noisy - (0.3 + 0.4 * scanned)
    assert residue.std() == pytest.approx(0.08, rel=0.05)  # of 23000 values: 0.5 % standard error
    assert noisy.std() < 0.55 * scanned.std()
