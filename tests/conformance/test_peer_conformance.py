"""PFPL: a protected run is a run under `plain`, within the written bound: same prototypes, same predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from agreement import Agreement, Method, PfplSection, Protection
from agreement.derived.payload_shapes import limits_of
from algorithms.pfpl import Weighting
from protoseal.audit.coordinator_view import search_messages
from protoseal.simulation.local_federation import LocalFederation
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_server.store import Received
from tests.conformance.drop_outs import Loss
from tests.conformance.federations import agreement_for, data_for, grouped_agreement, holdings, two_kinds
from tests.conformance.peer_equations import excess, guide_excess, inputs_of
from tests.conformance.transcripts import Transcript, check_predictions, record_run
from tests.support.marks import full_but
from tests.support.small import short_training

PLAIN, MASKED, CKKS = Protection.PLAIN, Protection.MASKED, Protection.CKKS
BY_DISTANCES = (Weighting.DISTANCE, Weighting.COMPLEMENT, Weighting.UNIFORM)
"""Weightings of a protection that computes weights from distances alone; the others need inner products."""
SERVED = {MASKED: (*BY_DISTANCES, Weighting.INVERSE), CKKS: BY_DISTANCES}
SHAPES = [(3, 3, 8, 2), (5, 10, 300, 1), (8, 10, 8, 1)]
"""Sites, classes, features, rounds: few features, more than a ciphertext holds (256 here), many sites."""
SMALLEST = SHAPES[0]
PAIR = (2, 3, 8, 2)
AMONG_TWO = {"min_holders": 1, "min_sites": 2, "allow_fewer_holders_reveals_peers": True}

Shape = tuple[int, int, int, int]
Runs = Callable[[Protection, Weighting, Shape], Transcript]
each_served = pytest.mark.parametrize(
    ("protection", "weighting"),
    [(protection, weighting) for protection, served in SERVED.items() for weighting in served],
)


def agreed(protection: Protection, weighting: Weighting, shape: Shape) -> Agreement:
    """Return the agreement of a shape."""
    sites, classes, dim, rounds = shape
    settings: dict[str, Any] = AMONG_TWO if sites == 2 else {}
    return agreement_for(protection, weighting, classes=classes, dim=dim, rounds=rounds, **settings)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return the transcript of a protection, a weighting and a shape; each is played once."""

    @cache
    def transcript(protection: Protection, weighting: Weighting, shape: Shape) -> Transcript:
        agreement = agreed(protection, weighting, shape)
        data = data_for(agreement, holdings(shape[0], shape[1]))
        return record_run(agreement, data, tmp_path_factory.mktemp("run"))

    return transcript


@each_served
@pytest.mark.parametrize("shape", full_but([(shape,) for shape in [*SHAPES, PAIR]], (SMALLEST,), (PAIR,)))
def test_protected_run_gives_what_plain_gives(
    runs: Runs, shape: Shape, protection: Protection, weighting: Weighting
) -> None:
    """Two sites of a shape agreed to show each other their prototypes."""
    agreement = agreed(protection, weighting, shape)
    protected, plain = (runs(each, weighting, shape).taken for each in (protection, PLAIN))
    for number in range(1, agreement.rounds + 1):
        assert excess(agreement, protected, number) <= 1.0
    for key, taken in protected.items():
        check_predictions((taken, plain[key]))
        np.testing.assert_array_equal(taken.prototypes.has_personal, plain[key].prototypes.has_personal)
        if key[0] == 1:  # both trained alike until then, so the protections had the same numbers to work on
            np.testing.assert_array_equal(taken.prototypes.local, plain[key].prototypes.local)
    withheld = shape != PAIR  # the last class has two holders
    assert inputs_of(agreement, protected, 1).cohort.holds[:, -1].any() != withheld


@pytest.mark.parametrize("protection", list(SERVED))
def test_bound_tells_the_weightings_apart(tmp_path: Path, protection: Protection) -> None:
    agreement = agreement_for(protection, Weighting.COMPLEMENT, classes=10, dim=64, rounds=1)
    record = record_run(agreement, data_for(agreement, holdings(5, 10)), tmp_path).taken
    assert excess(agreement, record, 1) <= 1.0
    for other in SERVED[protection]:
        if other is not Weighting.COMPLEMENT:
            assert excess(agreement, record, 1, PfplSection(weighting=other)) > 20.0


