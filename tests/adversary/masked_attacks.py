"""Attacks on masked sums, over complete and sparse graphs: which sums are asked for, and under whose keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from crypto.pairwise.attempt import AttemptSecrets, MaskKeys
from crypto.pairwise.masks import add_streams, self_key
from crypto.pairwise.shares import ReleasedShare, ShareKind, make_shares, open_share
from protoseal_wire.messages import ActiveList, Phase, SurvivorSignature
from tests.adversary.attack import (
    ATTEMPT_OPEN,
    JOURNAL_LOOKUP,
    JOURNAL_ONCE,
    ORDER,
    PRESENCE_FIELDS,
    QUORUM,
    SIGNATURES_ENOUGH,
    THRESHOLD,
    AnyAttack,
    Plays,
)
from tests.adversary.opened_masks import mask_keys_from, open_alone, rebuild_secret, shares_of_colluder
from tests.crypto.masked_group import pair_key, total
from tests.support.grouped import EVERYONE, TEN, grouped_agreement
from tests.support.scripted_sums import ScriptedSums, SumAttempt, Vector

A, B, C, D = EVERYONE
WITHOUT_C = (A, B, D)


@dataclass(frozen=True)
class MaskedAttack(AnyAttack[ScriptedSums]):
    """Attack on a run of FedPC whose agreement has ``changes``; ``data_of`` gives each site the data of a named one."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    data_of: Mapping[str, str] = field(default_factory=dict)

    def open(self, plays: Plays) -> ScriptedSums:
        """See :class:`AnyAttack`."""
        return plays.sums(grouped_agreement(**self.changes), self.data_of)


def assert_is(play: ScriptedSums, found: Vector, secret: Vector, terms: int = 1) -> None:
    """The gain: one site's vector, or a sum that no site would have gone along with."""
    assert np.abs(secret).max() > 0.1
    assert (np.abs(found - secret) <= play.rounding(terms)).all()


def assert_is_row(play: ScriptedSums, found: Vector, prototype: Vector, terms: int) -> None:
    """The gain: one site's prototype of a class, out of sums of so many terms."""
    assert np.linalg.norm(prototype) > 0.1
    assert (np.abs(found - prototype) <= play.rounding(terms)[: prototype.size]).all()


# Two sums


def _two_survivor_sets(play: ScriptedSums, *, restart: bool) -> None:
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    everyone = begun.carried_out(EVERYONE)
    if restart:
        play.restart(A)
    assert_is(play, everyone - begun.opened(WITHOUT_C), play.vector(C, begun), 8)


def two_survivor_sets(play: ScriptedSums) -> None:
    """One attempt's sum is opened twice, once without one site: the difference is that site's vector."""
    _two_survivor_sets(play, restart=False)


def two_survivor_sets_over_a_restart(play: ScriptedSums) -> None:
    """The coordinator opens one attempt's sum twice; the site's process restarts in between."""
    _two_survivor_sets(play, restart=True)


def shares_opened_twice(play: ScriptedSums) -> None:
    """The coordinator asks the holders that gave a share of one site's seed for their share of its key as well."""
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    released = {
        survivors: begun.release(survivors, begun.sign(survivors, *survivors), *survivors)
        for survivors in (EVERYONE, WITHOUT_C)
    }
    seed = rebuild_secret(begun, C, ShareKind.SEED, released[EVERYONE])
    key = rebuild_secret(begun, C, ShareKind.KEY, released[WITHOUT_C])
    assert_is(play, open_alone(begun, C, seed, mask_keys_from(begun, C, key)), play.vector(C, begun))


def attempt_after_unmasking(play: ScriptedSums) -> None:
    """The round is attempted again, without one site, after its sum was opened."""
    play.set_up(*EVERYONE)
    first = play.attempt(*EVERYONE)
    everyone = first.carried_out(EVERYONE)
    again = play.attempt(*WITHOUT_C, attempt=2)
    assert_is(play, everyone - again.carried_out(WITHOUT_C), play.vector(C, first), 8)


