"""Uploads that no honest site makes: each is refused with its status, changes nothing, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from grpc import StatusCode
from numpy.typing import NDArray
from tenseal import sealapi

from agreement import Agreement, Protection
from agreement.derived.payload_shapes import limits_of, values_shape
from algorithms.pfpl import Weighting
from crypto.ckks.serialization import dump, load
from crypto.errors import MalformedError, UnknownSchemeError, VerificationError
from crypto.protection import Payload
from protoseal.simulation.local_federation import LocalFederation
from protoseal_wire import codec
from protoseal_wire.class_presence import sign_presence
from protoseal_wire.messages import Acknowledgement, Phase, PresenceStatement, RoundStart
from protoseal_wire.v1 import protoseal_pb2 as pb
from secure_server import errors
from secure_server.service.servicer import find_status
from tests.adversary.bad_set_ups import MAKERS, NOT_MAKERS, OTHER_HASH, SEALED, UNSIGNED, Case
from tests.adversary.stopped_run import Scene, Upload, personalised, play_up_to, stopped_at
from tests.support.anchors import anchor
from tests.support.small import small_agreement, small_data

PLAIN, CKKS = Protection.PLAIN, Protection.CKKS
A, B, C = "clinic-a", "clinic-b", "clinic-c"
ACKNOWLEDGED = codec.encode_acknowledgement(Acknowledgement())
INVALID, ABORTED = StatusCode.INVALID_ARGUMENT, StatusCode.ABORTED

Stop = tuple[Protection, Phase, str]


def _agreement(protection: Protection) -> Agreement:
    return small_agreement(protection, Weighting.COMPLEMENT)


@cache
def _undisturbed(protection: Protection) -> dict[str, NDArray[np.float64]]:
    agreement = _agreement(protection)
    with LocalFederation(agreement, small_data(agreement)) as federation:
        federation.run()
        return personalised(federation)


# Bad in every phase


def _of_version(content: bytes, version: int) -> bytes:
    message = pb.Content.FromString(content)
    message.version = version
    return message.SerializeToString(deterministic=True)


def _too_large(scene: Scene) -> Upload:
    limit = limits_of(scene.federation.agreement).answer_bytes(scene.key.phase)
    return replace(scene.upload(scene.honest), announced=limit + 1)


ANY: dict[str, Case] = {
    "truncated": (codec.CodecError, INVALID, lambda s: s.upload(s.honest[:-1])),
    "empty": (codec.CodecError, INVALID, lambda s: s.upload(b"")),
    "something behind its end": (codec.Malformed, INVALID, lambda s: s.upload(s.honest + b"\x7a\x00")),
    "another version": (codec.UnknownVersion, INVALID, lambda s: s.upload(_of_version(s.honest, 2))),
    "another kind": (
        codec.Malformed,
        INVALID,
        lambda s: s.upload(codec.encode_round_start(RoundStart())),
    ),
    "announced too large": (errors.UploadTooLarge, StatusCode.RESOURCE_EXHAUSTED, _too_large),
    "the next round": (
        errors.WrongPhase,
        ABORTED,
        lambda s: replace(s.upload(s.honest), key=replace(s.key, round=s.key.round + 1)),
    ),
    "another attempt": (
        errors.WrongPhase,
        ABORTED,
        lambda s: replace(s.upload(s.honest), key=replace(s.key, attempt=s.key.attempt + 1)),
    ),
    "another phase": (
        errors.WrongPhase,
        ABORTED,
        lambda s: replace(s.upload(ACKNOWLEDGED), key=replace(s.key, phase=Phase(s.key.phase % 5 + 1))),
    ),
    "another run": (
        errors.WrongPhase,
        ABORTED,
        lambda s: replace(s.upload(s.honest), key=replace(s.key, run="run-2")),
    ),
    "of a site not on the roster": (
        errors.NotOnRoster,
        StatusCode.PERMISSION_DENIED,
        lambda s: replace(s.upload(s.honest), site="clinic-z"),
    ),
}


# Presence


def _presence(change: Callable[[Scene, PresenceStatement], PresenceStatement]) -> Callable[[Scene], Upload]:
    def upload(scene: Scene) -> Upload:
        statement = codec.decode_presence(scene.honest, limits_of(scene.federation.agreement))
        return scene.upload(codec.encode_presence(change(scene, statement)))

    return upload


def _signed(scene: Scene, signer: str, *, attempt: int = 1, roster_hash: bytes | None = None) -> bytes:
    party = next(each for each in scene.federation.parties if each.name == signer)
    key = replace(scene.key, attempt=attempt)
    roster = roster_hash or scene.coordinator.roster().hash
    holds = np.ones(len(scene.federation.agreement.classes), dtype=np.bool_)
    return codec.encode_presence(sign_presence(party.credentials, key, roster, holds))


PRESENCE: dict[str, Case] = {
    "another site's": (VerificationError, INVALID, lambda s: s.upload(_signed(s, C))),
    "another site's, in this one's name": (
        VerificationError,
        INVALID,
        lambda s: s.upload(
            codec.encode_presence(
                replace(codec.decode_presence(_signed(s, C), limits_of(s.federation.agreement)), site=B)
            )
        ),
    ),
    "of another attempt": (VerificationError, INVALID, lambda s: s.upload(_signed(s, B, attempt=2))),
    "of another roster": (
        VerificationError,
        INVALID,
        lambda s: s.upload(_signed(s, B, roster_hash=b"h" * 32)),
    ),
    "for other classes than signed": (
        VerificationError,
        INVALID,
        _presence(lambda _, statement: replace(statement, holds=~statement.holds)),
    ),
    "for too many classes": (
        codec.Malformed,
        INVALID,
        _presence(lambda _, statement: replace(statement, holds=np.ones(4, dtype=np.bool_))),
    ),
}


# Values


def _values(change: Callable[[Payload], Payload]) -> Callable[[Scene], Upload]:
    def upload(scene: Scene) -> Upload:
        agreement = scene.federation.agreement
        payload = codec.decode_payload(scene.honest, limits_of(agreement), values_shape(agreement, 1))
        return scene.upload(codec.encode_payload(change(payload)))

    return upload


def _rows(change: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Callable[[Scene], Upload]:
    return _values(lambda payload: replace(payload, arrays=(change(payload.arrays[0].copy()),)))


def _set(rows: NDArray[np.float64], row: int, value: float) -> NDArray[np.float64]:
    rows[row, 0] = value
    return rows


def _other_scale(payload: Payload) -> Payload:
    ciphertext = load(sealapi.Ciphertext(), payload.blobs[0])
    ciphertext.scale *= 2.0
    return replace(payload, blobs=(dump(ciphertext), *payload.blobs[1:]))


ROWS: dict[str, Case] = {
    "not a number": (codec.NotFinite, INVALID, _rows(lambda rows: _set(rows, 0, np.nan))),
    "infinite": (codec.NotFinite, INVALID, _rows(lambda rows: _set(rows, 0, np.inf))),
    "another shape": (codec.Malformed, INVALID, _rows(lambda rows: rows[:2])),
    "longer than the norm bound": (MalformedError, INVALID, _rows(lambda rows: _set(rows, 0, 1.5))),
    "an unknown scheme": (
        UnknownSchemeError,
        INVALID,
        _values(lambda payload: replace(payload, scheme="plain/9")),
    ),
    "ciphertexts where rows are agreed": (
        codec.Malformed,
        INVALID,
        _values(lambda _: Payload("ckks/1", blobs=(b"c",))),
    ),
}
NOT_HELD: dict[str, Case] = {
    "a row of a class it does not hold": (MalformedError, INVALID, _rows(lambda rows: _set(rows, 2, 0.5))),
}
CIPHERTEXTS: dict[str, Case] = {
    "rows where ciphertexts are agreed": (
        codec.Malformed,
        INVALID,
        _values(lambda _: Payload("plain/1", arrays=(np.zeros((3, 8)),))),
    ),
    "an unknown scheme": (
        UnknownSchemeError,
        INVALID,
        _values(lambda payload: replace(payload, scheme="ckks/2")),
    ),
    "a ciphertext too few": (
        MalformedError,
        INVALID,
        _values(lambda payload: replace(payload, blobs=payload.blobs[:1])),
    ),
    "no ciphertexts at all": (
        MalformedError,
        INVALID,
        _values(lambda payload: replace(payload, blobs=(bytes(64), bytes(64)))),
    ),
    "ciphertexts of other levels": (
        MalformedError,
        INVALID,
        _values(lambda payload: replace(payload, blobs=payload.blobs[::-1])),
    ),
    "a ciphertext has another scale": (MalformedError, INVALID, _values(_other_scale)),
}

STOPS: Mapping[Stop, Mapping[str, Case]] = {
    (PLAIN, Phase.ROSTER, B): ANY | {"another roster's hash": OTHER_HASH},
    (PLAIN, Phase.PRESENCE, B): ANY | PRESENCE,
    (PLAIN, Phase.VALUES, B): ANY | ROWS,
    (PLAIN, Phase.VALUES, C): NOT_HELD,
    (PLAIN, Phase.RESULT, B): ANY,
    (CKKS, Phase.ROSTER, A): MAKERS | SEALED,
    (CKKS, Phase.ROSTER, B): NOT_MAKERS,
    (CKKS, Phase.SECRET, B): ANY,
    (CKKS, Phase.VALUES, B): ANY | CIPHERTEXTS,
}
"""Points at which the run stops, and what the victim sends there before it sends the honest answer."""


@pytest.mark.parametrize(
    "stop", STOPS, ids=lambda stop: "-".join((str(stop[0]), stop[1].name.lower(), stop[2]))
)
def test_bad_upload_changes_nothing_and_the_run_continues(stop: Stop) -> None:
    protection, phase, victim = stop
    with stopped_at(_agreement(protection), victim, phase) as scene:
        before = scene.memory()
        for name, (error, status, change) in STOPS[stop].items():
            upload = change(scene)
            with pytest.raises(error) as refused:
                scene.send(upload)
            assert find_status(refused.value) is status, name
            assert scene.memory() == before, name
        _assert_duplicates_are_harmless(scene)
        scene.federation.run()
        found = personalised(scene.federation)
    for site, expected in _undisturbed(protection).items():
        np.testing.assert_allclose(found[site], expected, atol=0.0 if protection is PLAIN else 1e-4)


def test_unsigned_secret_is_taken_without_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    with stopped_at(_agreement(CKKS), A, Phase.ROSTER) as scene:
        monkeypatch.setattr("crypto.sealed_group_secret.verify", lambda *_args: None)
        scene.send(UNSIGNED[2](scene))
        assert A in scene.coordinator.state.verified


def _assert_duplicates_are_harmless(scene: Scene) -> None:
    """Assert that the honest answer counts once: the same bytes again are ignored, others refused for good."""
    scene.send(scene.upload(scene.honest))
    after = scene.memory()
    scene.send(scene.upload(scene.honest))
    assert scene.memory() == after
    with pytest.raises(errors.Conflict) as refused:
        scene.send(scene.upload(scene.honest + b"\x00"))
    assert find_status(refused.value) is StatusCode.ALREADY_EXISTS
    assert scene.memory() == after


def test_ledger_entries_that_fall_exclude_the_site_that_states_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers leave the run at such a statement, so no list may have it."""
    agreement = _agreement(PLAIN)
    with LocalFederation(agreement, small_data(agreement)) as federation:
        for site in federation.sites:
            site.join()
        bad = next(site for site in federation.sites if site.name == B)
        monkeypatch.setattr(bad.session._anchor, "show", lambda number: anchor(9 - number))
        play_up_to(federation, bad, Phase.PRESENCE)
        bad.step()
        assert play_up_to(federation, bad, Phase.PRESENCE).round == 2
        with pytest.raises(errors.BadPayload, match=B):
            bad.step()
        assert not federation.coordinator.state.over
        assert B not in federation.coordinator.state.answered
