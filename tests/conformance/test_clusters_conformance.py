"""FedPLCC, FPL and FedPLVM: each round is the papers' equations on what sites put in, under `plain` and `masked`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from agreement import FedplccSection, Method, Protection
from protoseal_wire.messages import Phase
from tests.conformance.clustered_runs import (
    ClusterTranscript,
    excess,
    expected,
    expected_local,
    run_clustered,
)
from tests.conformance.grouped_runs import compare_predictions, grouped_agreement
from tests.conformance.runs import Bool, data_for
from tests.conformance.stepped_federation import Loss
from tests.conformance.sum_equations import contributors

ROUNDS, DIM = 2, 16
CASES: dict[str, tuple[Method, dict[str, Any]]] = {
    "fedplcc": (Method.FEDPLCC, {}),
    "unweighted": (Method.FEDPLCC, {"weighted": False}),
    "fpl": (Method.FPL, {}),
    "fedplvm": (Method.FEDPLVM, {}),
}
HOLDS = np.ones((6, 4), dtype=np.bool_)
HOLDS[:3, 1] = False  # three sites are left, just enough
HOLDS[1:5, 3] = False  # two are left: withheld

Transcripts = Callable[[Protection, str], ClusterTranscript]
each_case = pytest.mark.parametrize("case", CASES)
every_round = pytest.mark.parametrize("number", range(1, ROUNDS + 1))


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> Transcripts:
    """Every run is made once."""

    @cache
    def transcript(protection: Protection, case: str) -> ClusterTranscript:
        method, changes = CASES[case]
        return clustered(protection, method, tmp_path_factory.mktemp("run"), HOLDS, **changes)

    return transcript


def clustered(
    protection: Protection,
    method: Method,
    folder: Any,
    holds: Bool,
    *losses: Loss,
    rounds: int = ROUNDS,
    min_holders: int = 3,
    **changes: Any,
) -> ClusterTranscript:
    agreement = grouped_agreement(
        protection,
        classes=holds.shape[1],
        dim=DIM,
        rounds=rounds,
        method=method,
        min_holders=min_holders,
        fedplcc=FedplccSection(**changes),
        norm_bound=40.0,  # FedPLVM draws features far out
    )
    return run_clustered(agreement, data_for(agreement, holds), folder, losses)


@each_case
def test_local_prototypes_are_finch_over_a_classs_features(transcripts: Transcripts, case: str) -> None:
    transcript = transcripts(Protection.PLAIN, case)
    numbers = set()
    for at, local in transcript.local.items():
        want = expected_local(transcript, at)
        assert [(int(k), int(n)) for k, n in zip(local.labels, local.counts, strict=True)] == [
            (k, n) for k, _, n in want
        ]
        np.testing.assert_allclose(local.rows, [row for _, row, _ in want], rtol=0.0, atol=1e-12)
        numbers.add(int(np.bincount(local.labels).max()))
    assert (max(numbers) == 1) == (case == "fpl")


@every_round
@each_case
@pytest.mark.parametrize("protection", [Protection.PLAIN, Protection.MASKED])
def test_a_round_is_the_equations_on_what_the_sites_put_in(
    transcripts: Transcripts, protection: Protection, case: str, number: int
) -> None:
    transcript = transcripts(protection, case)
    assert len(contributors(transcript, number)) == len(HOLDS)
    assert excess(transcript, number) <= 1.0
    found = expected(transcript, number)
    assert set(found.labels) == {0, 1, 2}  # class 3 is withheld
    assert len(found.labels) > 3


@each_case
def test_a_masked_first_round_is_the_plain_one(transcripts: Transcripts, case: str) -> None:
    """Both trained alike until then, and FINCH sees the same cosines, turned or not."""
    masked, plain = transcripts(Protection.MASKED, case), transcripts(Protection.PLAIN, case)
    for at, local in plain.local.items():
        if at[0] == 1:
            np.testing.assert_array_equal(masked.local[at].rows, local.rows)
    worst = 0.0
    for site in (site for number, site in plain.results if number == 1):
        got, wanted = masked.results[1, site], plain.results[1, site]
        np.testing.assert_array_equal(got[1], wanted[1])
        np.testing.assert_allclose(got[2], wanted[2], rtol=0.0, atol=1e-13)
        bounds = expected(masked, 1)
        assert (np.abs(got[0] - wanted[0]) <= bounds.rows_bound).all()
        assert (np.abs(got[3] - wanted[3]) <= bounds.averaged_bound).all()
        worst = max(worst, float(np.abs(got[0] - wanted[0]).max()))
    assert worst > 0.0, "nothing was rounded, so nothing was masked"


@every_round
@each_case
def test_the_saved_models_predict_the_same(transcripts: Transcripts, case: str, number: int) -> None:
    compare_predictions(transcripts(Protection.MASKED, case), transcripts(Protection.PLAIN, case), number)


@pytest.mark.parametrize("literal", [False, True])
def test_a_cluster_may_be_of_one_site_where_that_is_agreed(tmp_path: Any, literal: bool) -> None:
    """The papers have one site for each domain; vectors clustered unscaled are tried too."""
    transcript = clustered(Protection.PLAIN, Method.FEDPLCC, tmp_path, HOLDS, min_holders=1, literal=literal)
    for number in range(1, ROUNDS + 1):
        assert excess(transcript, number) <= 1.0
        assert set(expected(transcript, number).labels) == {0, 1, 2, 3}


# The power of the checks


@each_case
@pytest.mark.parametrize("protection", [Protection.PLAIN, Protection.MASKED])
def test_one_contribution_less_is_beyond_the_bound(
    transcripts: Transcripts, protection: Protection, case: str
) -> None:
    transcript = transcripts(protection, case)
    for site in contributors(transcript, 2):
        assert excess(transcript, 2, without=(site,)) > 100.0


def test_the_bound_of_masks_is_beyond_that_of_plain(transcripts: Transcripts) -> None:
    masked, plain = transcripts(Protection.MASKED, "fedplcc"), transcripts(Protection.PLAIN, "fedplcc")
    masked_with_plain_bound = ClusterTranscript(plain.agreement)
    vars(masked_with_plain_bound).update({**vars(masked), "agreement": plain.agreement})
    assert excess(masked_with_plain_bound, 1) > 2.0


# Sites that vanish

PHASES = (
    *(Phase.PRESENCE, Phase.DIRECTIONS, Phase.SHARES, Phase.VALUES),
    *(Phase.SURVIVORS, Phase.UNMASK, Phase.RESULT),
)
LOST = "site-1"
EVERYONE = tuple(f"site-{i}" for i in range(1, 7))
FULL = np.ones((6, 3), dtype=np.bool_)


@pytest.fixture(scope="module")
def losing(tmp_path_factory: pytest.TempPathFactory) -> ClusterTranscript:
    """Each round loses a site in another phase; in the round after it is back."""
    losses = [Loss(LOST, number, phase) for number, phase in enumerate(PHASES, start=1)]
    folder = tmp_path_factory.mktemp("losing")
    return clustered(Protection.MASKED, Method.FEDPLCC, folder, FULL, *losses, rounds=len(PHASES) + 1)


@pytest.mark.parametrize(
    ("number", "phase"), [pytest.param(i, each, id=each.name) for i, each in enumerate(PHASES, start=1)]
)
def test_the_others_get_their_result_over_those_whose_values_came(
    losing: ClusterTranscript, number: int, phase: Phase
) -> None:
    heard = phase in (Phase.SURVIVORS, Phase.UNMASK, Phase.RESULT)
    _, attempt, abandoned = losing.summary()[number - 1]
    assert not abandoned
    assert attempt == 1 or phase in (Phase.SHARES, Phase.VALUES)  # a cluster may have needed the site
    assert contributors(losing, number) == tuple(site for site in EVERYONE if heard or site != LOST)
    assert excess(losing, number) <= 1.0
    assert {site for round_number, site in losing.results if round_number == number} == set(EVERYONE) - {LOST}
    start = losing.starts[number + 1, 1, LOST]
    assert start.catch_up is not None
    assert start.base == losing.bases[number + 1, 1, LOST]


def test_every_site_takes_part_in_the_last_round(losing: ClusterTranscript) -> None:
    assert contributors(losing, len(PHASES) + 1) == EVERYONE
    assert excess(losing, len(PHASES) + 1) <= 1.0


UNDER_PLAIN = (Phase.PRESENCE, Phase.VALUES, Phase.RESULT)


@pytest.fixture(scope="module")
def losing_plain(tmp_path_factory: pytest.TempPathFactory) -> ClusterTranscript:
    """Return the transcript under `plain`, which has fewer phases."""
    losses = [Loss(LOST, number, phase) for number, phase in enumerate(UNDER_PLAIN, start=1)]
    folder = tmp_path_factory.mktemp("losing")
    return clustered(Protection.PLAIN, Method.FEDPLCC, folder, FULL, *losses, rounds=len(UNDER_PLAIN) + 1)


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "phase"), [pytest.param(i, each, id=each.name) for i, each in enumerate(UNDER_PLAIN, start=1)]
)
def test_the_others_get_their_result_under_plain(
    losing_plain: ClusterTranscript, number: int, phase: Phase
) -> None:
    heard, after = phase is Phase.RESULT, len(UNDER_PLAIN) + 1
    assert losing_plain.summary()[number - 1] == (number, 2 if phase is Phase.VALUES else 1, False)
    assert contributors(losing_plain, number) == tuple(site for site in EVERYONE if heard or site != LOST)
    assert {site for at, site in losing_plain.results if at == number} == set(EVERYONE) - {LOST}
    assert contributors(losing_plain, after) == EVERYONE
    assert max(excess(losing_plain, number), excess(losing_plain, after)) <= 1.0


def needed(transcript: ClusterTranscript, number: int, attempt: int) -> set[str]:
    """Return the sites without which some cluster of an attempt has too few."""
    found: set[str] = set()
    for holders in transcript.holders(number, attempt):
        found |= set(holders) if len(holders) == transcript.agreement.min_holders else set()
    return found


@pytest.mark.parametrize("spared", [True, False])
def test_a_round_is_repeated_if_a_cluster_needs_who_is_lost_and_only_then(
    tmp_path: Any, spared: bool
) -> None:
    before = clustered(Protection.MASKED, Method.FEDPLCC, tmp_path / "all", FULL, rounds=1)
    necessary = needed(before, 1, 1)
    lost = sorted(set(EVERYONE) - necessary if spared else necessary)[0]
    transcript = clustered(
        Protection.MASKED, Method.FEDPLCC, tmp_path / "lost", FULL, Loss(lost, 1, Phase.VALUES), rounds=1
    )
    assert transcript.summary() == [(1, 1 if spared else 2, False)]
    assert contributors(transcript, 1) == tuple(site for site in EVERYONE if site != lost)
    assert excess(transcript, 1) <= 1.0
