"""Rounds under `ckks` that lose sites in each phase: each is repeated without them, or abandoned, never both.

As long as nobody can have read a sum, the round is attempted again without the lost sites. Once the coordinator has
asked the groups' leaders for means, the loss of a leader ends the round, and any other loss costs the round nothing. A
site that missed a result receives the very ciphertexts that the others received, and trains from the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from agreement import Method, Protection
from protoseal_wire.messages import Phase
from secure_server.rounds import transitions
from tests.conformance import clustered_runs, sum_equations, test_restarts
from tests.conformance.clustered_runs import ClusterTranscript, run_clustered
from tests.conformance.grouped_runs import Transcript, grouped_agreement, run_grouped, two_kinds
from tests.conformance.plain_answers import check_predictions
from tests.conformance.runs import data_for
from tests.conformance.stepped_federation import Loss

EVERYONE = tuple(f"site-{i}" for i in range(1, 10))
FIRST, SECOND = EVERYONE[::2], EVERYONE[1::2]
"""FedPC's groups, whose first members lead them."""
LEADER, MEMBERS = FIRST[0], (FIRST[1], SECOND[1])

GROUPS: dict[int, tuple[Phase, tuple[str, ...]]] = {
    1: (Phase.PRESENCE, MEMBERS),
    2: (Phase.VALUES, (LEADER,)),
    3: (Phase.MEANS, MEMBERS),
    5: (Phase.MEANS, (LEADER,)),
    7: (Phase.RESULT, (LEADER, SECOND[1])),
}
SUMS: dict[int, tuple[Phase, tuple[str, ...]]] = {
    1: (Phase.PRESENCE, MEMBERS),
    2: (Phase.VALUES, MEMBERS),
    3: (Phase.RESULT, MEMBERS),
}
CLUSTERS: dict[int, tuple[Phase, tuple[str, ...]]] = {
    1: (Phase.PRESENCE, ("site-1",)),
    2: (Phase.DIRECTIONS, ("site-2",)),
    3: (Phase.VALUES, ("site-5",)),  # one of three that have the last class
    4: (Phase.RESULT, ("site-1",)),
}
LOST = {Method.FEDDBP: SUMS, Method.FEDPC: GROUPS, Method.FEDPLCC: CLUSTERS}
ABANDONED = 5
"""FedPC's round without a result."""
Transcripts = Callable[[Method], Transcript]
each_loss = pytest.mark.parametrize(
    ("method", "number"),
    [
        pytest.param(method, number, id=f"{method.value}-{phase.name}-{number}")
        for method, lost in LOST.items()
        for number, (phase, _) in lost.items()
        if (method, number) != (Method.FEDPC, ABANDONED)
    ],
)


def run(method: Method, rounds: int, folder: Path, losses: Sequence[Loss]) -> Transcript:
    """FedPLCC with six sites, of which three have the last class."""
    agreement = grouped_agreement(
        Protection.CKKS,
        method=method,
        classes=4 if method is Method.FEDPLCC else 6,
        dim=12,
        rounds=rounds,
        norm_bound=40.0,
    )
    if method is not Method.FEDPLCC:
        return run_grouped(agreement, data_for(agreement, two_kinds()), folder, losses)
    holds = np.ones((6, 4), dtype=np.bool_)
    holds[:3, 3] = False
    return run_clustered(agreement, data_for(agreement, holds), folder, losses)


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> Transcripts:
    @cache
    def transcript(method: Method) -> Transcript:
        lost = LOST[method]
        losses = [Loss(site, number, phase) for number, (phase, sites) in lost.items() for site in sites]
        return run(method, max(lost) + 1, tmp_path_factory.mktemp("run"), losses)

    return transcript


def sites_of(transcript: Transcript) -> set[str]:
    return {site for _, _, site in transcript.put}


def excess(transcript: Transcript, number: int) -> float:
    if isinstance(transcript, ClusterTranscript):
        return clustered_runs.excess(transcript, number)
    return sum_equations.excess(transcript, number)