def two_open_attempts(play: ScriptedSums) -> None:
    """A second attempt is begun before the first one's sum is opened, and then both are carried on."""
    play.set_up(*EVERYONE)
    first = play.attempt(*EVERYONE)
    first.share(*EVERYONE)
    first.mask(*EVERYONE)
    second = play.attempt(*WITHOUT_C, attempt=2).carried_out(WITHOUT_C)
    assert_is(play, first.opened(EVERYONE) - second, play.vector(C, first), 8)


def attempt_among_those_not_asked_to_unmask(play: ScriptedSums) -> None:
    """The coordinator asks seven of ten for shares of one sum of all, and the other three for a second sum, of
    themselves.

    Nobody works with the coordinator. Of the seven, one alone holds class 2: the sums differ by its prototype.
    """
    play.set_up(*TEN)
    quorum, others = TEN[:7], TEN[7:]
    first = play.attempt(*TEN, groups=(TEN,))
    assert first.cohort.holds[:, 2].tolist() == [True, *[False] * 6, True, True, True]
    first.share(*TEN)
    first.mask(*TEN)
    everyone = first.sum(TEN, first.release(TEN, first.sign(TEN, *quorum), *quorum))
    second = play.attempt(*others, attempt=2, groups=(TEN,)).carried_out(others)
    found = (everyone - second)[: 3 * play.agreement.dim].reshape(3, -1)[2]
    prototype = play.site(A).learner.train_round(1)[0][2]
    assert_is_row(play, found, prototype, len(TEN) + len(others))


# Sums of few


def half_survives(play: ScriptedSums) -> None:
    """The coordinator tells each half of the group that the other half dropped out: both secrets open."""
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    released: dict[str, tuple[ReleasedShare, ...]] = {}
    for half in ((A, B), (C, D)):
        released |= begun.release(half, begun.sign(half, *half), *half)
    seed = rebuild_secret(begun, A, ShareKind.SEED, released)  # of those for whom clinic-a survived
    key = rebuild_secret(begun, A, ShareKind.KEY, released)  # of those for whom it dropped out
    assert_is(play, open_alone(begun, A, seed, mask_keys_from(begun, A, key)), play.vector(A, begun))


def left_alone_by_colluders(play: ScriptedSums) -> None:
    """The coordinator tells a site that it alone survived; two colluders make up the threshold."""
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    shares: dict[str, list[ReleasedShare]] = {name: _of_colluder(begun, name) for name in (C, D)}
    shares[A] = list(begun.release((A,), begun.sign((A,), A), A)[A])
    seed = rebuild_secret(begun, A, ShareKind.SEED, shares)
    keys = {
        peer: pair_key(
            rebuild_secret(begun, peer, ShareKind.KEY, shares), begun.public[A], begun.binding, peer, A
        )
        for peer in (B, C, D)
    }
    assert_is(play, open_alone(begun, A, seed, keys), play.vector(A, begun))


def _of_colluder(begun: SumAttempt, name: str) -> list[ReleasedShare]:
    return [
        ReleasedShare(owner, kind, share)
        for owner, pair in shares_of_colluder(begun, name).items()
        for kind, share in ((ShareKind.SEED, pair.seed), (ShareKind.KEY, pair.key))
    ]


def masked_among_few(play: ScriptedSums) -> None:
    """The coordinator asks for values when only one peer made shares."""
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    begun.share(A, B)
    begun.mask(A)
    assert begun.masked[A].any()


def single_holder(play: ScriptedSums) -> None:
    """The other holder of a class drops out: the class's row in the sum is one site's prototype."""
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    assert begun.cohort.holds[:, 2].tolist() == [True, False, False, True]
    rows = begun.carried_out((A, B, C))[: 3 * play.agreement.dim].reshape(3, -1)
    prototype = play.site(A).learner.train_round(1)[0][2]
    assert_is_row(play, rows[2], prototype, 3)


def unsigned_set(play: ScriptedSums) -> None:
    """The coordinator asks for shares under another set than the site signed: the site releases a key of one that sent
    its values.
    """
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    begun.sign(EVERYONE, A)
    signatures = begun.sign(WITHOUT_C, B, D)
    kinds = {each.owner: each.kind for each in begun.release(WITHOUT_C, signatures, A)[A]}
    assert kinds[C] is ShareKind.KEY


