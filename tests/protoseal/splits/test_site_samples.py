"""Samples of simulated sites: test samples that several sites share, and subjects that stay together."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, Subset, TensorDataset

from agreement import PreprocessingSection, TableColumn, TableSection
from protoseal.simulation.site_datasets import divide, read_sites
from protoseal.splits import SiteArrays, by_domain, dirichlet, iid, mixed, parse_split, shots, with_validation
from protoseal.splits.site_samples import SamplePool, SharedSamples
from secure_client.data.npz import write_npz
from secure_client.data.preprocess import to_dataset
from secure_client.data.samples import Samples, TrainTest, make_samples
from secure_client.data.sources import load_sources
from secure_client.errors import DataError
from secure_client.training.batches import open_source
from tests.support.site_data import all_ids, data, ids
from tests.support.tables import save

AGREED = PreprocessingSection(image_size=4, channels=1, mean=(0.5,), std=(0.5,))


def images(count: int, classes: int = 4) -> Samples:
    pixels = np.random.default_rng(count).integers(0, 256, size=(count, 4, 4, 1), dtype=np.uint8)
    return make_samples(pixels, np.arange(count) % classes, where="x")


def sites() -> tuple[TrainTest, tuple[SiteArrays, ...]]:
    whole = TrainTest(images(400), images(80), tuple("abcd"), ("x",))
    return whole, dirichlet(whole, sites=8, beta=0.2, minimum=2, seed=1)


def tensors(dataset: Dataset[tuple[torch.Tensor, torch.Tensor]]) -> TensorDataset:
    assert isinstance(dataset, Subset)
    assert isinstance(dataset.dataset, TensorDataset)
    return dataset.dataset


def test_shared_samples_are_rows_of_one_data_set() -> None:
    whole, divided = sites()
    data = [site.to_data(AGREED).test for site in divided]
    shared = [tensors(each) for each in data if each is not None]
    assert len(shared) == 8
    assert all(each is shared[0] for each in shared)
    assert (
        len({len(site.test) for site in divided}) > 1
    )  # sites have different classes, and so different rows
    assert len(shared[0]) == len(whole.test or ())


def test_another_agreement_makes_another_data_set() -> None:
    _, (site, *_) = sites()
    first, other = site.to_data(AGREED).test, site.to_data(None).test
    assert first is not None
    assert other is not None
    assert tensors(first) is not tensors(other)
    assert float(tensors(other).tensors[0].min()) >= 0.0 > float(tensors(first).tensors[0].min())


def test_shared_samples_equal_copies() -> None:
    for site in sites()[1]:
        copied = Samples(site.test.inputs, site.test.labels, site.test.domains)
        expected = to_dataset(copied, AGREED, where="x")
        seen = site.to_data(AGREED).test
        assert seen is not None
        groups = [[3, 0, 3], list(range(1, len(copied)))]
        own, other = (open_source(each, torch.device("cpu")) for each in (seen, expected))
        assert len(own) == len(other) == len(copied)
        for (inputs, labels), (copies, copied_labels) in zip(
            own.batches(groups), other.batches(groups), strict=True
        ):
            assert torch.equal(inputs, copies)
            assert torch.equal(labels, copied_labels)
            assert labels.dtype == torch.int64


def test_rows_are_samples_like_others() -> None:
    pool = SamplePool(images(12))
    rows = np.array([7, 2, 2])
    some = SharedSamples(pool, rows, np.array([1, 0, 0]))
    assert len(some) == 3
    assert some.is_images
    assert (some.inputs == pool.samples.inputs[rows]).all()
    assert some.labels.tolist() == [3, 2, 2]
    taken = some.take(np.array([2, 0]))
    assert (taken.inputs == pool.samples.inputs[[2, 7]]).all()
    assert (taken.labels.tolist(), taken.domains.tolist()) == ([2, 3], [0, 1])


SPLITS: dict[str, Callable[[TrainTest, int, int], tuple[SiteArrays, ...]]] = {
    "iid": lambda d, n, seed: iid(d, sites=n, seed=seed),
    "iid, per site": lambda d, n, seed: iid(d, sites=n, per_site=30, seed=seed),
    "own test": lambda d, n, seed: iid(d, sites=n, own_test=0.5, seed=seed),
    "domains": lambda d, n, seed: by_domain(d, sites=n, seed=seed),
    "domains, per site": lambda d, n, seed: by_domain(d, sites=n, per_site=30, seed=seed),
    "mixed": lambda d, n, seed: mixed(d, sites=n, n=2.5, max_per_class=9, seed=seed),
    "dirichlet": lambda d, n, seed: dirichlet(d, sites=n, beta=0.8, minimum=2, seed=seed),
}


def with_owners(whole: TrainTest, owners: int, seed: int) -> TrainTest:
    """Name a subject for each training sample, whatever the sample's class and domain."""
    drawn = np.random.default_rng(seed).integers(owners, size=len(whole.train))
    return replace(whole, train=replace(whole.train, subjects=drawn.astype(np.str_)))


