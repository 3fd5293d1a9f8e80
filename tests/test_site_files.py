from pathlib import Path

import numpy as np
import pytest

from protoseal.config import PreprocessingSection
from protoseal.site_files import DividedData, divide, read_sites
from secure_client.data.arrays import TrainTest
from secure_client.data.npz import read_npz, write_npz
from secure_client.errors import DataError


def digits(seed: int = 0) -> DividedData:
    return divide("digits", "mixed:n=6.5,max=25", sites=5, seed=seed)


def write_sites(directory: Path, data: DividedData) -> None:
    for site in data.sites:
        part = TrainTest(site.train, site.test, data.classes, site.domains)
        write_npz(directory / f"{site.name}.npz", part)


def test_digits_by_name_with_what_follows_from_them() -> None:
    data = digits()
    assert [site.name for site in data.sites] == ["site-1", "site-2", "site-3", "site-4", "site-5"]
    assert data.classes == tuple("0123456789")
    assert data.preprocessing == PreprocessingSection(image_size=8, channels=1, mean=(0.5,), std=(0.5,))


def test_given_classes_and_preprocessing_are_kept(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=np.zeros((40, 6, 6), np.uint8), y_train=np.arange(40) % 2)
    agreed = PreprocessingSection(image_size=4, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)
    data = divide(f"npz:{tmp_path}/a.npz", "iid", sites=2, seed=0, agreed=agreed, classes=("x", "y", "z"))
    assert (data.classes, data.preprocessing) == (("x", "y", "z"), agreed)
    assert data.sites[0].train.inputs.shape == (16, 4, 4, 3)


def test_the_test_set_of_all_is_the_data_sets_own_or_what_the_sites_hold_back(tmp_path: Path) -> None:
    data = digits()
    assert data.test is None
    assert len(data.test_of_all()) == sum(len(site.test) for site in data.sites)
    inputs, labels = (
        np.arange(40, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8),
        np.arange(40) % 2,
    )
    np.savez(tmp_path / "a.npz", x_train=inputs, y_train=labels, x_test=inputs[:6], y_test=labels[:6])
    for split in ("iid", "dirichlet:9,test=0.25"):
        official = divide(f"npz:{tmp_path}/a.npz", split, sites=2, seed=0)
        assert (official.test_of_all().inputs[..., 0] == inputs[:6]).all()


def test_sites_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    data = digits()
    write_sites(tmp_path, data)
    back = divide(f"sites:{tmp_path}", "the split is given", sites=3, seed=9)
    assert (back.classes, back.preprocessing) == (data.classes, data.preprocessing)
    for site, original in zip(back.sites, data.sites, strict=True):
        assert (site.name, site.domains) == (original.name, original.domains)
        for part, expected in ((site.train, original.train), (site.test, original.test)):
            assert (part.inputs == expected.inputs).all()
            assert (part.labels == expected.labels).all()


def test_a_file_holds_nothing_of_the_other_sites(tmp_path: Path) -> None:
    write_sites(tmp_path, digits())
    source = read_npz(tmp_path / "site-2.npz")
    assert source.domains == ("inverted",)
    assert source.train.domains.max() == 0


def test_sites_without_a_test_part_set_a_quarter_aside(tmp_path: Path) -> None:
    features = np.arange(40.0)[:, np.newaxis]
    np.savez(tmp_path / "clinic-a.npz", x_train=features, y_train=np.arange(40) % 2)
    first, again = (read_sites(tmp_path).sites[0] for _ in range(2))
    assert first.name == "clinic-a"
    assert (len(first.train), len(first.test)) == (30, 10)
    assert np.bincount(first.test.labels).tolist() == [5, 5]
    assert (first.test.inputs == again.test.inputs).all()


def test_a_folder_without_files_and_a_bad_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no \.npz file; it needs one for each site"):
        read_sites(tmp_path)
    np.savez(tmp_path / "Clinic A.npz", x_train=[[0.0]], y_train=[0])
    with pytest.raises(DataError, match=r"Clinic A\.npz: a site's name has lower-case letters"):
        read_sites(tmp_path)


def test_a_wrong_split_is_named_before_any_data_are_read() -> None:
    with pytest.raises(DataError, match="no split is called 'mixd'; did you mean 'mixed'"):
        divide("npz:/nowhere.npz", "mixd:n=3", sites=2, seed=0)
