"""Subjects of records: statements in each form of data, and the part of them that reaches a site."""

from __future__ import annotations

import os
import textwrap
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agreement import Agreement
from protoseal.simulation.site_datasets import digest, divide, read_sites
from protoseal.splits import parse_split
from secure_client.data import load_site_data
from secure_client.data.folder import read_folder
from secure_client.data.npz import read_npz, write_npz
from secure_client.data.samples import Samples, join_samples, make_samples
from secure_client.data.site_data import number_subjects
from secure_client.data.sources import load_sources
from tests.support.refusals import refuses
from tests.support.small import small_agreement

IMAGES, LABELS = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 2, 0])
NAMES = np.array(["ann", "bob", "ann", "carl"])


def saved(path: Path, **arrays: Any) -> str:
    np.savez(path, x_train=IMAGES, y_train=LABELS, **arrays)
    return f"npz:{path}"


def agreed() -> Agreement:
    return small_agreement()


@pytest.mark.parametrize("subjects", [NAMES, np.array([30, 7, 30, 8])], ids=["text", "numbers"])
def test_subjects_of_an_npz_are_an_array(tmp_path: Path, subjects: Any) -> None:
    data = load_site_data(saved(tmp_path / "a.npz", subjects=subjects), None, agreed())
    assert data.subjects is not None
    assert len(np.unique(data.subjects)) == 3
    assert data.subjects[0] == data.subjects[2]


def test_subjects_of_an_npz_without_the_array_are_unknown(tmp_path: Path) -> None:
    assert load_site_data(saved(tmp_path / "a.npz"), None, agreed()).subjects is None


@pytest.mark.parametrize(
    "subjects", [NAMES[:3], NAMES[:, None], np.array([0.5, 1.0, 2.0, 3.0]), np.array([True] * 4)]
)
def test_subjects_of_other_shape_or_type_are_refused(tmp_path: Path, subjects: Any) -> None:
    with refuses("subjects", "4"):
        load_site_data(saved(tmp_path / "a.npz", subjects=subjects), None, agreed())


def test_subjects_written_to_an_npz_are_read_again(tmp_path: Path) -> None:
    source = read_npz(Path(saved(tmp_path / "a.npz", subjects=NAMES).removeprefix("npz:")))
    data = load_sources(f"npz:{tmp_path / 'a.npz'}", data_root=None, agreed=None, classes=("a", "b", "c"))
    write_npz(tmp_path / "b.npz", data)
    again = read_npz(tmp_path / "b.npz").train.subjects
    assert again is not None
    assert source.train.subjects is not None
    assert again.tolist() == source.train.subjects.tolist() == NAMES.tolist()


# Folders


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "scans"
    for name in ("train/cat/1.png", "train/cat/2.png", "train/dog/1.png", "test/dog/7.png"):
        picture(root / name)
    return root


def told(folder: Path, text: str) -> Path:
    (folder / "subjects.csv").write_text(textwrap.dedent(text).lstrip(), encoding="utf-8")
    return folder


COMPLETE = """
    file,subject
    train/dog/1.png,"Ann, the elder"
    train/cat/2.png,7
    train/cat/1.png,"Ann, the elder"
"""


def test_subjects_of_a_folder_are_a_list(folder: Path) -> None:
    source = read_folder(told(folder, COMPLETE), None)
    assert source.train.subjects is not None
    assert source.train.subjects.tolist() == ["Ann, the elder", "7", "Ann, the elder"]
    assert source.test is not None
    assert source.test.subjects is None


@pytest.mark.parametrize("layout", ["CLASS", "DOMAIN/CLASS"])
def test_subjects_of_a_folder_of_every_layout_are_a_list(tmp_path: Path, layout: str) -> None:
    root, inside = tmp_path / "all", "" if layout == "CLASS" else "day/"
    picture(root / f"{inside}cat/1.png")
    source = read_folder(told(root, f"file,subject\n{inside}cat/1.png,ann\n"), None)
    assert source.train.subjects is not None
    assert source.train.subjects.tolist() == ["ann"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (COMPLETE.replace("    train/cat/2.png,7\n", ""), "train/cat/2.png"),
        (COMPLETE.replace(",7\n", ",\n"), "train/cat/2.png"),
        (COMPLETE.replace("file,subject", "image,owner"), "file,subject"),
    ],
)
def test_subjects_list_that_leaves_an_image_out_is_refused(folder: Path, text: str, named: str) -> None:
    with refuses("subjects.csv", named):
        read_folder(told(folder, text), None)


def test_subjects_list_that_is_no_text_is_refused(folder: Path) -> None:
    (folder / "subjects.csv").write_bytes(b"file,subject\n\xff\xff,1\n")
    with refuses("subjects.csv: line 2 "):
        read_folder(folder, None)


def test_subjects_list_of_a_spreadsheet_is_read(folder: Path) -> None:
    expected = read_folder(told(folder, COMPLETE), None).train.subjects
    assert expected is not None
    text = textwrap.dedent(COMPLETE).lstrip()
    for content in (
        text.encode("utf-8-sig"),
        text.replace("\n", "\r\n").encode("utf-8-sig"),
        text.replace("r,", "r;").replace("e,", "e;").replace("g,", "g;").encode(),
    ):
        (folder / "subjects.csv").write_bytes(content)
        subjects = read_folder(folder, None).train.subjects
        assert subjects is not None
        assert subjects.tolist() == expected.tolist()
    (folder / "subjects.csv").write_bytes(text.encode("utf-16"))
    with refuses("subjects.csv"):
        read_folder(folder, None)
    with refuses("train/cat/2.png"):
        read_folder(told(folder, COMPLETE + "    train/cat/2.png,8\n"), None)


