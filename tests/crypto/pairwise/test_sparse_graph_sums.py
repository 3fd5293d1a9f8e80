"""Masked sums in a sparse graph: the exact sum whatever drops out, whom shares go to, and who has masks with whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from scipy.stats import binom  # type: ignore[import-untyped]  # it ships no types

from crypto.errors import MalformedError, VerificationError
from crypto.fixed_point import FixedPoint, Segment
from crypto.pairwise.attempt import AttemptSecrets, threshold
from crypto.pairwise.masks import have_mask, pair_keys
from crypto.pairwise.member_signatures import sign_sharers, verify_sharers, verify_signed_sharers
from crypto.pairwise.neighbour_graph import CERTAIN, Graph, sparse_graph
from crypto.pairwise.shares import draw_holders
from crypto.pairwise.unmask import unmask
from tests.crypto.masked_group import (
    Group,
    binding_of,
    credentials,
    member,
    names,
    pair_key,
    random_vectors,
    roster,
    total,
)

N = 30
MEMBERS = names(N)
BINDING = binding_of(MEMBERS)
GRAPH = sparse_graph(N, 3, 9)
A, B = MEMBERS[:2]


@pytest.fixture(scope="module")
def shared() -> Group:
    """Thirty members that have all made shares. What they then do they keep no record of."""
    group = Group.of(BINDING, GRAPH)
    group.share()
    return group


def gone(count: int, seed: int) -> tuple[str, ...]:
    """Return the members that stay when ``count`` of the thirty drop out."""
    kept = np.random.default_rng(seed).permutation(N)[count:]
    return tuple(sorted(MEMBERS[i] for i in kept))


# The sum


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("dropped", [0, 3, 9])
def test_sparse_sum_exact_with_drop_outs(shared: Group, dropped: int, bits: int) -> None:
    """After they made shares."""
    vectors, survivors = random_vectors(MEMBERS, bits, 7, seed=dropped), gone(dropped, bits + dropped)
    assert shared.finish(vectors, MEMBERS, survivors).tolist() == total(vectors, survivors).tolist()


@pytest.mark.parametrize("dropped", [3, 9])
def test_sparse_sum_exact_with_drop_outs_before_shares(dropped: int) -> None:
    sharers = gone(dropped, dropped)
    group = Group.of(BINDING, GRAPH)
    group.share(sharers)
    vectors = random_vectors(MEMBERS, 64, 7, seed=dropped)
    assert group.finish(vectors, sharers, sharers).tolist() == total(vectors, sharers).tolist()


@pytest.mark.parametrize("seed", range(4))
def test_sparse_sum_exact_with_drop_outs_in_every_step(seed: int) -> None:
    """Nine in all: of three each step is the last."""
    order = [MEMBERS[i] for i in np.random.default_rng(seed).permutation(N)]
    sharers, survivors, answering = (tuple(sorted(order[cut:])) for cut in (3, 6, 9))
    group = Group.of(BINDING, GRAPH)
    group.share(sharers)
    vectors = random_vectors(MEMBERS, 32, 7, seed=seed)
    summed = group.finish(vectors, sharers, survivors, answering)
    assert summed.tolist() == total(vectors, survivors).tolist()


def test_sparse_sum_too_many_drop_outs_refused(shared: Group) -> None:
    vectors = random_vectors(MEMBERS, 64, 7, seed=1)
    with pytest.raises(VerificationError, match=r"20.*21"):
        shared.finish(vectors, MEMBERS, gone(10, 1))


def test_sparse_sum_without_holders_of_a_member_refused() -> None:
    """The drawn holders drop out or lose their shares, which hardly ever happens by chance."""
    group = Group.of(BINDING, GRAPH)
    group.share()
    holders = [name for name in MEMBERS if name != A and A in group.sites[name].held]
    assert len(holders) == GRAPH.holders
    survivors = tuple(name for name in MEMBERS if name not in holders[: 30 - threshold(30)])
    left = len(set(survivors) & set(holders)) + 1
    for name in sorted(set(survivors) & set(holders))[: left - GRAPH.threshold + 1]:
        group.sites[name].held.pop(A)
    vectors = random_vectors(MEMBERS, 64, 7, seed=1)
    with pytest.raises(MalformedError, match=rf"{A}.*{GRAPH.threshold - 1}"):
        group.finish(vectors, MEMBERS, survivors)


def test_sparse_sum_different_graphs_do_not_cancel(shared: Group) -> None:
    fixed = FixedPoint([Segment(400, 64.0)], terms=N)
    zeros = {name: fixed.encode(np.zeros(400)) for name in MEMBERS}
    released = shared.release(MEMBERS, MEMBERS, MEMBERS)
    masked = shared.mask(zeros, MEMBERS, MEMBERS)
    opened = unmask(masked, released, BINDING, MEMBERS, MEMBERS, shared.public, GRAPH)
    assert not fixed.decode_sum(opened, N).any()
    # Without a single mask, where it has one with each of 29 others by 855 of 1024: with none of them once in 10^22.
    shared.sites[A].graph = replace(GRAPH, linked=0)
    masked[A] = shared.sites[A].mask(zeros[A], MEMBERS, shared.public)
    shared.sites[A].graph = GRAPH
    spoilt = unmask(masked, released, BINDING, MEMBERS, MEMBERS, shared.public, GRAPH)
    with pytest.raises(MalformedError, match=r"segment 0"):
        fixed.decode_sum(spoilt, N)


def test_graph_among_other_number_of_members_refused(shared: Group) -> None:
    other = sparse_graph(N + 1, 3, 9)
    shared.sites[A].graph = other
    try:
        with pytest.raises(ValueError, match=r"31.*30"):
            shared.sites[A].share(shared.public)
    finally:
        shared.sites[A].graph = GRAPH


# Holders


def test_make_shares_sparse_recipients_as_graph_says() -> None:
    group = Group.of(BINDING, GRAPH)
    for site in group.sites.values():
        recipients = [share.recipient for share in site.share(group.public)]
        assert len(set(recipients)) == len(recipients) == GRAPH.holders < N - 1
        assert site.name not in recipients
        assert recipients == sorted(recipients)


def test_draw_holders_uniform_and_fresh() -> None:
    """Each name, and each pair of names, is in as many of 8000 draws of 14 of 29 as expected, to seven deviations.

    One of 29 + 406 counts exceeds seven deviations once in a billion runs. There are 7.8e7 sets of 14, so that 0.4 of
    8000 draws are expected to repeat another, and ten repeats are rarer than that.
    """
    draws = [draw_holders(BINDING, A, GRAPH) for _ in range(8000)]
    singles = Counter(name for drawn in draws for name in drawn)
    pairs = Counter(pair for drawn in draws for pair in combinations(drawn, 2))
    likely = GRAPH.holders / (N - 1)
    assert set(singles) == set(MEMBERS) - {A}
    assert len(pairs) == (N - 1) * (N - 2) // 2
    for counts, chance in ((singles, likely), (pairs, likely * (GRAPH.holders - 1) / (N - 2))):
        off = np.array(list(counts.values())) - len(draws) * chance
        assert np.abs(off).max() < 7 * (len(draws) * chance * (1 - chance)) ** 0.5
    assert len(set(draws)) > len(draws) - 10


def test_draw_holders_deterministic_double_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that can foresee holders lists members until it likes them."""

    class Foreseen:
        def sample(self, others: list[str], count: int) -> list[str]:
            return others[:count]

    monkeypatch.setattr("crypto.pairwise.shares.SystemRandom", Foreseen)
    assert draw_holders(BINDING, A, GRAPH) == draw_holders(BINDING, A, GRAPH) == MEMBERS[1:15]


