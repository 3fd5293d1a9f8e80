"""Attacks on a masked sum by a coordinator with or without members: each aims at clinic-a's vector.

The attacks run on the functions of :mod:`crypto.pairwise`, with members that answer each question once. Other files
attack the session, which makes members answer once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from crypto.errors import CryptoError
from crypto.pairwise.attempt import AttemptSecrets, Binding, MaskKeys, SharePair
from crypto.pairwise.masks import add_streams, self_key
from crypto.pairwise.shares import ReleasedShare, ShareKind
from crypto.pairwise.unmask import unmask
from crypto.protection import Words
from crypto.shamir import combine
from protoseal_wire.class_presence import sign_presence, verify_presence
from protoseal_wire.messages import Phase, PhaseKey
from tests.adversary.attack import KINDS, QUORUM, SIGNATURES_ENOUGH
from tests.crypto.masked_group import (
    Group,
    binding_of,
    credentials,
    member,
    names,
    pair_key,
    sha256,
    total,
)

VICTIM = "clinic-a"
LENGTH = 16
SECRET: Words = np.random.default_rng(7).integers(0, 2**64, LENGTH, dtype=np.uint64)
"""The victim's vector. That of every other member is zero, which gives the attacker every advantage."""

NAMES = "crypto.pairwise.attempt._check_set: list(names) != sorted(set(names))"
SIGNERS = "crypto.pairwise.member_signatures._survivor_fields: signer not in survivors"
SURVIVOR_SIGNATURE = "crypto.pairwise.member_signatures.verify"
RELEASERS = "crypto.pairwise.shares.release: site not in survivors"
FIELDS = "crypto.pairwise.attempt.Binding.fields"
FRESH = "tests.crypto.masked_group.fresh_secrets"
SELF_KEY = "crypto.pairwise.masks.self_key"
STATEMENT = "protoseal_wire.class_presence.verify"
SHARES_NEEDED = "crypto.pairwise.shares.split"

_honest_fields = Binding.fields


def _few_fields(binding: Binding) -> tuple[bytes, ...]:
    """Return the binding's fields without the round, the attempt and the broadcast."""
    run, _, _, *rest = _honest_fields(binding)
    return (run, *rest[:-1])


DOUBLES: dict[str, Any] = {
    KINDS: "[seed, key]",
    FIELDS: _few_fields,
    FRESH: cache(lambda _name: AttemptSecrets.generate()),
    SELF_KEY: lambda _seed, _binding, _site: bytes(32),
    SHARES_NEEDED: lambda secret, _threshold, places: dict.fromkeys(places, b"\x00" + secret),
}


class NotGained(Exception):
    """The attack went through and its owner has nothing: what it holds is not the vector."""


HELD_OFF = (CryptoError, NotGained)


@dataclass(frozen=True)
class Attack:
    """``play`` raises unless the victim's vector was recovered. ``layers``: each holds it off by itself."""

    layers: tuple[str, ...]
    play: Callable[[], None]


def gained(words: Words) -> None:
    """Raise :class:`NotGained` unless these are the victim's words."""
    if words.tolist() != SECRET.tolist():
        raise NotGained("what the attacker computes is not the vector")


def vectors(group: Sequence[str]) -> dict[str, Words]:
    """SECRET for the victim, zeros for the others."""
    return {name: SECRET if name == VICTIM else np.zeros(LENGTH, np.uint64) for name in group}


def shares_of(
    released: Mapping[str, Sequence[ReleasedShare]], owner: str, kind: ShareKind, binding: Binding
) -> dict[int, bytes]:
    """Return the owner's shares of one kind among all that was released, by x."""
    return {
        binding.position(site): item.share
        for site, answer in released.items()
        for item in answer
        if (item.owner, item.kind) == (owner, kind)
    }


def open_vector(
    masked: Words,
    released: Mapping[str, Sequence[ReleasedShare]],
    binding: Binding,
    public: Mapping[str, MaskKeys],
    *,
    private: bytes | None = None,
) -> Words:
    """The victim's vector from shares of both of its secrets: why nobody may release both."""
    seed = combine(shares_of(released, VICTIM, ShareKind.SEED, binding), binding.threshold)
    key = private or combine(shares_of(released, VICTIM, ShareKind.KEY, binding), binding.threshold)
    plus, minus = list[bytes](), [self_key(seed, binding, VICTIM)]
    for peer in binding.group:
        if peer != VICTIM:
            stream = pair_key(key, public[peer], binding, VICTIM, peer)
            (minus if peer > VICTIM else plus).append(stream)
    return add_streams(masked, plus, minus)


def _scene(count: int, **changes: Any) -> tuple[Group, tuple[str, ...], dict[str, Words]]:
    """Members that have shared and masked; the coordinator holds the masked vectors."""
    members = names(count)
    group = Group.of(binding_of(members, **changes))
    group.share()
    return group, members, group.mask(vectors(members), members, members)


