"""Masked sums over sparse graphs equal those under `plain`: every kind of sum, with and without sites that are lost."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import FeddbpSection, FedplccSection, MaskingSection, Method, Protection
from agreement.derived.payload_forms import limits_of, values_form
from protoseal.audit.coordinator_view import search_messages
from protoseal_wire import codec
from protoseal_wire.messages import MaskedValues, Phase
from tests.conformance import clustered_runs, sum_equations
from tests.conformance.clustered_runs import ClusterTranscript, run_clustered
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

ROUNDS = 2
NINE: dict[str, Any] = {"complete_up_to": 3}
"""One colluder and two drop-outs: five others hold a site's shares."""
FEW: dict[str, Any] = {"complete_up_to": 3, "max_colluding": 0.0, "max_dropped": 0.0}
"""Neither: two others hold a site's shares, so that groups of four are sparse."""
CASES: dict[str, tuple[Method, dict[str, Any]]] = {
    "fedavg": (Method.FEDAVG, NINE),
    "fedproto": (Method.FEDPROTO, NINE),
    "feddbp": (Method.FEDDBP, NINE),
    "fedpc": (Method.FEDPC, FEW),
}


def run(
    folder: Path, case: str, protection: Protection, losses: list[Loss] | None = None, rounds: int = ROUNDS
) -> Transcript:
    method, masking = CASES[case]
    agreement = grouped_agreement(
        protection,
        method=method,
        classes=6,
        dim=12,
        rounds=rounds,
        feddbp=FeddbpSection(own=0.75, top_channels=5),
        masking=MaskingSection.model_validate(masking),
    )
    return run_grouped(agreement, data_for(agreement, two_kinds()), folder, losses or [])


def sent(transcript: Transcript) -> list[MaskedValues]:
    """Return the values that sites sent; each holds a signature in sparse graphs only."""
    limits, form = limits_of(transcript.agreement), values_form(transcript.agreement, 1)
    return [
        codec.decode_masked_values(each.content, limits, form)
        for each in transcript.received
        if each.key is not None and each.key.phase is Phase.VALUES and each.key.round
    ]


@pytest.mark.parametrize("case", full_but(CASES, "feddbp"))
def test_a_sum_is_that_of_plain_but_for_the_last_bits_of_each_contribution(tmp_path: Path, case: str) -> None:
    masked, plain = (run(tmp_path / each.name, case, each) for each in (Protection.MASKED, Protection.PLAIN))
    assert masked.groups == plain.groups
    assert len(sent(masked)) == 9 * ROUNDS
    for group in masked.groups:
        assert masked.agreement.masking.graph(9, len(group)).sparse
    for number in range(1, ROUNDS + 1):
        assert sum_equations.excess(masked, number) <= 1.0
        assert sum_equations.excess(masked, number, rounded=True) <= 1.0
        assert sum_equations.excess(plain, number) <= 1.0
        compare_predictions(masked, plain, number)
    first = {key: got for key, got in plain.got.items() if key[0] == 1}
    assert sum_equations.excess(replace(masked, got=first), 1) <= 1.0


def test_one_contribution_less_is_beyond_the_bound_and_no_prototype_is_in_a_message(tmp_path: Path) -> None:
    """FedProto's prototypes are among the messages of `plain`, and the search finds them there."""
    masked, plain = (
        run(tmp_path / each.name, "fedproto", each) for each in (Protection.MASKED, Protection.PLAIN)
    )
    assert sum_equations.excess(masked, 2, without=("site-1",)) > 100.0
    for transcript, leaks in ((masked, False), (plain, True)):
        rows = np.concatenate([put.rows[put.holds] for put in transcript.put.values()])
        assert search_messages(transcript.received, transcript.agreement, rows).leaks == leaks


@pytest.mark.full
def test_clusters_are_summed_up_alike(tmp_path: Path) -> None:
    """FedPLCC: after DIRECTIONS, with masks that are bound to the assignment."""
    holds = np.ones((6, 4), dtype=np.bool_)
    transcripts: list[ClusterTranscript] = []
    for protection in (Protection.MASKED, Protection.PLAIN):
        agreement = grouped_agreement(
            protection,
            method=Method.FEDPLCC,
            classes=4,
            dim=16,
            rounds=ROUNDS,
            fedplcc=FedplccSection(),
            norm_bound=40.0,
            masking=MaskingSection.model_validate(FEW),
        )
        transcripts.append(run_clustered(agreement, data_for(agreement, holds), tmp_path / protection.name))
    assert transcripts[0].agreement.masking.graph(6, 6).sparse
    for transcript in transcripts:
        for number in range(1, ROUNDS + 1):
            assert clustered_runs.excess(transcript, number) <= 1.0
    masked, plain = transcripts
    compare_predictions(masked, plain, 1)


# Who is lost


@pytest.fixture(scope="module")
def losing(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    """Each round loses two sites in another phase."""

    @cache
    def transcript() -> Transcript:
        losses = two_lost(Protection.MASKED)
        return run(tmp_path_factory.mktemp("run"), "fedavg", Protection.MASKED, losses, AFTER)

    return transcript()


@each_phase
def test_survivors_get_the_mean_over_the_sites_whose_values_came(
    losing: Transcript, number: int, phase: Phase
) -> None:
    assert losing.summary()[number - 1] == (number, 1, False)
    assert sum_equations.contributors(losing, number) == staying(phase)
    assert sum_equations.excess(losing, number, rounded=True) <= 1.0
    assert {site for r, site in losing.got if r == number} == set(EVERYONE) - set(LOST)


def test_every_site_takes_part_in_the_last_round(losing: Transcript) -> None:
    assert sum_equations.contributors(losing, AFTER) == EVERYONE
    assert sum_equations.excess(losing, AFTER, rounded=True) <= 1.0


@pytest.mark.parametrize(
    ("phase", "summary"),
    [
        (Phase.SHARES, [(1, 2, False), (2, 1, False)]),
        (Phase.SURVIVORS, [(1, 1, True), (2, 1, False)]),
        (Phase.UNMASK, [(1, 1, True), (2, 1, False)]),
    ],
    ids=["shares", "survivors", "unmask"],
)
def test_a_round_is_repeated_as_long_as_no_survivors_were_signed(
    tmp_path: Path, phase: Phase, summary: list[tuple[int, int, bool]]
) -> None:
    """Three of nine are one too many."""
    losses = [Loss(site, 1, phase) for site in (*LOST, "site-3")]
    assert run(tmp_path, "fedavg", Protection.MASKED, losses).summary() == summary
