"""PFPL with equal weights as a masked sum: drop-outs in each phase, catching up, a class that becomes rare, restarts.

The targets are those of equation 4, by loops over the sites whose values came. The sites share no secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, MaskingSection, Method, PfplSection, Protection
from agreement.derived.payload_forms import limits_of
from algorithms.pfpl import Weighting
from protoseal.audit.coordinator_view import search_messages
from protoseal.simulation.local_federation import LocalFederation
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey
from secure_server.storage.store import Received
from tests.conformance.dropout_schedule import AFTER, EVERYONE, LOST, each_phase, staying, two_lost
from tests.conformance.grouped_runs import Float, Tap, Transcript, grouped_agreement, run_into, two_kinds
from tests.conformance.runs import Bool, agreement_for, data_for, holdings, run
from tests.conformance.stepped_federation import Loss
from tests.conformance.sum_equations import contributors, last_attempt
from tests.conformance.test_restarts import check_same_bits, run_forgetfully
from tests.support.small import short_training

UNIFORM = PfplSection(weighting=Weighting.UNIFORM, alpha=0.3)
FEW: dict[str, Any] = {"complete_up_to": 3}
"""A sparse graph at nine sites: one colluder and two drop-outs."""


@dataclass
class PeerTranscript(Transcript):
    """Transcript with each site's prototypes after training, by (round, attempt, site)."""

    trained: dict[tuple[int, int, str], Float] = field(default_factory=dict)


class PeerTap(Tap):
    """Fills such a transcript."""

    _book: PeerTranscript

    def upload(self, key: PhaseKey, content: bytes) -> None:
        """See :class:`Tap`."""
        if key.phase is Phase.PRESENCE:
            rows, _ = self._at.trainee.train_round(key.round)
            self._book.trained[key.round, key.attempt, self._at.name] = rows
        super().upload(key, content)


def agreement_of(rounds: int, classes: int = 6, **masking: Any) -> Agreement:
    return grouped_agreement(
        Protection.MASKED,
        method=Method.PFPL,
        classes=classes,
        dim=12,
        rounds=rounds,
        pfpl=UNIFORM,
        masking=MaskingSection.model_validate(masking),
    )


def played(folder: Path, agreement: Agreement, holds: Bool, losses: list[Loss]) -> PeerTranscript:
    return run_into(PeerTranscript(agreement), PeerTap, data_for(agreement, holds), folder, losses)


def targets_of(transcript: PeerTranscript, number: int, site: str, own: Float) -> tuple[Float, Bool]:
    """Return a site's targets (K, d) after a round by equation 4, and the classes (K,) that any holder gets."""
    attempt, alpha = last_attempt(transcript, number), transcript.agreement.own_share
    put = {name: transcript.put[number, attempt, name] for name in contributors(transcript, number)}
    targets, given = np.zeros_like(own), np.zeros(len(own), dtype=np.bool_)
    for k in range(len(own)):
        holders = [name for name in put if put[name].holds[k]]
        peers = [put[name].rows[k] for name in holders if name != site]
        if len(holders) >= transcript.agreement.min_holders:
            given[k] = True
            targets[k] = alpha * own[k] + (1.0 - alpha) * np.mean(peers, axis=0)
    return targets, given


def check_guides(transcript: PeerTranscript, number: int, site: str, own: Float, held: Bool) -> None:
    """Check the targets that a site trained towards in the next round, within half a step of the ring."""
    want, given = targets_of(transcript, number, site, own)
    guides = transcript.guides[number + 1, 1, site]
    bound = (1.0 - transcript.agreement.own_share) * (
        transcript.agreement.fixed_point().resolution.max() / 2.0 + 1e-12
    )
    assert np.abs(guides - want)[given & held].max() <= bound
    without = targets_of(transcript, number, "nobody", own)[0]
    assert np.abs(guides - without)[given & held].max() > 1000.0 * bound or site in LOST


@pytest.fixture(
    scope="module", params=[{}, pytest.param(FEW, marks=pytest.mark.full)], ids=["complete", "sparse"]
)
def losing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PeerTranscript:
    """Each round loses two of nine sites in another phase."""
    agreement = agreement_of(AFTER, **request.param)
    return played(tmp_path_factory.mktemp("run"), agreement, two_kinds(), [*two_lost(Protection.MASKED)])


@each_phase
def test_every_site_trains_towards_the_mean_of_the_peers_whose_values_came(
    losing: PeerTranscript, number: int, phase: Phase
) -> None:
    assert losing.summary()[number - 1] == (number, 1, False)
    assert contributors(losing, number) == staying(phase)
    for position, site in enumerate(EVERYONE):
        if (
            phase is Phase.PRESENCE and site in LOST
        ):  # lost in the first round, before it trained: no target yet
            assert not losing.guides[number + 1, 1, site].any()
            continue
        own = losing.trained[number, 1, site]
        check_guides(losing, number, site, own, two_kinds()[position])