def too_few_signatures(play: ScriptedSums) -> None:
    """The coordinator asks for shares under signatures of a minority: the others may have been told another set."""
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    assert begun.release(WITHOUT_C, begun.sign(WITHOUT_C, A, B), A)[A]


# Whose keys


def swapped_keys(play: ScriptedSums) -> None:
    """The coordinator gives a site its own keys as those of its peers, and opens the site's shares and masks."""
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    _open_by_own_keys(play, begun, begun.active)


def unsigned_keys(play: ScriptedSums) -> None:
    """The coordinator adds its own keys to statements that the peers signed without any, as they do for the
    clustering.
    """
    play.set_up(*EVERYONE)
    clustering = play.begin(*EVERYONE, round_number=0)
    assert [each.keys for each in clustering.statements] == [None] * len(EVERYONE)
    begun = play.attempt(*EVERYONE)
    own = next(each for each in begun.active.statements if each.site == A)
    peers = tuple(each for each in clustering.statements if each.site != A)
    _open_by_own_keys(play, begun, ActiveList((own, *peers)))


def _open_by_own_keys(play: ScriptedSums, begun: SumAttempt, active: ActiveList) -> None:
    """Put keys of the coordinator's own on ``active``, for clinic-a to go by, and open what it sends."""
    own = {peer: AttemptSecrets.generate() for peer in (B, C, D)}
    begun.share(B, C, D)
    begun.share(A, active=with_keys(active, {peer: each.public for peer, each in own.items()}))
    begun.mask(A)
    pairs = {each.recipient: open_share(each, own[each.recipient], begun.binding) for each in begun.made[A]}
    shares = {peer: [ReleasedShare(A, ShareKind.SEED, pair.seed)] for peer, pair in pairs.items()}
    seed = rebuild_secret(begun, A, ShareKind.SEED, shares)
    keys = {peer: pair_key(each.mask, begun.public[A], begun.binding, peer, A) for peer, each in own.items()}
    assert_is(play, open_alone(begun, A, seed, keys), play.vector(A, begun))


def with_keys(active: ActiveList, keys: Mapping[str, MaskKeys | None]) -> ActiveList:
    """Return the list with other keys for some sites, or without theirs, under the signatures that it has."""
    return ActiveList(tuple(replace(each, keys=keys.get(each.site, each.keys)) for each in active.statements))


def keys_of_an_earlier_round(play: ScriptedSums) -> None:
    """A site dropped out in round 1; its old statement, whose mask key is known, stands in for it."""
    play.set_up(*EVERYONE)
    before = play.attempt(*EVERYONE)
    before.carried_out(WITHOUT_C)
    now = play.attempt(*WITHOUT_C, round_number=2)
    old = next(each for each in before.active.statements if each.site == C)
    begun = SumAttempt(play, ActiveList((*now.active.statements, old)), EVERYONE, 2, 1)
    begun.share(A)
    assert C in {each.recipient for each in begun.made[A]}


def share_of_its_own_making(play: ScriptedSums) -> None:
    """Two peers made no shares; the coordinator makes some in their names, and the site masks as if among four."""
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    begun.share(A, B)
    for absent in (C, D):
        own = AttemptSecrets.generate()
        public = {**begun.public, absent: own.public}
        made, _ = make_shares(_Named(play, absent), own, begun.binding, public)  # type: ignore[arg-type]
        begun.made[absent] = made
    begun.mask(A)
    assert begun.masked[A].any()


class _Named:
    """The coordinator's credentials, under a site's name."""

    def __init__(self, play: ScriptedSums, name: str) -> None:
        self.identity, self._play = play.parties[name].credentials.identity, play

    def sign(self, label: str, *fields: bytes) -> bytes:
        return self._play.cast.coordinator.sign(label, *fields)