def test_sparse_threshold_of_shares_opens_and_one_less_does_not(shared: Group) -> None:
    answers = shared.release(MEMBERS, MEMBERS, MEMBERS)
    owners = Counter(item.owner for answer in answers.values() for item in answer)
    assert set(owners.values()) == {GRAPH.holders + 1}
    vectors = random_vectors(MEMBERS, 64, 3, seed=5)
    masked = shared.mask(vectors, MEMBERS, MEMBERS)

    def opened(shares: int) -> list[int]:
        left = dict(answers)
        surplus = owners[A] - shares
        for name in MEMBERS:
            if surplus and any(item.owner == A for item in left[name]):
                left[name], surplus = tuple(item for item in left[name] if item.owner != A), surplus - 1
        summed: list[int] = unmask(masked, left, BINDING, MEMBERS, MEMBERS, shared.public, GRAPH).tolist()
        return summed

    assert opened(GRAPH.threshold) == total(vectors, MEMBERS).tolist()
    with pytest.raises(MalformedError, match=rf"{GRAPH.threshold - 1}"):
        opened(GRAPH.threshold - 1)


# Masks


def test_linked_equal_at_both_ends_and_fair(shared: Group) -> None:
    """The test tosses 435 coins in each of three attempts; the two tails together have a probability of 10^-10."""
    heads, attempts = 0, [replace(BINDING, attempt=number) for number in (1, 2, 3)]
    for binding in attempts:
        keys = {
            name: pair_keys(site.secrets.mask, shared.public, binding, name, MEMBERS, GRAPH)
            for name, site in shared.sites.items()
        }
        links = {(name, peer) for name, masks in keys.items() for peer in masks}
        assert {(peer, name) for name, peer in links} == links
        assert all(keys[name][peer] == keys[peer][name] for name, peer in links)
        heads += len(links) // 2
        name, peer = min(links)
        site = shared.sites[name]
        assert keys[name][peer] == pair_key(site.secrets.mask, shared.public[peer], binding, name, peer)
    coins = binom(len(attempts) * N * (N - 1) // 2, GRAPH.linked / CERTAIN)
    assert coins.ppf(5e-11) <= heads <= coins.isf(5e-11)


def test_linked_depends_on_secret_and_pair() -> None:
    """Over 3000 secrets heads come up as often as the chance; other keys or another attempt turn half of the coins."""
    secrets = [bytes([i % 256, i // 256]) * 16 for i in range(3000)]
    pair = (*BINDING.fields(), A.encode(), B.encode())
    other = (*replace(BINDING, attempt=2).fields(), A.encode(), B.encode())
    heads = [have_mask(secret, pair, CERTAIN // 2) for secret in secrets]
    assert abs(sum(heads) - 1500) < 5 * 27.4
    turned = sum(
        first != have_mask(secret, other, CERTAIN // 2) for first, secret in zip(heads, secrets, strict=True)
    )
    assert abs(turned - 1500) < 5 * 27.4
    assert all(have_mask(secret, pair, CERTAIN) for secret in secrets[:10])
    assert not any(have_mask(secret, pair, 0) for secret in secrets[:10])
    rare = sum(have_mask(secret, pair, 64) for secret in secrets)
    assert abs(rare - 3000 / 16) < 5 * (3000 / 16) ** 0.5


def test_linked_certain_draws_no_coin(shared: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """A complete graph's masks are therefore the same as before there were coins."""
    used: list[str] = []

    def derive(secret: bytes, label: str, *context: bytes) -> bytes:
        used.append(label)
        return secret

    monkeypatch.setattr("crypto.pairwise.masks.derive", derive)
    private = shared.sites[A].secrets.mask
    assert len(pair_keys(private, shared.public, BINDING, A, MEMBERS)) == N - 1
    assert set(used) == {"mask-pair"}
    pair_keys(private, shared.public, BINDING, A, MEMBERS, GRAPH)
    assert set(used) == {"mask-pair", "mask-coin"}


# Whom one masks with


def test_verify_sharers_other_set_or_attempt_refused() -> None:
    sharers = MEMBERS[:25]
    signature = sign_sharers(credentials(A), BINDING, sharers)
    verify_sharers(member(A), BINDING, sharers, signature)
    others: dict[str, Callable[[], None]] = {
        "another set": lambda: verify_sharers(member(A), BINDING, MEMBERS, signature),
        "another attempt": lambda: verify_sharers(member(A), replace(BINDING, attempt=2), sharers, signature),
        "another member": lambda: verify_sharers(member(B), BINDING, sharers, signature),
    }
    for call in others.values():
        with pytest.raises(VerificationError, match="mask-sharers"):
            call()


ODD: dict[str, tuple[tuple[str, ...], str]] = {
    "too few": (MEMBERS[:20], "made shares are 20; the threshold is 21"),
    "a name twice": ((A, *MEMBERS[:25]), "not sorted and distinct"),
    "a stranger": ((*MEMBERS[:25], "clinic-z"), "clinic-z: among those who made shares"),
    "without the site itself": (MEMBERS[1:], f"{A} is not among those who made shares"),
}


@pytest.mark.parametrize("case", ODD)
def test_bad_sharers_refused_by_sign_and_verify(case: str) -> None:
    sharers, message = ODD[case]
    with pytest.raises(VerificationError, match=message):
        sign_sharers(credentials(A), BINDING, sharers)
    with pytest.raises(VerificationError, match=message):
        verify_sharers(member(A), BINDING, sharers, b"")


def test_verify_signed_sharers_missing_or_surplus_signature_refused() -> None:
    signed = {name: sign_sharers(credentials(name), BINDING, MEMBERS) for name in MEMBERS[:4]}
    members = roster(MEMBERS)
    verify_signed_sharers(signed, members, BINDING, MEMBERS, MEMBERS[:4])
    verify_signed_sharers({}, members, BINDING, MEMBERS, ())
    for owners in (MEMBERS[:5], MEMBERS[:3]):
        with pytest.raises(VerificationError, match=r"sharers"):
            verify_signed_sharers(signed, members, BINDING, MEMBERS, owners)
    with pytest.raises(VerificationError, match="mask-sharers"):
        verify_signed_sharers(signed | {A: signed[B]}, members, BINDING, MEMBERS, MEMBERS[:4])
    with pytest.raises(VerificationError, match=r"roster"):
        verify_signed_sharers(signed, {}, BINDING, MEMBERS, MEMBERS[:4])


def test_linked_uses_shared_secret() -> None:
    first, second = AttemptSecrets.generate(), AttemptSecrets.generate()
    secret = X25519PrivateKey.from_private_bytes(first.mask).exchange(
        X25519PublicKey.from_public_bytes(second.public.mask)
    )
    public = {A: first.public, B: second.public}
    graph, heads = Graph(2, 1, 2, CERTAIN // 2), 0
    for attempt in range(1, 65):  # any other coin would be the same in all of them once in 2^64
        binding = binding_of((A, B), attempt=attempt)
        masks = pair_keys(first.mask, public, binding, A, (A, B), graph)
        assert (B in masks) == have_mask(secret, (*binding.fields(), A.encode(), B.encode()), CERTAIN // 2)
        heads += B in masks
    assert 0 < heads < 64
