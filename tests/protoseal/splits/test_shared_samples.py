"""Test samples that several sites have are in memory once, and are the same samples."""

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from agreement import PreprocessingSection
from protoseal.splits import SiteArrays, dirichlet
from protoseal.splits.site_samples import Pool, SharedSamples
from secure_client.data.preprocess import to_dataset
from secure_client.data.samples import Samples, TrainTest, make_samples
from secure_client.training.batches import open_source

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


def test_all_sites_test_on_rows_of_one_data_set() -> None:
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


def test_a_site_sees_the_same_as_from_a_copy_of_its_own() -> None:
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
    pool = Pool(images(12))
    rows = np.array([7, 2, 2])
    some = SharedSamples(pool, rows, np.array([1, 0, 0]))
    assert len(some) == 3
    assert some.is_images
    assert (some.inputs == pool.samples.inputs[rows]).all()
    assert some.labels.tolist() == [3, 2, 2]
    taken = some.take(np.array([2, 0]))
    assert (taken.inputs == pool.samples.inputs[[2, 7]]).all()
    assert (taken.labels.tolist(), taken.domains.tolist()) == ([2, 3], [0, 1])
