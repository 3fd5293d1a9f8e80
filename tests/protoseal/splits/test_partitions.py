import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agreement import PreprocessingSection
from protoseal.splits import (
    SiteArrays,
    by_domain,
    dirichlet,
    iid,
    mixed,
    parse_split,
    shots,
    with_validation,
)
from secure_client.data.published import make_digit_domains
from secure_client.data.samples import TrainTest
from secure_client.errors import DataError
from tests.support.site_data import all_ids, data, ids, per_class

SPLITS: dict[str, Callable[[TrainTest, int, int], tuple[SiteArrays, ...]]] = {
    "iid": lambda d, n, seed: iid(d, sites=n, seed=seed),
    "domains": lambda d, n, seed: by_domain(d, sites=n, seed=seed),
    "mixed": lambda d, n, seed: mixed(d, sites=n, n=2.5, max_per_class=6, seed=seed),
    "shots": lambda d, n, seed: shots(d, sites=n, n=2, k=3, seed=seed),
    "dirichlet": lambda d, n, seed: dirichlet(d, sites=n, beta=0.5, minimum=2, seed=seed),
}


@pytest.mark.parametrize("name", SPLITS)
@given(sites=st.integers(1, 5), seed=st.integers(0, 2**32 - 1), official=st.booleans())
def test_partitions_sample_is_at_one_site_with_label(
    name: str, sites: int, seed: int, official: bool
) -> None:
    whole = data(30, test=4 if official else 0)
    divided = SPLITS[name](whole, sites, seed)
    assert len(divided) == sites
    given_out = all_ids(divided, with_test=not official)
    assert len(given_out) == len(set(given_out))
    for site in divided:
        for part, origin in ((site.train, whole.train), (site.test, whole.test or whole.train)):
            offset = 100_000 if official and part is site.test else 0
            rows = np.array(ids(part)) - offset
            assert (part.labels == origin.labels[rows]).all()
            assert [site.domains[d] for d in part.domains] == [whole.domains[d] for d in origin.domains[rows]]


@pytest.mark.parametrize("name", SPLITS)
def test_partitions_seed_fixes_split(name: str) -> None:
    whole = data(30)
    first, again, other = (SPLITS[name](whole, 3, seed) for seed in (5, 5, 6))
    assert [ids(site.train) for site in first] == [ids(site.train) for site in again]
    assert [ids(site.train) for site in first] != [ids(site.train) for site in other]


@pytest.mark.parametrize("name", SPLITS)
def test_partitions_official_test_part_matches_site(name: str) -> None:
    whole = data(30, test=4)
    for site in SPLITS[name](whole, 3, 1):
        assert max(ids(site.train)) < 100_000 <= min(ids(site.test))
        here = {(site.domains[d], k) for d in set(site.train.domains) for k in set(site.train.labels)}
        assert {
            (site.domains[d], k) for d, k in zip(site.test.domains, site.test.labels, strict=True)
        } == here
        assert len(site.test) == 4 * len(here)


def test_iid_gives_every_site_an_equal_part_of_everything() -> None:
    divided = iid(data(12), sites=3, seed=0)
    assert sorted(all_ids(divided, with_test=True)) == list(range(96))
    for site in divided:
        assert per_class(site.train, 4).tolist() == [6] * 4
        assert per_class(site.test, 4).tolist() == [2] * 4
        assert np.bincount(np.append(site.train.domains, site.test.domains)).tolist() == [16, 16]


def test_partitions_remainder_favours_no_site() -> None:
    extra = np.zeros(3, dtype=int)
    for seed in range(30):
        extra += [len(site.train) + len(site.test) for site in iid(data(13), sites=3, seed=seed)]
    assert extra.sum() == 30 * 104
    # 240 cells, of each of which one site at random has one more: mean 80, deviation 7.3.
    assert (np.abs(extra - 1040) < 7 * 7.3).all()


