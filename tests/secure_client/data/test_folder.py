from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from agreement import PreprocessingSection
from secure_client.data.folder import read_folder
from secure_client.data.sources import load_sources
from tests.support.refusals import refuses

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


def test_folder_train_and_test_are_read_at_the_agreed_shape(folder: Path) -> None:
    data = load_sources(f"folder:{folder}", data_root=None, agreed=AGREED, classes=("dog", "bird", "cat"))
    assert data.train.labels.tolist() == [2, 2, 0]
    assert data.train.inputs.shape == (3, 4, 4, 1)
    assert data.train.inputs.dtype == np.uint8
    assert data.train.inputs[0].tolist() == np.full((4, 4, 1), 10).tolist()
    assert data.test is not None
    assert data.test.labels.tolist() == [0]
    assert data.domains == ("xrays",)


def test_folder_of_no_class_names_the_nearest(folder: Path) -> None:
    picture(folder / "train/dogs/1.png")
    with refuses("'dogs'", "'dog'"):
        load_sources(f"folder:{folder}", data_root=None, agreed=AGREED, classes=("cat", "dog"))


def test_folder_of_several_shapes_needs_an_agreed_one(folder: Path) -> None:
    with refuses(folder / "train/cat/1.png", folder / "train/cat/2.jpg"):
        read_folder(folder, None)


def test_folder_without_a_test_part_is_read(tmp_path: Path) -> None:
    picture(tmp_path / "train/cat/1.png")
    assert read_folder(tmp_path, AGREED).test is None


FILES = {
    "1.txt": b"x",
    "IM0001": bytes(128) + b"DICM",
    "1.dcm": bytes(128) + b"DICM",
    "1.nii.gz": b"\x1f\x8b\x08",
    "1.webp": b"RIFF\0\0\0\0WEBP",
    "1.png.bak": b"\x89PNG\r\n\x1a\n",
    "empty": b"",
    "2.jpg": b"\xff\xd8\xff\xe0\x00\x10JFIF",
}


@pytest.mark.parametrize("name", FILES)
def test_folder_file_that_is_not_read_is_named(name: str, folder: Path) -> None:
    (folder / "train/cat" / name).write_bytes(FILES[name])
    with refuses(folder / "train/cat" / name):
        read_folder(folder, AGREED)


