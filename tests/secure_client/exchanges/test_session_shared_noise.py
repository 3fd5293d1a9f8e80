"""A site whose noise others share: what it adds, for whom, what it pays, and when it adds nothing."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import Noise, PrivacySection
from crypto.errors import VerificationError
from privacy.errors import BudgetError
from privacy.ledger.budget_account import read_account
from privacy.ledger.lines import Entry
from privacy.mechanisms.discrete_gaussian import discrete_gaussian
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.errors import Violation
from secure_client.privacy.budget import BudgetSection
from secure_client.privacy.releases import Releases
from tests.secure_client.conftest import OpenSites
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.ledgers import spent_budget
from tests.support.scripted_sums import ScriptedSums

A, B, C, D = EVERYONE
SHARED = PrivacySection(clip=2.0, noise_multiplier=4.0, noise=Noise.DISTRIBUTED, colluding=1)
Terms = Mapping[str, list[NDArray[np.int64]]]


def open_play(open_sites: OpenSites, insist: int | None = None, **changes: Any) -> ScriptedSums:
    opened = open_sites(grouped_agreement(**{"privacy": SHARED, **changes}))
    for name in EVERYONE:
        if insist is not None:
            opened.insist(name, insist)
    opened.set_up(*EVERYONE)
    return opened


@pytest.fixture
def play(open_sites: OpenSites) -> ScriptedSums:
    return open_play(open_sites)


@pytest.fixture
def terms(monkeypatch: pytest.MonkeyPatch) -> Terms:
    """Return the drawn noise that each site is to add, by name, in order: (K·d + K,)."""
    drawn: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
    term = Releases.sum_term

    def noted(self: Releases, *given: Any) -> Any:
        vectors, weights = term(self, *given)
        drawn[self._budget.dataset].append(np.concatenate([vectors.ravel(), weights]))
        return vectors, weights

    monkeypatch.setattr(Releases, "sum_term", noted)
    return drawn


def entries(play: ScriptedSums, name: str) -> tuple[Entry, ...]:
    return read_account(play.budget(name).ledger).entries


def noisy_part(play: ScriptedSums, total: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the noisy part of an opened sum, in whole steps."""
    vectors, weights = play.agreement.layout.noisy_parts(total)
    return np.concatenate([vectors.ravel(), weights])


# What opens


@pytest.mark.parametrize("survivors", [EVERYONE, (A, B, D)])
def test_the_sum_is_that_of_the_survivors_terms_to_the_last_digit(
    play: ScriptedSums, terms: Terms, survivors: tuple[str, ...]
) -> None:
    total = noisy_part(play, play.attempt(*EVERYONE).carried_out(survivors))
    assert total.tolist() == np.sum([terms[name][0] for name in survivors], axis=0).tolist()


def test_the_anchor_in_a_presence_statement_covers_the_payment_for_the_attempt(play: ScriptedSums) -> None:
    """All that a site pays is known to others before it adds anything: so also for who drops out before that."""
    begun = play.attempt(*EVERYONE)
    begun.carried_out((A, B, D))
    for statement in begun.active.statements:
        account = read_account(play.budget(statement.site).ledger)
        assert statement.anchor is not None
        assert (statement.anchor.seq, statement.anchor.head.hex()) == account.anchor
        assert len(account.entries) == 1


def test_the_ledger_says_whose_noise_it_was(play: ScriptedSums) -> None:
    play.attempt(*EVERYONE).carried_out(EVERYONE)
    (entry,) = entries(play, A)
    facts, event = entry.spending.facts, entry.spending.event
    assert (facts["noise"], facts["colluding"]) == ("distributed", 1)
    assert event.noise_multiplier == 4.0
    assert event.coordinates == 3 * (8 + 1)  # type: ignore[union-attr]
    assert facts["guarantee"] == "record"