def test_bound_on_rotations_is_beyond_float32(runs: Runs) -> None:
    """Rotated rows that were rounded to float32 on their way would not pass."""
    agreement = agreed(MASKED, Weighting.COMPLEMENT, SMALLEST)
    rounded = {
        key: replace(taken, targets=taken.targets.astype(np.float32).astype(np.float64))
        for key, taken in runs(MASKED, Weighting.COMPLEMENT, SMALLEST).taken.items()
    }
    assert excess(agreement, rounded, 1) > 20.0


def test_ckks_refuses_a_weighting_that_needs_inner_products() -> None:
    with pytest.raises(ValidationError, match="weighting"):
        agreement_for(CKKS, Weighting.INVERSE, classes=3, dim=8)
    assert agreement_for(PLAIN, Weighting.INVERSE, classes=3, dim=8)


# Equal weights as a masked sum, in which the sites share no secret


def peer_sum(rounds: int, classes: int = 6, **settings: Any) -> Agreement:
    """Return the agreement of a masked sum of peers."""
    return grouped_agreement(
        MASKED,
        method=Method.PFPL,
        classes=classes,
        dim=12,
        rounds=rounds,
        pfpl=PfplSection(weighting=Weighting.UNIFORM, alpha=0.3),
        **settings,
    )


def test_peer_sum_shows_no_prototype_in_a_message(runs: Runs) -> None:
    transcript = runs(MASKED, Weighting.UNIFORM, SMALLEST)
    rows = np.concatenate([put.rows[put.holds] for put in transcript.put.values()])
    assert not search_messages(transcript.received, transcript.agreement, rows).leaks


def test_peer_sum_withholds_a_class_that_falls_below_the_minimum(tmp_path: Path) -> None:
    """Sites 1 to 3 have class 2, and no others; one of them is lost after the list of holders was settled."""
    holds = np.ones((5, 3), dtype=np.bool_)
    holds[3:, 2] = False
    agreement = peer_sum(2, classes=3)
    losses = [Loss("site-3", 1, Phase.VALUES)]
    transcript = record_run(agreement, data_for(agreement, holds), tmp_path, losses)
    assert transcript.summary()[0] == (1, 2, False)
    for site in ("site-1", "site-2"):
        assert transcript.taken[1, site].prototypes.has_personal.tolist() == [True, True, False]
        assert guide_excess(transcript, 1, site, transcript.trained[1, 2, site], holds[0]) <= 1.0


def test_peer_sum_of_unchanged_features_is_made_once(tmp_path: Path) -> None:
    """Later rounds repeat the first sum, of which each member subtracts the row that it sent for that sum."""
    frozen = short_training(
        "tests.conformance.federations:build_group_norm", batch_size=6, lr=0.05, frozen_extractor=True
    )
    agreement, holds = peer_sum(3, training=frozen), two_kinds()
    losses = [Loss(site, 1, Phase.SHARES) for site in ("site-1", "site-2")]
    transcript = record_run(agreement, data_for(agreement, holds), tmp_path, losses)
    assert transcript.summary() == [(number, 1, False) for number in (1, 2, 3)]
    assert len({got.hash for got in transcript.got.values()}) == 1
    for position in range(len(holds)):
        site = f"site-{position + 1}"
        own = transcript.trained[1, 1, site]
        assert guide_excess(transcript, 1, site, own, holds[position]) <= 1.0
        np.testing.assert_array_equal(transcript.trained[2, 1, site], own)
        np.testing.assert_array_equal(transcript.guides[3, 1, site], transcript.guides[2, 1, site])


def test_peer_sum_seals_no_secret_to_another_site(runs: Runs) -> None:
    """A run by rotations does, which shows that the search finds one."""
    summed = runs(MASKED, Weighting.UNIFORM, SMALLEST)
    assert not seals_a_secret(summed.received, summed.agreement)
    rotated = agreement_for(MASKED, Weighting.COMPLEMENT, classes=3, dim=8, rounds=1)
    with LocalFederation(rotated, data_for(rotated, holdings(3, 3)), record=True) as federation:
        federation.run()
        assert seals_a_secret(list(federation.store.received()), rotated)


def seals_a_secret(received: Sequence[Received], agreement: Agreement) -> bool:
    """Return whether any site sealed a secret to another in the set-up, or was asked to open one."""
    contents = {
        phase: [upload.content for upload in received if upload.key and upload.key.phase is phase]
        for phase in Phase
    }
    answers = [codec.decode_roster_answer(answer, limits_of(agreement)) for answer in contents[Phase.ROSTER]]
    assert answers
    return bool(contents[Phase.SECRET]) or any(answer.keys is not None for answer in answers)
