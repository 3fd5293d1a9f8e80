"""PFPL's weights against a slow literal reading of each formula, their invariants and their direction."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from algorithms.gram_matrix import Bool, Float, Need, combine, gram
from algorithms.pfpl import Weighting, peer_weights, personalise, sufficient_needs
from crypto.protection import Combination, Offer

TAU = 1e-9
ALL = list(Weighting)


def reference_row(rows: Float, holders: list[int], i: int, weighting: Weighting, tau: float) -> Float:
    """Return row i of one class, one formula at a time, from the prototypes (n, d) themselves."""
    row = np.zeros(len(rows))
    peers = [m for m in holders if m != i]
    d = {m: float(np.linalg.norm(rows[i] - rows[m]) ** 2) for m in peers}
    total = sum(d.values())
    count = len(holders)
    if not peers:
        row[i] = 1.0
    elif weighting is Weighting.UNIFORM:
        row[peers] = 1.0 / len(peers)
    elif weighting is Weighting.COMPLEMENT and count == 2:
        row[peers[0]] = 1.0
    elif total <= tau:
        row[i] = 1.0
    elif weighting is Weighting.DISTANCE:
        row[peers] = [d[m] / total for m in peers]
    elif weighting is Weighting.COMPLEMENT:
        row[peers] = [(total - d[m]) / ((count - 2) * total) for m in peers]
    else:
        inverse = {m: 1.0 / max(d[m], tau) ** 0.5 for m in peers}
        row[peers] = [inverse[m] / sum(inverse.values()) for m in peers]
    return row


def reference(stack: Float, holds: Bool, weighting: Weighting, tau: float) -> Float:
    n, classes, _ = stack.shape
    weights = np.zeros((classes, n, n))
    for k in range(classes):
        holders = [i for i in range(n) if holds[i, k]]
        for i in holders:
            weights[k, i] = reference_row(stack[:, k], holders, i, weighting, tau)
    return weights


@st.composite
def federations(draw: st.DrawFn) -> tuple[Float, Bool]:
    """Draw prototypes of 1 to 6 sites in 1 to 4 classes, some absent, some equal to a peer's."""
    n, classes, dim = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stack = rng.normal(size=(n, classes, dim)) / 4
    for i in draw(st.lists(st.integers(0, n - 1), max_size=3)):
        stack[i] = stack[0]
    holds = rng.random((n, classes)) < draw(st.sampled_from([0.4, 0.8, 1.0]))
    return stack * holds[:, :, None], holds


@pytest.mark.parametrize("weighting", ALL)
@given(federation=federations())
def test_peer_weights_are_equation_4(weighting: Weighting, federation: tuple[Float, Bool]) -> None:
    stack, holds = federation
    weights = peer_weights(gram(stack), holds, weighting, tau=TAU)
    np.testing.assert_allclose(weights, reference(stack, holds, weighting, TAU), atol=1e-6)


@pytest.mark.parametrize("weighting", ALL)
@given(federation=federations())
def test_peer_weights_rows_of_holders_are_convex(
    weighting: Weighting, federation: tuple[Float, Bool]
) -> None:
    stack, holds = federation
    weights = peer_weights(gram(stack), holds, weighting, tau=TAU)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=-1), holds.T, atol=1e-12)
    assert not weights[~np.broadcast_to(holds.T[:, None, :], weights.shape)].any()
    diagonal = np.einsum("kii->ki", weights)
    assert np.isin(diagonal, [0.0, 1.0]).all()


@pytest.mark.parametrize("weighting", ALL)
@given(federation=federations(), seed=st.integers(0, 2**32 - 1))
def test_peer_weights_order_of_sites_does_not_matter(
    weighting: Weighting, federation: tuple[Float, Bool], seed: int
) -> None:
    stack, holds = federation
    order = np.random.default_rng(seed).permutation(len(stack))
    weights = peer_weights(gram(stack), holds, weighting, tau=TAU)
    permuted = peer_weights(gram(stack[order]), holds[order], weighting, tau=TAU)
    np.testing.assert_allclose(permuted, weights[:, order][:, :, order], atol=1e-6)


def line(*positions: float) -> tuple[Float, Bool]:
    """Return one class with sites at the given places on a line."""
    return np.array(positions)[:, None, None], np.ones((len(positions), 1), dtype=np.bool_)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        (Weighting.DISTANCE, [0, 1 / 10, 9 / 10]),
        (Weighting.COMPLEMENT, [0, 9 / 10, 1 / 10]),
        (Weighting.INVERSE, [0, 3 / 4, 1 / 4]),
        (Weighting.UNIFORM, [0, 1 / 2, 1 / 2]),
    ],
)
def test_peer_weights_known_answers(weighting: Weighting, expected: list[float]) -> None:
    """Peers at distance 1 and 3 from site 0: d = 1 and 9."""
    stack, holds = line(0.0, 1.0, 3.0)
    weights = peer_weights(gram(stack), holds, weighting, tau=TAU)
    np.testing.assert_allclose(weights[0, 0], expected, atol=1e-12)


