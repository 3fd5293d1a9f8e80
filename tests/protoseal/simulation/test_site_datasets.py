import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import PreprocessingSection, TableColumn, TableSection
from protoseal.simulation.site_datasets import DividedData, divide, read_sites, thin_tests
from secure_client.data.npz import read_npz, write_npz
from secure_client.data.samples import TrainTest
from secure_client.errors import DataError
from tests.support.site_data import ids, numbered


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


def test_divided_data_test_of_all_is_own_or_joined(tmp_path: Path) -> None:
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


def test_simulate_pooled_test_part_is_not_trained_on(tmp_path: Path) -> None:
    features, labels = np.arange(48.0)[:, np.newaxis], np.arange(48) % 2
    np.savez(
        tmp_path / "a.npz",
        x_train=features[:40],
        y_train=labels[:40],
        x_test=features[40:],
        y_test=labels[40:],
    )
    data = divide(f"npz:{tmp_path}/a.npz", "iid:pool=1", sites=2, seed=0, tests=1)
    assert data.test is None
    tested, trained = ids(data.test_of_all()), [i for site in data.sites for i in ids(site.train)]
    assert sorted(tested + trained) == list(range(48))
    assert len(tested) == 12


def test_read_sites_equals_written(tmp_path: Path) -> None:
    data = digits()
    write_sites(tmp_path, data)
    back = divide(f"sites:{tmp_path}", "the split is given", sites=3, seed=9)
    assert (back.classes, back.preprocessing) == (data.classes, data.preprocessing)
    for site, original in zip(back.sites, data.sites, strict=True):
        assert (site.name, site.domains) == (original.name, original.domains)
        for part, expected in ((site.train, original.train), (site.test, original.test)):
            assert (part.inputs == expected.inputs).all()
            assert (part.labels == expected.labels).all()


def test_write_npz_of_site_holds_nothing_of_others(tmp_path: Path) -> None:
    write_sites(tmp_path, digits())
    source = read_npz(tmp_path / "site-2.npz")
    assert source.domains == ("inverted",)
    assert source.train.domains.max() == 0


def test_digest_changes_with_sample_and_owner() -> None:
    data, (first, second, *others) = digits(), digits().sites
    assert data.sha256 == digits().sha256
    changed = first.train.inputs.copy()
    changed[-1, -1, -1] += 1
    unlike = [
        replace(data, sites=(replace(first, train=replace(first.train, inputs=changed)), second, *others)),
        replace(data, sites=(replace(second, name=first.name), replace(first, name=second.name), *others)),
        replace(data, sites=(replace(first, train=first.test, test=first.train), second, *others)),
        replace(data, test=first.test),
        digits(seed=1),
    ]
    assert len({data.sha256, *(each.sha256 for each in unlike)}) == 1 + len(unlike)


def test_read_sites_without_test_part_sets_quarter_aside(tmp_path: Path) -> None:
    features = np.arange(40.0)[:, np.newaxis]
    np.savez(tmp_path / "clinic-a.npz", x_train=features, y_train=np.arange(40) % 2)
    first, again = (read_sites(tmp_path).sites[0] for _ in range(2))
    assert first.name == "clinic-a"
    assert (len(first.train), len(first.test)) == (30, 10)
    assert np.bincount(first.test.labels).tolist() == [5, 5]
    assert (first.test.inputs == again.test.inputs).all()


def test_read_sites_too_few_subjects_names_file(tmp_path: Path) -> None:
    rows = {"x_train": np.arange(40.0)[:, np.newaxis], "y_train": np.arange(40) % 2}
    np.savez(tmp_path / "clinic-a.npz", **rows)  # type: ignore[arg-type]  # no key is its allow_pickle
    np.savez(tmp_path / "clinic-b.npz", subjects=np.zeros(40, int), **rows)  # type: ignore[arg-type]  # the same
    with pytest.raises(DataError, match=r"clinic-b\.npz"):
        read_sites(tmp_path)


def test_read_sites_empty_folder_or_bad_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\.npz"):
        read_sites(tmp_path)
    np.savez(tmp_path / "Clinic A.npz", x_train=[[0.0]], y_train=[0])
    with pytest.raises(DataError, match=r"Clinic A\.npz"):
        read_sites(tmp_path)


@pytest.mark.parametrize("name", ["South.CSV", "nroth.toml", "south.npz", "south.xlsx", "notes.md"])
def test_read_sites_unread_file_beside_tables_is_refused(tmp_path: Path, name: str) -> None:
    """A site would be left out, or a format unused, without a word."""
    agreed = TableSection(columns=(TableColumn(name="age"),))
    (tmp_path / "north.csv").write_text("age,label\n" + "40,ill\n50,well\n" * 4)
    (tmp_path / "north.toml").write_text("[table]\nseparator = ','\n")
    assert len(read_sites(tmp_path, agreed=agreed, classes=("well", "ill")).sites) == 1
    (tmp_path / name).write_text("age,label\n")
    with pytest.raises(DataError, match=re.escape(name)):
        read_sites(tmp_path, agreed=agreed, classes=("well", "ill"))


