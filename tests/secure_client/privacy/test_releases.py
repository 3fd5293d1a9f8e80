"""A run's releases: spent before they are drawn, no more than the site allows, and the same bytes for a round.

A run without noise is a line of the ledger before any exact value leaves the site.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

from agreement import Agreement, Extractor, Method, PrivacySection, Protection
from agreement.sections.privacy import Noise
from algorithms.pfpl import Weighting
from privacy.errors import BudgetError, LedgerError
from privacy.ledger.budget_account import read_account
from privacy.ledger.lines import Limit
from privacy.mechanisms import prototype_query
from privacy.mechanisms.cell_query import Cells
from privacy.mechanisms.discrete_gaussian import discrete_gaussian
from privacy.mechanisms.grid import SIGMA
from secure_client.privacy.budget import BudgetSection, check_delta, open_site_ledger
from secure_client.privacy.cost import (
    SIMULATED_DELTA,
    check_room,
    planned_by_round,
    planned_epsilon,
    simulated_budget,
)
from secure_client.privacy.releases import ExactReleases, Releases, build_query, open_releases
from secure_client.session import Session
from tests.support.scripted_coordinator import Cast, ScriptedCoordinator, Site
from tests.support.small import small_agreement

NOISE = 6.3
"""Noise with which twenty releases cost an epsilon of 3 or less at a δ of 1e-5."""
Batch = tuple[NDArray[np.float64], NDArray[np.int64]]


def agreement(rounds: int = 20, **changes: Any) -> Agreement:
    privacy = PrivacySection(clip=1.0, noise_multiplier=NOISE, **{"release_every": 1, **changes})
    return small_agreement(rounds=rounds).model_copy(update={"privacy": privacy})


def budget(folder: Path, epsilon: float = 3.0, **changes: Any) -> BudgetSection:
    return BudgetSection(dataset="scans", ledger=folder / "ledger.jsonl", epsilon=epsilon, **changes)


def planned(agreed: Agreement) -> float:
    assert agreed.privacy is not None
    return planned_epsilon(agreed, agreed.privacy, 1e-5)


def opened(agreed: Agreement, own: BudgetSection) -> Releases:
    releases = open_releases(agreed, own)
    assert releases is not None
    return releases


def batches(agreed: Agreement) -> list[Batch]:
    """Return two batches of 300 records each, near one of the axes for each class."""
    rng, classes = np.random.default_rng(0), len(agreed.classes)
    labels = np.arange(600, dtype=np.int64) % classes
    features = np.eye(classes, agreed.dim)[labels] + 0.01 * rng.normal(size=(600, agreed.dim))
    return [(features[:300], labels[:300]), (features[300:], labels[300:])]


def test_release_is_recorded_with_its_cost(tmp_path: Path) -> None:
    agreed = agreement()
    releases = opened(agreed, budget(tmp_path))
    drawn = releases.release(3, batches(agreed))
    assert drawn.rows.shape == (len(agreed.classes), agreed.dim)
    account = read_account(tmp_path / "ledger.jsonl")
    (entry,) = account.entries
    assert (entry.spending.release.run, entry.spending.release.round) == (agreed.run, 3)
    assert entry.spending.agreement_hash == agreed.hash()
    assert entry.spending.event.noise_multiplier == NOISE
    assert entry.spending.facts["guarantee"] == "record"
    spent = releases.spent_budget()
    assert 0.0 < spent.epsilon < planned(agreed)
    assert spent.guaranteed


FALSE_ALARM = 1e-9
RELEASES = 24


def drawn_by(releases: Releases, number: int, given: list[Batch], cells: bool) -> NDArray[np.float64]:
    """Return what a release drew, in whole steps of the query's grid: (K, d + 1), counts last."""
    agreed = releases._agreement
    assert agreed.privacy is not None
    grid = build_query(agreed.privacy, agreed.dim).grid
    if cells:
        single = Cells.around(np.zeros((0, agreed.dim)), np.zeros(0, dtype=np.int64), len(agreed.classes))
        sums, counts = releases.release_cells(number, given, single).drawn
    else:
        released = releases.release(number, given)
        sums, counts = released.sums, released.counts
    return np.column_stack([sums / grid.step, counts * grid.weight])