@each_loss
def test_a_round_completes_exactly_without_the_lost_site(
    transcripts: Transcripts, method: Method, number: int
) -> None:
    transcript, (phase, lost) = transcripts(method), LOST[method][number]
    repeated = phase in (Phase.DIRECTIONS, Phase.VALUES)
    assert transcript.summary()[number - 1] == (number, 2 if repeated else 1, False)
    heard = phase in (Phase.MEANS, Phase.RESULT)
    others = sites_of(transcript) - set(lost)
    assert set(sum_equations.contributors(transcript, number)) == (sites_of(transcript) if heard else others)
    assert {site for r, site in transcript.got if r == number} == others
    assert excess(transcript, number) <= 1.0


@each_loss
def test_a_lost_site_catches_up_by_ciphertexts_and_trains_from_the_common_base(
    transcripts: Transcripts, method: Method, number: int
) -> None:
    transcript, (_, lost) = transcripts(method), LOST[method][number]
    after = number + 1
    groups = transcript.groups if method is Method.FEDPC else (tuple(sorted(sites_of(transcript))),)
    for group in groups:
        starts = {site: transcript.starts[after, 1, site] for site in group}
        assert {start.base for start in starts.values()} == {
            transcript.bases[after, 1, site] for site in group
        }
        assert len({start.base for start in starts.values()}) == 1
        for site in set(group) & set(lost):
            caught_up = starts[site].catch_up
            assert caught_up is not None
            assert caught_up.scheme == "ckks/1"
            assert len(caught_up.blobs) > 0
        if method is not Method.FEDDBP:  # whose sites fuse what they get with their own
            first = transcript.guides[after, 1, group[0]]
            for site in group:
                np.testing.assert_array_equal(transcript.guides[after, 1, site], first)


def test_a_site_that_catches_up_fuses_the_mean_with_its_own_last_prototypes(transcripts: Transcripts) -> None:
    for site in EVERYONE:
        assert sum_equations.fusion_excess(transcripts(Method.FEDDBP), 3, site) <= 1.0


@pytest.mark.parametrize("method", LOST)
def test_every_site_takes_part_in_the_last_round(transcripts: Transcripts, method: Method) -> None:
    transcript = transcripts(method)
    last = transcript.agreement.rounds
    assert set(sum_equations.contributors(transcript, last)) == sites_of(transcript)
    assert {site for number, site in transcript.got if number == last} == sites_of(transcript)
    assert excess(transcript, last) <= 1.0


# Leaders


def test_a_round_whose_leader_is_lost_is_abandoned_and_nobody_trains_from_it(
    transcripts: Transcripts,
) -> None:
    transcript = transcripts(Method.FEDPC)
    assert transcript.summary()[ABANDONED - 1] == (ABANDONED, 1, True)
    assert not {site for number, site in transcript.got if number == ABANDONED}
    for group in (FIRST, SECOND):
        before = {transcript.got[4, site].hash for site in group}
        there = [site for site in group if site != LEADER]
        assert {transcript.starts[ABANDONED + 1, 1, site].base for site in there} == before


def test_the_next_round_has_another_leader(transcripts: Transcripts) -> None:
    transcript = transcripts(Method.FEDPC)
    assert transcript.summary()[ABANDONED] == (ABANDONED + 1, 1, False)
    assert sum_equations.contributors(transcript, ABANDONED + 1) == EVERYONE[1:]
    assert excess(transcript, ABANDONED + 1) <= 1.0
    assert leaders(transcript, ABANDONED + 1) == {FIRST[1], SECOND[0]}
    assert leaders(transcript, 3) == leaders(transcript, 7) == {FIRST[0], SECOND[0]}


def leaders(transcript: Transcript, number: int) -> set[str]:
    """Return the sites whose means the coordinator took."""
    keys = [(each.key, each.site) for each in transcript.received if each.key is not None]
    return {site for key, site in keys if (key.round, key.phase) == (number, Phase.MEANS)}