def test_by_domain_deals_domains_in_turn() -> None:
    one_each = by_domain(data(8), sites=2, seed=0)
    assert [site.domains for site in one_each] == [("domain 0",), ("domain 1",)]
    assert [len(site.train) + len(site.test) for site in one_each] == [32, 32]
    shared = by_domain(data(8), sites=3, seed=0)
    assert [site.domains for site in shared] == [("domain 0",), ("domain 1",), ("domain 0",)]
    assert [len(site.train) + len(site.test) for site in shared] == [16, 32, 16]


@pytest.mark.parametrize(("n", "allowed"), [(6.5, {6, 7}), (3, {2, 3, 4}), (1, {1, 2}), (10, {9, 10})])
def test_mixed_has_n_classes_a_site_on_average(n: float, allowed: set[int]) -> None:
    whole, seen = data(20, classes=10), set()
    for seed in range(12):
        held = [len(set(s.train.labels)) for s in mixed(whole, sites=6, n=n, seed=seed)]
        assert sum(held) == round(6 * n)
        seen |= set(held)
    assert seen <= allowed
    assert len(seen) > 1 or n in (1, 10)


def test_mixed_caps_training_samples_and_tests_on_the_rest() -> None:
    for site in mixed(data(40), sites=2, n=2, max_per_class=25, seed=0):
        held = per_class(site.train, 4) > 0
        assert set(per_class(site.train, 4)[held]) == {25}
        assert set(per_class(site.test, 4)[held]) == {15}
    for site in mixed(data(20), sites=2, n=2, max_per_class=25, seed=0):
        held = per_class(site.train, 4) > 0
        assert set(per_class(site.train, 4)[held]) == {15}


def test_mixed_demo_has_active_and_withheld_classes() -> None:
    """Five sites with six or seven of ten digits: most classes have three holders or more, a few do not."""
    active = []
    for seed in range(40):
        divided = mixed(make_digit_domains(seed), sites=5, n=6.5, max_per_class=25, seed=seed)
        holds = np.array([per_class(site.train, 10) > 0 for site in divided])
        assert set(holds.sum(axis=1)) <= {6, 7}
        assert len({site.domains for site in divided}) == 5
        assert max(per_class(site.train, 10).max() for site in divided) == 25
        active.append(int((holds.sum(axis=0) >= 3).sum()))
    assert min(active) >= 6
    assert np.mean(np.array(active) < 10) > 0.8


def test_mixed_needs_a_domain_with_as_many_classes() -> None:
    whole = data(8)
    few = whole.train.take(np.flatnonzero((whole.train.domains == 0) | (whole.train.labels < 2)))
    with pytest.raises(DataError, match="domain 1"):
        mixed(TrainTest(few, None, whole.classes, whole.domains), sites=2, n=3.4, seed=0)
    for n in (0.5, 5):
        with pytest.raises(DataError, match=f"n = {n:g}"):
            mixed(whole, sites=2, n=n, seed=0)


def test_shots_gives_n_classes_and_exactly_k_samples_of_each() -> None:
    for site in shots(data(40), sites=3, n=3, k=7, seed=0):
        counts = per_class(site.train, 4)
        assert sorted(counts) == [0, 7, 7, 7]
    with pytest.raises(DataError, match="site-1"):
        shots(data(20, domains=1), sites=1, n=4, k=16, seed=0)
    with pytest.raises(DataError, match="5"):
        shots(data(20), sites=1, n=5, k=1, seed=0)