def share_of_another_attempt(play: ScriptedSums) -> None:
    """The coordinator hands on shares of the previous attempt."""
    play.set_up(*EVERYONE)
    before = play.attempt(*EVERYONE)
    before.share(*EVERYONE)
    now = play.attempt(*EVERYONE, attempt=2)
    now.share(A)
    now.mask(A, shares=before.shares_for(A))
    assert now.masked[A].any()


_MASKED = "secure_client.protocol.secure_aggregation.SecureAggregation."
_NOT_UNMASKED = ORDER + "_check_presence: unmasked is not None and key.round <= unmasked.round"
_SHARE_SIGNED = _MASKED + "_verify_sharers: verify_share(share, sender, binding, self._site)"
_FORGET, _ENOUGH = _MASKED + "forget", _MASKED + "_check_enough"
CHECK_KEYS = "secure_client.exchanges.groups.GroupMembers._check_keys"
_LIKE_TEN = {A: A, **dict.fromkeys(TEN[1:7], C), **dict.fromkeys(TEN[7:], B)}
_PAIRS = {"min_holders": 2, "min_sites": 2, "allow_fewer_holders_reveals_peers": True}
SUM_ATTACKS: dict[str, MaskedAttack] = {
    "names two survivor sets": MaskedAttack(
        (JOURNAL_LOOKUP, JOURNAL_ONCE, _FORGET), A, Phase.SURVIVORS, two_survivor_sets
    ),
    "names two survivor sets over a restart": MaskedAttack(
        (JOURNAL_LOOKUP, JOURNAL_ONCE, _FORGET), A, Phase.SURVIVORS, two_survivor_sets_over_a_restart
    ),
    "opens shares twice": MaskedAttack(
        (JOURNAL_LOOKUP, JOURNAL_ONCE, _FORGET), A, Phase.SURVIVORS, shares_opened_twice
    ),
    "attempts a round again after its sum": MaskedAttack(
        (_NOT_UNMASKED,), A, Phase.PRESENCE, attempt_after_unmasking
    ),
    "carries on two attempts of a sum": MaskedAttack(
        (ATTEMPT_OPEN, _FORGET), A, Phase.SURVIVORS, two_open_attempts
    ),
    "sums up those whom it did not ask to unmask": MaskedAttack(
        ("secure_client.exchanges.groups.GroupMembers._check_earlier_sums_cannot_open",),
        TEN[7],
        Phase.SHARES,
        attempt_among_those_not_asked_to_unmask,
        data_of=_LIKE_TEN,
    ),
    "tells each half that the other dropped out": MaskedAttack(
        (THRESHOLD,), A, Phase.SURVIVORS, half_survives, _PAIRS, {C: A}
    ),
    "leaves a site alone with colluders": MaskedAttack(
        (QUORUM, SIGNATURES_ENOUGH, _ENOUGH, _MASKED + "_check_class_holders"),
        A,
        Phase.SURVIVORS,
        left_alone_by_colluders,
    ),
    "asks for values among few": MaskedAttack((QUORUM, _ENOUGH), A, Phase.VALUES, masked_among_few),
    "leaves a class with one holder": MaskedAttack(
        (_MASKED + "_check_class_holders",), A, Phase.SURVIVORS, single_holder, _PAIRS, {B: C}
    ),
    "asks for shares under another set": MaskedAttack(
        (_MASKED + "unmask: signed.sites != survivors", SIGNATURES_ENOUGH), A, Phase.UNMASK, unsigned_set
    ),
    "asks for shares under few signatures": MaskedAttack(
        (SIGNATURES_ENOUGH,), A, Phase.UNMASK, too_few_signatures
    ),
    "swaps the peers' mask keys": MaskedAttack((PRESENCE_FIELDS,), A, Phase.SHARES, swapped_keys),
    "puts mask keys on statements without any": MaskedAttack(
        (PRESENCE_FIELDS,), A, Phase.SHARES, unsigned_keys
    ),
    "replays keys of an earlier round": MaskedAttack(
        (PRESENCE_FIELDS,), A, Phase.SHARES, keys_of_an_earlier_round
    ),
    "makes shares in others' names": MaskedAttack((_SHARE_SIGNED,), A, Phase.VALUES, share_of_its_own_making),
    "hands on shares of another attempt": MaskedAttack(
        (_SHARE_SIGNED,), A, Phase.VALUES, share_of_another_attempt
    ),
}
"""Attacks by what the coordinator does."""


