"""Runs with noise: every protection gives the papers' results on the sites' noisy values, as `plain` does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import Extractor, FeddbpSection, Method, Protection
from algorithms.pfpl import Weighting
from tests.conformance import equations, peer_equations
from tests.conformance.federations import PRIVACY, Bool, agreement_for, data_for, private_agreement, two_kinds
from tests.conformance.transcripts import (
    ClusterTranscript,
    Transcript,
    check_predictions,
    compare_predictions,
    contributors,
    record_run,
)
from tests.support.marks import full_but
from tests.support.replayed_noise import replayed_noise
from tests.support.served import protections_for

ROUNDS, DIM = 3, 12
FEW = np.ones((4, 3), dtype=np.bool_)
FEW[:2, 1] = False  # two are left: withheld
MANY = np.ones((8, 2), dtype=np.bool_)
"""Holders enough for several clusters of a class, each of three sites or more."""
FUSED: dict[str, Any] = {"feddbp": FeddbpSection(own=0.75, top_channels=5)}
ONE_BRANCH: dict[str, Any] = {"feddbp": FeddbpSection(own=0.75, top_channels=5, decision=False)}
CASES: dict[str, tuple[Method, Extractor, Bool, dict[str, Any]]] = {
    "fedpc": (Method.FEDPC, Extractor.TRAINED, two_kinds(), {}),
    "fedpc, one release": (Method.FEDPC, Extractor.FROZEN, two_kinds(), {}),
    "feddbp": (Method.FEDDBP, Extractor.TRAINED, FEW, FUSED),
    "feddbp, averaged releases": (Method.FEDDBP, Extractor.FROZEN, FEW, ONE_BRANCH),
    "fedproto": (Method.FEDPROTO, Extractor.TRAINED, FEW, {}),
    "fedplcc": (Method.FEDPLCC, Extractor.TRAINED, MANY, {}),
    "fedplcc, few": (Method.FEDPLCC, Extractor.TRAINED, FEW, {}),
}

Transcripts = Callable[[Protection, str], Transcript]
each_case = pytest.mark.parametrize("case", full_but(CASES, "fedpc", "feddbp", "fedplcc"))
each_protection = pytest.mark.parametrize("protection", protections_for(case[0] for case in CASES.values()))


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> Transcripts:
    """Every run is made once, all of a case with the same noise."""

    @cache
    def transcript(protection: Protection, case: str) -> Transcript:
        method, extractor, holds, settings = CASES[case]
        every = None if case == "fedpc, one release" else PRIVACY.release_every
        privacy = PRIVACY.model_copy(update={"extractor": extractor, "release_every": every})
        agreement = private_agreement(
            protection,
            method,
            classes=holds.shape[1],
            dim=DIM,
            rounds=ROUNDS,
            privacy=privacy,
            norm_bound=40.0,
            **settings,
        )
        with replayed_noise():
            return record_run(agreement, data_for(agreement, holds), tmp_path_factory.mktemp("run"))

    return transcript


@each_protection
@each_case
def test_private_round_equals_the_equations_on_noisy_values(
    transcripts: Transcripts, protection: Protection, case: str
) -> None:
    transcript = transcripts(protection, case)
    for number in range(1, ROUNDS + 1):
        assert len(contributors(transcript, number)) == len(CASES[case][2])
        assert equations.excess(transcript, number) <= 1.0


@each_case
def test_first_inputs_are_bit_identical_under_every_protection(transcripts: Transcripts, case: str) -> None:
    """Both trained alike until then, and had the same noise."""
    plain = transcripts(Protection.PLAIN, case)
    for protection in (Protection.MASKED, Protection.CKKS):
        transcript = transcripts(protection, case)
        assert transcript.groups == plain.groups
        for key in (key for key in plain.put if key[0] <= 1):
            np.testing.assert_array_equal(transcript.put[key].rows, plain.put[key].rows)
            np.testing.assert_array_equal(transcript.put[key].holds, plain.put[key].holds)
            np.testing.assert_array_equal(transcript.put[key].averaged, plain.put[key].averaged)
            assert transcript.put[key].samples == plain.put[key].samples
        if isinstance(transcript, ClusterTranscript) and isinstance(plain, ClusterTranscript):
            for at in (at for at in plain.local if at[0] == 1):
                np.testing.assert_array_equal(transcript.local[at].rows, plain.local[at].rows)
                np.testing.assert_array_equal(transcript.local[at].counts, plain.local[at].counts)


@each_case
def test_private_saved_models_predict_what_plain_ones_do(transcripts: Transcripts, case: str) -> None:
    for protection in (Protection.MASKED, Protection.CKKS):
        for number in range(1, ROUNDS + 1):
            compare_predictions(transcripts(protection, case), transcripts(Protection.PLAIN, case), number)


@each_protection
def test_feddbp_site_trains_towards_the_fusion_of_its_release(
    transcripts: Transcripts, protection: Protection
) -> None:
    transcript = transcripts(protection, "feddbp")
    for site in contributors(transcript, 2):
        assert max(equations.fusion_excess(transcript, number, site) for number in (1, 2)) <= 1.0


@each_protection
def test_fedplcc_second_release_has_more_cells_than_classes(
    transcripts: Transcripts, protection: Protection
) -> None:
    """Round 2 goes by the first, whatever centres there are by then."""
    transcript = transcripts(protection, "fedplcc")
    assert isinstance(transcript, ClusterTranscript)
    numbers = dict.fromkeys(range(1, ROUNDS + 1), 0)
    for (number, _, _), local in transcript.local.items():
        numbers[number] = max(numbers[number], int(np.bincount(local.labels).max()))
    assert numbers[1] == numbers[2] == 1
    assert numbers[3] > 1


@pytest.mark.parametrize("case", ["feddbp", "fedplcc"])
@each_protection
def test_one_contribution_less_is_beyond_the_bound(
    transcripts: Transcripts, protection: Protection, case: str
) -> None:
    transcript = transcripts(protection, case)
    assert equations.excess(transcript, 2, without=("site-1",)) > 100.0


# PFPL


@pytest.mark.parametrize("protection", [Protection.MASKED, Protection.CKKS])
def test_pfpl_with_noise_gives_what_plain_gives(tmp_path: Path, protection: Protection) -> None:
    privacy = PRIVACY.model_copy(update={"extractor": Extractor.FROZEN})
    made = {
        each: agreement_for(each, Weighting.COMPLEMENT, classes=3, dim=DIM, rounds=ROUNDS, privacy=privacy)
        for each in (protection, Protection.PLAIN)
    }
    records = {}
    for each, agreement in made.items():
        with replayed_noise():
            records[each] = record_run(agreement, data_for(agreement, FEW), tmp_path).taken
    for number in range(1, ROUNDS + 1):
        assert peer_equations.excess(made[protection], records[protection], number) <= 1.0
    for key, taken in records[protection].items():
        plain = records[Protection.PLAIN][key]
        np.testing.assert_array_equal(taken.prototypes.local, plain.prototypes.local)
        np.testing.assert_array_equal(taken.prototypes.has_personal, plain.prototypes.has_personal)
        check_predictions((taken, plain))
