"""Only what a half of the agreed protection made is encoded: a table of answers that other code could return."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, Method, PfplSection, Protection
from agreement.derived.cohorts import first_round, steps_of
from agreement.registry.round_plan import PayloadKind
from algorithms.pfpl import Weighting
from crypto import plain, rotation
from crypto.ckks.group_mixing import MixingSite
from crypto.ckks.parameters import SCHEME as CKKS
from crypto.ckks.site import CkksSite
from crypto.ckks.sums import SummingSite
from crypto.pairwise import SCHEME as PAIRWISE
from crypto.pairwise.masks import MaskingSite
from crypto.protection import DeclaredHalf, Payload, ProtectedPayload
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.errors import Unprotected
from secure_client.protocol.sent_values import Answer, SignedValues, encode_answer
from tests.support.scripted_clusters import clustered_agreement
from tests.support.summed import method_agreement

HALVES: dict[type, str] = {
    plain.PlainSite: plain.SCHEME,
    plain.PlainValues: plain.SCHEME,
    rotation.RotationSite: rotation.SCHEME,
    rotation.RotatedDirections: rotation.SCHEME,
    MaskingSite: PAIRWISE,
    CkksSite: CKKS,
    SummingSite: CKKS,
    MixingSite: CKKS,
    DeclaredHalf: "pads/1",
}
"""Every half of the project, and a third party's, with its scheme."""
AGREED: dict[tuple[Method, Protection, Phase, int], tuple[type, ...]] = {
    (Method.PFPL, Protection.PLAIN, Phase.VALUES, 1): (plain.PlainSite,),
    (Method.PFPL, Protection.MASKED, Phase.VALUES, 1): (rotation.RotationSite,),
    (Method.PFPL, Protection.CKKS, Phase.VALUES, 1): (CkksSite, SummingSite),
    (Method.FEDDBP, Protection.PLAIN, Phase.VALUES, 1): (plain.PlainValues,),
    (Method.FEDDBP, Protection.MASKED, Phase.VALUES, 1): (MaskingSite,),
    (Method.FEDDBP, Protection.CKKS, Phase.VALUES, 1): (CkksSite, SummingSite),
    (Method.FEDPC, Protection.PLAIN, Phase.VALUES, 0): (plain.PlainSite,),
    (Method.FEDPC, Protection.PLAIN, Phase.VALUES, 1): (plain.PlainValues,),
    (Method.FEDPC, Protection.MASKED, Phase.VALUES, 0): (rotation.RotationSite,),
    (Method.FEDPC, Protection.MASKED, Phase.VALUES, 1): (MaskingSite,),
    (Method.FEDPC, Protection.CKKS, Phase.VALUES, 0): (rotation.RotationSite,),
    (Method.FEDPC, Protection.CKKS, Phase.VALUES, 1): (CkksSite, SummingSite),
    (Method.FEDPC, Protection.CKKS, Phase.MEANS, 1): (MixingSite,),
    (Method.FEDPLCC, Protection.PLAIN, Phase.VALUES, 1): (plain.PlainValues,),
    (Method.FEDPLCC, Protection.MASKED, Phase.DIRECTIONS, 1): (rotation.RotatedDirections,),
    (Method.FEDPLCC, Protection.MASKED, Phase.VALUES, 1): (MaskingSite,),
    (Method.FEDPLCC, Protection.CKKS, Phase.DIRECTIONS, 1): (rotation.RotatedDirections,),
    (Method.FEDPLCC, Protection.CKKS, Phase.VALUES, 1): (CkksSite, SummingSite),
}
"""Halves of every phase with values, by method and protection; PFPL has distance weights."""
CARRIES_NONE = (Phase.SHARES, Phase.SURVIVORS, Phase.UNMASK)
CASES = [*AGREED]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))


def agreement_on(method: Method, protection: Protection) -> Agreement:
    if method is Method.FEDPLCC:
        return clustered_agreement(protection=protection)
    return method_agreement(method, protection, pfpl=PfplSection(weighting=Weighting.DISTANCE))


def test_equal_weights_under_masked_are_sent_as_masked_words_alone() -> None:
    agreement = method_agreement(
        Method.PFPL, Protection.MASKED, pfpl=PfplSection(weighting=Weighting.UNIFORM)
    )
    key, words = PhaseKey(agreement.run, 1, 1, Phase.VALUES), payload_of(PAIRWISE)
    assert encode_answer(agreement, key, made_by(MaskingSite, words)) == codec.encode_payload(words)
    for answer in other_answers((MaskingSite,)):
        _refused(agreement, key, answer)


def made_by(maker: type, payload: Payload) -> ProtectedPayload:
    """Return what a half of this class would return, if it made this payload."""
    half: Any = object.__new__(maker)
    half.__dict__["protect"] = lambda: payload
    return ProtectedPayload(half)


def payload_of(scheme: str) -> Payload:
    return Payload(scheme, arrays=(np.ones((1, 2)),))


class Forged(ProtectedPayload):
    """Answer that has the type's name and no half."""

    def __init__(self, maker: type, payload: Payload) -> None:
        object.__setattr__(self, "maker", maker)
        object.__setattr__(self, "payload", payload)