@pytest.mark.parametrize(
    ("pictures", "folders", "named"),
    [
        ((), (), ""),
        ((), ("train",), "train"),
        (("train/cat",), ("train/empty",), "train/empty"),
        (("train/cat",), ("train/cat/patient",), "train/cat/patient"),
        (("amazon/mug", "dslr/mug"), ("caltech",), "caltech"),
        (("Train/cat", "Test/cat"), (), "Test"),
        (("Training/cat", "Testing/cat"), (), "Testing"),
        (("train/cat", "Test/cat"), (), "Test"),
        (("train/cat", "test/cat", "val/cat"), (), "val"),
        (("train/cat", "test/cat", "unlabelled/cat"), (), "unlabelled"),
        (("test/cat",), (), "test"),
    ],
)
def test_folder_in_another_layout_is_refused(
    pictures: tuple[str, ...], folders: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    for place in pictures:
        picture(tmp_path / place / "1.png")
    for place in folders:
        (tmp_path / place).mkdir(parents=True)
    with refuses(tmp_path / named):
        read_folder(tmp_path, AGREED)


def test_folder_class_named_like_a_part_is_read(tmp_path: Path) -> None:
    for name in ("a/valid/1.png", "a/invalid/1.png", "b/photo/train/1.png", "b/photo/bus/1.png"):
        picture(tmp_path / name)
    assert read_folder(tmp_path / "a", AGREED).classes == ("invalid", "valid")
    assert read_folder(tmp_path / "b", AGREED).classes == ("bus", "train")


def test_folder_parts_one_folder_deeper_are_named(folder: Path) -> None:
    with refuses(f"folder:{folder}"):
        read_folder(folder.parent, AGREED)


def test_folder_files_of_operating_systems_are_skipped(tmp_path: Path) -> None:
    picture(tmp_path / "train/cat/1.PNG", 10)
    picture(tmp_path / "train/cat/2.TIFF", 20)
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store", "._1.PNG", "1.PNG:Zone.Identifier"):
        (tmp_path / "train/cat" / name).write_bytes(b"x")
    for name in ("__MACOSX", "@eaDir"):
        (tmp_path / "train" / name).mkdir()
        (tmp_path / "train" / name / "._cat").write_bytes(b"x")
    source = read_folder(tmp_path, AGREED)
    assert source.classes == ("cat",)
    assert source.train.inputs[:, 0, 0, 0].tolist() == [10, 20]


def test_folder_of_8_and_16_bits_becomes_floats(tmp_path: Path) -> None:
    picture(tmp_path / "train/cat/1.png", 51, size=(3, 1))
    Image.fromarray(np.array([[65535, 0, 13107]], dtype=np.uint16)).save(tmp_path / "train/cat/2.png")
    inputs = read_folder(tmp_path, None).train.inputs
    np.testing.assert_allclose(inputs[:, 0, :, 0], [[0.2, 0.2, 0.2], [1.0, 0.0, 0.2]], atol=1e-6)


def make_office(root: Path) -> None:
    """Write Office-Caltech's layout: DOMAIN/CLASS/*.jpg, here with one domain that lacks a class."""
    for number, place in enumerate(
        ("amazon/mug", "amazon/back_pack", "dslr/mug", "webcam/mug", "webcam/mug")
    ):
        picture(root / place / f"frame_{number:04d}.jpg", 10 * number, size=(30 + number, 20), mode="L")


def test_folder_of_domains_has_a_domain_for_each(tmp_path: Path) -> None:
    make_office(tmp_path)
    (tmp_path / ".git").mkdir()
    source = read_folder(tmp_path, AGREED)
    assert source.test is None
    assert (source.classes, source.domains) == (("back_pack", "mug"), ("amazon", "dslr", "webcam"))
    assert source.train.labels.tolist() == [0, 1, 1, 1, 1]
    assert source.train.domains.tolist() == [0, 0, 1, 2, 2]
    assert source.train.inputs[:, 0, 0, 0].tolist() == [10, 0, 20, 30, 40]


def test_folder_of_domains_with_images_between_is_read(tmp_path: Path) -> None:
    picture(tmp_path / "amazon/images/mug/frame_0001.jpg", 10)
    picture(tmp_path / "dslr/images/bike/frame_0001.jpg", 20)
    source = read_folder(tmp_path, AGREED)
    assert (source.classes, source.domains) == (("bike", "mug"), ("amazon", "dslr"))
    assert source.train.labels.tolist() == [1, 0]


def test_folder_of_classes_alone_is_one_domain_without_a_test_part(tmp_path: Path) -> None:
    picture(tmp_path / "Fnt/Sample001/img001-00001.png", 10)
    picture(tmp_path / "Fnt/Sample002/img002-00001.png", 20)
    source = read_folder(tmp_path / "Fnt", AGREED)
    assert (source.test, source.classes, source.domains) == (None, ("Sample001", "Sample002"), ("Fnt",))


def make_tiny_imagenet(root: Path) -> None:
    """Write the archive's layout with its lists; pictures are 64×64, and some are grey, as in the archive."""
    for wnid, mode in (("n02124075", "RGB"), ("n01443537", "L")):
        for number in range(2):
            file = root / f"train/{wnid}/images/{wnid}_{number}.JPEG"
            picture(file, 50 * number + 20, size=(64, 64), mode=mode)
        (root / f"train/{wnid}/{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
    for number in range(3):
        picture(root / f"val/images/val_{number}.JPEG", 100 + number, size=(64, 64), mode="L")
    (root / "val/val_annotations.txt").write_text(
        "val_0.JPEG\tn02124075\t0\t32\t44\t62\n"
        "val_2.JPEG\tn01443537\t52\t55\t57\t59\n"
        "val_1.JPEG\tn02124075\t4\t0\t60\t55\n"
    )
    picture(root / "test/images/test_0.JPEG", 1, size=(64, 64), mode="RGB")
    (root / "wnids.txt").write_text("n02124075\nn01443537\n")
    (root / "words.txt").write_text("n02124075\tEgyptian cat\nn01443537\tgoldfish, Carassius auratus\n")


def test_tiny_imagenet_is_tested_on_its_labelled_val_part(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    make_tiny_imagenet(root)
    source = read_folder(root, AGREED)
    assert (source.classes, source.domains) == (("n01443537", "n02124075"), ("tiny-imagenet-200",))
    assert source.train.labels.tolist() == [0, 0, 1, 1]
    assert source.test is not None
    assert source.test.labels.tolist() == [1, 0, 1]
    assert source.test.inputs[:, 1, 1, 0].tolist() == [100, 102, 101]  # JPEG keeps a flat grey exactly


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("val_0.JPEG\tn09999999\t0\t0\t1\t1\n", "val_annotations.txt: line 4"),
        ("val_0.JPEG n02124075\n", "val_annotations.txt: line 4"),
        ("val_9.JPEG\tn02124075\t0\t0\t1\t1\n", "val_9.JPEG"),
        (None, "test"),
    ],
)
def test_tiny_imagenet_bad_annotation_is_named(line: str | None, named: str, tmp_path: Path) -> None:
    make_tiny_imagenet(tmp_path)
    notes = tmp_path / "val/val_annotations.txt"
    notes.write_text("" if line is None else notes.read_text() + line)
    with refuses(named):
        read_folder(tmp_path, AGREED)


def test_tiny_imagenet_missing_folder_is_named(tmp_path: Path) -> None:
    make_tiny_imagenet(tmp_path)
    (tmp_path / "train/n03/").mkdir()
    with refuses("n03/images"):
        read_folder(tmp_path, AGREED)
    (tmp_path / "train").rename(tmp_path / "TRAIN")
    with refuses("/train"):
        read_folder(tmp_path, AGREED)
