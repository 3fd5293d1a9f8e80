"""Statements before FedPC's steps with one fault each: presence, bases, mask keys, the group's secret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from crypto.errors import MalformedError, VerificationError
from crypto.pairwise.attempt import AttemptSecrets, MaskKeys
from protoseal_wire import codec
from protoseal_wire.messages import PhaseKey, RosterAnswer
from secure_server.errors import BadPayload
from secure_server.rounds.state import RoundStage
from secure_server.upload_checks import AnswerCheck
from tests.crypto.test_keys import plus_small_order
from tests.secure_server.exchanges.fedpc_play import Change, Play, check_passes, check_refused
from tests.secure_server.scripted_sites import ScriptedSite

# Presence


def _stated(**changes: Any) -> Change:
    return lambda site, key, _: codec.encode_presence(site.presence(key, **changes))


def _keys(change: Callable[[MaskKeys], MaskKeys]) -> Change:
    return lambda site, key, _: codec.encode_presence(site.presence(key, keys=change(site.secrets.public)))


LOW_ORDER = bytes(32)

PRESENCE: dict[str, tuple[type[Exception], str, Change]] = {
    "without keys": (BadPayload, "must state keys", _stated(keys=None)),
    "with one key for both": (
        VerificationError,
        "one key",
        _keys(lambda keys: MaskKeys(keys.mask, keys.mask)),
    ),
    "with a key of low order": (
        VerificationError,
        "order",
        _keys(lambda keys: MaskKeys(LOW_ORDER, keys.share)),
    ),
    "from another base": (BadPayload, "result", _stated(base=b"b" * 32)),
    "signed for another attempt": (
        VerificationError,
        "",
        lambda site, key, _: codec.encode_presence(site.presence(replace(key, attempt=2))),
    ),
    "with keys under the signature of others": (
        VerificationError,
        "",
        lambda site, key, honest: codec.encode_presence(
            replace(codec.decode_presence(honest, site.limits), keys=AttemptSecrets.generate().public)
        ),
    ),
}


@pytest.mark.parametrize("case", PRESENCE)
def test_presence(masked: Play, case: str) -> None:
    error, match, change = PRESENCE[case]
    check_refused(masked, RoundStage.PRESENCE, 1, change, error, match)


def test_presence_without_the_base_of_the_round_before(masked: Play) -> None:
    check_refused(masked, RoundStage.PRESENCE, 2, _stated(base=b""), BadPayload, "result")


@pytest.mark.parametrize("twin", [False, True])
def test_presence_with_another_sites_key(masked: Play, twin: bool) -> None:
    """The key is the other site's as it is, or that key plus the point of order two."""
    masked.go_to(RoundStage.PRESENCE, 1)
    masked.step("a")
    public = masked.sites["a"].secrets.public.mask
    taken = plus_small_order(public)[0] if twin else public
    change = _keys(lambda keys: MaskKeys(keys.mask, taken))
    check_refused(masked, RoundStage.PRESENCE, 1, change, BadPayload, "another site")


@pytest.mark.parametrize("number", [0, 1])
def test_presence_with_keys_that_nothing_needs(plain: Play, number: int) -> None:
    change = _stated(keys=AttemptSecrets.generate().public)
    check_refused(plain, RoundStage.PRESENCE, number, change, BadPayload, "keys")


@pytest.mark.parametrize(
    ("check", "case"), [("_check_base", "from another base"), ("_check_keys", "without keys")]
)
def test_presence_would_pass_without_its_check(
    masked: Play, check: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AnswerCheck, check, lambda *_: None)
    check_passes(masked, RoundStage.PRESENCE, PRESENCE[case][2])


# The group's secret


def _group_keys(public: bytes, sealed_for: bytes) -> Change:
    def changed(site: ScriptedSite, key: PhaseKey, _: bytes) -> bytes:
        roster = site.coordinator.roster()
        keys = replace(site.group_keys(roster, key.attempt, sealed_for), evaluation_keys=public)
        return codec.encode_roster_answer(RosterAnswer(roster.hash, keys))

    return changed


@pytest.mark.parametrize(
    ("public", "sealed_for", "match"),
    [(b"keys", b"keys", "keys"), (b"", b"keys", "hash")],
)
def test_a_rotations_seed_comes_with_no_evaluation_keys(
    masked: Play, public: bytes, sealed_for: bytes, match: str
) -> None:
    assert masked.state.stage is RoundStage.SETUP
    site, key = masked.sites["a"], masked.state.roster_key
    with pytest.raises((BadPayload, MalformedError), match=match):
        site.upload(key, _group_keys(public, sealed_for)(site, key, b""))
    site.upload(key, _group_keys(b"", b"")(site, key, b""))
    assert "a" in masked.state.verified
    assert not masked.keys.exists(), "and nothing is laid where evaluation keys would be"
