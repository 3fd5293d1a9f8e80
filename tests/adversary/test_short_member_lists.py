"""A coordinator that lists so few members of a large run that those who collude are enough among them."""

from __future__ import annotations

import pytest

from protoseal_wire.messages import Phase
from secure_client.errors import Violation
from tests.adversary.attack import assert_nothing_answered, assert_refused_again, weaken
from tests.adversary.conftest import OpenMasked
from tests.adversary.masked_attacks import assert_is
from tests.adversary.masked_play import MaskedPlay
from tests.support.grouped import TEN, grouped_agreement

VICTIM, *HELPERS = TEN[:3]
DATA = dict.fromkeys(TEN, VICTIM)
SPARSE = {"complete_up_to": 6, "max_colluding": 0.2, "ring_bits": 64}
"""Two of ten may collude, for whom no list may be of fewer than five; ``min_holders`` is three."""
LEAST = 5
ENOUGH = "secure_client.exchanges.groups.GroupMembers._check_enough_members"


def played(open_masked: OpenMasked, **changes: object) -> MaskedPlay:
    play = open_masked(grouped_agreement(masking=SPARSE | changes), DATA)
    play.set_up(*TEN)
    return play


def lists_the_victim_and_its_two_helpers(play: MaskedPlay) -> None:
    """List the victim and two helpers, who know their own inputs and subtract them."""
    begun = play.attempt(*TEN[:3], groups=(TEN,))
    total = begun.carried_out(TEN[:3])
    for helper in HELPERS:
        total = total - play.vector(helper, begun)
    assert_is(play, total, play.vector(VICTIM, begun), 3)


def test_the_attack_succeeds_without_the_sites_check(
    open_masked: OpenMasked, monkeypatch: pytest.MonkeyPatch
) -> None:
    weaken(ENOUGH, monkeypatch)
    lists_the_victim_and_its_two_helpers(played(open_masked))


def test_the_site_refuses_a_list_that_colluders_dominate(open_masked: OpenMasked) -> None:
    play, refusal = (
        played(open_masked),
        f"3 sites of the group take part, at least {LEAST} are required in a run of 10",
    )
    with pytest.raises(Violation, match=refusal):
        lists_the_victim_and_its_two_helpers(play)
    last = assert_nothing_answered(play)
    assert (last.site, last.key.phase) == (VICTIM, Phase.SHARES)
    assert_refused_again(play, last, refusal)


@pytest.mark.parametrize("listed", [LEAST, 6, 7, 10])
def test_a_list_long_enough_against_colluders_is_accepted(open_masked: OpenMasked, listed: int) -> None:
    """The graph of ten members is sparse, that of fewer complete."""
    begun = played(open_masked).attempt(*TEN[:listed], groups=(TEN,))
    begun.share(*TEN[:listed])
    assert begun.graph.sparse is (listed == 10)


def test_a_list_one_site_too_short_is_refused(open_masked: OpenMasked) -> None:
    begun = played(open_masked).attempt(*TEN[: LEAST - 1], groups=(TEN,))
    with pytest.raises(Violation, match="4 sites of the group take part, at least 5"):
        begun.share(VICTIM)


def test_where_every_graph_is_complete_min_holders_decides(open_masked: OpenMasked) -> None:
    lists_the_victim_and_its_two_helpers(played(open_masked, complete_up_to=10))


@pytest.mark.parametrize(("share", "taken"), [(0.2, False), (0.1, True)])
def test_a_group_that_can_never_be_large_enough_is_refused_at_once(
    open_masked: OpenMasked, share: float, taken: bool
) -> None:
    play, groups = played(open_masked, max_colluding=share), (TEN[:4], TEN[4:])
    if taken:
        play.attempt(*TEN[:4], groups=groups).share(VICTIM)
    else:
        with pytest.raises(Violation, match="a group has 4 sites, but every sum needs at least the agreed 5"):
            play.attempt(*TEN[:4], groups=groups)
