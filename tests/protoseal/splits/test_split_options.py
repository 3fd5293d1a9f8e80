"""Options of a split beyond its kind: spreads, a size, a test part of a site's own, a validation part."""

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protoseal.splits import SiteArrays, by_domain, iid, mixed, parse_split, shots, with_validation
from secure_client.data.samples import TrainTest, join_samples
from secure_client.errors import DataError
from tests.support.site_data import OFFICIAL, all_ids, data, ids, per_class


def sizes(sites: tuple[SiteArrays, ...]) -> list[tuple[int, int]]:
    return [(len(site.train), len(site.test)) for site in sites]


@pytest.mark.parametrize("spec", ["iid", "domains", "mixed:n=4", "dirichlet:5", "iid:val=0.2"])
def test_split_pool_option_deals_out_test_part(spec: str) -> None:
    """Then a site tests on a quarter of its own, as if the data had never been parted."""
    whole, joint = data(40, test=8), "," if ":" in spec else ":"
    assert whole.test is not None
    together = TrainTest(join_samples([whole.train, whole.test]), None, whole.classes, whole.domains)
    pooled = parse_split(f"{spec}{joint}pool=1")(whole, sites=2, seed=1)
    for site, same in zip(pooled, parse_split(spec)(together, sites=2, seed=1), strict=True):
        assert {kind: ids(part) for kind, part in site.parts.items()} == {
            kind: ids(part) for kind, part in same.parts.items()
        }
    dealt = [i for site in pooled for part in site.parts.values() for i in ids(part)]
    assert len(dealt) == len(set(dealt))
    if not spec.startswith("mixed"):
        assert sorted(dealt) == sorted(ids(together.train))


def test_where_there_is_no_test_part_there_is_nothing_to_pool() -> None:
    whole = data(40)
    assert parse_split("iid:pool=1").pool_parts(whole) is whole
    assert parse_split("iid").pool_parts(data(4, test=1)).test is not None


def test_shots_with_spreads_give_each_site_its_own_n_and_k() -> None:
    whole, ways, caps = data(400, classes=10), Counter[int](), Counter[int]()
    for seed in range(20):
        for site in shots(whole, sites=8, n=4, k=20, n_spread=1, k_spread=2, seed=seed):
            counts = per_class(site.train, 10)
            held = set(counts[counts > 0].tolist())
            assert len(held) == 1  # all classes of a site have as many samples
            ways[int((counts > 0).sum())] += 1
            caps[held.pop()] += 1
    assert set(ways) == {3, 4, 5}
    assert set(caps) == {18, 19, 20, 21, 22}
    # 160 draws: a third each, deviation 6; a fifth each, deviation 5.1.
    assert all(abs(count - 160 / 3) < 6 * 6 for count in ways.values())
    assert all(abs(count - 32) < 6 * 5.1 for count in caps.values())


def test_spreads_stop_at_one_and_at_the_classes_there_are() -> None:
    ways, caps = set(), set()
    for seed in range(12):
        for site in shots(data(80), sites=4, n=3, k=2, n_spread=9, k_spread=9, seed=seed):
            ways.add(len(set(site.train.labels)))
            caps.add(int(per_class(site.train, 4).max()))
    assert ways == {1, 2, 3, 4}
    assert (min(caps), max(caps)) == (1, 11)


def test_by_domain_per_site_limits_training_samples() -> None:
    sites = by_domain(data(100, test=7), sites=4, per_site=60, seed=2)
    assert [site.domains for site in sites] == [("domain 0",), ("domain 1",)] * 2
    used = all_ids(sites, with_test=False)
    assert len(used) == len(set(used)) == 4 * 60
    assert all(abs(len(site.train) - 60) <= 4 for site in sites)  # a remainder of each of the four classes
    for site in sites:
        assert per_class(site.test, 4).tolist() == [7] * 4
        assert per_class(site.train, 4).min() > 6  # drawn from all classes, not the first of the file
    assert ids(sites[0].test) == ids(sites[2].test)


def test_by_domain_per_site_includes_tests_without_test_part() -> None:
    for site in by_domain(data(100), sites=2, per_site=80, seed=0):
        assert len(site.train) + len(site.test) == 80
        assert len(site.train) == pytest.approx(60, abs=2)


def test_by_domain_small_domain_gives_all() -> None:
    whole = data(50)
    small = (whole.train.domains == 0) & (np.arange(len(whole.train)) % 10 > 0)
    few = whole.train.take(np.flatnonzero(~small))
    sites = by_domain(TrainTest(few, None, whole.classes, whole.domains), sites=2, per_site=60, seed=0)
    assert [len(site.train) + len(site.test) for site in sites] == [20, 60]


def test_iid_can_use_a_part_of_the_data() -> None:
    sites = iid(data(100), sites=4, per_site=50, seed=0)
    assert len(set(all_ids(sites, with_test=True))) == 200
    with pytest.raises(DataError, match="804"):
        iid(data(100), sites=4, per_site=201, seed=0)


