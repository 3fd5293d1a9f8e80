"""Frozen features: one sum serves the run, and every round's result has what the papers' equations give for its rows.

The equations take each site's rows of the round. These never change, so that the first round's sum serves every round.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from agreement import AveragingSection, FeddbpSection, Method, Protection
from agreement.derived.payload_shapes import limits_of
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.models.prototype_model import SplitModel
from secure_client.training.averaged_parameters import AveragedPart
from tests.conformance import equations, federations
from tests.conformance.drop_outs import Loss
from tests.conformance.federations import data_for, grouped_agreement, two_kinds
from tests.conformance.transcripts import Transcript, contributors, record_run
from tests.support.marks import full_but
from tests.support.served import protections_for
from tests.support.small import short_training

ROUNDS, DIM = 3, 12
EVERYONE = tuple(f"site-{i}" for i in range(1, 10))
LOST = EVERYONE[:2]
METHODS = (Method.FEDPC, Method.FEDDBP, Method.FEDPROTO)
LOSSES = tuple(Loss(site, 1, Phase.PRESENCE) for site in LOST)
"""Two of nine sites miss the sum that serves the run, and are back in the round after."""
ONE_BRANCH = FeddbpSection(own=0.75, top_channels=5, decision=False)

Transcripts = Callable[[Method, Protection, tuple[Loss, ...]], Transcript]
each_method = pytest.mark.parametrize("method", full_but(METHODS, Method.FEDPC, Method.FEDDBP))
each_protection = pytest.mark.parametrize("protection", protections_for(METHODS))


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> Transcripts:
    """Every run is made once."""

    @cache
    def transcript(method: Method, protection: Protection, losses: tuple[Loss, ...] = ()) -> Transcript:
        holds = two_kinds()
        model = SplitModel(*federations.build_group_norm(holds.shape[1], DIM))
        parameters, buffers = AveragedPart(model, method.traits.averaged).sizes
        agreement = grouped_agreement(
            protection, method=method, classes=holds.shape[1], dim=DIM, rounds=ROUNDS, feddbp=ONE_BRANCH
        )
        agreement = agreement.model_validate(
            {
                **dict(agreement),
                "averaging": AveragingSection(parameters=parameters, buffers=buffers),
                "training": short_training(
                    "tests.conformance.federations:build_group_norm",
                    batch_size=6,
                    lr=0.05,
                    frozen_extractor=True,
                ),
            }
        )
        return record_run(agreement, data_for(agreement, holds), tmp_path_factory.mktemp("run"), losses)

    return transcript


@each_protection
@each_method
def test_repeated_rows_every_round_equals_the_equations(
    transcripts: Transcripts, method: Method, protection: Protection
) -> None:
    transcript = transcripts(method, protection, ())
    for number in range(1, ROUNDS + 1):
        assert contributors(transcript, number) == EVERYONE
        assert equations.sum_excess(transcript, number) <= 1.0
    assert all(got.has.any() for got in transcript.got.values())


@each_protection
@pytest.mark.parametrize("method", full_but(METHODS, Method.FEDPC))
def test_repeated_rows_site_that_missed_the_sum_adds_none(
    transcripts: Transcripts, method: Method, protection: Protection
) -> None:
    transcript = transcripts(method, protection, LOSSES)
    assert transcript.summary() == [(number, 1, False) for number in range(1, ROUNDS + 1)]
    assert set(contributors(transcript, 1)) == set(EVERYONE) - set(LOST)
    assert equations.sum_excess(transcript, 1) <= 1.0
    for group in transcript.groups:
        first = transcript.got[1, next(site for site in group if site not in LOST)]
        assert first.has.any()
        for number in (2, 3):
            for got in (transcript.got[number, site] for site in group):
                np.testing.assert_array_equal(got.has, first.has)
                # Leaders under ckks encrypt their groups' means again.
                np.testing.assert_allclose(got.rows, first.rows, atol=1e-5)


def test_repeated_rows_of_an_abandoned_round_are_not_sent_again(
    transcripts: Transcripts, caplog: pytest.LogCaptureFixture
) -> None:
    """Some sites released shares, so that the first sum may open; the operator is told that the run has no other."""
    losses = tuple(Loss(site, 1, Phase.UNMASK) for site in (*LOST, "site-3"))
    transcript = transcripts(Method.FEDDBP, Protection.MASKED, losses)
    assert transcript.summary() == [(1, 1, True), (2, 1, False), (3, 1, False)]
    stated = [each for each in transcript.received if each.key and each.key.phase is Phase.PRESENCE]
    limits = limits_of(transcript.agreement)
    for each in stated:
        assert each.key is not None
        assert codec.decode_presence(each.content, limits).holds.any() == (each.key.round == 1)
    assert not any(got.has.any() or got.rows.any() for got in transcript.got.values())
    assert any("no later round of this run" in line for line in caplog.messages)
