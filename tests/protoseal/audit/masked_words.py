"""Checks of masked words: a coordinator cannot tell them from random words, and learns sums alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.stats import chi2  # type: ignore[import-untyped]  # it ships no types

from agreement.derived.payload_shapes import limits_of, values_shape
from crypto.pairwise.attempt import Binding
from crypto.pairwise.masks import add_streams, self_key
from crypto.pairwise.shares import ReleasedShare
from crypto.protection import Words
from crypto.shamir import combine
from protoseal_wire import codec
from protoseal_wire.cluster_assignment import hash_broadcast
from protoseal_wire.messages import Phase
from tests.conformance.transcripts import Transcript

FALSE_ALARM = 1e-13
"""Approximate chance of a false alarm at one place of one vector of words. A run has some 3,000 places, so that one run
in 10^9 fails for nothing.
"""
_NIBBLE = 16


class OpenedError(Exception):
    """Words that are not random: somebody who has them has learnt something of what they mask."""


@dataclass(frozen=True)
class Sum:
    """One group's sum in one attempt, as it was recorded: uploads by site, and what was released of each."""

    binding: Binding
    words: Mapping[str, Words]
    released: Mapping[str, Mapping[str, ReleasedShare]]
    """Released shares by owner, then by the site that released them."""

    def without_self_masks(self) -> dict[str, Words]:
        """Return the uploads without the masks of released seeds, so that pairwise masks remain."""
        return {site: add_streams(words, [], [self._self_key(site)]) for site, words in self.words.items()}

    def _self_key(self, site: str) -> bytes:
        shares = {self.binding.position(at): each.share for at, each in self.released[site].items()}
        return self_key(combine(shares, self.binding.threshold), self.binding, site)


def sums_of(transcript: Transcript, told: Mapping[int, bytes] | None = None) -> list[Sum]:
    """Return every sum of a run of one attempt a round without drop-outs, from the coordinator's recording.

    ``told``: by round, the assignment that masks are bound to beside the base, where there is one.
    """
    agreement = transcript.agreement
    words: dict[tuple[int, str], Words] = {}
    released: dict[tuple[int, str], tuple[ReleasedShare, ...]] = {}
    for each in transcript.received:
        if each.key is not None and each.key.round:
            place = each.key.round, each.site
            if each.key.phase is Phase.VALUES:
                form = values_shape(agreement, each.key.round)
                (words[place],) = codec.decode_payload(each.content, limits_of(agreement), form).words
            if each.key.phase is Phase.UNMASK:
                released[place] = codec.decode_released_shares(each.content, limits_of(agreement)).shares
    return [
        Sum(
            Binding(
                agreement.run,
                number,
                1,
                transcript.roster_hash,
                agreement.hash(),
                group,
                _bound_to(transcript.bases[number, 1, group[0]], number, told),
            ),
            {site: words[number, site] for site in group},
            {
                owner: {at: each for at in group for each in released[number, at] if each.owner == owner}
                for owner in group
            },
        )
        for number in range(1, agreement.rounds + 1)
        for group in transcript.groups
    ]


def _bound_to(base: bytes, number: int, told: Mapping[int, bytes] | None) -> bytes:
    return base if told is None else hash_broadcast(base, told[number])


def check_hidden(sums: list[Sum]) -> None:
    """Raise :class:`OpenedError` for an upload, or a combination of several, that is not random to the coordinator.

    Uploads by themselves; the difference of any two, in one sum or in two; sums over some of a group; all of them
    again less the self-masks that sites released. That leaves the sum over the whole group, which is to be seen.
    """
    for name, words in _that_are_hidden(sums):
        check_random(words, name)


def check_random(words: Words, name: str) -> None:
    """Check by a chi-square test of each place that every nibble of the words has its sixteen values equally often."""
    nibbles = words.view(np.uint8).reshape(len(words), -1)
    for place in range(2 * nibbles.shape[1]):
        values = (nibbles[:, place // 2] >> (4 * (place % 2))) & (_NIBBLE - 1)
        found = np.bincount(values, minlength=_NIBBLE)
        expected = len(words) / _NIBBLE
        if ((found - expected) ** 2).sum() / expected > chi2.isf(FALSE_ALARM, _NIBBLE - 1):
            raise OpenedError(f"{name}: nibble {place} is not random")


def _that_are_hidden(sums: list[Sum]) -> Iterator[tuple[str, Words]]:
    uploads = [
        (f"{site} in round {each.binding.round}", each.words[site]) for each in sums for site in each.words
    ]
    yield from (("upload of " + name, words) for name, words in uploads)
    for (one, first), (other, second) in combinations(uploads, 2):
        yield f"difference of {one} and {other}", first - second
    for each in sums:
        at = f"round {each.binding.round}"
        yield f"uploads of a whole group in {at}", _total(each.words.values())
        opened = each.without_self_masks()
        for count in range(1, len(opened)):
            for some in combinations(opened, count):
                yield f"{'+'.join(some)} in {at}, self-masks released", _total(opened[site] for site in some)


def _total(words: Iterable[Words]) -> Words:
    first, *others = words
    total = first.copy()
    for each in others:
        total += each
    return total


def total_of(each: Sum) -> Words:
    """Return the sum over the group, which the coordinator is to learn."""
    return _total(each.without_self_masks().values())
