from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protoseal.config import PreprocessingSection
from secure_client.data.folder import read_folder, read_image
from secure_client.data.sources import load
from secure_client.errors import DataError

AGREED = PreprocessingSection(image_size=4, channels=1, mean=(0.0,), std=(1.0,))


def picture(path: Path, value: int = 100, size: tuple[int, int] = (6, 5), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "xrays"
    picture(root / "train/cat/1.png", 10)
    picture(root / "train/cat/2.jpg", 20, size=(9, 9), mode="RGB")
    picture(root / "train/dog/1.png", 30)
    picture(root / "test/dog/7.bmp", 40)
    (root / "train/.DS_Store").write_bytes(b"x")
    (root / "train/cat/.hidden").write_bytes(b"x")
    return root


def test_folders_are_classes_and_images_get_the_agreed_shape(folder: Path) -> None:
    data = load(f"folder:{folder}", data_root=None, agreed=AGREED, classes=("dog", "bird", "cat"))
    assert data.train.labels.tolist() == [2, 2, 0]
    assert data.train.inputs.shape == (3, 4, 4, 1)
    assert data.train.inputs.dtype == np.uint8
    assert data.train.inputs[0].tolist() == np.full((4, 4, 1), 10).tolist()
    assert data.test is not None
    assert data.test.labels.tolist() == [0]
    assert data.domains == ("xrays",)


def test_a_folder_that_is_no_class_names_the_nearest(folder: Path) -> None:
    picture(folder / "train/dogs/1.png")
    with pytest.raises(DataError, match=r"xrays: class 'dogs' is not an agreed class; did you mean 'dog'\?"):
        load(f"folder:{folder}", data_root=None, agreed=AGREED, classes=("cat", "dog"))


def test_images_of_several_shapes_need_an_agreed_one(folder: Path) -> None:
    with pytest.raises(DataError, match=r"train: images differ in shape .* agree on \[preprocessing\]"):
        read_folder(folder, None)


def test_what_is_wrong_is_named_with_the_file(folder: Path) -> None:
    notes = folder / "train/cat/notes.txt"
    notes.write_text("x")
    with pytest.raises(DataError, match=r"notes\.txt: is not an image"):
        read_folder(folder, AGREED)
    notes.unlink()
    (folder / "train/empty").mkdir()
    with pytest.raises(DataError, match=r"train/empty: holds no images; fill it, or remove it"):
        read_folder(folder, AGREED)
    (folder / "train/empty").rmdir()
    whole = (folder / "train/cat/2.jpg").read_bytes()
    (folder / "train/cat/2.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"2\.jpg: cannot be read as an image"):
        read_folder(folder, AGREED)


def test_train_must_be_there_and_test_may_be_absent(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no folder train"):
        read_folder(tmp_path, AGREED)
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="train: holds no images"):
        read_folder(tmp_path, AGREED)
    picture(tmp_path / "train/cat/1.png")
    assert read_folder(tmp_path, AGREED).test is None


def test_modes_of_images(tmp_path: Path) -> None:
    for mode, channels in (("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)):
        picture(tmp_path / f"{mode}.png", 0, mode=mode) if mode not in ("LA", "RGBA") else Image.new(
            mode, (6, 5)
        ).save(tmp_path / f"{mode}.png")
        assert read_image(tmp_path / f"{mode}.png").shape == (5, 6, channels)
        assert read_image(tmp_path / f"{mode}.png").dtype == np.uint8
    deep = np.array([[0, 65535, 13107]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    np.testing.assert_allclose(read_image(tmp_path / "deep.png")[0, :, 0], [0.0, 1.0, 0.2], atol=1e-6)
    with pytest.raises(DataError, match=r"none\.png: cannot be read"):
        read_image(tmp_path / "none.png")


def test_eight_and_sixteen_bit_together_become_floats(tmp_path: Path) -> None:
    picture(tmp_path / "train/cat/1.png", 51, size=(3, 1))
    Image.fromarray(np.array([[65535, 0, 13107]], dtype=np.uint16)).save(tmp_path / "train/cat/2.png")
    inputs = read_folder(tmp_path, None).train.inputs
    np.testing.assert_allclose(inputs[:, 0, :, 0], [[0.2, 0.2, 0.2], [1.0, 0.0, 0.2]], atol=1e-6)
