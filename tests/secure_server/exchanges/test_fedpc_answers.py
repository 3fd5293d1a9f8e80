"""Answers in FedPC's steps with one fault each: a refused answer changes nothing, and a good one then mends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agreement import Protection
from agreement.derived.payload_shapes import limits_of, sums_shape, values_shape
from crypto.errors import CryptoError, MalformedError, VerificationError
from crypto.pairwise.member_signatures import sign_survivors
from crypto.pairwise.shares import ReleasedShare, ShareKind
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.codec import CodecError
from protoseal_wire.messages import Phase, PhaseKey, ReleasedShares, SharesMade, SurvivorSignature
from secure_server.errors import BadPayload, UploadTooLarge
from secure_server.exchanges import secure_aggregation, sums
from secure_server.rounds.state import PHASE_OF_STAGE, RoundStage
from tests.adversary.stopped_run import stopped_at
from tests.secure_server.exchanges.fedpc_play import VICTIM, Change, Play, check_passes, check_refused
from tests.secure_server.scripted_sites import CLASSES, DIM, FAR, NEAR, PARAMETERS, ScriptedSite
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.scripted_sums import play_quickly

# Shares


def _shares(change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Change:
    return lambda site, _, honest: codec.encode_shares_made(
        SharesMade(change(codec.decode_shares_made(honest, site.limits).shares))
    )


SHARES: dict[str, tuple[type[Exception], str, Change]] = {
    "one is missing": (BadPayload, "other members", _shares(lambda shares: shares[1:])),
    "one twice": (CodecError, "distinct", _shares(lambda shares: (*shares[:-1], shares[0]))),
    "one for a stranger": (
        BadPayload,
        "other members",
        _shares(lambda shares: (replace(shares[0], recipient="w"), *shares[1:])),
    ),
    "of another sender": (
        VerificationError,
        "",
        _shares(lambda shares: tuple(replace(share, sender="w") for share in shares)),
    ),
    "altered": (
        VerificationError,
        "",
        _shares(lambda shares: (replace(shares[0], sealed=bytes(len(shares[0].sealed))), *shares[1:])),
    ),
    "swapped": (
        VerificationError,
        "",
        _shares(
            lambda shares: (
                replace(shares[0], recipient=shares[1].recipient),
                replace(shares[1], recipient=shares[0].recipient),
                *shares[2:],
            )
        ),
    ),
}


@pytest.mark.parametrize("case", SHARES)
def test_shares(masked: Play, case: str) -> None:
    error, match, change = SHARES[case]
    check_refused(masked, RoundStage.SHARES, 1, change, error, match)


def test_shares_of_an_earlier_attempt(masked: Play) -> None:
    masked.go_to(RoundStage.SHARES, 1)
    key = masked.state.key(PHASE_OF_STAGE[RoundStage.SHARES])
    old = masked.sites[VICTIM].answer(key, masked.sites[VICTIM].download(key))
    masked.go_to(RoundStage.PRESENCE, 1, without=("a", "b"))
    masked.restart()  # and nobody is benched any more
    check_refused(masked, RoundStage.SHARES, 1, lambda *_: old, VerificationError)


# Values


def _words(change: Callable[[Payload], Payload]) -> Change:
    def changed(site: ScriptedSite, key: PhaseKey, honest: bytes) -> bytes:
        form = values_shape(site.agreement, key.round)
        return codec.encode_payload(change(codec.decode_payload(honest, site.limits, form)))

    return changed


MASKED_VALUES: dict[str, tuple[type[Exception], Change]] = {
    "of another length": (CodecError, _words(lambda p: replace(p, words=(p.words[0][1:],)))),
    "of another ring": (CodecError, _words(lambda p: replace(p, words=(p.words[0].astype(np.uint32),)))),
    "of another scheme": (MalformedError, _words(lambda p: replace(p, scheme="plain/1"))),
    "in the clear": (
        CodecError,
        lambda site, key, _: codec.encode_payload(Payload("plain/1", arrays=(site.vector(key.round),))),
    ),
    "cut off": (CodecError, lambda site, key, honest: honest[:-1]),
    "too many": (
        (UploadTooLarge),
        lambda site, key, honest: honest + bytes(limits_of(site.agreement).payload),
    ),
}


@pytest.mark.parametrize("case", MASKED_VALUES)
def test_masked_values(masked: Play, case: str) -> None:
    error, change = MASKED_VALUES[case]
    check_refused(masked, RoundStage.VALUES, 1, change, error)


def _vector(change: Callable[[Any], None]) -> Change:
    def changed(payload: Payload) -> Payload:
        vector = payload.arrays[0].copy()
        change(vector)
        return replace(payload, arrays=(vector,))

    return _words(changed)


def _set(position: int, value: float) -> Change:
    def change(vector: Any) -> None:
        vector[position] = value

    return _vector(change)


WITHHELD, THETA = 2 * DIM, CLASSES * DIM
"""Start of the row of a class without enough holders, and start of the averaged part."""

PLAIN_VALUES: dict[str, tuple[type[Exception], str, Change]] = {
    "a row of a withheld class": (MalformedError, "does not hold", _set(WITHHELD, 0.1)),
    "a row beyond the norm bound": (MalformedError, "norm", _set(0, 2.0)),
    "a parameter beyond its bound": (MalformedError, "bound of 60", _set(THETA, -60.1)),
    "a buffer beyond its bound": (MalformedError, "bound of 1e", _set(THETA + PARAMETERS, 1.1e6)),
    "not a number": (CodecError, "", _set(THETA, np.nan)),
    "of another scheme": (MalformedError, "", _words(lambda p: replace(p, scheme="rotation/1"))),
}


@pytest.mark.parametrize("case", PLAIN_VALUES)
def test_plain_values(plain: Play, case: str) -> None:
    error, match, change = PLAIN_VALUES[case]
    check_refused(plain, RoundStage.VALUES, 1, change, error, match)


def test_values_at_their_bounds_are_good(plain: Play) -> None:
    plain.go_to(RoundStage.VALUES, 1)
    site, key = plain.sites[VICTIM], plain.state.key(Phase.VALUES)
    honest = site.answer(key, site.download(key))

    def change(vector: Any) -> None:
        vector[:DIM], vector[0] = 0.0, plain.agreement.norm_bound
        vector[THETA], vector[-1] = -60.0, 1e6

    site.upload(key, _vector(change)(site, key, honest))
    assert VICTIM in plain.state.answered


@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_rows_for_the_clustering(request: pytest.FixtureRequest, protection: str) -> None:
    play: Play = request.getfixturevalue(protection)
    other = "rotation/1" if protection == "plain" else "plain/1"
    long = _words(lambda p: replace(p, arrays=(p.arrays[0] * 10.0,)))
    check_refused(play, RoundStage.VALUES, 0, long, MalformedError, "norm")
    play.restart()
    play.late()
    play.late()
    unturned = _words(lambda p: replace(p, scheme=other))
    check_refused(play, RoundStage.VALUES, 0, unturned, MalformedError, "scheme")


# Survivors, and what is released for them


def _signed(survivors: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Change:
    def changed(site: ScriptedSite, key: PhaseKey, _: bytes) -> bytes:
        signature = sign_survivors(site.party.credentials, site.binding(key), survivors(site.there))
        return codec.encode_survivor_signature(SurvivorSignature(site.name, signature))

    return changed


SURVIVORS: dict[str, tuple[type[Exception], str, Change]] = {
    "another set": (VerificationError, "", _signed(lambda there: there[1:])),
    "in another's name": (
        BadPayload,
        "sign as itself",
        lambda site, key, honest: codec.encode_survivor_signature(
            replace(codec.decode_survivor_signature(honest, site.limits), site="b")
        ),
    ),
    "another attempt": (
        VerificationError,
        "",
        lambda site, key, honest: _signed(lambda there: there)(site, replace(key, attempt=7), honest),
    ),
}


@pytest.mark.parametrize("case", SURVIVORS)
def test_signatures_on_survivors(masked: Play, case: str) -> None:
    error, match, change = SURVIVORS[case]
    check_refused(masked, RoundStage.SURVIVORS, 1, change, error, match)


def _released(change: Callable[[tuple[ReleasedShare, ...]], tuple[ReleasedShare, ...]]) -> Change:
    return lambda site, _, honest: codec.encode_released_shares(
        ReleasedShares(change(codec.decode_released_shares(honest, site.limits).shares))
    )


RELEASED: dict[str, Change] = {
    "the other kind": _released(lambda shares: (replace(shares[0], kind=ShareKind.KEY), *shares[1:])),
    "both kinds": _released(lambda shares: (replace(shares[0], kind=ShareKind.KEY), *shares)),
    "of a stranger": _released(lambda shares: (*shares[:-1], replace(shares[-1], owner="w"))),
    "one twice": _released(lambda shares: (shares[0], *shares)),
}


@pytest.mark.parametrize("case", RELEASED)
def test_released_shares(masked: Play, case: str) -> None:
    check_refused(masked, RoundStage.UNMASK, 1, RELEASED[case], (CryptoError, CodecError))  # type: ignore[arg-type]


def test_the_kind_is_checked_for_those_who_dropped_out_too(masked: Play) -> None:
    masked.go_to(RoundStage.VALUES, 1)
    masked.go_to(RoundStage.UNMASK, 1, without=("d",))
    due = {"a": ShareKind.SEED, "b": ShareKind.SEED, "c": ShareKind.SEED, "d": ShareKind.KEY}

    def wrong(shares: tuple[ReleasedShare, ...]) -> tuple[ReleasedShare, ...]:
        assert {share.owner: share.kind for share in shares} == due
        return (*shares[:-1], replace(shares[-1], kind=ShareKind.SEED))

    check_refused(masked, RoundStage.UNMASK, 1, _released(wrong), MalformedError)


def test_a_wrong_share_costs_its_group_the_round_and_tells_nobody_why(masked: Play) -> None:
    """The coordinator cannot tell a wrong share from a good one before it combines the shares."""
    masked.go_to(RoundStage.UNMASK, 1)
    masked.sites[VICTIM].twist[PHASE_OF_STAGE[RoundStage.UNMASK]] = lambda content: _released(
        lambda shares: tuple(
            replace(share, share=bytes([*share.share[:-1], share.share[-1] ^ 1])) for share in shares
        )
    )(masked.sites[VICTIM], masked.state.key(PHASE_OF_STAGE[RoundStage.UNMASK]), content)
    masked.go_to(RoundStage.PRESENCE, 2)
    assert masked.state.reason == ""
    masked.sites[VICTIM].twist.clear()
    masked.go_to(RoundStage.FINISHED)
    got = {name: set(site.results) for name, site in masked.sites.items()}
    assert [got[name] for name in (*NEAR, *FAR)] == [{2}] * 4 + [{1, 2}] * 4


MEANS: dict[str, tuple[str, Callable[[Payload], Payload]]] = {
    "of another scheme": ("scheme", lambda payload: replace(payload, scheme="plain/1")),
    "of a ciphertext less": ("ciphertexts", lambda payload: replace(payload, blobs=payload.blobs[:-1])),
    "of bytes that are no ciphertext": (
        "length",
        lambda payload: replace(payload, blobs=(bytes(9), *payload.blobs[1:])),
    ),
}


def test_means_of_a_leader_that_cannot_be_mixed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    play_quickly(monkeypatch)
    agreement = grouped_agreement(Protection.CKKS)
    with stopped_at(agreement, min(EVERYONE), Phase.MEANS) as scene:
        honest = codec.decode_payload(scene.honest, limits_of(agreement), sums_shape(agreement))
        for named, change in MEANS.values():
            with pytest.raises(MalformedError, match=named):
                scene.send(scene.upload(codec.encode_payload(change(honest))))
        scene.send(scene.upload(scene.honest))


WITHOUT = {
    "SHARES altered": (secure_aggregation, "verify_share", "masked", RoundStage.SHARES, SHARES["altered"][2]),
    "SURVIVORS": (
        secure_aggregation,
        "verify_survivor",
        "masked",
        RoundStage.SURVIVORS,
        SURVIVORS["another set"][2],
    ),
    "UNMASK": (secure_aggregation, "check_released", "masked", RoundStage.UNMASK, RELEASED["the other kind"]),
    "words": (
        secure_aggregation,
        "masked_words",
        "masked",
        RoundStage.VALUES,
        MASKED_VALUES["of another scheme"][1],
    ),
    "norm": (
        sums,
        "_check_rows",
        "plain",
        RoundStage.VALUES,
        PLAIN_VALUES["a row beyond the norm bound"][2],
    ),
    "bound": (
        sums,
        "check_model",
        "plain",
        RoundStage.VALUES,
        PLAIN_VALUES["a parameter beyond its bound"][2],
    ),
}


@pytest.mark.parametrize("case", WITHOUT)
def test_would_pass_without_its_check(
    case: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name, protection, stage, change = WITHOUT[case]
    monkeypatch.setattr(place, name, lambda *_: None)
    check_passes(request.getfixturevalue(protection), stage, change)