def owners_of(part: Samples) -> set[str]:
    assert part.subjects is not None
    return set(part.subjects.tolist())


@pytest.mark.parametrize("name", SPLITS)
@given(sites=st.integers(1, 4), seed=st.integers(0, 2**32 - 1), owners=st.integers(150, 400))
@settings(max_examples=20)
def test_split_subject_is_at_one_site_and_side(name: str, sites: int, seed: int, owners: int) -> None:
    divided = SPLITS[name](with_owners(data(60), owners, seed), sites, seed)
    parts = [owners_of(part) for site in divided for part in (site.train, site.test)]
    assert sum(map(len, parts)) == len(set().union(*parts))


def test_split_deals_out_all_samples_with_subjects() -> None:
    whole = with_owners(data(30), 80, seed=1)
    divided = iid(whole, sites=3, seed=0)
    assert sorted(all_ids(divided, with_test=True)) == list(range(len(whole.train)))
    assert whole.train.subjects is not None
    for site in divided:
        for part in (site.train, site.test):
            assert part.subjects is not None
            assert part.subjects.tolist() == whole.train.subjects[ids(part)].tolist()


def test_partitions_single_sample_subjects_equal_samples() -> None:
    """The names are in the order of the samples, as the order of units follows from names."""
    whole = data(20)
    named = np.char.zfill(np.arange(len(whole.train)).astype(np.str_), 4)
    alone = replace(whole, train=replace(whole.train, subjects=named))
    for split in SPLITS.values():
        for one, other in zip(split(whole, 2, 3), split(alone, 2, 3), strict=True):
            assert (ids(one.train), ids(one.test)) == (ids(other.train), ids(other.test))
    assert len(shots(alone, sites=2, n=2, k=3, seed=0)) == 2


def test_mixed_cap_limits_training_samples() -> None:
    whole = data(40, domains=1, classes=2)
    whole = replace(
        whole, train=replace(whole.train, subjects=(np.arange(len(whole.train)) // 4).astype(np.str_))
    )
    (site,) = mixed(whole, sites=1, n=2, max_per_class=10, seed=0)
    assert np.bincount(site.train.labels).tolist() == [8, 8]


def test_divide_folder_keeps_subject_on_one_side(tmp_path: Path) -> None:
    for number in range(3):
        write_npz(tmp_path / f"clinic-{number}.npz", with_owners(data(20), 40, seed=number))
    for site in read_sites(tmp_path).sites:
        assert not owners_of(site.train) & owners_of(site.test)
        assert len(site.test) > 0


@pytest.mark.parametrize(
    "split", ["iid", "dirichlet:1,min=4", "iid:test=0.4,val=0.2", "mixed:n=2,max=20", "domains:per=40"]
)
def test_divide_table_keeps_patient_on_one_side(tmp_path: Path, split: str) -> None:
    """Rows name their patient, and their age tells the patient too; one row in nine is left out."""
    rows = [f"{40 + at % 60};{'?' if at % 9 == 0 else 200};{at % 60 % 2};p{at % 60}" for at in range(180)]
    agreed = TableSection(
        columns=(TableColumn(name="age"), TableColumn(name="chol", missing="leave out")),
    )
    path = save(tmp_path, "\n".join(["age;chol;ill;patient", *rows]))
    path.with_suffix(".toml").write_text(
        '[table]\nsubject = "patient"\nlabel = "ill"\nlabels = {0 = "healthy", 1 = "ill"}\n', encoding="utf-8"
    )
    data = divide(f"table:{path}", split, sites=2, seed=3, agreed=agreed, classes=("healthy", "ill"))
    parts = [set(part.inputs[:, 0].tolist()) for site in data.sites for part in site.parts.values()]
    assert len(parts) == (6 if "val" in split else 4)
    assert sum(map(len, parts)) == len(set().union(*parts))


def test_split_val_option_has_other_subjects() -> None:
    divided = with_validation(iid(with_owners(data(30), 80, seed=2), sites=2, seed=0), 0.2, seed=1)
    for site in divided:
        assert site.validation is not None
        assert not owners_of(site.train) & owners_of(site.validation)


def test_split_dividing_subjects_is_refused(tmp_path: Path) -> None:
    whole = with_owners(data(20, test=4), 40, seed=0)
    with pytest.raises(DataError, match="shots"):
        shots(replace(whole, test=None), sites=2, n=2, k=3, seed=0)
    with pytest.raises(DataError, match="pool=1"):
        parse_split("iid:pool=1")(whole, sites=2, seed=0)
    with pytest.raises(DataError, match="subject="):
        parse_split("iid:subject=8")(whole, sites=2, seed=0)
    write_npz(tmp_path / "a.npz", whole)
    write_npz(tmp_path / "b.npz", data(20, test=4))
    with pytest.raises(DataError, match=r"b\.npz"):
        load_sources(f"npz:{tmp_path}/a.npz+npz:{tmp_path}/b.npz", data_root=None, agreed=None, classes=None)