def test_subjects_list_with_names_of_a_mac_is_read(tmp_path: Path) -> None:
    stored, written = (unicodedata.normalize(form, "Ödem") for form in ("NFD", "NFC"))
    picture(tmp_path / stored / f"{stored}.png")
    source = read_folder(told(tmp_path, f"file,subject\n{written}/{written}.png,ann\n"), None)
    assert source.train.subjects is not None
    assert source.train.subjects.tolist() == ["ann"]
    assert load_sources(
        f"folder:{tmp_path}", data_root=None, agreed=None, classes=("a", written)
    ).train.labels == [1]


# Data of one's own


@pytest.fixture
def own(write_module: Callable[[str], str]) -> str:
    return write_module("""
        import numpy as np, torch
        from torch.utils.data import TensorDataset

        images, labels = np.zeros((3, 8, 8), np.uint8), np.array([0, 1, 2])
        class Owned(TensorDataset):
            subjects = ["b", "a", "b"]
        def arrays(data_root): return (images, labels, ["b", "a", "b"]), None
        def data_set(data_root): return Owned(torch.zeros(3, 1, 8, 8), torch.arange(3)), None
        def short(data_root):
            data = Owned(torch.zeros(2, 1, 8, 8), torch.arange(2))
            return data, None
    """)


@pytest.mark.parametrize("function", ["arrays", "data_set"])
def test_subjects_of_a_data_function_are_read(own: str, function: str) -> None:
    data = load_site_data(f"{own}:{function}", None, agreed())
    assert data.subjects is not None
    assert data.subjects.tolist() == [1, 0, 1]
    joined = load_sources(f"{own}:{function}", data_root=None, agreed=None, classes=("a", "b", "c"))
    assert joined.train.subjects is not None
    assert joined.train.subjects.tolist() == ["b", "a", "b"]


def test_subjects_of_a_data_function_of_another_number_are_refused(own: str) -> None:
    with refuses("subjects", "2"):
        load_site_data(f"{own}:short", None, agreed())


# On the way


def samples(subjects: Any) -> Samples:
    return make_samples(IMAGES, LABELS, subjects=subjects, where="here")


def test_subjects_of_joined_data_are_equal_by_name() -> None:
    joined = join_samples([samples(NAMES), samples(["7", "bob", "8", "9"])])
    found = number_subjects(joined.subjects)
    assert found is not None
    assert found[1] == found[5]
    assert len(set(found.tolist())) == 6
    assert join_samples([samples(NAMES), samples(None)]).subjects is None


def test_subjects_of_chosen_samples_stay() -> None:
    taken = samples(NAMES).take(np.array([3, 0])).subjects
    assert taken is not None
    assert taken.tolist() == ["carl", "ann"]
    assert samples(None).take(np.array([3, 0])).subjects is None


def test_subjects_of_a_split_are_made_up() -> None:
    made = divide("digits", "iid:subject=10,val=0.1", sites=3, seed=1)
    plain = divide("digits", "iid:val=0.1", sites=3, seed=1)
    everyone: set[str] = set()
    for site, bare in zip(made.sites, plain.sites, strict=True):
        assert site.train.subjects is not None
        names, counts = np.unique(site.train.subjects, return_counts=True)
        assert set(counts[counts != 10].tolist()) <= {len(site.train) % 10}
        assert len(names) == -(-len(site.train) // 10)
        assert not everyone & set(names.tolist())
        everyone |= set(names.tolist())
        first = site.train.labels[site.train.subjects == names[0]]
        assert len(np.unique(first)) > 1
        assert (site.train.inputs == bare.train.inputs).all()
        assert site.to_data(made.preprocessing).subjects is not None
    assert made.sha256 != plain.sha256
    again = divide("digits", "iid:subject=10,val=0.1", sites=3, seed=1)
    assert again.sha256 == made.sha256


def test_subjects_absent_keep_the_digest() -> None:
    assert digest([("a", "train", samples(None))]) == (
        "ab19e8fe5083c926220a63df1e8203f7144678fd4b634dcfa8441a51db4b3472"
    )
    assert digest([("a", "train", samples(NAMES))]) != digest([("a", "train", samples(None))])


@pytest.mark.parametrize("option", ["subject=0", "subject=x", "subject=-3"])
def test_subjects_made_up_have_a_record_each(option: str) -> None:
    with refuses(option.partition("=")[2]):
        parse_split(f"iid:{option}")


def test_subjects_of_sites_files_stay(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    labels = np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x_train=images, y_train=labels, subjects=np.arange(40) // 4)
    (site,) = read_sites(tmp_path).sites
    assert site.train.subjects is not None
    assert len(site.train.subjects) == len(site.train) == 32  # eight of ten subjects, whole
    known = {images[at].tobytes(): str(at // 4) for at in range(40)}
    pairs = zip(site.train.inputs, site.train.subjects.tolist(), strict=True)
    assert all(known[picture.tobytes()] == subject for picture, subject in pairs)


@pytest.mark.parametrize("place", [b"\xd6dem/1.png", b"\xd6st/cat/1.png"], ids=["a class", "a domain"])
def test_folder_whose_name_is_not_utf_8_is_named(place: bytes, tmp_path: Path) -> None:
    picture(tmp_path / os.fsdecode(place))
    with refuses(os.fsdecode(place.partition(b"/")[0])):
        read_folder(tmp_path, None)
