"""Methods that add up under `ckks`: each round is the papers' equations on what sites put in, as under `plain`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from agreement import FeddbpSection, Method, Protection
from tests.conformance import clustered_runs, sum_equations
from tests.conformance.clustered_runs import ClusterTranscript, run_clustered
from tests.conformance.grouped_runs import (
    Float,
    Got,
    Transcript,
    compare_predictions,
    grouped_agreement,
    run_grouped,
    three_kinds,
    two_kinds,
)
from tests.conformance.runs import Bool, data_for
from tests.support.marks import full_but

ROUNDS = 2
FEW = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]], dtype=np.bool_)
"""Three sites; the second class and the last are withheld."""
APART = np.ones((6, 4), dtype=np.bool_)
APART[:3, 3] = False  # three sites are left, just enough
APART[1:5, 1] = False  # two are left: withheld
FUSED: dict[str, Any] = {"feddbp": FeddbpSection(own=0.75, top_channels=5)}
CASES: dict[str, tuple[Method, Bool, dict[str, Any]]] = {
    "feddbp": (Method.FEDDBP, two_kinds(), FUSED),
    "feddbp, few": (Method.FEDDBP, FEW, FUSED),
    "fedproto": (Method.FEDPROTO, two_kinds(), {}),
    "fedavg": (Method.FEDAVG, FEW, {}),
    "fedproto-averaged": (Method.FEDPROTO_AVERAGED, two_kinds(), {}),
    "fedpc": (Method.FEDPC, two_kinds(), {}),
    "fedpc, three groups": (Method.FEDPC, three_kinds(), {"fedpc": {"groups": 3}}),
    "fedpc, one group": (Method.FEDPC, FEW, {"fedpc": {"groups": 1}}),
    "fedpc, literal": (Method.FEDPC, two_kinds(), {"fedpc": {"literal": True}}),
    "fedplcc": (Method.FEDPLCC, APART, {}),
    "fpl": (Method.FPL, APART, {}),
}
EACH_METHOD = ("feddbp, few", "fedproto", "fedavg", "fedproto-averaged", "fedpc", "fedplcc", "fpl")
CLUSTERED = [case for case, (method, _, _) in CASES.items() if method in (Method.FEDPLCC, Method.FPL)]
SUMMED = [case for case in CASES if case not in CLUSTERED]

Transcripts = Callable[[Protection, str], Transcript]
each_case = pytest.mark.parametrize("case", full_but(CASES, *EACH_METHOD))
every_round = pytest.mark.parametrize("number", range(1, ROUNDS + 1))


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> Transcripts:
    """Every run is made once."""

    @cache
    def transcript(protection: Protection, case: str) -> Transcript:
        method, holds, settings = CASES[case]
        agreement = grouped_agreement(
            protection,
            method=method,
            classes=holds.shape[1],
            dim=12,
            rounds=ROUNDS,
            norm_bound=40.0,
            **settings,
        )
        run = run_clustered if case in CLUSTERED else run_grouped
        return run(agreement, data_for(agreement, holds), tmp_path_factory.mktemp("run"))

    return transcript


def excess(transcript: Transcript, number: int, **options: Any) -> float:
    if isinstance(transcript, ClusterTranscript):
        return clustered_runs.excess(transcript, number, **options)
    return sum_equations.excess(transcript, number, **options)


@every_round
@each_case
def test_a_round_is_the_equations_on_what_the_sites_put_in(
    transcripts: Transcripts, case: str, number: int
) -> None:
    transcript = transcripts(Protection.CKKS, case)
    assert len(sum_equations.contributors(transcript, number)) == len(CASES[case][1])
    assert excess(transcript, number) <= 1.0
    assert {attempt for _, attempt, _ in transcript.summary()} == {1}


@each_case
def test_a_first_round_differs_from_plain_by_little_and_is_not_passed_on(
    transcripts: Transcripts, case: str
) -> None:
    """Both trained alike until then. And it was not simply passed on."""
    transcript, plain = transcripts(Protection.CKKS, case), transcripts(Protection.PLAIN, case)
    assert within(transcript, plain) <= 1.0
    averaging = transcript.agreement.averaging
    averaged = [np.abs(got.averaged - plain.got[key].averaged) for key, got in first(transcript).items()]
    rows = [np.abs(got.rows - plain.got[key].rows).max(initial=0.0) for key, got in first(transcript).items()]
    parameters = [each[: averaging.parameters].max(initial=0.0) for each in averaged]
    buffers = [each[averaging.parameters :].max(initial=0.0) for each in averaged]
    assert max(*rows, *parameters, *buffers) > 0.0
    assert max(rows) < 1e-6
    assert max(parameters) < 1e-6
    assert max(buffers) < 1e-10 * averaging.buffer_bound


@each_case
def test_the_bounds_are_small(transcripts: Transcripts, case: str) -> None:
    """The bounds hold for prototypes (a few samples times up to 100,000 apart), parameters, and, in proportion,
    buffers.
    """
    averaging = transcripts(Protection.CKKS, case).agreement.averaging
    for rows, averaged in bounds(transcripts(Protection.CKKS, case)):
        assert rows.max(initial=0.0) < 1e-6
        assert averaged[: averaging.parameters].max(initial=0.0) < 1e-6
        assert averaged[averaging.parameters :].max(initial=0.0) < 1e-10 * averaging.buffer_bound


def first(transcript: Transcript) -> dict[tuple[int, str], Got]:
    """Return the results of the first round."""
    return {key: got for key, got in transcript.got.items() if key[0] == 1}


def within(transcript: Transcript, plain: Transcript) -> float:
    """Return the largest error of the first round under `plain`, in units of the bounds for `ckks`."""
    if isinstance(transcript, ClusterTranscript) and isinstance(plain, ClusterTranscript):
        results = {key: each for key, each in plain.results.items() if key[0] == 1}
        return clustered_runs.excess(replace(transcript, results=results), 1)
    return sum_equations.excess(replace(transcript, got=first(plain)), 1)


def bounds(transcript: Transcript) -> list[tuple[Float, Float]]:
    """Return the bounds of each site's result of the first round: prototypes or centres, and the averaged part."""
    if isinstance(transcript, ClusterTranscript):
        found = clustered_runs.expected(transcript, 1)
        return [(found.rows_bound, found.averaged_bound)]
    return [(each.rows_bound, each.averaged_bound) for each in sum_equations.expected(transcript, 1).values()]


@every_round
@each_case
def test_the_saved_models_predict_the_same(transcripts: Transcripts, case: str, number: int) -> None:
    compare_predictions(transcripts(Protection.CKKS, case), transcripts(Protection.PLAIN, case), number)


@pytest.mark.parametrize("case", full_but([case for case in CASES if case.startswith("fedpc")], "fedpc"))
def test_groups_are_those_of_plain(transcripts: Transcripts, case: str) -> None:
    assert transcripts(Protection.CKKS, case).groups == transcripts(Protection.PLAIN, case).groups
    assert len(transcripts(Protection.CKKS, case).groups) == {
        "fedpc, three groups": 3,
        "fedpc, one group": 1,
    }.get(case, 2)


@each_case
def test_one_contribution_less_is_beyond_the_bound(transcripts: Transcripts, case: str) -> None:
    transcript = transcripts(Protection.CKKS, case)
    for site in sum_equations.contributors(transcript, 2):
        if len(CASES[case][1]) > 3:  # of three nobody can be left out
            assert excess(transcript, 2, without=(site,)) > 100.0
