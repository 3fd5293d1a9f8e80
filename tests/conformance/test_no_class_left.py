"""Clustered methods when no class has enough holders, from the start or once a site is lost: models train on alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agreement import PROTECTIONS, Method, Protection
from protoseal_wire.messages import Phase
from tests.conformance.clustered_runs import ClusterTranscript, excess, expected, run_clustered
from tests.conformance.grouped_runs import grouped_agreement
from tests.conformance.runs import Bool, data_for
from tests.conformance.stepped_federation import Loss
from tests.support.marks import full_but

SITES = tuple(f"site-{i}" for i in range(1, 5))
ROUNDS, LOST = 3, 2
each_method = pytest.mark.parametrize(
    "method", full_but([Method.FEDPLCC, Method.FPL, Method.FEDPLVM], Method.FEDPLCC)
)
each_protection = pytest.mark.parametrize("protection", PROTECTIONS.values())


def holds(holders: int) -> Bool:
    """Three classes, (4, 3), each of so many sites, the first of them among them."""
    has = np.zeros((len(SITES), 3), dtype=np.bool_)
    for k in range(3):
        has[[0, *(1 + np.arange(k, k + holders - 1) % 3)], k] = True
    return has


def run(
    method: Method, protection: Protection, holders: int, folder: Path, losses: tuple[Loss, ...] = ()
) -> ClusterTranscript:
    """Three sites have to have a class, and three to be there."""
    agreement = grouped_agreement(
        protection, method=method, classes=3, dim=12, rounds=ROUNDS, norm_bound=40.0, min_sites=3
    )
    return run_clustered(agreement, data_for(agreement, holds(holders)), folder, losses)


def check(transcript: ClusterTranscript, number: int, *, clusters: bool) -> None:
    """Check that all who are there have the round's result, as the equations give it for their inputs."""
    assert bool(expected(transcript, number).labels) == clusters
    assert excess(transcript, number) <= 1.0
    assert np.abs(expected(transcript, number).averaged).max() > 0.0


@each_method
@each_protection
def test_models_are_averaged_when_every_class_is_withheld(
    method: Method, protection: Protection, tmp_path: Path
) -> None:
    transcript = run(method, protection, 2, tmp_path)
    assert transcript.summary() == [(number, 1, False) for number in range(1, ROUNDS + 1)]
    assert set(transcript.results) == {(number, site) for number in range(1, ROUNDS + 1) for site in SITES}
    for number in range(1, ROUNDS + 1):
        check(transcript, number, clusters=False)


@pytest.mark.parametrize("protection", full_but(PROTECTIONS.values(), Protection.MASKED))
@pytest.mark.parametrize("phase", [Phase.PRESENCE, Phase.VALUES])
def test_a_round_in_which_the_last_classes_are_lost_with_a_site_goes_on_and_so_does_the_run(
    protection: Protection, phase: Phase, tmp_path: Path
) -> None:
    """The first site has every class; without it two are left of each."""
    transcript = run(Method.FEDPLCC, protection, 3, tmp_path, (Loss(SITES[0], LOST, phase),))
    assert [(number, abandoned) for number, _, abandoned in transcript.summary()] == [
        (number, False) for number in range(1, ROUNDS + 1)
    ]
    check(transcript, 1, clusters=True)
    assert {site for number, site in transcript.results if number == LOST} == set(SITES[1:])
    check(transcript, LOST, clusters=False)
    check(transcript, ROUNDS, clusters=True)
    assert {site for number, site in transcript.results if number == ROUNDS} == set(SITES)
