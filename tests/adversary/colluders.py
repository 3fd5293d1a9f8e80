"""Colluders: the coordinator's view of a masked sum and the members that tell it everything, and what these find.

An attempt runs to its end with everyone answering honestly, so that the coordinator has all that it is ever given. The
colluders are one fewer than it takes to open a secret by themselves. They take off an honest member's masked words all
masks that they can derive, also by guesses that would be right if one share less opened a secret. The remainders are
compared for two vectors of that member, while another honest one makes up for the difference, so that the sum over the
honest is the same. The comparison counts how often each byte stands at each place of the words, of differences of
neighbouring words, and of differences between one attempt and the next (:func:`statistic`).

Limit: the comparison does not see a leak of another kind, jointly over words further apart; that a keystream hides
rests on ChaCha20.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, ncx2  # type: ignore[import-untyped]  # it ships no types

from crypto.errors import MalformedError
from crypto.pairwise.attempt import public_half
from crypto.pairwise.masks import add_streams, pair_keys, self_key
from crypto.pairwise.neighbour_graph import Graph, graph_among
from crypto.pairwise.shares import ReleasedShare, ShareKind
from crypto.protection import Words
from crypto.shamir import combine
from tests.crypto.masked_group import Group, binding_of, names

FALSE_ALARM = 1e-12
"""Probability of a false alarm at one place of one test.

There are fewer than a thousand places in all, so that one run in 10^9 fails for nothing. Differences of uniform words
are uniform and independent too, so that the same limit holds for all places.
"""
RUNS, LENGTH = 8, 1 << 15
"""Attempts for each of the two vectors, and words in each."""
PLACES = ("words", "differences of neighbours", "differences of attempts")
"""Values whose four bytes are counted."""
_BYTE = 256

Counts = NDArray[np.int64]
Counted = dict[tuple[str, str], Counts]
"""Counts by the remainder that is counted (:func:`left_over`), and by which of :data:`PLACES`."""


class LearntError(Exception):
    """Remainder of the colluders that depends on an honest member's input."""


@dataclass(frozen=True)
class Scene:
    """``count`` members. Some ``colluding`` help the coordinator: as many as open nothing by themselves.

    The victim is the first by name, and the second makes up for what it sends. The last ``dropped`` have shared and
    their vectors do not arrive; with ``late`` the victim's is another such, and arrives when the others have released.
    """

    count: int
    dropped: int = 0
    late: bool = False
    graph: Graph | None = None

    @property
    def colluding(self) -> int:
        """One fewer than open a secret."""
        return graph_among(self.count, self.graph).threshold - 1


SCENES = {
    "two honest": Scene(5),
    "three honest": Scene(8),
    "two honest, and one that dropped out": Scene(7, dropped=1),
    "a vector that comes late": Scene(7, late=True),
    "sparse": Scene(16, dropped=3, graph=Graph(16, 7, 4, 1000)),
    "sparse, a vector that comes late": Scene(16, dropped=2, late=True, graph=Graph(16, 7, 4, 1000)),
}
"""The sparse graph is that for 16 members, 2 that collude and 3 that drop out; here all colluders hold shares."""


@dataclass(frozen=True)
class View:
    """All that the coordinator and the colluders hold when an attempt is over."""

    group: Group
    masked: Mapping[str, Words]
    released: Mapping[str, tuple[ReleasedShare, ...]]
    colluders: tuple[str, ...]
    honest: tuple[str, ...]
    """The honest members whose masked words arrived, the victim first."""

    def left_over(self, site: str, *, guessing: bool = False) -> Words:
        """Return an honest member's words without any mask that they can derive.

        ``guessing``: secrets that they have one share too few of are put together as if one less were enough.
        """
        binding, plus, minus = self.group.binding, list[bytes](), list[bytes]()
        seed = self._opened(site, ShareKind.SEED, guessing=guessing)
        if seed is not None:
            minus.append(self_key(seed, binding, site))
        for peer, key in self._pair_keys(site).items():
            (minus if site < peer else plus).append(key)
        return add_streams(self.masked[site], plus, minus)

    def _pair_keys(self, site: str) -> dict[str, bytes]:
        """Return the keys of masks with colluders and with members whose key opened, and of all masks if the site's
        key opened.
        """
        binding, public, graph = self.group.binding, self.group.public, self.group.graph
        others = [name for name in binding.group if name != site]
        own = self._mask_key(site)
        if own is not None:
            return pair_keys(own, public, binding, site, others, graph)
        keys: dict[str, bytes] = {}
        for peer in others:
            private = self.group.sites[peer].secrets.mask if peer in self.colluders else self._mask_key(peer)
            if private is not None:
                for key in pair_keys(private, public, binding, peer, [site], graph).values():
                    keys[peer] = key
        return keys

    def _mask_key(self, owner: str) -> bytes | None:
        """A guess is as good as knowledge here: the public half tells whether it is right."""
        key = self._opened(owner, ShareKind.KEY, guessing=True)
        return key if key is not None and public_half(key) == self.group.public[owner].mask else None

    def _opened(self, owner: str, kind: ShareKind, *, guessing: bool) -> bytes | None:
        """Return a secret from all shares that they have; wrong, or none, if they have too few."""
        shares = self._shares(owner, kind)
        needed = graph_among(len(self.group.binding.group), self.group.graph).threshold
        try:
            return combine(shares, needed - 1 if guessing and len(shares) < needed else needed)
        except MalformedError:
            return None

    def _shares(self, owner: str, kind: ShareKind) -> dict[int, bytes]:
        binding = self.group.binding
        shares = {
            binding.position(name): pair.seed if kind is ShareKind.SEED else pair.key
            for name in self.colluders
            for holder, pair in self.group.sites[name].held.items()
            if holder == owner
        }
        for name, answer in self.released.items():
            for item in answer:
                if (item.owner, item.kind) == (owner, kind):
                    shares[binding.position(name)] = item.share
        return shares


