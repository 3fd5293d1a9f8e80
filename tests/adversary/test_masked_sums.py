"""A masked sum as a coordinator sees it: the sum, and nothing of one site, whomever the coordinator silences or lists.

Every step is asked of real sites. A site that is said to be both active and dropped would be open: nobody gives shares
of both its secrets. What the coordinator sends has one list, of those who stay, so that there is no such request; and
no site's answer has room for two shares of one owner.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from agreement import Agreement, AveragingSection, FedpcSection, Optimiser, Protection
from algorithms.pfpl import Weighting
from crypto.errors import MalformedError
from crypto.pairwise.attempt import AttemptSecrets
from crypto.pairwise.shares import ReleasedShare, ShareKind
from protoseal_wire import codec
from protoseal_wire.messages import Phase, SignedSurvivors
from protoseal_wire.v1 import protoseal_pb2 as pb
from secure_client.errors import Violation
from tests.adversary.attack import (
    KINDS,
    PRESENCE_FIELDS,
    Plays,
    assert_nothing_answered,
    assert_raised_in,
    assert_refused_again,
    weaken,
)
from tests.adversary.masked_attacks import CHECK_KEYS, assert_is, with_keys
from tests.adversary.opened_masks import mask_keys_from, open_alone, rebuild_secret
from tests.support.grouped import EVERYONE, PARAMETERS, TEN, grouped_agreement
from tests.support.scripted_sums import ScriptedSums, SumAttempt, Vector
from tests.support.small import DIM, short_training, small_agreement

A, B, C, D = EVERYONE
WITHOUT_C = (A, B, D)


@pytest.mark.parametrize("bits", [64, 32])
def test_masked_sum_opens_with_everyone_and_without_a_drop_out(plays: Plays, bits: int) -> None:
    averaging = AveragingSection(parameters=PARAMETERS, parameter_bound=8.0)
    play = plays.sums(grouped_agreement(masking={"ring_bits": bits}, averaging=averaging))
    play.set_up(*EVERYONE)
    for number, survivors in ((1, EVERYONE), (2, WITHOUT_C)):
        begun = play.attempt(*EVERYONE, round_number=number)
        expected = np.sum([play.vector(name, begun) for name in survivors], axis=0)
        assert np.abs(expected).max() > 0.1
        opened = begun.carried_out(survivors)
        assert (np.abs(opened - expected) <= play.rounding(len(survivors))).all()
        result = play.result_of(opened, begun, survivors)
        for name in EVERYONE:  # also who dropped out of the sum
            play.give_result(name, result, round_number=number)
    assert {play.site(name).learner.received.base_hash for name in EVERYONE} != {b""}
    assert len({play.site(name).learner.received.base_hash for name in EVERYONE}) == 1


def _opened_with_the_key_of_round_1(play: ScriptedSums) -> tuple[Vector, Vector]:
    """clinic-c drops out of round 1, which opens its mask key, and is in the sum of round 2, which opens its seed."""
    play.set_up(*EVERYONE)
    first = play.attempt(*EVERYONE)
    first.share(*EVERYONE)
    first.mask(*WITHOUT_C)
    released = first.release(WITHOUT_C, first.sign(WITHOUT_C, *WITHOUT_C), *WITHOUT_C)
    key = rebuild_secret(first, C, ShareKind.KEY, released)
    second = play.attempt(*EVERYONE, round_number=2)
    second.share(*EVERYONE)
    second.mask(*EVERYONE)
    released = second.release(EVERYONE, second.sign(EVERYONE, *EVERYONE), *EVERYONE)
    seed = rebuild_secret(second, C, ShareKind.SEED, released)
    found = open_alone(second, C, seed, mask_keys_from(second, C, key))
    return found, play.vector(C, second)


def test_mask_key_of_one_round_opens_nothing_in_another(plays: Plays) -> None:
    with pytest.raises(MalformedError, match="masks"):
        _opened_with_the_key_of_round_1(plays.sums(grouped_agreement()))


def test_mask_key_reused_opens_a_site(plays: Plays, monkeypatch: pytest.MonkeyPatch) -> None:
    """The double's sites, asked in the same order in each round, make their secrets once and keep to them."""
    kept = cycle([AttemptSecrets.generate() for _ in EVERYONE])
    monkeypatch.setattr(AttemptSecrets, "generate", lambda: next(kept))
    play = plays.sums(grouped_agreement())
    found, secret = _opened_with_the_key_of_round_1(play)
    assert np.abs(secret).max() > 0.1
    assert (np.abs(found - secret) <= play.rounding()).all()


