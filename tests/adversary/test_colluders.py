"""One colluder fewer than it takes to open a secret, and the coordinator: counts of what they hold are alike for two
inputs, in byte counts of words, of differences of neighbours and of attempts.

Significance: by chance one run of this module in 10^9 fails. Power: of 2^18 words for each of two inputs, 1024 bare
ones where inputs differ are noticed but for 10^-9. Doubles that leak, wholly or that little, or in differences, are
noticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from crypto.pairwise import masks, shares
from crypto.pairwise.masks import have_mask, pair_keys
from crypto.protection import Words
from crypto.shamir import split
from tests.adversary.colluders import (
    FALSE_ALARM,
    LENGTH,
    LIMIT,
    PLACES,
    RUNS,
    SCENES,
    LearntError,
    Scene,
    attempt,
    check_counts_alike,
    power,
    statistic,
    vectors_of,
)
from tests.crypto.masked_group import names

BARE = 256
"""One word of so many has no mask in the double that leaks little: all of them in places where inputs differ."""

_next = masks._next_words


@pytest.mark.parametrize("scene", SCENES)
def test_counts_tell_colluders_below_the_threshold_nothing(scene: str) -> None:
    check_counts_alike(SCENES[scene])


# Doubles that leak


@pytest.mark.parametrize("scene", SCENES)
def test_counts_detect_a_threshold_lowered_by_one(scene: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "split", lambda secret, needed, places: split(secret, needed - 1, places))
    with pytest.raises(LearntError, match=r"by a guess|byte 0"):
        check_counts_alike(SCENES[scene], runs=1)


def _without_one(
    private: bytes, public: Mapping[str, Any], binding: Any, site: str, peers: Sequence[str], graph: Any
) -> dict[str, bytes]:
    """Leave out the mask of the first two members."""
    first_two = names(len(binding.group))[:2]
    keys = pair_keys(private, public, binding, site, peers, graph)
    return {peer: key for peer, key in keys.items() if {site, peer} != set(first_two)}


@pytest.mark.parametrize("scene", ["two honest", "two honest, and one that dropped out"])
def test_counts_detect_a_missing_mask_between_honest_sites(
    scene: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "pair_keys", _without_one)
    with pytest.raises(LearntError, match="byte 0"):
        check_counts_alike(SCENES[scene], runs=1)


def test_counts_do_not_detect_one_missing_mask_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third honest member has masks with both."""
    monkeypatch.setattr(masks, "pair_keys", _without_one)
    check_counts_alike(SCENES["three honest"], runs=1)


def test_counts_detect_a_graph_too_sparse_to_mask_every_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chance of 15 of 1024: in four attempts of five the victim has no mask with the honest."""
    monkeypatch.setattr(
        masks, "have_mask", lambda secret, pair, chance: have_mask(secret, pair, chance // 64)
    )
    with pytest.raises(LearntError, match="byte 0"):
        check_counts_alike(SCENES["sparse"])


@pytest.mark.parametrize("scene", [name for name in SCENES if "late" in name])
def test_counts_detect_a_late_vector_without_a_self_mask(scene: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add_streams = masks.add_streams

    def only_pairs(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> Words:
        return add_streams(words, plus[1:], minus)

    monkeypatch.setattr(masks, "add_streams", only_pairs)
    with pytest.raises(LearntError, match="byte 0"):
        check_counts_alike(SCENES[scene], runs=1)


def test_counts_detect_an_affine_keystream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of it is as often there as any other, and neighbours differ by what is known but for the inputs'."""

    def affine(*arguments: Any) -> Words:
        words = _next(*arguments).copy()
        words[:] = words[0] + np.uint32(0x9E3779B1) * np.arange(len(words), dtype=np.uint32)
        return words

    monkeypatch.setattr(masks, "_next_words", affine)
    with pytest.raises(LearntError, match="byte 0 of differences of neighbours"):
        check_counts_alike(SCENES["two honest"])


def test_counts_detect_a_mask_reused_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(
        private: bytes, public: Mapping[str, Any], binding: Any, site: str, peers: Sequence[str], graph: Any
    ) -> dict[str, bytes]:
        keys = pair_keys(private, public, binding, site, peers, graph)
        return {peer: bytes(32) if {site, peer} == set(names(2)) else key for peer, key in keys.items()}

    monkeypatch.setattr(masks, "pair_keys", same)
    with pytest.raises(LearntError, match="byte 0 of differences of attempts"):
        check_counts_alike(SCENES["two honest"])


# Its power


def test_comparison_detects_a_small_bias_with_the_stated_power(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_gaps(*arguments: Any) -> Words:
        words = _next(*arguments).copy()
        words[::BARE] = 0
        return words

    assert power(1.0 / BARE) > 1.0 - 1e-9
    monkeypatch.setattr(masks, "_next_words", with_gaps)
    with pytest.raises(LearntError, match="byte 0"):
        check_counts_alike(SCENES["two honest"])


def test_comparison_accepts_uniform_samples() -> None:
    """None of 200 pairs of uniform samples is beyond the limit, and their distances are as chance has them."""
    generator, found = np.random.default_rng(3), list[float]()
    for _ in range(200):
        one, other = (np.bincount(generator.integers(0, 256, RUNS * LENGTH), minlength=256) for _ in "12")
        found.append(statistic(one, other))
    assert max(found) < LIMIT
    assert np.mean(found) == pytest.approx(255.0, abs=5 * np.sqrt(2 * 255 / 200))
    assert FALSE_ALARM * 4 * len(PLACES) * 3 * (len(SCENES) + 1) < 1e-9


def test_colluders_hold_exactly_the_stated_items() -> None:
    """One of them more opens the victim: the scene gives the test something to find."""
    for scene in SCENES.values():
        view = attempt(scene, vectors_of(scene, 0))
        assert (
            sum(view.honest[0] in view.group.sites[name].held for name in view.colluders) == scene.colluding
        )
        assert len(view.honest) >= 2
    assert Scene(5).colluding == 3