def exact_in(agreed: Agreement, given: list[Batch]) -> NDArray[np.float64]:
    """Return the agreed query's exact answer, each record once: (K, d + 1)."""
    assert agreed.privacy is not None
    sums = build_query(agreed.privacy, agreed.dim).start(len(agreed.classes), agreed.dim)
    for features, labels in given:
        sums.add(features, labels)
    return np.column_stack([sums.vectors, sums.weights]).astype(np.float64)


def uneven(agreed: Agreement) -> list[Batch]:
    """Return batches of records longer than the clip, few of the last class."""
    features, labels = (np.concatenate(parts) for parts in zip(*batches(agreed), strict=True))
    kept = (labels < len(agreed.classes) - 1) | (np.arange(len(labels)) < 30)
    return [(3 * features[kept], labels[kept])]


@pytest.mark.parametrize("cells", [False, True], ids=["of classes", "of cells"])
def test_release_noise_is_what_its_entry_claims(tmp_path: Path, cells: bool) -> None:
    """The mechanism's noise alone would not do: a site's release may use another query, or add less of it."""
    agreed = agreement(RELEASES)
    releases, given = opened(agreed, budget(tmp_path, 100.0)), uneven(agreed)
    drawn = [drawn_by(releases, number, given, cells) for number in range(1, RELEASES + 1)]
    noise = (np.array(drawn) - exact_in(agreed, given)) / SIGMA
    for part in (noise, noise[..., -1], noise[..., :-1], noise[:, :1], noise[:, -1:]):
        total, law = float(np.square(part).sum()), stats.chi2(part.size)
        assert FALSE_ALARM < law.cdf(total) < 1 - FALSE_ALARM
        assert (
            law.cdf(total * 9 / 4) > 1 - FALSE_ALARM or part.size < 500
        )  # two thirds of the noise would show
    for one, other in (
        (noise[1:], noise[:-1]),
        (noise[:, 1:], noise[:, :-1]),
        (noise[..., 1:], noise[..., :-1]),
    ):
        assert abs(float((one * other).sum())) < stats.norm.isf(FALSE_ALARM) * np.sqrt(one.size)


@pytest.mark.parametrize("cells", [False, True], ids=["of classes", "of cells"])
def test_release_sums_every_record_once_and_clipped(
    tmp_path: Path, cells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "privacy.mechanisms.prototype_query.discrete_gaussian", lambda count, _: np.zeros(count, np.int64)
    )
    agreed = agreement()
    given = uneven(agreed)
    drawn = drawn_by(opened(agreed, budget(tmp_path)), 1, given, cells)
    np.testing.assert_allclose(drawn, exact_in(agreed, given), rtol=1e-12)


def test_release_draws_nothing_before_it_is_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = agreement()
    releases, ledger = opened(agreed, budget(tmp_path)), tmp_path / "ledger.jsonl"
    lines: list[int] = []

    def counted(count: int, sigma_log2: int) -> Any:
        lines.append(len(ledger.read_text().splitlines()))
        return discrete_gaussian(count, sigma_log2)

    monkeypatch.setattr(prototype_query, "discrete_gaussian", counted)
    releases.release(1, batches(agreed))
    releases.release(2, batches(agreed))
    assert lines == [2, 3]  # after the line that the ledger begins with


def test_release_unwritable_ledger_draws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = agreement()
    releases = opened(agreed, budget(tmp_path))
    (tmp_path / "ledger.jsonl").unlink()
    monkeypatch.setattr(
        "privacy.mechanisms.prototype_query.discrete_gaussian", lambda *_: pytest.fail("noise was drawn")
    )
    with pytest.raises(LedgerError):
        releases.release(1, batches(agreed))


def test_release_budget_spent_by_another_run_is_refused(
    tmp_path: Path,
) -> None:
    """Ten rounds fit, and both runs begin; the eleventh release is the later run's."""
    first, second = agreement(10), agreement(10).model_copy(update={"run": "later"})
    own = budget(tmp_path, planned(first))
    releases, later = opened(first, own), opened(second, own)
    for number in range(1, 11):
        releases.release(number, batches(first))
    with pytest.raises(BudgetError, match="'scans'"):
        later.release(1, batches(second))
    assert len(read_account(own.ledger).entries) == 10