def test_read_sites_table_beside_arrays_is_refused(tmp_path: Path) -> None:
    write_sites(tmp_path, digits())
    (tmp_path / "south.csv").write_text("age,label\n")
    with pytest.raises(DataError, match=r"south\.csv"):
        read_sites(tmp_path)


def test_divide_wrong_split_is_named_before_reading() -> None:
    with pytest.raises(DataError, match="mixd"):
        divide("npz:/nowhere.npz", "mixd:n=3", sites=2, seed=0)


def pictures(count: int, *shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(count).integers(0, 256, size=(count, *shape), dtype=np.uint8)


def test_files_of_unlike_pictures_are_domains_of_one_size(tmp_path: Path) -> None:
    """A grey set and a coloured one, as MNIST and MNIST-M are, each with its official test part."""
    for name, shape in (("grey", (12, 12)), ("colour", (16, 14, 3))):
        parts = {
            f"{kind}_{part}": values
            for part, count in (("train", 200), ("test", 30))
            for kind, values in (("x", pictures(count, *shape)), ("y", np.arange(count) % 5))
        }
        np.savez(tmp_path / f"{name}.npz", **parts)  # type: ignore[arg-type]  # no key is its allow_pickle
    spec = f"npz:{tmp_path}/grey.npz+npz:{tmp_path}/colour.npz"
    data = divide(spec, "domains:per=50,val=0.2", sites=2, seed=0)
    assert isinstance(data.preprocessing, PreprocessingSection)
    assert (data.preprocessing.image_size, data.preprocessing.channels) == (16, 3)
    assert [site.domains for site in data.sites] == [("grey",), ("colour",)]
    for site in data.sites:
        assert {kind: len(part) for kind, part in site.parts.items()} == {
            "train": pytest.approx(40, abs=3),
            "validation": pytest.approx(10, abs=3),
            "test": 30,
        }
        assert {part.inputs.shape[1:] for part in site.parts.values()} == {(16, 16, 3)}
        assert {part.inputs.dtype for part in site.parts.values()} == {np.dtype(np.uint8)}
    grey = data.sites[0].train.inputs
    assert (grey == grey[..., :1]).all()


def test_read_sites_domains_of_a_file_become_sites(tmp_path: Path) -> None:
    """PACS has this form: a number for the domain of each picture, and the domains' names."""
    domains, names = np.arange(160) % 4, ("photo", "art_painting", "cartoon", "sketch")
    np.savez(
        tmp_path / "pacs.npz",
        x_train=pictures(160, 8, 8, 3),
        y_train=np.arange(160) // 4 % 7,
        domain_train=domains,
        domain_names=names,
    )
    data = divide(f"npz:{tmp_path}/pacs.npz", "domains", sites=4, seed=0)
    assert [site.domains for site in data.sites] == [(name,) for name in names]
    assert [len(site.train) + len(site.test) for site in data.sites] == [40] * 4


def test_thin_tests_draws_by_seed() -> None:
    tests = numbered(9, 2, 3)
    kept = thin_tests(tests, 4, seed=1)
    cells = np.stack([kept.domains, kept.labels])
    assert np.unique(cells, axis=1, return_counts=True)[1].tolist() == [4] * 6
    assert (
        ids(kept)
        == sorted(set(ids(kept)))
        == ids(thin_tests(tests, 4, seed=1))
        != ids(thin_tests(tests, 4, seed=2))
    )
    assert ids(thin_tests(tests, 10, seed=1)) == ids(tests)


def test_fewer_test_samples_change_nothing_else_and_are_those_of_the_set_over_all(tmp_path: Path) -> None:
    inputs, labels = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    np.savez(tmp_path / "a.npz", x_train=inputs, x_test=inputs, y_train=labels, y_test=labels)
    spec = f"npz:{tmp_path}/a.npz"
    whole, thin = (divide(spec, "iid", sites=2, seed=3, tests=tests) for tests in (None, 5))
    assert [len(site.test) for site in whole.sites] == [60, 60]
    assert [len(site.test) for site in thin.sites] == [10, 10]
    assert len(thin.test_of_all()) == 10
    for one, other in zip(whole.sites, thin.sites, strict=True):
        np.testing.assert_array_equal(one.train.inputs, other.train.inputs)