@pytest.mark.parametrize("spec", ["iid", "domains", "mixed:n=3", "shots:n=3,k=2", "dirichlet:5"])
def test_any_split_can_test_on_a_part_of_its_own(spec: str) -> None:
    """Even where there is an official test part, of which then nothing is used."""
    for site in parse_split(f"{spec},test=0.5" if ":" in spec else f"{spec}:test=0.5")(
        data(40, test=4), sites=3, seed=1
    ):
        assert max(ids(site.train) + ids(site.test)) < OFFICIAL
        assert not set(ids(site.train)) & set(ids(site.test))
        together = per_class(site.train, 4) + per_class(site.test, 4)
        if "k=" not in spec:
            assert per_class(site.train, 4).tolist() == [int(0.5 * count + 0.5) for count in together]


@pytest.mark.parametrize(
    "spec", ["iid", "domains", "mixed:n=2.5,max=9", "shots:n=2,k=8", "dirichlet:1,min=17"]
)
@given(seed=st.integers(0, 2**32 - 1), part=st.sampled_from([0.1, 0.25, 0.5, 0.9]), official=st.booleans())
def test_validation_is_taken_from_the_training_samples_and_changes_nothing_else(
    spec: str, seed: int, part: float, official: bool
) -> None:
    whole, joint = data(40, test=3 if official else 0), "," if ":" in spec else ":"
    without = parse_split(spec)(whole, sites=3, seed=seed)
    # Each site has five samples of a class at least, of which a tenth is one: 17 of four classes do.
    for site, before in zip(
        parse_split(f"{spec}{joint}val={part}")(whole, sites=3, seed=seed), without, strict=True
    ):
        assert site.validation is not None
        assert (site.name, site.domains, ids(site.test)) == (before.name, before.domains, ids(before.test))
        assert sorted(ids(site.train) + ids(site.validation)) == ids(before.train)
        assert ids(site.train) == sorted(ids(site.train))
        had, kept = per_class(before.train, 4), per_class(site.validation, 4)
        assert kept.tolist() == [min(int(part * count + 0.5), max(count - 1, 0)) for count in had]
        for samples in site.parts.values():
            rows = np.array([i % OFFICIAL for i in ids(samples)])
            origin = whole.test if official and samples is site.test else whole.train
            assert origin is not None
            assert (samples.labels == origin.labels[rows]).all()
            assert [site.domains[d] for d in samples.domains] == [
                whole.domains[d] for d in origin.domains[rows]
            ]


def test_validation_is_drawn_at_random_and_by_the_seed() -> None:
    sites = iid(data(40), sites=2, seed=0)
    first, again, other = (with_validation(sites, 0.2, seed)[0].validation for seed in (1, 1, 2))
    assert first is not None
    assert again is not None
    assert other is not None
    assert ids(first) == ids(again) != ids(other)
    of_class_a = [
        number for number, label in zip(ids(sites[0].train), sites[0].train.labels, strict=True) if not label
    ]
    assert ids(first)[:6] != of_class_a[:6]  # 6 of 30, not the first of them


def test_split_val_option_too_small_site_is_named() -> None:
    with pytest.raises(DataError, match=r"val=0\.1"):
        parse_split("shots:n=2,k=4,val=0.1")(data(40), sites=2, seed=0)
    with pytest.raises(DataError, match="site-1"):
        parse_split("shots:n=2,k=1,val=0.9")(data(40), sites=2, seed=0)


def test_split_without_val_option_has_no_validation() -> None:
    site = mixed(data(40), sites=2, n=2, seed=0)[0]
    assert site.validation is None
    assert list(site.parts) == ["train", "test"]
    assert site.to_data(None).validation is None


def test_site_arrays_validation_becomes_data_set() -> None:
    site = parse_split("iid:val=0.25")(data(40), sites=2, seed=0)[1]
    dataset = site.to_data(None).validation
    assert site.validation is not None
    assert dataset is not None
    assert [int(dataset[i][0]) for i in range(len(site.validation))] == ids(site.validation)


FROZEN: dict[str, str] = {
    "iid": "1d5e7baa62439f4b",
    "iid:per=30": "3a736c0d60d44913",
    "domains": "929d814332043542",
    "domains:per=30,val=0.1": "e3f6677a26b7ee9d",
    "mixed:n=2.5,max=9": "d3beb9d8fb9dd1f4",
    "shots:n=2,k=5": "c5db14f510c0be31",
    "shots:n=2,k=5,nstd=1,kstd=2": "8acf945e1bd142d6",
    "shots:n=2,k=5,domains=2": "5cca78c99dbf4f15",
    "dirichlet:0.5,min=4": "55f6dfef09cc15f0",
    "dirichlet:0.5,min=4,test=0.25,per=60,val=0.2": "9ac180244d1db7d6",
    "dirichlet:0.5,min=4,pool=1": "7d859adfff795cb3",
}


@pytest.mark.parametrize("spec", FROZEN)
def test_partitions_seed_gives_recorded_split(spec: str) -> None:
    """Results are reported by seed, so a change here makes earlier ones irreproducible: say so in CHANGELOG.

    NumPy promises its generators' streams for a version only; a change with NumPy alone shows here too.
    """
    digest = hashlib.sha256()
    for official in (0, 5):
        for site in parse_split(spec)(data(60, domains=3, test=official), sites=3, seed=7):
            for kind, part in site.parts.items():
                digest.update(f"{site.name} {kind} {site.domains} {ids(part)}\n".encode())
    assert digest.hexdigest()[:16] == FROZEN[spec]
