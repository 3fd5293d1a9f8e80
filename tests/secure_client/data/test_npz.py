import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import ConfigError
from agreement.toml_loading import parse_toml
from crypto.errors import KeyStoreError
from crypto.pki import key_files
from secure_client.data.folder import read_folder
from secure_client.data.npz import read_npz, write_npz
from secure_client.data.samples import Samples, TrainTest
from secure_client.errors import DataError
from tests.support.refusals import refuses

IMAGES = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3, 1)
LABELS = np.array([0, 1])


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_npz_written_data_are_read_again(tmp_path: Path) -> None:
    part = Samples(IMAGES, LABELS, np.array([1, 0]))
    write_npz(tmp_path / "a.npz", TrainTest(part, part.take(np.array([1])), ("cat", "dog"), ("day", "night")))
    source = read_npz(tmp_path / "a.npz")
    assert (source.classes, source.domains) == (("cat", "dog"), ("day", "night"))
    assert (source.train.inputs == IMAGES).all()
    assert source.train.domains.tolist() == [1, 0]
    assert source.test is not None
    assert source.test.labels.tolist() == [1]


def test_npz_test_part_domains_and_names_are_optional(tmp_path: Path) -> None:
    source = read_npz(saved(tmp_path / "clinic.npz", x_train=IMAGES, y_train=LABELS, other=LABELS))
    assert (source.test, source.classes, source.domains) == (None, None, ("clinic",))
    two = read_npz(saved(tmp_path / "two.npz", x_train=IMAGES, y_train=LABELS, domain_train=LABELS))
    assert two.domains == ("0", "1")


def read_as_folder(path: Path) -> None:
    read_folder(path, None)


@pytest.mark.parametrize("read", [read_npz, read_as_folder, parse_toml, key_files.read])
@pytest.mark.parametrize(
    ("written", "present"),
    [
        ("Ger\u00e4t", "Gera\u0308t"),
        ("Gera\u0308t", "Ger\u00e4t"),
        ("Ger\u00e4t", os.fsdecode("Ger\u00e4t".encode("latin-1"))),
        ("scans", "Scans"),
    ],
)
def test_npz_missing_file_names_the_nearest(
    written: str, present: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    """Names may differ in the path's last part, and in one before it."""
    (tmp_path / present).mkdir()
    for path in (tmp_path / written, tmp_path / written / "data.npz"):
        with pytest.raises((DataError, ConfigError, KeyStoreError)) as refused:
            read(path)
        assert ascii(present) in str(refused.value)
        assert str(tmp_path) in str(refused.value)
    with pytest.raises((DataError, ConfigError, KeyStoreError)) as refused:
        read(tmp_path / "another")
    assert ascii(present) not in str(refused.value)


def test_npz_members_compressed_with_lzma_are_read(tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain.npz", x_train=IMAGES, y_train=LABELS)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(tmp_path / "lzma.npz", "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name), compress_type=zipfile.ZIP_LZMA)
    assert (read_npz(tmp_path / "lzma.npz").train.inputs == IMAGES).all()


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_npz_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    trap = np.array([Trap(tmp_path / "sprung"), None], dtype=object)
    path = saved(tmp_path / "trap.npz", x_train=IMAGES, y_train=trap)
    with np.load(path, allow_pickle=True) as archive:  # the trap works
        archive["y_train"]
    (tmp_path / "sprung").unlink()
    with refuses("trap.npz"):
        read_npz(path)
    assert not (tmp_path / "sprung").exists()


WHOLE = {"x_train": IMAGES, "y_train": LABELS}


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"y_train": LABELS}, "x_train"),
        ({"x_test": IMAGES, "y_test": LABELS}, "x_train"),
        (WHOLE | {"x_test": IMAGES}, "y_test"),
        (WHOLE | {"y_train": LABELS[:1]}, "train"),
        (WHOLE | {"y_train": [0.0, 1.0]}, "labels"),
        (WHOLE | {"y_train": [[0], [1]]}, "labels"),
        (WHOLE | {"y_train": [-1, 1]}, "sample 0"),
        ({"x_train": IMAGES[:0], "y_train": LABELS[:0]}, "train"),
        (WHOLE | {"x_train": LABELS}, "(2,)"),
        (WHOLE | {"x_train": IMAGES.astype(np.int32)}, "int32"),
        (WHOLE | {"x_train": [[0.0], [np.nan]]}, "sample 1: feature 0"),
        (WHOLE | {"x_train": [[1e300], [0.0]]}, "sample 0: feature 0"),
        (WHOLE | {"class_names": [1, 2]}, "class_names"),
        (WHOLE | {"class_names": [b"a", b"b"]}, "class_names"),
        (WHOLE | {"domain_train": LABELS, "domain_names": ["day"]}, "domain_names"),
    ],
)
def test_npz_bad_array_is_named_with_its_file(tmp_path: Path, arrays: dict[str, Any], named: str) -> None:
    with refuses("bad.npz: ", named):
        read_npz(saved(tmp_path / "bad.npz", **arrays))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("classes", "class_names"),
        ("class_name", "class_names"),
        ("Class_Names", "class_names"),
        ("target_names", "class_names"),
        ("subject", "subjects"),
        ("X_test", "x_test"),
    ],
)
def test_npz_array_nearly_named_like_a_missing_one_is_refused(name: str, meant: str, tmp_path: Path) -> None:
    with refuses(f"a.npz: {name} ", meant):
        read_npz(saved(tmp_path / "a.npz", **WHOLE, **{name: np.array(["cat", "dog"])}))


def test_npz_missing_damaged_or_other_file_is_refused(tmp_path: Path) -> None:
    with refuses("none.npz"):
        read_npz(tmp_path / "none.npz")
    path = saved(tmp_path / "cut.npz", x_train=IMAGES, y_train=LABELS)
    whole = path.read_bytes()
    causes = {
        "damaged": (whole[:-40], whole[:40] + bytes(60) + whole[100:], whole[:2]),
        "no .npz": (b"x_train,y_train\n", b"P", pickle.dumps([1])),
        "empty": (b"",),
    }
    for cause, contents in causes.items():
        for content in contents:
            path.write_bytes(content)
            with pytest.raises(DataError) as refused:
                read_npz(path)
            told = str(refused.value).rpartition("cut.npz: ")[2]
            assert [word for word in (*causes, "folder", "Python") if word in told] == [cause]
    (tmp_path / "folder.npz").mkdir()
    with refuses("folder.npz"):
        read_npz(tmp_path / "folder.npz")
    np.save(tmp_path / "single.npy", IMAGES)
    with refuses("single.npy"):
        read_npz(tmp_path / "single.npy")


def test_npz_16_bit_images_are_scaled(tmp_path: Path) -> None:
    deep = np.array([[[0, 65535]], [[32768, 1]]], dtype=np.uint16)
    source = read_npz(saved(tmp_path / "deep.npz", x_train=deep, y_train=LABELS))
    np.testing.assert_allclose(source.train.inputs[..., 0], deep / 65535, rtol=1e-6)
    assert source.train.inputs.shape == (2, 1, 2, 1)


def test_npz_folder_in_its_place_is_named_without_another_cause(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        read_npz(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}: ")
    assert "damaged" not in str(refused.value)