@each_phase
def test_a_lost_site_catches_up_with_the_same_bytes(
    losing: PeerTranscript, number: int, phase: Phase
) -> None:
    (base,) = {losing.got[number, site].hash for site in EVERYONE if site not in LOST}
    for site in EVERYONE:
        start = losing.starts[number + 1, 1, site]
        assert start.base == base == losing.bases[number + 1, 1, site]
        assert (start.catch_up is not None) == (site in LOST)
        if start.catch_up is not None:
            members = codec.decode_sum_members(start.catch_up.blobs[0], limits_of(losing.agreement))
            assert (members.round, members.attempt, members.listed[-1]) == (number, 1, EVERYONE[-1])
            assert members.signed.sites == staying(phase)


def test_no_prototype_of_a_site_is_in_a_message(losing: PeerTranscript) -> None:
    rows = np.concatenate([put.rows[put.holds] for put in losing.put.values()])
    assert not search_messages(losing.received, losing.agreement, rows).leaks


def test_a_class_that_falls_below_the_minimum_is_withheld_in_another_attempt(tmp_path: Path) -> None:
    """Sites 1 to 3 have class 2, and no others; one of them is lost after the list of holders was settled."""
    holds = np.ones((5, 3), dtype=np.bool_)
    holds[3:, 2] = False
    transcript = played(tmp_path, agreement_of(2, classes=3), holds, [Loss("site-3", 1, Phase.VALUES)])
    assert transcript.summary()[0] == (1, 2, False)
    for site in ("site-1", "site-2"):
        assert transcript.taken[1, site].prototypes.has_personal.tolist() == [True, True, False]
        check_guides(transcript, 1, site, transcript.trained[1, 2, site], holds[0])


def test_a_round_that_cannot_open_is_abandoned_and_the_next_trains_from_the_same_base(tmp_path: Path) -> None:
    losses = [Loss(site, 2, Phase.UNMASK) for site in (*LOST, "site-3")]
    transcript = played(tmp_path, agreement_of(3), two_kinds(), losses)
    assert transcript.summary() == [(1, 1, False), (2, 1, True), (3, 1, False)]
    assert {start.base for (number, _, _), start in transcript.starts.items() if number == 3} == {
        transcript.got[1, "site-9"].hash
    }


def test_features_that_do_not_change_are_summed_once(tmp_path: Path) -> None:
    """Later rounds repeat the first sum, of which each member subtracts the row that it sent for that sum."""
    agreement = agreement_of(3)
    frozen = short_training(
        "tests.conformance.private_runs:build", batch_size=6, lr=0.05, frozen_extractor=True
    )
    agreement = Agreement.model_validate({**dict(agreement), "training": frozen})
    losses = [Loss(site, 1, Phase.SHARES) for site in LOST]
    transcript = played(tmp_path, agreement, two_kinds(), losses)
    assert transcript.summary() == [(number, 1, False) for number in (1, 2, 3)]
    assert len({got.hash for got in transcript.got.values()}) == 1
    for position, site in enumerate(EVERYONE):
        own = transcript.trained[1, 1, site]
        check_guides(transcript, 1, site, own, two_kinds()[position])
        np.testing.assert_array_equal(transcript.trained[2, 1, site], own)
        np.testing.assert_array_equal(transcript.guides[3, 1, site], transcript.guides[2, 1, site])


def test_restarts_between_all_steps_change_no_bit(tmp_path: Path) -> None:
    agreement = agreement_for(Protection.MASKED, Weighting.UNIFORM, classes=3, dim=8)
    data = data_for(agreement, holdings(3, 3))
    undisturbed = run(agreement, data, tmp_path / "undisturbed")
    check_same_bits(run_forgetfully(agreement, data, tmp_path / "restarted"), undisturbed)


def test_no_site_seals_a_secret_to_another(losing: PeerTranscript) -> None:
    """A run by rotations does, which shows that the search finds one."""
    assert not seals_a_secret(losing.received, losing.agreement)
    rotated = agreement_for(Protection.MASKED, Weighting.COMPLEMENT, classes=3, dim=8, rounds=1)
    with LocalFederation(rotated, data_for(rotated, holdings(3, 3)), record=True) as federation:
        federation.run()
        assert seals_a_secret(list(federation.store.received()), rotated)


def seals_a_secret(received: Sequence[Received], agreement: Agreement) -> bool:
    """Return whether any site sealed a secret to another in the set-up, or was asked to open one."""
    contents = {
        phase: [each.content for each in received if each.key and each.key.phase is phase] for phase in Phase
    }
    answers = [codec.decode_roster_answer(each, limits_of(agreement)) for each in contents[Phase.ROSTER]]
    assert answers
    return bool(contents[Phase.SECRET]) or any(each.keys is not None for each in answers)