def _ask(
    group: Group, survivors: Sequence[str], asked: Sequence[str]
) -> dict[str, tuple[ReleasedShare, ...]]:
    """Have the asked members sign one set and release for it."""
    signatures = {name: group.sites[name].sign(survivors) for name in asked}
    members = group.binding.group
    return {name: group.sites[name].release(members, survivors, signatures) for name in asked}


# One answer, one group


def overlapping_lists() -> None:
    """The victim is listed as both active and dropped, so that its peers release both kinds of share."""
    group, members, masked = _scene(5)
    released = _ask(group, members, members)
    gained(open_vector(masked[VICTIM], released, group.binding, group.public))


def _sum_of_few(survivors: tuple[str, ...]) -> None:
    """A sum over the victim and nobody else that matters."""
    group, members, masked = _scene(4)
    released = _ask(group, survivors, members)
    dropped = [name for name in members if name not in survivors]
    gained(_sum_over(sorted(set(survivors)), dropped, group, masked, released))


def _sum_over(
    kept: Sequence[str],
    out: Sequence[str],
    group: Group,
    masked: Mapping[str, Words],
    released: Mapping[str, Sequence[ReleasedShare]],
) -> Words:
    """Return the sum of those kept, from seeds of theirs and keys of the others: ``unmask`` without its checks."""
    minus = [
        self_key(_secret(group, released, owner, ShareKind.SEED), group.binding, owner) for owner in kept
    ]
    plus = list[bytes]()
    for owner in out:
        private = _secret(group, released, owner, ShareKind.KEY)
        for peer in kept:
            key = pair_key(private, group.public[peer], group.binding, owner, peer)
            (minus if peer < owner else plus).append(key)
    return add_streams(total(masked, kept), plus, minus)


def _secret(
    group: Group, released: Mapping[str, Sequence[ReleasedShare]], owner: str, kind: ShareKind
) -> bytes:
    return combine(shares_of(released, owner, kind, group.binding), group.binding.threshold)


def survivors_below_the_threshold() -> None:
    """All others are said to have dropped out but one, whose vector is known."""
    _sum_of_few((VICTIM, "clinic-b"))


def one_survivor_named_three_times() -> None:
    """The list is long enough, but names one member three times."""
    _sum_of_few((VICTIM, VICTIM, VICTIM))


def _different_survivors(relabel: bool) -> None:
    """Each member is told a list that is long enough, but not the same one: together, a sum below the threshold.

    Eleven members, threshold 8, at most 3 drop-outs. To each, three of the last four are said to have dropped out,
    so that enough members give up the mask key of each of the four: a sum over 7. ``relabel``: signatures on other
    lists are passed off as ones on this.
    """
    group, members, masked = _scene(11)
    kept, out = members[:7], members[7:]
    told = {name: (*kept, out[i % 4]) for i, name in enumerate(kept)} | {name: (*kept, name) for name in out}
    signed = {name: group.sites[name].sign(told[name]) for name in members}

    def _given(survivors: Sequence[str]) -> dict[str, bytes]:
        return {name: signed[name] for name in survivors if relabel or told[name] == survivors}

    released = {name: group.sites[name].release(members, told[name], _given(told[name])) for name in members}
    gained(_sum_over(kept, out, group, masked, released))


def different_survivors_to_each() -> None:
    """Members sign different lists: there are too few signatures on any one list."""
    _different_survivors(relabel=False)


def signatures_on_another_list() -> None:
    """There are enough signatures, but on other lists."""
    _different_survivors(relabel=True)


def late_vector() -> None:
    """The victim's vector arrives after its peers gave up its mask key: only the self-mask is left on it."""
    group, members, masked = _scene(4)
    others = members[1:]
    released = _ask(group, others, others)
    private = _secret(group, released, VICTIM, ShareKind.KEY)
    keys = [pair_key(private, group.public[peer], group.binding, VICTIM, peer) for peer in others]
    # With nothing better to go by, the attacker takes a self-mask of zeros' key.
    gained(add_streams(masked[VICTIM], [], [bytes(32), *keys]))


# Several attempts


def difference_of_two_rounds() -> None:
    """The victim's masks are the same in two rounds, in the first of which its vector was zero."""
    first, members, _ = _scene(4, round=3)
    before = first.sites[VICTIM].mask(np.zeros(LENGTH, np.uint64), members, first.public)
    _, _, masked = _scene(4, round=4)
    gained(masked[VICTIM] - before)


def key_of_one_attempt_seed_of_the_next() -> None:
    """The victim drops out of one attempt and stays in the next: its peers give one kind in each."""
    first, members, _ = _scene(4)
    others = members[1:]
    private = _secret(first, _ask(first, others, others), VICTIM, ShareKind.KEY)
    second, _, masked = _scene(4, attempt=2)
    released = _ask(second, members, members)
    gained(open_vector(masked[VICTIM], released, second.binding, second.public, private=private))