def test_open_releases_run_beyond_the_rest_is_refused(tmp_path: Path) -> None:
    first, second = agreement(10), agreement(10).model_copy(update={"run": "later"})
    own = budget(tmp_path, planned(first))
    opened(first, own).release(1, batches(first))
    with pytest.raises(BudgetError, match="round 10 "):
        opened(second, own)
    assert len(read_account(own.ledger).entries) == 1


def test_open_releases_resumed_run_counts_its_payments(tmp_path: Path) -> None:
    """The site missed rounds 1 to 3. Two payments of round 4 take the room of one missed round."""
    agreed = agreement(10)
    own = budget(tmp_path, planned(agreed))
    opened(agreed, own).release(4, batches(agreed))
    opened(agreed, own).release(4, batches(agreed))
    releases = opened(agreed, own)
    for number in range(5, 11):
        releases.release(number, batches(agreed))
    opened(agreed, own)  # nothing is left to pay
    assert len(read_account(own.ledger).entries) == 8


def test_open_releases_resumed_run_after_repeats_is_refused(tmp_path: Path) -> None:
    agreed = agreement(10)
    own = budget(tmp_path, planned(agreed))
    for _ in range(2):
        opened(agreed, own).release(1, batches(agreed))
    with pytest.raises(BudgetError, match="round 10 "):
        opened(agreed, own)


def test_open_releases_lowered_limit_refuses_unless_all_is_paid(
    tmp_path: Path,
) -> None:
    agreed = agreement(2)
    own, less = budget(tmp_path, planned(agreed)), budget(tmp_path, planned(agreed) / 2)
    opened(agreed, own).release(1, batches(agreed))
    open_site_ledger(own).allow(site_limit(less), "the board")
    with pytest.raises(BudgetError, match="round 2 "):
        opened(agreed, less)
    open_site_ledger(less).allow(site_limit(own), "the board")
    opened(agreed, own).release(2, batches(agreed))
    open_site_ledger(own).allow(site_limit(less), "the board")
    opened(agreed, less)


def site_limit(own: BudgetSection) -> Limit:
    return Limit(own.epsilon, own.delta, own.unit, own.accountant)


def test_open_releases_agreement_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetError):
        opened(agreement(20), budget(tmp_path, 2.0))
    assert not (tmp_path / "ledger.jsonl").exists()


def test_open_releases_needs_noise_and_a_budget() -> None:
    with pytest.raises(BudgetError):
        open_releases(agreement(), None)
    assert open_releases(small_agreement(), None) is None


def test_spent_budget_trained_features_have_no_guarantee(tmp_path: Path) -> None:
    agreed = agreement(extractor=Extractor.TRAINED)
    releases = opened(agreed, budget(tmp_path, allow_no_guarantee=True))
    releases.release(1, batches(agreed))
    (entry,) = read_account(tmp_path / "ledger.jsonl").entries
    assert entry.spending.facts["guarantee"] == "none"
    assert not releases.spent_budget().guaranteed


def test_spent_budget_stays_without_guarantee(tmp_path: Path) -> None:
    """The epsilon is of all that the ledger has."""
    loose = opened(agreement(extractor=Extractor.TRAINED), budget(tmp_path, 4.0, allow_no_guarantee=True))
    loose.release(1, batches(agreement()))
    strict = opened(agreement().model_copy(update={"run": "later"}), budget(tmp_path, 4.0))
    strict.release(1, batches(agreement()))
    assert [each.spending.facts["guarantee"] for each in read_account(tmp_path / "ledger.jsonl").entries] == [
        "none",
        "record",
    ]
    assert not strict.spent_budget().guaranteed


def test_spent_budget_is_shared_by_all_runs(tmp_path: Path) -> None:
    first, second = (
        opened(agreement().model_copy(update={"run": run}), budget(tmp_path)) for run in ("one", "two")
    )
    first.release(1, batches(agreement()))
    once = first.spent_budget().epsilon
    second.release(1, batches(agreement()))
    assert first.spent_budget() == second.spent_budget()
    assert first.spent_budget().epsilon > 1.2 * once


@pytest.mark.parametrize(("delta", "records"), [(0.9, 2), (1e-3, 1000), (1e-5, 200_000)])
def test_check_delta_one_over_the_records_is_refused(tmp_path: Path, delta: float, records: int) -> None:
    with pytest.raises(BudgetError, match="delta"):
        check_delta(budget(tmp_path, delta=delta), records)
    check_delta(budget(tmp_path, delta=delta / (2 * records)), records)