def test_attempts_after_means_were_asked_would_have_been_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The power of the above: a coordinator that repeats the round gets means of two sums in it."""
    monkeypatch.setattr(transitions, "_sum_may_be_open", lambda *_: False)
    transcript = run(Method.FEDPC, 1, tmp_path, [Loss(LEADER, 1, Phase.MEANS)])
    assert transcript.summary() == [(1, 2, False)]
    assert leaders(transcript, 1) == {FIRST[0], FIRST[1], SECOND[0]} - {LEADER}
    assert {attempt for _, attempt, _ in transcript.put} == {1, 2}


# Groups and classes of which too few are left

TOO_FEW_HOLDERS, TOO_FEW_MEMBERS, BACK = 1, 2, 3


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    """One of three of the first group that have class 4 is lost, then two of the second group's four."""
    losses = [
        Loss("site-3", TOO_FEW_HOLDERS, Phase.VALUES),
        *(Loss(site, TOO_FEW_MEMBERS, Phase.VALUES) for site in SECOND[:2]),
    ]
    return run(Method.FEDPC, BACK, tmp_path_factory.mktemp("run"), losses)


def test_a_class_that_too_few_are_left_of_is_zeros_in_the_sum_that_is_repeated(short: Transcript) -> None:
    """The class comes back from the other group, which has it."""
    assert short.summary()[TOO_FEW_HOLDERS - 1] == (TOO_FEW_HOLDERS, 2, False)
    assert sum_equations.contributors(short, TOO_FEW_HOLDERS) == tuple(
        each for each in EVERYONE if each != "site-3"
    )
    assert excess(short, TOO_FEW_HOLDERS) <= 1.0
    with_two = {at: put for at, put in short.put.items() if at[0] == TOO_FEW_HOLDERS and put.holds[4]}
    assert {site for _, attempt, site in with_two if attempt == 2 and site in FIRST} == {"site-5", "site-7"}


def test_a_group_that_too_few_are_left_of_sits_the_next_attempt_out(short: Transcript) -> None:
    assert short.summary()[TOO_FEW_MEMBERS - 1] == (TOO_FEW_MEMBERS, 2, False)
    assert sum_equations.contributors(short, TOO_FEW_MEMBERS) == FIRST
    assert {site for number, site in short.got if number == TOO_FEW_MEMBERS} == set(FIRST)
    assert leaders(short, TOO_FEW_MEMBERS) == {FIRST[0]}
    assert excess(short, TOO_FEW_MEMBERS) <= 1.0
    last = {short.got[TOO_FEW_HOLDERS, site].hash for site in SECOND}
    assert {short.starts[BACK, 1, site].base for site in SECOND} == last


def test_with_everyone_back_both_groups_have_their_results_again(short: Transcript) -> None:
    assert sum_equations.contributors(short, BACK) == EVERYONE
    assert excess(short, BACK) <= 1.0


# Restarts


@pytest.mark.full
@pytest.mark.parametrize("method", [Method.FEDPC, Method.FEDPLCC])
def test_restarts_between_all_steps_change_nothing(tmp_path: Path, method: Method) -> None:
    """Every party is stopped and opened again before each of its steps. Noise is drawn afresh, so no bits are equal.

    One round: what is trained from results that differ by their noise differs by more.
    """
    agreement = grouped_agreement(
        Protection.CKKS, method=method, classes=3, dim=8, rounds=1, fedpc={"groups": 1}
    )
    data = data_for(agreement, np.ones((3, 3), dtype=np.bool_))
    runs = run_clustered if agreement.clusters else run_grouped
    for name in ("undisturbed", "restarted"):
        (tmp_path / name).mkdir()
    undisturbed = runs(agreement, data, tmp_path / "undisturbed")
    restarted = test_restarts.run_forgetfully(agreement, data, tmp_path / "restarted")
    check_predictions(*((taken, undisturbed.taken[key]) for key, taken in restarted.items()))
    for (number, site), taken in restarted.items():
        if isinstance(undisturbed, ClusterTranscript):
            bound = clustered_runs.expected(undisturbed, number).rows_bound
        else:
            bound = sum_equations.expected(undisturbed, number)[site].rows_bound
        off = np.abs(taken.targets - undisturbed.taken[number, site].targets)
        assert (off <= np.minimum(1e-7, 2.0 * bound)).all()  # each of the two runs is within its bound