PRINTED: dict[str, Any] = {"fedpc": FedpcSection(literal=True)}
WITHOUT_DECAY: dict[str, Any] = {
    "training": short_training("tests.support.tiny_models:build_relu", weight_decay=0.0)
}


@pytest.mark.parametrize("settings", [PRINTED, WITHOUT_DECAY], ids=["printed norm", "without decay"])
def test_the_stated_limit_from_a_model_that_one_record_trains_its_site_is_read_in_the_sum(
    plays: Plays, settings: dict[str, Any]
) -> None:
    """One unit is above zero, for that record alone: the other sites stand still, but for their weights' decay.

    The printed norm moves the victim far more than the decay moves the others; the mean square does not, so its case
    has no decay.
    """
    play = plays.sums(grouped_agreement(**settings))
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    honest = play.result_of(begun.carried_out(EVERYONE), begun, EVERYONE)
    direction = np.random.default_rng(5).normal(size=64)
    images = {name: _images(play, name) for name in EVERYONE}
    highest = {name: float((each @ direction).max()) for name, each in images.items()}
    *_, second, victim = sorted(highest, key=lambda name: highest[name])
    model = np.concatenate([np.zeros(PARAMETERS - DIM), np.full(DIM, -1.0)])
    model[:64], model[-DIM] = (
        direction,
        -(highest[second] + highest[victim]) / 2,
    )  # found in rounds, by trying
    for name in EVERYONE:
        play.give_result(
            name, replace(honest, arrays=(_with_model(honest.arrays[0], model), honest.arrays[1]))
        )
    begun = play.attempt(*EVERYONE, round_number=2)
    read = begun.carried_out(EVERYONE)[-PARAMETERS:] - (len(EVERYONE) - 1) * model
    sent = play.vector(victim, begun)[-PARAMETERS:]
    assert np.abs(read - sent).max() < 0.01 * np.abs(sent - model).max()


def _images(play: ScriptedSums, name: str) -> Vector:
    """Return a site's training images, (N, 64)."""
    found = play.cast.data[name].train
    assert isinstance(found, TensorDataset)
    return found.tensors[0].flatten(1).double().numpy()


def _with_model(vector: Vector, model: Vector) -> Vector:
    """Return a result without prototypes and with a model of the coordinator's own."""
    return np.concatenate([np.zeros(len(vector) - len(model)), model])


@pytest.fixture
def play(plays: Plays) -> ScriptedSums:
    opened = plays.sums(grouped_agreement())
    opened.set_up(*EVERYONE)
    return opened


def assert_opened(play: ScriptedSums, found: Vector, begun: SumAttempt) -> None:
    """Assert that the coordinator found each value of clinic-c's vector."""
    secret = play.vector(C, begun)
    assert np.abs(secret).max() > 0.1
    assert (np.abs(found - secret) <= play.rounding()).all()


def both_kinds(play: ScriptedSums) -> tuple[Vector, SumAttempt]:
    """Everyone survives, and all that members release of clinic-c is put together, whatever kind it is of."""
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    content = codec.encode_signed_survivors(SignedSurvivors(EVERYONE, begun.sign(EVERYONE, *EVERYONE)))
    released = {name: shares_in(begun.ask(name, Phase.UNMASK, content)) for name in EVERYONE}
    seed, key = (rebuild_secret(begun, C, kind, released) for kind in (ShareKind.SEED, ShareKind.KEY))
    return open_alone(begun, C, seed, mask_keys_from(begun, C, key)), begun