def test_build_query_without_a_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="privacy"):
        opened(agreement(count_weight=1e-9), budget(tmp_path))


def rounds_due(agreed: Agreement, folder: Path, taken_part: Iterable[int]) -> list[int]:
    """Return the rounds in which a site draws a release, of those in which it takes part."""
    releases, due = opened(agreed, budget(folder, allow_no_guarantee=True)), list[int]()
    for number in taken_part:
        if releases.is_due(number, due[-1] if due else None):
            due.append(number)
    return due


def planned_rounds(agreed: Agreement) -> list[int]:
    """Return the rounds in which the plan has a release."""
    assert agreed.privacy is not None
    return [name.round for name, _ in planned_by_round(agreed, agreed.privacy)]


@pytest.mark.parametrize(
    ("every", "due"), [(1, [1, 2, 3, 4, 5]), (2, [1, 3, 5]), (5, [1]), (9, [1]), (None, [1])]
)
def test_is_due_follows_the_agreed_rounds(tmp_path: Path, every: int | None, due: list[int]) -> None:
    agreed = agreement(5, release_every=every)
    assert rounds_due(agreed, tmp_path, range(1, 6)) == due
    assert planned_rounds(agreed) == due
    assert agreed.releases == len(due)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        (Method.PFPL, {"extractor": Extractor.TRAINED}),
        (Method.PFPL, {"noise": Noise.DISTRIBUTED}),
        (Method.FEDPLCC, {}),
    ],
)
def test_is_due_changing_query_is_every_round(method: Method, changes: dict[str, Any]) -> None:
    """Features are trained, noise must be fresh in each sum, or cells follow the round before."""
    agreed = agreement(5, release_every=None, **changes).model_copy(update={"method": method})
    assert (agreed.release_every, agreed.row_period, agreed.releases) == (1, 1, 5)


def test_is_due_missed_first_round_pays_nothing(tmp_path: Path) -> None:
    """Periods are the same at every site, and nobody would receive the site's rows."""
    assert rounds_due(agreement(9, release_every=3), tmp_path, (1, 2, 5, 6, 7, 8)) == [1, 7]


@pytest.mark.parametrize(
    ("method", "every", "taken_part", "due"),
    [
        (Method.PFPL, None, (2, 3, 4, 5), []),
        (Method.PFPL, 3, (2, 3, 4, 5), [4]),
        (Method.FEDPC, None, (1, 2, 5), [1]),
        (Method.FEDPC, None, (2, 3), []),
        (Method.FEDPC, 2, (2, 3, 4), [3]),
        (Method.FEDPC, 2, (1, 2, 3), [1, 3]),
    ],
)
def test_is_due_first_release_only_in_a_round_that_sends(
    tmp_path: Path, method: Method, every: int | None, taken_part: Iterable[int], due: list[int]
) -> None:
    """FedPC's first round sends the clustering's release, so a site that missed the clustering may still draw it."""
    agreed = agreement(5, release_every=every).model_copy(update={"method": method})
    assert rounds_due(agreed, tmp_path, taken_part) == due


@pytest.mark.parametrize(
    ("extractor", "every", "due"),
    [
        (Extractor.FROZEN, None, [0]),
        (Extractor.FROZEN, 1, [0, 2, 3, 4, 5]),
        (Extractor.FROZEN, 2, [0, 3, 5]),
        (Extractor.TRAINED, None, [0, 1, 2, 3, 4, 5]),
        (Extractor.TRAINED, 2, [0, 1, 3, 5]),
    ],
)
def test_is_due_clustering_release_serves_the_first_period(
    tmp_path: Path, extractor: Extractor, every: int | None, due: list[int]
) -> None:
    """A run has as many releases as are planned."""
    agreed = agreement(5, release_every=every, extractor=extractor).model_copy(
        update={"method": Method.FEDPC}
    )
    assert rounds_due(agreed, tmp_path, range(6)) == due
    assert planned_rounds(agreed) == due
    assert agreed.releases == len(due)


def test_check_room_missed_clustering_leaves_room_for_the_rest(tmp_path: Path) -> None:
    """The plan has the release in the clustering, the ledger in the first round."""
    agreed = agreement(release_every=None).model_copy(update={"method": Method.FEDPC})
    own = budget(tmp_path, planned(agreed))
    opened(agreed, own).release(1, batches(agreed))
    assert agreed.privacy is not None
    check_room(agreed, agreed.privacy, read_account(own.ledger))
    with pytest.raises(BudgetError):
        check_room(agreed.model_copy(update={"run": "later"}), agreed.privacy, read_account(own.ledger))


