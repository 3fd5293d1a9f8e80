"""A site that is said to be both active and dropped would be open: nobody gives shares of both its secrets.

Every step is asked of real sites. What the coordinator sends has one list, of those who stay, so that there is no such
request; and no site's answer has room for two shares of one owner.
"""

from __future__ import annotations

import numpy as np
import pytest

from crypto.errors import MalformedError
from crypto.pairwise.wire_values import ReleasedShare, ShareKind
from protoseal_wire import codec
from protoseal_wire.messages import Phase, SignedSurvivors
from protoseal_wire.v1 import protoseal_pb2 as pb
from tests.adversary.conftest import OpenMasked
from tests.adversary.masked_play import Attempt, MaskedPlay, Vector
from tests.support.grouped import EVERYONE, grouped_agreement

A, B, C, D = EVERYONE
WITHOUT_C = (A, B, D)
KINDS = "crypto.pairwise.shares._released_kinds"


@pytest.fixture
def play(open_masked: OpenMasked) -> MaskedPlay:
    opened = open_masked(grouped_agreement(), {})
    opened.set_up(*EVERYONE)
    return opened


def assert_opened(play: MaskedPlay, found: Vector, begun: Attempt) -> None:
    """Assert that the coordinator found each value of clinic-c's vector."""
    secret = play.vector(C, begun)
    assert np.abs(secret).max() > 0.1
    assert (np.abs(found - secret) <= play.rounding()).all()


def both_kinds(play: MaskedPlay) -> tuple[Vector, Attempt]:
    """Everyone survives, and all that members release of clinic-c is put together, whatever kind it is of."""
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    content = codec.encode_signed_survivors(SignedSurvivors(EVERYONE, begun.sign(EVERYONE, *EVERYONE)))
    released = {name: shares_in(begun.ask(name, Phase.UNMASK, content)) for name in EVERYONE}
    seed, key = (begun.secret(C, kind, released) for kind in (ShareKind.SEED, ShareKind.KEY))
    return begun.opened_alone(C, seed, begun.pair_keys_of(C, key)), begun


def shares_in(answer: bytes) -> tuple[ReleasedShare, ...]:
    """Read the shares as a coordinator does that accepts an owner twice."""
    shares = pb.Content.FromString(answer).released_shares.shares
    return tuple(ReleasedShare(each.owner, ShareKind(each.kind), each.share) for each in shares)


def test_secrets_of_a_site_listed_as_active_and_dropped_would_open_its_vector(
    play: MaskedPlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request has one list, of those who stay. The double takes every site to be on the other one too."""
    monkeypatch.setattr(KINDS, lambda *_: (ShareKind.SEED, ShareKind.KEY))
    assert_opened(play, *both_kinds(play))


def test_no_owner_has_both_its_secrets_released(play: MaskedPlay) -> None:
    with pytest.raises(MalformedError, match="0 shares of a secret"):
        both_kinds(play)


def test_coordinator_refuses_an_answer_that_releases_both_secrets_of_an_owner(
    play: MaskedPlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An honest coordinator refuses it, too."""
    monkeypatch.setattr(KINDS, lambda *_: (ShareKind.SEED, ShareKind.KEY))
    with pytest.raises(codec.CodecError, match="owners"):
        play.attempt(*EVERYONE).carried_out(EVERYONE)


def test_site_releases_seeds_of_survivors_and_keys_of_dropouts(play: MaskedPlay) -> None:
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    released = begun.release(WITHOUT_C, begun.sign(WITHOUT_C, *WITHOUT_C), *WITHOUT_C)
    kinds = {
        owner: {each.kind for answer in released.values() for each in answer if each.owner == owner}
        for owner in EVERYONE
    }
    assert kinds == {**{name: {ShareKind.SEED} for name in WITHOUT_C}, C: {ShareKind.KEY}}
