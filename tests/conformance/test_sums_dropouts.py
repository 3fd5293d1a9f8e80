"""FedDBP and FedAvg over one group of nine: sites that vanish in each phase of a masked round, and come back.

The sum takes seven of nine, so that two may be lost. What they missed they catch up on, and fuse with what they have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from agreement import Method, Protection
from protoseal_wire.messages import Phase
from tests.conformance import sum_equations
from tests.conformance.dropout_schedule import AFTER, EVERYONE, LOST, each_phase, staying, two_lost
from tests.conformance.grouped_runs import (
    Transcript,
    compare_predictions,
    grouped_agreement,
    run_grouped,
    two_kinds,
)
from tests.conformance.runs import data_for
from tests.conformance.stepped_federation import Loss
from tests.support.marks import full_but

Transcripts = Callable[[Method, Protection], Transcript]
each_method = pytest.mark.parametrize("method", full_but([Method.FEDDBP, Method.FEDAVG], Method.FEDDBP))


def run(folder: Path, method: Method, protection: Protection, losses: list[Loss], rounds: int) -> Transcript:
    agreement = grouped_agreement(protection, method=method, classes=6, dim=12, rounds=rounds)
    return run_grouped(agreement, data_for(agreement, two_kinds()), folder, losses)


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> Transcripts:
    """Each round loses two sites in another phase."""

    @cache
    def transcript(method: Method, protection: Protection) -> Transcript:
        return run(tmp_path_factory.mktemp("run"), method, protection, two_lost(protection), AFTER)

    return transcript


@each_phase
@each_method
def test_survivors_get_the_means_over_the_sites_whose_values_came(
    transcripts: Transcripts, method: Method, number: int, phase: Phase
) -> None:
    masked, plain = transcripts(method, Protection.MASKED), transcripts(method, Protection.PLAIN)
    assert masked.summary()[number - 1] == (number, 1, False)
    for transcript in (masked, plain):
        assert sum_equations.contributors(transcript, number) == staying(phase)
        assert sum_equations.excess(transcript, number) <= 1.0
        assert {site for r, site in transcript.got if r == number} == set(EVERYONE) - set(LOST)
    assert sum_equations.excess(masked, number, rounded=True) <= 1.0
    compare_predictions(masked, plain, number)


@each_phase
@each_method
def test_returned_sites_train_from_the_common_base(
    transcripts: Transcripts, method: Method, number: int, phase: Phase
) -> None:
    transcript = transcripts(method, Protection.MASKED)
    (base,) = {transcript.got[number, site].hash for site in EVERYONE if site not in LOST}
    for site in EVERYONE:
        start = transcript.starts[number + 1, 1, site]
        assert start.base == base == transcript.bases[number + 1, 1, site]
        assert (start.catch_up is not None) == (site in LOST)


@pytest.mark.parametrize("number", [4, 5, 6])
def test_a_site_that_catches_up_fuses_the_mean_with_its_own_last_prototypes(
    transcripts: Transcripts, number: int
) -> None:
    """The lost sites had sent their values in these rounds before they were lost."""
    transcript = transcripts(Method.FEDDBP, Protection.MASKED)
    for site in EVERYONE:
        assert (transcript.starts[number + 1, 1, site].catch_up is not None) == (site in LOST)
        assert sum_equations.fusion_excess(transcript, number, site) <= 1.0


@pytest.mark.full
def test_every_site_takes_part_in_the_last_round(transcripts: Transcripts) -> None:
    for method in (Method.FEDDBP, Method.FEDAVG):
        for protection in (Protection.MASKED, Protection.PLAIN):
            transcript = transcripts(method, protection)
            assert sum_equations.contributors(transcript, AFTER) == EVERYONE
            assert sum_equations.excess(transcript, AFTER) <= 1.0


@each_method
def test_a_round_that_loses_too_many_is_repeated_and_one_that_cannot_open_is_abandoned(
    tmp_path: Path, method: Method
) -> None:
    """Three of nine: before values are asked the round goes on without them, after UNMASK nobody trains from it."""
    three = (*LOST, "site-3")
    losses = [
        *(Loss(site, 1, Phase.SHARES) for site in three),
        *(Loss(site, 2, Phase.UNMASK) for site in three),
    ]
    transcript = run(tmp_path, method, Protection.MASKED, losses, 4)
    assert transcript.summary() == [(1, 2, False), (2, 1, True), (3, 1, False), (4, 1, False)]
    assert sum_equations.contributors(transcript, 1) == tuple(site for site in EVERYONE if site not in three)
    assert not {site for number, site in transcript.got if number == 2}
    assert {transcript.starts[3, 1, site].base for site in EVERYONE if site not in three} == {
        transcript.got[1, "site-9"].hash
    }
    assert sum_equations.contributors(transcript, 4) == EVERYONE
    for number in (1, 3, 4):
        assert sum_equations.excess(transcript, number) <= 1.0