def test_simulated_budget_has_room_for_its_run_alone(tmp_path: Path) -> None:
    agreed = agreement(3)
    releases = opened(agreed, simulated_budget(agreed, "site-1", tmp_path))
    for number in (1, 2, 3, *[3] * 8):  # some paid twice
        releases.release(number, batches(agreed))
    assert releases.spent_budget().delta == SIMULATED_DELTA
    with pytest.raises(BudgetError):
        releases.release(4, batches(agreed))


def test_min_count_is_three_deviations_unless_agreed() -> None:
    agreed = PrivacySection(clip=3.0, noise_multiplier=2.0, count_weight=4.0)
    assert build_query(agreed, 16).min_count == pytest.approx(3 * 2.0 * 5.0 / 4.0)
    assert SIGMA / build_query(agreed, 16).grid.weight == pytest.approx(2.0 * 5.0 / 4.0, rel=1e-5)
    assert build_query(agreed.model_copy(update={"min_count": 7.0}), 16).min_count == 7.0


def test_min_count_of_a_mean_is_that_of_one_release_at_the_whole_budget() -> None:
    """Four draws with twice the noise cost as much as one, and their mean is as certain."""
    one = PrivacySection(clip=3.0, noise_multiplier=2.0)
    four = one.model_copy(update={"noise_multiplier": 4.0})
    assert build_query(four, 16, draws=4).min_count == pytest.approx(build_query(one, 16).min_count)
    agreed = one.model_copy(update={"min_count": 7.0})
    assert build_query(agreed, 16, draws=4).min_count == 7.0


def test_count_weight_minimises_the_error_unless_agreed() -> None:
    agreed = PrivacySection(clip=3.0, noise_multiplier=2.0)
    assert build_query(agreed, 81).count_weight == pytest.approx(1.0)


def test_release_record_that_is_not_finite_counts_as_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The record counts with a feature of zeros: the sums equal those with a record of zeros."""
    drawn: list[NDArray[np.int64]] = []

    def kept(count: int, _: int) -> NDArray[np.int64]:
        drawn.append(np.arange(count, dtype=np.int64))
        return drawn[-1]

    monkeypatch.setattr(prototype_query, "discrete_gaussian", kept)
    agreed = agreement()
    released = []
    for name, value in (("spoilt", np.inf), ("zero", 0.0)):
        given = batches(agreed)
        given[1][0][7] = value
        (tmp_path / name).mkdir()
        released.append(opened(agreed, budget(tmp_path / name)).release(1, given))
    assert np.array_equal(released[0].rows, released[1].rows)
    assert np.array_equal(released[0].counts, released[1].counts)
    assert [each.getMessage().split(":")[0] for each in caplog.records if "finite" in each.message] == [
        "the features of 1 records are not finite and count as zero"
    ]


A, OTHERS = "clinic-a", ("clinic-b", "clinic-c", "clinic-d")


@pytest.fixture
def play(tmp_path: Path, cast: Cast) -> Iterator[ScriptedCoordinator]:
    with ScriptedCoordinator(tmp_path, small_agreement(Protection.PLAIN, Weighting.COMPLEMENT), cast) as play:
        play.set_up(A, *OTHERS)
        yield play


def test_presence_without_noise_records_the_exposure_once(play: ScriptedCoordinator, tmp_path: Path) -> None:
    budget = BudgetSection(dataset="scans", ledger=tmp_path / "scans.ledger", epsilon=1.0)
    site = play.site(A)
    exact = ExactReleases(play.agreement, budget)
    play._sites[A] = Site(
        Session(play.agreement, play.parties[A], site.learner, site.journal, exact=exact),
        site.learner,
        site.journal,
    )
    assert read_account(budget.ledger).guaranteed
    for attempt in (1, 2):
        shown = play.presence(A, attempt=attempt).anchor
        account = read_account(budget.ledger)
        assert [exposure.run for exposure in account.exposures] == [play.agreement.run]
        assert shown is not None
        assert (shown.seq, shown.head.hex()) == account.anchor
        assert not exact.spent_budget().guaranteed