@given(
    sites=st.integers(1, 6),
    n=st.integers(1, 3),
    k=st.integers(3, 9),
    domains=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    official=st.booleans(),
)
def test_shots_of_several_domains_has_the_stated_domains_classes_and_samples(
    sites: int, n: int, k: int, domains: int, seed: int, official: bool
) -> None:
    whole = data(100, domains=3, test=4 if official else 0)
    divided = shots(whole, sites=sites, n=n, k=k, domains=domains, seed=seed)
    given_out = all_ids(divided, with_test=not official)
    assert len(given_out) == len(set(given_out))
    for number, site in enumerate(divided):
        assert len(site.domains) == domains
        assert f"domain {number % 3}" in site.domains
        counts = np.zeros((domains, 4), dtype=int)
        np.add.at(counts, (site.train.domains, site.train.labels), 1)
        held = counts.sum(axis=0) > 0
        assert counts.sum(axis=0)[held].tolist() == [k] * n
        assert set(counts[:, held].ravel()) <= {k // domains, -(-k // domains)}
        assert set(site.test.labels) == set(np.flatnonzero(held))
        assert set(site.test.domains) == set(range(domains))


def test_shots_of_several_domains_draws_classes_that_all_of_them_have() -> None:
    whole = data(60)
    few = whole.train.take(np.flatnonzero((whole.train.domains == 0) | (whole.train.labels < 2)))
    lacking = TrainTest(few, None, whole.classes, whole.domains)
    for site in shots(lacking, sites=4, n=2, k=4, domains=2, seed=0):
        assert set(site.train.labels) == {0, 1}
    with pytest.raises(DataError, match="domain 0 with domain 1"):
        shots(lacking, sites=1, n=3, k=4, domains=2, seed=0)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"domains": 3}, "3 domains"),
        ({"domains": 2, "k": 1}, "k = 1"),
        ({"domains": 2, "k": 5, "k_spread": 4, "sites": 20}, "k = 1"),
        ({"domains": 2, "k": 40, "sites": 1}, "k = 40"),
    ],
)
def test_shots_that_cannot_be_had_are_refused(wrong: dict[str, int], named: str) -> None:
    with pytest.raises(DataError, match=named):
        shots(data(20), **{"sites": 2, "n": 2, "k": 4, "seed": 0} | wrong)


@pytest.mark.parametrize("seed", range(6))
def test_shots_refuses_a_site_without_a_sample_of_a_class_that_it_drew(seed: int) -> None:
    with pytest.raises(DataError):
        shots(data(1, domains=1, classes=2, test=1), sites=2, n=2, k=1, seed=seed)


def skew(beta: float) -> float:
    """Return the mean over sites of the share of a site's commonest class, from 0.25 (even) to 1."""
    divided = dirichlet(data(200), sites=8, beta=beta, seed=3)
    shares = [per_class(site.train, 4).max() / len(site.train) for site in divided]
    return float(np.mean(shares))


def test_dirichlet_is_skewed_for_small_beta_and_even_for_large() -> None:
    assert skew(0.1) > 0.7
    assert skew(100.0) < 0.35


def test_dirichlet_uses_everything_and_keeps_its_minimum() -> None:
    divided = dirichlet(data(100), sites=8, beta=0.3, minimum=30, seed=0)
    assert sorted(all_ids(divided, with_test=True)) == list(range(800))
    assert min(len(site.train) for site in divided) >= 30
    with pytest.raises(DataError, match="200"):
        dirichlet(data(100), sites=8, beta=0.3, minimum=200, seed=0)


@pytest.mark.parametrize("official", [False, True])
def test_split_test_option_keeps_own_test_part(official: bool) -> None:
    """A quarter of each class that it has, rounded, from the training part even where there is a test part."""
    whole = data(100, domains=1, test=40 if official else 0)
    divided = dirichlet(whole, sites=5, beta=0.3, own_test=0.25, seed=4)
    assert sorted(all_ids(divided, with_test=True)) == list(range(400))
    for site in divided:
        kept, trained = per_class(site.test, 4), per_class(site.train, 4)
        assert trained.tolist() == [int(0.75 * each + 0.5) for each in kept + trained]
    half = dirichlet(whole, sites=5, beta=0.3, own_test=0.5, seed=4)
    assert sum(len(site.test) for site in half) == pytest.approx(200, abs=10)


def test_split_per_option_uses_part_of_data() -> None:
    whole = data(100)
    divided = dirichlet(whole, sites=4, beta=0.5, per_site=60, seed=2)
    used = all_ids(divided, with_test=True)
    assert len(used) == len(set(used)) == 240
    assert per_class(whole.train.take(np.array(used)), 4).min() > 30  # drawn evenly, not the first of them
    assert used == all_ids(dirichlet(whole, sites=4, beta=0.5, per_site=60, seed=2), with_test=True)
    with pytest.raises(DataError, match="804"):
        dirichlet(whole, sites=4, beta=0.5, per_site=201, seed=2)


