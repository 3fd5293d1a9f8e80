"""Attacks on masked sums over sparse graphs, played on sessions: what sites remember of other attempts and steps."""

from __future__ import annotations

from unittest.mock import patch

from crypto.pairwise.masks import add_streams, self_key
from crypto.pairwise.wire_values import ShareKind
from protoseal_wire.messages import Phase, SurvivorSignature
from tests.adversary.masked_attacks import MaskedAttack, assert_is, assert_is_row
from tests.adversary.masked_play import Attempt, MaskedPlay, Vector
from tests.crypto.masked_group import total
from tests.support.grouped import EVERYONE, TEN

A, B, C, D = EVERYONE
_SPARSE = {"masking": {"complete_up_to": 3, "ring_bits": 64}}
_FIRST_SIX = patch(
    "crypto.pairwise.shares.draw_holders",
    lambda binding, site, graph: tuple(name for name in binding.group if name != site)[: graph.holders],
)
"""Chance draws so that a coordinator could not wish for more."""


def _opened_by(begun: Attempt, *holders: str, signatures: tuple[SurvivorSignature, ...]) -> Vector:
    """Return the sum of all members, from as many answers as a secret's threshold, not the group's."""
    released = begun.release(TEN, signatures, *holders)
    minus = [
        self_key(begun.secret(name, ShareKind.SEED, released), begun.binding, name) for name in begun.members
    ]
    words = add_streams(total(begun.masked, begun.members), [], minus)
    return begun.fixed_point.decode_sum(words, len(begun.members))


def attempt_without_those_that_can_open_the_last(play: MaskedPlay) -> None:
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
    prototype = play.site(A).trainee.train_round(1)[0][2]
    assert_is_row(play, found, prototype, len(TEN) + len(others))


def other_sharers_to_one_site(play: MaskedPlay) -> None:
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
    seed = begun.secret(A, ShareKind.SEED, released)
    keys = {peer: begun.secret(peer, ShareKind.KEY, released) for peer in gone}
    found = {peer: begun.pair_keys_of(peer, key) for peer, key in keys.items()}
    masks = {peer: each[A] for peer, each in found.items() if A in each}  # two pairs of 1024 have none
    assert_is(play, begun.opened_alone(A, seed, masks), play.vector(A, begun))


_MASKED = "secure_client.protocol.secure_aggregation.SecureAggregation."
_LIKE_TEN = {A: A, **dict.fromkeys(TEN[1:7], C), **dict.fromkeys(TEN[7:], B)}
SPARSE_ATTACKS: dict[str, MaskedAttack] = {
    "opens an attempt by those that the next one leaves out": MaskedAttack(
        (_MASKED + "_check_signed_none",), TEN[3], Phase.PRESENCE, "survivors of attempt 1 were signed",
        attempt_without_those_that_can_open_the_last, _SPARSE, _LIKE_TEN,
    ),
    "tells one site of other sharers": MaskedAttack(
        ("crypto.pairwise.attempt._check_quorum", _MASKED + "_verify_owners"), A, Phase.VALUES,
        "those who made shares are 3; the threshold is 7", other_sharers_to_one_site, _SPARSE, dict.fromkeys(TEN, A),
    ),
}  # fmt: skip
"""Attacks by what the coordinator does."""
