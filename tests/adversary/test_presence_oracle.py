"""Presence as an oracle: a site's stated classes must not tell if a number in an encrypted sum exceeds a bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agreement import Agreement
from agreement.derived.payload_shapes import directions_shape, limits_of
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.checkpoints.exchanged_values import TrainedValues
from tests.adversary.oracles import CLASSES, asking, classes_with_a_direction, run, sealed
from tests.conformance.transcripts import ClusterTranscript

APART = 4.0
"""Distance of the bound from the sealed sum, which is about 16."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> ClusterTranscript:
    return run(tmp_path_factory.mktemp("honest"))


@pytest.fixture
def asked(
    honest: ClusterTranscript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[bool, ClusterTranscript]:
    """Return the transcripts by whether the true answer is yes."""
    return {yes: _asked(honest, tmp_path, monkeypatch, yes=yes) for yes in (True, False)}


def _asked(
    honest: ClusterTranscript, folder: Path, patch: pytest.MonkeyPatch, *, yes: bool
) -> ClusterTranscript:
    total, samples = sealed(honest)
    into = folder / str(yes)
    into.mkdir()
    with patch.context() as inside:
        asking(inside, total - APART if yes else total + APART, samples)
        return run(into)


def stated(transcript: ClusterTranscript) -> set[tuple[bool, ...]]:
    """Return the classes that sites stated in the second round."""
    limits = limits_of(transcript.agreement)
    return {
        tuple(codec.decode_presence(each.content, limits).holds.tolist())
        for each in transcript.received
        if each.key is not None and each.key.phase is Phase.PRESENCE and each.key.round == 2
    }


def least_cosine(transcript: ClusterTranscript) -> float:
    """Return the least cosine between a site's directions of a class in the second round and another site's."""
    agreement: Agreement = transcript.agreement
    limits, form = limits_of(agreement), directions_shape(agreement)
    sent = [
        codec.decode_payload(each.content, limits, form).arrays
        for each in transcript.received
        if each.key is not None and each.key.phase is Phase.DIRECTIONS and each.key.round == 2
    ]
    rows = np.concatenate([rows for rows, _ in sent])
    labels = np.concatenate([labels for _, labels in sent])
    return float((rows @ rows.T)[labels[:, None] == labels[None, :]].min())


def test_a_site_that_states_no_class_of_zeros_answers_the_question(
    honest: ClusterTranscript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power of the next."""
    monkeypatch.setattr(TrainedValues, "held_classes", classes_with_a_direction)
    answers = {yes: stated(_asked(honest, tmp_path, monkeypatch, yes=yes)) for yes in (True, False)}
    assert answers == {True: {(True,) * CLASSES}, False: {(False,) * CLASSES}}


def test_stated_presence_does_not_depend_on_sealed_values(
    honest: ClusterTranscript, asked: dict[bool, ClusterTranscript]
) -> None:
    assert stated(honest) == {(True,) * CLASSES}
    for transcript in asked.values():
        assert stated(transcript) == stated(honest)
        assert {place for place in transcript.got if place[0] == 2} == {
            place for place in honest.got if place[0] == 2
        }


def test_the_stated_limit_directions_answer_the_question(asked: dict[bool, ClusterTranscript]) -> None:
    """All one way where the unit is left; by chance where no feature is. So one round gives away one bit, or more."""
    assert least_cosine(asked[True]) > 1.0 - 1e-9
    assert least_cosine(asked[False]) < 0.9