def attempt(scene: Scene, vectors: Mapping[str, Words]) -> View:
    """Play one attempt with fresh keys, up to what members release."""
    members = names(scene.count)
    group = Group.of(binding_of(members), scene.graph)
    group.share()
    victim, helper = members[:2]
    gone: tuple[str, ...] = (victim,) if scene.late else ()
    gone += members[len(members) - scene.dropped :] if scene.dropped else ()
    holders = [name for name in members[2:] if name not in gone and victim in group.sites[name].held]
    colluders = tuple(holders[-scene.colluding :])
    survivors = tuple(name for name in members if name not in gone)
    arrived = sorted({*survivors, victim})
    masked = group.mask(vectors, members, arrived)
    released = group.release(members, survivors, survivors)
    honest = tuple(name for name in arrived if name not in colluders)
    assert helper in honest
    assert len(colluders) == scene.colluding
    return View(group, masked, released, colluders, honest)


def vectors_of(scene: Scene, sent: int, first: int = 0) -> dict[str, Words]:
    """The victim sends ``sent`` in every other word, from ``first`` (0 or 1) on, and zeros between; the others
    constants; the second, if both are in the sum, what is missing to a sum that does not depend on ``sent``.
    """
    members = names(scene.count)
    vectors: dict[str, Words] = {name: np.full(LENGTH, 0x3C3C3C3C, np.uint32) for name in members}
    vectors[members[0]] = np.zeros(LENGTH, np.uint32)
    vectors[members[0]][first::2] = sent
    if not scene.late:
        vectors[members[1]] -= vectors[members[0]]
    return vectors


def left_over(view: View) -> Iterator[tuple[str, Words]]:
    """Yield the victim's words; with a guess at what they lack; and with the words of an honest third added.

    The victim's and the second's together are a sum that is the same for both vectors.
    """
    victim, _, *others = view.honest
    alone = view.left_over(victim)
    yield "the victim", alone
    yield "the victim, by a guess", view.left_over(victim, guessing=True)
    for other in others[:1]:
        yield "the victim and another", alone + view.left_over(other)


def counts_of(scene: Scene, sent: int, runs: int) -> Counted:
    """Count how often each byte stands at each place, (4, 256), over attempts with fresh keys.

    The victim's input changes from word to word and from attempt to attempt: differences depend on it too.
    """
    counts: Counted = {}
    before: dict[str, Words] = {}
    for run in range(runs):
        for name, words in left_over(attempt(scene, vectors_of(scene, sent, run % 2))):
            since = words - before[name] if name in before else words[:0]
            for place, each in zip(PLACES, (words, np.diff(words), since), strict=True):
                counts[name, place] = counts.get((name, place), np.zeros((4, _BYTE), np.int64)) + _counted(
                    each
                )
            before[name] = words
    return counts


def _counted(words: Words) -> Counts:
    columns = words.view(np.uint8).reshape(len(words), 4)
    return np.stack([np.bincount(column, minlength=_BYTE) for column in columns.T])


def check_counts_alike(scene: Scene, runs: int = RUNS) -> None:
    """:class:`LearntError` if counts tell a victim that sends zeros from one whose every other word is all ones.

    It names all places where they do. There are no differences of attempts if ``runs`` is 1.
    """
    zeros, ones = (counts_of(scene, sent, runs) for sent in (0, 0xFFFFFFFF))
    found = {
        f"{name}: byte {byte} of {place}": statistic(counts[byte], ones[name, place][byte])
        for (name, place), counts in zeros.items()
        for byte in range(4)
    }
    told = [f"{where} ({far:.0f} > {LIMIT:.0f})" for where, far in found.items() if far > LIMIT]
    if told:
        raise LearntError(f"the input shows in {'; '.join(told)}")


LIMIT: float = chi2.isf(FALSE_ALARM, _BYTE - 1)


def statistic(one: Counts, other: Counts) -> float:
    """Pearson's chi-square for two samples of as many bytes: 255 degrees of freedom if they are alike."""
    both = one + other
    return float((((one - other) ** 2)[both > 0] / both[both > 0]).sum())


def power(share: float, words: int = RUNS * LENGTH) -> float:
    """Return the probability of noticing that a ``share`` of the words is bare, where inputs differ, and the rest
    uniform.

    That share of the ``words`` bytes of each sample stands at one byte, at 0 in one and at 255 in the other.
    """
    uniform = words * (1 - share) / _BYTE
    excess = share * words
    return float(ncx2.sf(LIMIT, _BYTE - 1, 2 * excess**2 / (2 * uniform + excess)))