def test_a_site_states_and_adds_to_classes_that_it_has_not(
    play: ScriptedSums, terms: Terms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """clinic-c has no record of the third class, and adds noise there like the others: what it drew, and no more."""
    drawn: list[NDArray[np.int64]] = []

    def noted(count: int, sigma_log2: int) -> NDArray[np.int64]:
        drawn.append(discrete_gaussian(count, sigma_log2))
        return drawn[-1]

    monkeypatch.setattr("privacy.mechanisms.prototype_query.discrete_gaussian", noted)
    begun = play.attempt(*EVERYONE)
    assert all(statement.holds.all() for statement in begun.active.statements)
    begun.carried_out(EVERYONE)
    of_third = terms[C][0][2 * 8 : 3 * 8]
    assert any(np.array_equal(each.reshape(3, 8 + 1)[2, :8], of_third) for each in drawn)
    assert np.abs(of_third).max() > 2**16  # all eight are less with 4e-11
    assert not play.site(C).learner.values.held_classes().any()


def test_below_the_threshold_nothing_opens(play: ScriptedSums) -> None:
    """Two survivors of four: no site signs, and of the shares that an honest one would give none opens a seed."""
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(A, B)
    for name in (A, B):
        with pytest.raises(Violation, match="survivors"):
            begun.sign((A, B), name)
    with pytest.raises(VerificationError, match="3"):
        begun.sum((A, B), {})


# Once


def test_another_attempt_is_other_noise_and_paid_for(play: ScriptedSums, terms: Terms) -> None:
    """Another attempt can be on another grid too, since its list decides."""
    first = play.attempt(*EVERYONE)
    first.share(*EVERYONE)
    first.mask(*EVERYONE)
    left = (A, B, D)
    total = noisy_part(play, play.attempt(*left, attempt=2).carried_out(left))
    assert [len(entries(play, name)) for name in EVERYONE] == [2, 2, 1, 2]
    assert not _noise_kept(play, A)
    assert total.tolist() == np.sum([terms[name][1] for name in left], axis=0).tolist()
    # Two draws are equal with 3e-7: twice among these with 3e-11.
    assert np.count_nonzero(terms[A][0] == terms[A][1]) <= 1


def test_each_list_has_the_share_of_its_own_threshold(play: ScriptedSums) -> None:
    """Ten listed go by seven, of whom one may collude; seven by five."""
    play.attempt(*EVERYONE)
    learner = play.site(A).learner
    share = learner.draw_noise_share(1)
    records = [learner.noisy_sum_term(1, listed, np.zeros_like(share))[1].sum() for listed in (10, 7)]
    steps = [play.agreement.noisy_sum(listed).grid.step for listed in (10, 7)]
    assert steps[1] / steps[0] == pytest.approx((6 / 4) ** 0.5)
    assert records[0] / records[1] == pytest.approx((6 / 4) ** 0.5, rel=1e-4)


@pytest.mark.parametrize("shared", [False, True])
def test_one_payment_is_one_share_however_often_journal_and_ledger_are_put_back(
    play: ScriptedSums, tmp_path: Path, shared: bool
) -> None:
    """Journal and ledger are put back between PRESENCE and VALUES, with the first vector on its way: it leaves
    unchanged.
    """
    begun = play.attempt(*EVERYONE)
    if shared:
        begun.share(*EVERYONE)
    kept = _copy_of_state(play, A, tmp_path / "kept")
    begun.share(*EVERYONE)
    begun.mask(A)
    first = begun.masked.pop(A)
    _put_back(play, A, kept)
    if not shared:
        begun.ask(A, Phase.SHARES, codec.encode_active_list(begun.active))
    begun.mask(A)
    assert begun.masked[A].tolist() == first.tolist()
    assert len(entries(play, A)) == 1


def test_journal_and_ledger_put_back_to_before_the_payment_are_refused_in_the_same_attempt(
    play: ScriptedSums, tmp_path: Path
) -> None:
    """The statement that the attempt lists has the keys, and the anchor, of the payment that is gone."""
    play.presence(A, round_number=0)
    kept = _copy_of_state(play, A, tmp_path / "kept")
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(A)
    _put_back(play, A, kept)
    play.attempt(A)
    with pytest.raises(Violation, match="presence"):
        begun.share(A)


# Not at all


def test_a_list_that_colluders_could_take_the_noise_from_is_refused(
    open_sites: OpenSites,
) -> None:
    """min_holders of two would allow it; one that colludes would leave the noise of one, and know the other's sum.

    The share that was drawn for the attempt goes nowhere.
    """
    play = open_play(open_sites, 2, min_holders=2, min_sites=2, allow_fewer_holders_reveals_peers=True)
    begun = play.attempt(A, B)
    with pytest.raises(Violation, match=r"^2 "):
        begun.share(A)
    assert play.site(A).journal.stored_answer(PhaseKey("run-1", 1, 1, Phase.SHARES)) is None


def test_a_group_that_is_too_small_for_the_colluders_is_refused(open_sites: OpenSites) -> None:
    play = open_play(open_sites, privacy=SHARED.model_copy(update={"colluding": 2}))
    with pytest.raises(Violation, match="agreed 5"):
        play.attempt(*EVERYONE)


def test_a_site_that_cannot_pay_takes_part_in_no_further_attempt(
    open_sites: OpenSites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it says that it is there, so that the others list without it."""
    ample = ScriptedSums.budget

    def tight(self: ScriptedSums, name: str) -> BudgetSection:
        own = ample(self, name)
        return own.model_copy(update={"epsilon": 1.6}) if name == A else own

    monkeypatch.setattr(ScriptedSums, "budget", tight)
    play = open_play(open_sites, rounds=1)
    paid = 0
    while paid < 9 and _says_that_it_is_there(play, attempt=paid + 1):
        paid += 1
    assert len(entries(play, A)) == paid >= 1
    with pytest.raises(BudgetError, match="clinic-a"):
        play.attempt(*EVERYONE, attempt=paid + 2)
    for attempt in (paid + 1, paid + 2):
        stated = PhaseKey("run-1", 1, attempt, Phase.PRESENCE)
        assert play.site(A).journal.stored_answer(stated) is None


@pytest.mark.parametrize("restarted", [False, True])
def test_a_coordinator_that_repeats_attempts_causes_no_more_payments_than_the_sites_file_allows(
    open_sites: OpenSites, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    """The budget has room for more payments. Restarts reset no count, and the next round is paid for again."""
    ample = ScriptedSums.budget
    monkeypatch.setattr(
        ScriptedSums, "budget", lambda *given: ample(*given).model_copy(update={"most_paid_attempts": 3})
    )
    play = open_play(open_sites, rounds=2)
    for attempt in range(1, 4):
        play.attempt(A, attempt=attempt)
        if restarted:
            play.restart(A)
    for attempt in range(4, 7):
        with pytest.raises(BudgetError, match="most_paid_attempts"):
            play.attempt(A, attempt=attempt)
        play.restart(A)  # a site that refused is restarted by its service manager
    assert len(entries(play, A)) == 3
    assert read_account(play.budget(A).ledger).limit.epsilon > spent_budget(play.site(A).learner).epsilon
    play.attempt(A, round_number=2)
    assert len(entries(play, A)) == 4


def _noise_kept(play: ScriptedSums, name: str) -> bool:
    return any(
        play.site(name).journal.secret(f"noise of round 1, attempt {attempt}") is not None
        for attempt in (1, 2)
    )


def _copy_of_state(play: ScriptedSums, name: str, kept: Path) -> Path:
    """Copy journal and ledger of a site, as they lie on the disk now."""
    play.restart(name)
    shutil.copytree(play.state(name), kept / "state")
    shutil.copytree(play.budget(name).ledger.parent, kept / "ledger")
    return kept


def _put_back(play: ScriptedSums, name: str, kept: Path) -> None:
    play.lose_state(name)
    shutil.copytree(kept / "state", play.state(name))
    shutil.copytree(kept / "ledger", play.budget(name).ledger.parent, dirs_exist_ok=True)


def _says_that_it_is_there(play: ScriptedSums, attempt: int) -> bool:
    """Return False if the budget refuses the site; otherwise add its values, like everyone's."""
    try:
        begun = play.attempt(*EVERYONE, attempt=attempt)
    except BudgetError:
        return False
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    return True