def other_answers(agreed: tuple[type, ...]) -> Iterator[object]:
    """Yield answers that no half of the agreed protection made: bytes, payloads, and other halves' payloads."""
    label = HALVES[agreed[0]]
    for scheme in (plain.SCHEME, label):
        yield payload_of(scheme)
        yield codec.encode_payload(payload_of(scheme))
        yield Forged(agreed[0], payload_of(scheme))
    yield None
    for maker, scheme in HALVES.items():
        if maker not in agreed:
            yield made_by(maker, payload_of(scheme))
            yield made_by(maker, payload_of(label))


@each_case
def test_the_agreed_half_alone_makes_the_values_that_are_sent(
    case: tuple[Method, Protection, Phase, int],
) -> None:
    method, protection, phase, number = case
    agreement = agreement_on(method, protection)
    key = PhaseKey(agreement.run, number, 1, phase)
    for maker in AGREED[case]:
        payload = payload_of(HALVES[maker])
        assert encode_answer(agreement, key, made_by(maker, payload)) == codec.encode_payload(payload)
    for answer in other_answers(AGREED[case]):
        _refused(agreement, key, answer)
        _refused(agreement, key, SignedValues(answer, bytes(70)))  # type: ignore[arg-type]  # as a sparse graph's


def _refused(agreement: Agreement, key: PhaseKey, answer: object) -> None:
    wrong: Answer = answer  # type: ignore[assignment]  # what a double returns
    with pytest.raises(Unprotected, match=key.phase.name):
        encode_answer(agreement, key, wrong)


def test_the_table_above_has_every_phase_with_values() -> None:
    methods = (Method.PFPL, Method.FEDDBP, Method.FEDPC, Method.FEDPLCC)
    phases = set()
    for method, protection in product(methods, (Protection.PLAIN, Protection.MASKED, Protection.CKKS)):
        agreement = agreement_on(method, protection)
        for number in range(first_round(agreement), 2):
            steps = set(steps_of(agreement, number)) - set(CARRIES_NONE)
            phases |= {(method, protection, phase, number) for phase in steps}
    assert phases == set(AGREED)


@pytest.mark.parametrize("phase", CARRIES_NONE)
def test_a_phase_without_values_carries_bytes_alone(phase: Phase) -> None:
    agreement = agreement_on(Method.FEDDBP, Protection.MASKED)
    key = PhaseKey(agreement.run, 1, 1, phase)
    assert encode_answer(agreement, key, b"shares") == b"shares"
    for answer in (payload_of(PAIRWISE), made_by(MaskingSite, payload_of(PAIRWISE)), None):
        _refused(agreement, key, answer)


@pytest.mark.parametrize("phase", set(Phase) - {Phase.VALUES, Phase.DIRECTIONS, Phase.MEANS, *CARRIES_NONE})
def test_a_phase_that_no_exchange_answers_carries_nothing(phase: Phase) -> None:
    agreement = agreement_on(Method.FEDDBP, Protection.PLAIN)
    for maker, scheme in HALVES.items():
        _refused(agreement, PhaseKey(agreement.run, 1, 1, phase), made_by(maker, payload_of(scheme)))
    _refused(agreement, PhaseKey(agreement.run, 1, 1, phase), b"values")


@pytest.mark.parametrize(
    ("method", "form", "maker"),
    [
        (Method.PFPL, PayloadKind.ROWS, plain.PlainSite),
        (Method.FEDDBP, PayloadKind.VECTOR, plain.PlainValues),
        (Method.FEDPLCC, PayloadKind.LOCAL_CLUSTERS, plain.PlainValues),
    ],
)
@pytest.mark.parametrize("protection", [Protection.MASKED, Protection.CKKS])
def test_a_wrong_row_of_the_table_of_rounds_sends_no_cleartext(
    method: Method,
    form: PayloadKind,
    maker: type,
    protection: Protection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family, agreement = method.traits.family, agreement_on(method, protection)
    rounds = protection.plan(family)
    assert rounds is not None
    monkeypatch.setitem(vars(protection), family.value, replace(rounds, values=form, row_scheme=plain.SCHEME))
    key = PhaseKey(agreement.run, 1, 1, Phase.VALUES)
    with pytest.raises(Unprotected, match=protection.value):
        encode_answer(agreement, key, made_by(maker, payload_of(plain.SCHEME)))


def test_a_half_that_returns_no_payload_makes_no_values() -> None:
    half = object.__new__(DeclaredHalf)
    half.__dict__["protect"] = lambda: b"values"
    with pytest.raises(TypeError, match="DeclaredHalf"):
        ProtectedPayload(half)


def test_values_made_by_a_half_can_not_be_changed() -> None:
    made = made_by(MaskingSite, payload_of(PAIRWISE))
    with pytest.raises(AttributeError):
        made.payload = payload_of(plain.SCHEME)  # type: ignore[misc]
    with pytest.raises(TypeError):
        replace(made, payload=payload_of(plain.SCHEME))