@pytest.mark.parametrize("weighting", ALL)
def test_peer_weights_site_without_peers_weighs_itself(weighting: Weighting) -> None:
    stack, holds = line(0.3)
    assert peer_weights(gram(stack), holds, weighting, tau=TAU).tolist() == [[[1.0]]]


@pytest.mark.parametrize("weighting", ALL)
def test_peer_weights_distant_single_peer_has_weight_one(weighting: Weighting) -> None:
    stack, holds = line(0.0, 0.5)
    assert peer_weights(gram(stack), holds, weighting, tau=TAU).tolist() == [[[0, 1], [1, 0]]]


@pytest.mark.parametrize("weighting", [Weighting.DISTANCE, Weighting.COMPLEMENT, Weighting.INVERSE])
@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_peer_weights_peers_agree_up_to_tau(weighting: Weighting, factor: float) -> None:
    """D_0 = 2·step² is just below or just above tau: own row, or weights of 1/2 as both peers are as far."""
    tau = 1e-4
    step = (factor * tau / 2) ** 0.5
    stack, holds = line(0.0, step, -step)
    row = peer_weights(gram(stack), holds, weighting, tau=tau)[0, 0]
    np.testing.assert_allclose(row, [1, 0, 0] if factor < 1 else [0, 0.5, 0.5], atol=1e-9)


@pytest.mark.parametrize("weighting", [Weighting.COMPLEMENT, Weighting.UNIFORM])
def test_peer_weights_equal_single_peer_without_distances_has_weight_one(
    weighting: Weighting,
) -> None:
    stack, holds = line(0.2, 0.2)
    assert peer_weights(gram(stack), holds, weighting, tau=TAU).tolist() == [[[0, 1], [1, 0]]]


def test_peer_weights_inverse_at_distance_zero_is_finite() -> None:
    stack, holds = line(0.0, 0.0, 1.0)
    row = peer_weights(gram(stack), holds, Weighting.INVERSE, tau=1e-4)[0, 0]
    np.testing.assert_allclose(row, [0, 100 / 101, 1 / 101], atol=1e-9)


def share_of_own_domain(weighting: Weighting) -> tuple[float, float]:
    """Return the mean weight of peers of a site's own domain, and that under ``uniform``, on real scans.

    Five sites hold all digits: three see them as scanned, two inverted; prototypes are mean images.
    """
    digits = load_digits()
    images, domains = digits.data / 16.0, np.array([0, 0, 0, 1, 1])
    sites = [1.0 - images[i::5] if domain else images[i::5] for i, domain in enumerate(domains)]
    labels = [digits.target[i::5] for i in range(5)]
    stack = np.array(
        [[x[y == k].mean(axis=0) for k in range(10)] for x, y in zip(sites, labels, strict=True)]
    )
    same = (domains[:, None] == domains) & ~np.eye(5, dtype=np.bool_)
    weights = peer_weights(gram(stack), np.ones((5, 10), dtype=np.bool_), weighting, tau=TAU)
    return float((weights * same).sum() / 50), float(same.sum() / 20)


@pytest.mark.parametrize("weighting", [Weighting.COMPLEMENT, Weighting.INVERSE])
def test_peer_weights_nearer_domains_weigh_more_than_uniform(weighting: Weighting) -> None:
    share, uniform = share_of_own_domain(weighting)
    assert share > uniform + 0.05


def test_peer_weights_printed_favour_the_farther_domain() -> None:
    """Why ``distance`` is not the default: it does the opposite of what the paper's text asks for."""
    share, uniform = share_of_own_domain(Weighting.DISTANCE)
    assert share < uniform - 0.05


def test_personalise_mixes_own_and_peers() -> None:
    own, peers = np.array([[1.0, 0.0]]), np.array([[0.0, 2.0]])
    assert personalise(own, peers, 0.25).tolist() == [[0.25, 1.5]]
    assert personalise(own, peers, 1.0).tolist() == own.tolist()
    assert personalise(own, peers, 0.0).tolist() == peers.tolist()


@pytest.mark.parametrize("weighting", ALL)
@given(federation=federations(), alpha=st.floats(0, 1))
def test_personalise_agreeing_peers_give_the_own_prototype(
    weighting: Weighting, federation: tuple[Float, Bool], alpha: float
) -> None:
    """C̄_i = C_i whatever α is, with peers that are equal or without any."""
    stack, holds = federation
    equal = np.ones_like(stack) / 3 * holds[:, :, None]
    received = combine(peer_weights(gram(equal), holds, weighting, tau=TAU), equal)
    for own, peers in zip(equal, received, strict=True):
        np.testing.assert_allclose(personalise(own, peers, alpha), own, atol=1e-14)


def test_sufficient_needs_are_offers_of_protections() -> None:
    """The two sides never import each other: they meet by value."""
    assert {need.value for need in Need} <= {offer.value for offer in Offer}
    blind = {w.value for w in ALL if Need.DISTANCE_WEIGHTS in sufficient_needs(w)}
    assert blind == {combination.value for combination in Combination}
    assert sufficient_needs(Weighting.INVERSE) == {Need.GRAM}