def another_model_to_the_others() -> None:
    """The others receive a model that makes their vectors zero (Pasquini et al. 2021): the sum is the victim's."""
    members = names(4)
    honest = binding_of(members)
    other = binding_of(members, broadcast=sha256("a model that gives zero"))
    group = Group.of(honest, **dict.fromkeys(members[1:], other))
    group.share()
    gained(group.finish(vectors(members), members, members))


# Keys


def swapped_keys() -> None:
    """The victim receives the coordinator's keys as those of its peers."""
    members = names(4)
    group = Group.of(binding_of(members))
    puppets = {name: AttemptSecrets.generate() for name in members[1:]}
    key = PhaseKey("run-1", 3, 1, Phase.PRESENCE)
    public = {VICTIM: group.public[VICTIM]}
    for name in members[1:]:
        holds = np.ones(2, dtype=np.bool_)
        honest = sign_presence(credentials(name), key, sha256("roster"), holds, keys=group.public[name])
        swapped = replace(honest, keys=puppets[name].public)
        verify_presence(member(name), swapped, key, sha256("roster"))
        public[name] = puppets[name].public
    site = group.sites[VICTIM]
    shares = {share.recipient: share for share in site.share(public)}
    masked = site.mask(SECRET, members, public)
    opened = {name: _open(puppets[name], shares[name].sealed, group.binding, name) for name in puppets}
    released = {name: _both(pair) for name, pair in opened.items()}
    gained(open_vector(masked, released, group.binding, public))


def _open(secrets: AttemptSecrets, sealed: bytes, binding: Binding, recipient: str) -> SharePair:
    from crypto.pairwise.shares import _info  # noqa: PLC0415 - what a member of the coordinator's own would do

    return SharePair.from_bytes(secrets.open(sealed, _info(binding, VICTIM, recipient)))


def _both(pair: SharePair) -> tuple[ReleasedShare, ...]:
    return (
        ReleasedShare(VICTIM, ShareKind.SEED, pair.seed),
        ReleasedShare(VICTIM, ShareKind.KEY, pair.key),
    )


def one_colluder() -> None:
    """One member gives the coordinator everything that it holds of the victim: a share of each secret."""
    group, _, masked = _scene(4)
    pair = group.sites["clinic-b"].held[VICTIM]
    seed, key = pair.seed[1:], pair.key[1:]
    minus = [self_key(seed, group.binding, VICTIM)]
    minus += [
        pair_key(key, group.public[peer], group.binding, VICTIM, peer)
        for peer in group.binding.group
        if peer != VICTIM
    ]
    gained(add_streams(masked[VICTIM], [], minus))


ATTACKS: dict[str, Attack] = {
    "both kinds of share in one answer": Attack((KINDS,), overlapping_lists),
    "survivors below the threshold": Attack((QUORUM, SIGNERS, RELEASERS), survivors_below_the_threshold),
    "one survivor named three times": Attack((NAMES, SIGNERS, RELEASERS), one_survivor_named_three_times),
    "different survivors to each member": Attack((SIGNATURES_ENOUGH,), different_survivors_to_each),
    "signatures on another list of survivors": Attack((SURVIVOR_SIGNATURE,), signatures_on_another_list),
    "a vector that comes late": Attack((SELF_KEY,), late_vector),
    "masks used in two rounds": Attack((FIELDS, FRESH), difference_of_two_rounds),
    "key of one attempt, seed of the next": Attack((FRESH,), key_of_one_attempt_seed_of_the_next),
    "another model to the others": Attack((FIELDS,), another_model_to_the_others),
    "keys that their owners did not sign": Attack((STATEMENT,), swapped_keys),
    "one member that tells what it holds": Attack((SHARES_NEEDED,), one_colluder),
}


# What the protocol's limits are


def split_view(count: int, colluders: int) -> None:
    """Honest members are told one of two sets, with the victim and without; colluders sign and release for both."""
    group, members, masked = _scene(count)
    corrupt = members[count - colluders :]
    honest = [name for name in members[1:] if name not in corrupt]
    t = group.binding.threshold
    with_victim = [VICTIM, *honest[: max(t - colluders - 1, 0)], *corrupt]
    without = [*(name for name in honest if name not in with_victim), *corrupt]
    released: dict[str, list[ReleasedShare]] = {name: [] for name in members}
    for asked, survivors in ((with_victim, members), (without, members[1:])):
        for name, answer in _ask(group, survivors, asked).items():
            released[name] += answer
    gained(open_vector(masked[VICTIM], released, group.binding, group.public))


def colluders_alone(count: int, colluders: int) -> None:
    """Members that put together what they hold, with a coordinator that only listens."""
    group, members, masked = _scene(count)
    released = {name: _both(group.sites[name].held[VICTIM]) for name in members[count - colluders :]}
    gained(open_vector(masked[VICTIM], released, group.binding, group.public))


def honest_sum() -> None:
    """The scene that every attack starts from gives the sum, which is the victim's vector plus zeros."""
    group, members, masked = _scene(4)
    released = group.release(members, members, members)
    gained(unmask(masked, released, group.binding, members, members, group.public))