_SPARSE = {"masking": {"complete_up_to": 3, "ring_bits": 64}}
_FIRST_SIX = patch(
    "crypto.pairwise.shares.draw_holders",
    lambda binding, site, graph: tuple(name for name in binding.group if name != site)[: graph.holders],
)
"""Chance draws so that a coordinator could not wish for more."""


def _opened_by(begun: SumAttempt, *holders: str, signatures: tuple[SurvivorSignature, ...]) -> Vector:
    """Return the sum of all members, from as many answers as a secret's threshold, not the group's."""
    released = begun.release(TEN, signatures, *holders)
    minus = [
        self_key(rebuild_secret(begun, name, ShareKind.SEED, released), begun.binding, name)
        for name in begun.members
    ]
    words = add_streams(total(begun.masked, begun.members), [], minus)
    return begun.fixed_point.decode_sum(words, len(begun.members))


def attempt_without_those_that_can_open_the_last(play: ScriptedSums) -> None:
    """All ten sign survivors; the coordinator then asks seven for another attempt, and the other three for shares of
    the first.

    Three shares open a secret. Of the three, one alone holds class 2: the sums differ by its prototype.
    """
    play.set_up(*TEN)
    few, others = TEN[:3], TEN[3:]
    with _FIRST_SIX:
        first = play.attempt(*TEN, groups=(TEN,))
        first.share(*TEN)
    first.mask(*TEN)
    signatures = first.sign(TEN, *TEN)
    second = play.attempt(*others, attempt=2, groups=(TEN,)).carried_out(others)
    everyone = _opened_by(first, *few, signatures=signatures)
    found = (everyone - second)[: 3 * play.agreement.dim].reshape(3, -1)[2]
    prototype = play.site(A).learner.train_round(1)[0][2]
    assert_is_row(play, found, prototype, len(TEN) + len(others))


def other_sharers_to_one_site(play: ScriptedSums) -> None:
    """The coordinator tells one site of sharers other than its holders: the site masks only with sites that are then
    reported as gone.

    The threshold of the group, which would have refused so few, is not what holds it off here: see its layers.
    """
    play.set_up(*TEN)
    with _FIRST_SIX:
        begun = play.attempt(*TEN, groups=(TEN,))
        begun.share(*TEN)
    gone, stay = TEN[8:], TEN[:8]
    told = (A, *gone)
    begun.mask(A, sharers=told, shares=tuple(each for each in begun.shares_for(A) if each.sender in told))
    begun.mask(*stay[1:])
    signatures = begun.sign(stay, *stay[1:])
    released = begun.release(stay, signatures, *stay[1:])
    seed = rebuild_secret(begun, A, ShareKind.SEED, released)
    keys = {peer: rebuild_secret(begun, peer, ShareKind.KEY, released) for peer in gone}
    found = {peer: mask_keys_from(begun, peer, key) for peer, key in keys.items()}
    masks = {peer: each[A] for peer, each in found.items() if A in each}  # two pairs of 1024 have none
    assert_is(play, open_alone(begun, A, seed, masks), play.vector(A, begun))


SPARSE_ATTACKS: dict[str, MaskedAttack] = {
    "opens an attempt by those that the next one leaves out": MaskedAttack(
        (_MASKED + "fresh_keys: received.sharers",),
        TEN[3],
        Phase.PRESENCE,
        attempt_without_those_that_can_open_the_last,
        _SPARSE,
        _LIKE_TEN,
    ),
    "tells one site of other sharers": MaskedAttack(
        (QUORUM, _MASKED + "_verify_owners"),
        A,
        Phase.VALUES,
        other_sharers_to_one_site,
        _SPARSE,
        dict.fromkeys(TEN, A),
    ),
}
"""Attacks by what the coordinator does."""
