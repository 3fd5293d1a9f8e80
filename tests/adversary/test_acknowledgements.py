"""Acknowledgements of a result, and after a restart: the same bytes, whatever the site decrypted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agreement import Protection
from algorithms.pfpl import Weighting
from crypto.ckks.circuit import Circuit
from crypto.ckks.evaluation_keys import EvaluationKeys
from crypto.ckks.parameters import NUMERATOR, SLOTS
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import dump, read_ciphertext
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.messages import (
    Acknowledgement,
    Finished,
    JoinReply,
    JoinRequest,
    Phase,
    PhaseKey,
    Roster,
    RoundStart,
    Task,
    Work,
)
from secure_client.client_loop import step, take_part
from secure_client.errors import Violation
from tests.adversary.attack import Plays
from tests.support.scripted_coordinator import ScriptedCoordinator

A, B, C, D = NAMES = ("clinic-a", "clinic-b", "clinic-c", "clinic-d")
BOTH = [(Protection.PLAIN, Weighting.COMPLEMENT), (Protection.CKKS, Weighting.COMPLEMENT)]


class OneTask:
    """A transport with a single task, that notes every call."""

    def __init__(self, key: PhaseKey, content: bytes) -> None:
        self._work, self._content = Work(key, len(content), b"", 1.0), content
        self.said: list[tuple[str, bytes]] = []

    def join(self, request: JoinRequest) -> JoinReply:
        self.said.append(("join", codec.encode_statement(request.statement)))
        return JoinReply(request.protocol, 1.0, 1)

    def next_task(self) -> Task:
        return Finished(1) if any(kind == "upload" for kind, _ in self.said) else self._work

    def download(self, work: Work) -> bytes:
        assert work == self._work
        return self._content

    def upload(self, key: PhaseKey, content: bytes) -> None:
        assert key == self._work.key
        self.said.append(("upload", content))

    def leave(self) -> None:
        self.said.append(("leave", b""))


def _up_to_result(play: ScriptedCoordinator) -> dict[str, Payload]:
    play.set_up(*NAMES)
    active = play.begin(*NAMES)
    return play.combine(play.all_values(active), active)


def _result_waiting(play: ScriptedCoordinator, payload: Payload) -> OneTask:
    return OneTask(PhaseKey(play.agreement.run, 1, 1, Phase.RESULT), codec.encode_payload(payload))


def _take(play: ScriptedCoordinator, name: str, payload: Payload) -> list[tuple[str, bytes]]:
    """Return everything the site says when it finds this result waiting."""
    transport = _result_waiting(play, payload)
    try:
        step(play.site(name).session, transport)
    except Violation:
        transport.said.append(("refused", b""))
    return transport.said


@pytest.mark.parametrize(("protection", "weighting"), BOTH)
def test_acknowledgement_of_an_accepted_result_has_the_same_bytes(
    protection: Protection, weighting: Weighting, plays: Plays
) -> None:
    play = plays.peers(protection, weighting)
    results = _up_to_result(play)
    # clinic-b is given what belongs to clinic-a: well-formed, and other values.
    said = {name: _take(play, name, results[given]) for name, given in ((A, A), (B, A), (C, C), (D, D))}
    assert play.peers_received(A).any()
    for each in said.values():
        assert each == [("upload", codec.encode_acknowledgement(Acknowledgement()))]


def test_result_of_another_form_makes_the_site_leave(plays: Plays) -> None:
    play = plays.peers(*BOTH[1])
    results = _up_to_result(play)
    numerators, denominator = results[A].blobs
    bad = {
        A: replace(results[A], blobs=(denominator, numerators)),
        C: replace(results[C], blobs=results[C].blobs[:1]),
        D: Payload("ckks/2", blobs=results[D].blobs),
    }
    for name, payload in bad.items():
        assert _take(play, name, payload) == [("refused", b"")]
    transport = _result_waiting(play, bad[A])
    with pytest.raises(Violation):
        take_part(play.site(A).session, transport)
    assert [kind for kind, _ in transport.said] == ["join", "leave"]


def test_site_acknowledges_a_result_that_only_decryption_shows_to_be_wrong(plays: Plays) -> None:
    """Else a coordinator could compare sealed values with bounds of its choice, a site and round at a time."""
    play = plays.peers(*BOTH[1])
    results = _up_to_result(play)
    numerators, denominator = results[A].blobs
    stranger, _ = CkksSecret.generate()
    noise = stranger.encrypt(np.zeros(SLOTS), NUMERATOR)  # well-formed; under the group's key it is noise
    circuit = Circuit(EvaluationKeys.from_bytes(play.evaluation_keys()).load())
    shifted = circuit.add_values(read_ciphertext(numerators, NUMERATOR), np.full(SLOTS, 2.0**12))
    wrong = {
        A: replace(results[A], blobs=(dump(shifted), denominator)),
        B: replace(results[B], blobs=(noise, denominator)),
    }
    for name, payload in wrong.items():
        assert _take(play, name, payload) == [("upload", codec.encode_acknowledgement(Acknowledgement()))]
        assert play.site(name).journal.get("targets") is None
        assert play.presence(name, round_number=2).holds.any()


@pytest.mark.parametrize(("protection", "weighting"), BOTH)
def test_presence_bytes_do_not_depend_on_the_decrypted_result(
    protection: Protection, weighting: Weighting, plays: Plays
) -> None:
    play = plays.peers(protection, weighting)
    results = _up_to_result(play)
    before = {name: play.presence(name).holds.tolist() for name in (A, B)}
    _take(play, A, results[A])
    _take(play, B, results[A])
    assert {name: play.presence(name, round_number=2).holds.tolist() for name in (A, B)} == before


@pytest.mark.parametrize(("protection", "weighting"), BOTH)
def test_site_restarted_repeats_its_answers_byte_for_byte(
    protection: Protection, weighting: Weighting, plays: Plays
) -> None:
    play = plays.peers(protection, weighting)
    play.set_up(*NAMES)
    active = play.begin(*NAMES)
    results = play.combine(play.all_values(active), active)
    requests = {
        (0, Phase.ROSTER): codec.encode_roster(Roster(tuple(play.statements(NAMES)))),
        (1, Phase.PRESENCE): codec.encode_round_start(RoundStart()),
        (1, Phase.VALUES): codec.encode_active_list(active),
        (1, Phase.RESULT): codec.encode_payload(results[A]),
    }

    def answers() -> list[bytes]:
        return [
            play.ask(A, phase, content, round_number=round_number)
            for (round_number, phase), content in requests.items()
        ]

    statement, first = play.statement(A), answers()
    for _ in range(2):
        play.restart(A)
        assert answers() == first
        assert play.statement(A) == statement


def test_site_refuses_a_request_of_a_finished_round_even_with_the_same_bytes(plays: Plays) -> None:
    play = plays.peers(*BOTH[0])
    play.set_up(*NAMES)
    play.play_round(*NAMES)
    play.presence(A)  # as long as no later round has begun, the answer is there
    play.play_round(*NAMES, round_number=2)
    with pytest.raises(Violation):
        play.presence(A)