def test_partitions_empty_site_is_named() -> None:
    with pytest.raises(DataError, match=r"site-\d"):
        iid(data(1, domains=1, classes=2), sites=5, seed=0)


def test_names_sort_as_they_count() -> None:
    names = [site.name for site in iid(data(60), sites=12, seed=0)]
    assert names[0] == "site-01"
    assert names == sorted(names)


def test_site_arrays_become_agreed_data_sets() -> None:
    site = mixed(make_digit_domains(0), sites=5, n=6.5, max_per_class=25, seed=0)[1]
    agreed = PreprocessingSection(image_size=8, channels=1, mean=(0.5,), std=(0.5,))
    inputs, label = site.to_data(agreed).train[0]
    assert inputs.shape == (1, 8, 8)
    np.testing.assert_allclose(inputs[0].numpy(), 2 * site.train.inputs[0, ..., 0] - 1, atol=1e-6)
    assert int(label) == site.train.labels[0]


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("iid", lambda d: iid(d, sites=2, seed=1)),
        ("domains", lambda d: by_domain(d, sites=2, seed=1)),
        ("mixed:n=2.5", lambda d: mixed(d, sites=2, n=2.5, seed=1)),
        ("mixed:n=3,max=5", lambda d: mixed(d, sites=2, n=3, max_per_class=5, seed=1)),
        ("shots:n=3,k=4", lambda d: shots(d, sites=2, n=3, k=4, seed=1)),
        (
            "shots:n=2,k=4,nstd=1,kstd=2",
            lambda d: shots(d, sites=2, n=2, k=4, n_spread=1, k_spread=2, seed=1),
        ),
        ("shots:n=2,k=4,domains=2", lambda d: shots(d, sites=2, n=2, k=4, domains=2, seed=1)),
        ("iid:per=20,test=0.5", lambda d: iid(d, sites=2, per_site=20, own_test=0.5, seed=1)),
        ("domains:per=20,test=0.5", lambda d: by_domain(d, sites=2, per_site=20, own_test=0.5, seed=1)),
        ("mixed:n=2,test=0.5", lambda d: mixed(d, sites=2, n=2, own_test=0.5, seed=1)),
        ("iid:val=0.5", lambda d: with_validation(iid(d, sites=2, seed=1), 0.5, 1)),
        ("dirichlet:0.3", lambda d: dirichlet(d, sites=2, beta=0.3, seed=1)),
        ("dirichlet:0.3,min=3", lambda d: dirichlet(d, sites=2, beta=0.3, minimum=3, seed=1)),
        (
            "dirichlet:0.3,test=0.5,per=40",
            lambda d: dirichlet(d, sites=2, beta=0.3, own_test=0.5, per_site=40, seed=1),
        ),
    ],
)
def test_parse_split_equals_function(spec: str, same: Callable[[TrainTest], tuple[SiteArrays, ...]]) -> None:
    whole = data(30)
    by_name = parse_split(spec)(whole, sites=2, seed=1)
    assert [ids(site.train) for site in by_name] == [ids(site.train) for site in same(whole)]


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("dirichelt:0.3", "'dirichlet'"),
        ("zzz", "'zzz'"),
        ("dirichlet", "beta"),
        ("shots:n=3", "lacks k"),
        ("mixed:m=3", "'m=3'"),
        ("mixed:3", "'3'"),
        ("iid:3", "'3'"),
        ("shots:n=2.5,k=3", "'2.5'"),
        ("dirichlet:-1", "-1"),
        ("dirichlet:nan", "nan"),
        ("mixed:n=inf", "inf is"),
        ("dirichlet:0.3,test=1", "below 1"),
        ("domains:val=0", "above 0"),
        ("iid:pool=2", "below 2"),
        ("iid:pool", "'pool'"),
        ("shots:n=3,k=4,nstd=-1", "-1"),
        ("shots:n=3,k=4,domains=0", "above 0"),
        ("mixed:n=3,per=4", "'per=4'"),
        ("dirichlet:0.3,per=2.5", "'2.5'"),
    ],
)
def test_parse_split_unknown_text_is_refused(spec: str, named: str) -> None:
    with pytest.raises(DataError, match=re.escape(named)):
        parse_split(spec)