def shares_in(answer: bytes) -> tuple[ReleasedShare, ...]:
    """Read the shares as a coordinator does that accepts an owner twice."""
    shares = pb.Content.FromString(answer).released_shares.shares
    return tuple(ReleasedShare(each.owner, ShareKind(each.kind), each.share) for each in shares)


def test_secrets_of_a_site_listed_as_active_and_dropped_would_open_its_vector(
    play: ScriptedSums, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request has one list, of those who stay. The double takes every site to be on the other one too."""
    weaken(KINDS, monkeypatch)
    assert_opened(play, *both_kinds(play))


def test_no_owner_has_both_its_secrets_released(play: ScriptedSums) -> None:
    with pytest.raises(MalformedError, match="0 shares"):
        both_kinds(play)


def test_coordinator_refuses_an_answer_that_releases_both_secrets_of_an_owner(
    play: ScriptedSums, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An honest coordinator refuses it, too."""
    weaken(KINDS, monkeypatch)
    with pytest.raises(codec.CodecError, match="owners"):
        play.attempt(*EVERYONE).carried_out(EVERYONE)


def test_site_releases_seeds_of_survivors_and_keys_of_dropouts(play: ScriptedSums) -> None:
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    released = begun.release(WITHOUT_C, begun.sign(WITHOUT_C, *WITHOUT_C), *WITHOUT_C)
    kinds = {
        owner: {each.kind for answer in released.values() for each in answer if each.owner == owner}
        for owner in EVERYONE
    }
    assert kinds == {**{name: {ShareKind.SEED} for name in WITHOUT_C}, C: {ShareKind.KEY}}


_HELD = 2
"""Classes that every site has, the first ones."""


def _agreement() -> Agreement:
    training = short_training(
        "tests.support.tiny_models:build_relu", lr=0.01, optimiser=Optimiser.SGD, local_epochs=3
    )
    base = small_agreement(Protection.MASKED, Weighting.UNIFORM, rounds=12)
    return Agreement.model_validate({**dict(base), "training": training, "norm_bound": 50.0})


def _sum_of_last_round(play: ScriptedSums, lengths: list[float | None]) -> NDArray[np.float64]:
    """Return the opened sum (K, d) after rounds whose results have targets of these lengths in every channel.

    ``None`` stands for the honest result.
    """
    shape = (len(play.agreement.classes), play.agreement.dim)
    for number, length in enumerate(lengths, 1):
        begun = play.attempt(*EVERYONE, round_number=number)
        opened = begun.carried_out(EVERYONE)
        result = play.result_of(opened, begun, EVERYONE)
        if length is not None:
            holders = result.arrays[1]
            targets = np.full(shape, length / np.sqrt(shape[1])) * holders[:, None]
            result = replace(result, arrays=(targets.ravel(), holders))
        for name in EVERYONE:
            play.give_result(name, result, round_number=number)
    return opened.reshape(shape)[:_HELD]


def _rows(play: ScriptedSums, rounds: int) -> dict[str, NDArray[np.float64]]:
    return {name: play.site(name).learner.train_round(rounds)[0][:_HELD] for name in EVERYONE}


def test_the_stated_limit_targets_below_zero_leave_one_site_alone_in_the_sum(plays: Plays) -> None:
    """Features die at three of four sites under negative targets; the fourth site's grow back under positive ones."""
    play = plays.sums(_agreement())
    play.set_up(*EVERYONE)
    lengths: list[float | None] = [-0.5, 4.0, 4.0, 4.0, 4.0]
    opened = _sum_of_last_round(play, lengths)
    rows = _rows(play, len(lengths))
    (alone,) = (name for name in EVERYONE if np.abs(rows[name]).max() > 0.1)
    np.testing.assert_allclose(opened, rows[alone], atol=1e-4)


def test_honest_results_leave_no_site_alone_in_the_sum(plays: Plays) -> None:
    play = plays.sums(_agreement())
    play.set_up(*EVERYONE)
    opened = _sum_of_last_round(play, [None] * 5)
    for row in _rows(play, 5).values():
        assert np.abs(row).max() > 0.1
        assert np.abs(opened - row).max() > 0.1


VICTIM, *HELPERS = TEN[:3]
DATA = dict.fromkeys(TEN, VICTIM)
SPARSE = {"complete_up_to": 6, "max_colluding": 0.2, "ring_bits": 64}
"""Two of ten may collude, for whom no list may be of fewer than five; ``min_holders`` is three."""
LEAST = 5
ENOUGH = "secure_client.exchanges.groups.GroupMembers._check_enough_members"


def played(plays: Plays, **changes: object) -> ScriptedSums:
    play = plays.sums(grouped_agreement(masking=SPARSE | changes), DATA)
    play.set_up(*TEN)
    return play


def lists_the_victim_and_its_two_helpers(play: ScriptedSums) -> None:
    """List the victim and two helpers, who know their own inputs and subtract them."""
    begun = play.attempt(*TEN[:3], groups=(TEN,))
    total = begun.carried_out(TEN[:3])
    for helper in HELPERS:
        total = total - play.vector(helper, begun)
    assert_is(play, total, play.vector(VICTIM, begun), 3)


def test_the_attack_succeeds_without_the_sites_check(plays: Plays, monkeypatch: pytest.MonkeyPatch) -> None:
    weaken(ENOUGH, monkeypatch)
    lists_the_victim_and_its_two_helpers(played(plays))


def test_member_list_dominated_by_colluders_is_refused(plays: Plays) -> None:
    play = played(plays)
    with pytest.raises(Violation) as refused:
        lists_the_victim_and_its_two_helpers(play)
    assert_raised_in(refused.value, ENOUGH)
    last = assert_nothing_answered(play)
    assert (last.site, last.key.phase) == (VICTIM, Phase.SHARES)
    assert_refused_again(play, last)


@pytest.mark.parametrize("listed", [LEAST, 6, 7, 10])
def test_member_list_long_enough_is_accepted(plays: Plays, listed: int) -> None:
    """The graph of ten members is sparse, that of fewer complete."""
    begun = played(plays).attempt(*TEN[:listed], groups=(TEN,))
    begun.share(*TEN[:listed])
    assert begun.graph.sparse is (listed == 10)


def test_member_list_one_site_too_short_is_refused(plays: Plays) -> None:
    begun = played(plays).attempt(*TEN[: LEAST - 1], groups=(TEN,))
    with pytest.raises(Violation, match=r"4 sites .* 5"):
        begun.share(VICTIM)


def test_where_every_graph_is_complete_min_holders_decides(plays: Plays) -> None:
    lists_the_victim_and_its_two_helpers(played(plays, complete_up_to=10))


@pytest.mark.parametrize(("share", "taken"), [(0.2, False), (0.1, True)])
def test_a_group_that_can_never_be_large_enough_is_refused_at_once(
    plays: Plays, share: float, taken: bool
) -> None:
    play, groups = played(plays, max_colluding=share), (TEN[:4], TEN[4:])
    if taken:
        play.attempt(*TEN[:4], groups=groups).share(VICTIM)
    else:
        with pytest.raises(Violation, match=r"4 sites, .* 5"):
            play.attempt(*TEN[:4], groups=groups)


# A statement whose keys were taken off


@pytest.mark.parametrize(
    ("layers", "place"),
    [
        ((), "protoseal_wire.class_presence.verify_presence"),
        ((PRESENCE_FIELDS,), "protoseal_wire.class_presence.check_keys_given"),
        ((PRESENCE_FIELDS, CHECK_KEYS), "crypto.pairwise.attempt.check_mask_keys"),
    ],
    ids=["signature", "list", "scheme"],
)
def test_list_that_a_members_keys_were_taken_off_is_refused_by_each_layer(
    layers: tuple[str, ...], place: str, plays: Plays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack gains nothing: without any layer, no share can be sealed to that member."""
    for layer in layers:
        weaken(layer, monkeypatch)
    play = plays.sums(grouped_agreement())
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    with pytest.raises(Violation) as refused:
        begun.share(A, active=with_keys(begun.active, {C: None}))
    assert_raised_in(refused.value, place)
    assert_nothing_answered(play)
