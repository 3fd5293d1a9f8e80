"""Answers that the coordinator accepts from sites in a sparse graph, and the recipients of what it relays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from agreement import Agreement, Method, Protection
from agreement.derived.payload_shapes import limits_of, values_shape
from crypto.errors import VerificationError
from protoseal_wire import codec
from protoseal_wire.codec import CodecError
from protoseal_wire.messages import (
    MaskedValues,
    Phase,
    ReceivedShares,
    ReleasedShares,
    SharesMade,
    SignedSurvivors,
)
from secure_server.errors import BadPayload
from secure_server.exchanges.exchange import AttemptCache
from secure_server.exchanges.secure_aggregation import SecureAggregation
from tests.adversary.stopped_run import Scene, stopped_at
from tests.support.grouped import EVERYONE
from tests.support.summed import method_agreement

VICTIM = EVERYONE[0]
SPARSE = {"complete_up_to": 3, "max_colluding": 0.0, "max_dropped": 0.0}
"""Two of three others hold a site's shares."""


def agreement() -> Agreement:
    return method_agreement(Method.FEDPROTO, Protection.MASKED, masking=SPARSE)


def refused(
    phase: Phase, change: Callable[[Scene, bytes], bytes], error: type[Exception], match: str
) -> None:
    """Check that the changed answer is refused without effect, and that the honest one is taken after it."""
    with stopped_at(agreement(), VICTIM, phase) as scene:
        before = scene.memory()
        with pytest.raises(error, match=match):
            scene.send(scene.upload(change(scene, scene.honest)))
        assert scene.memory() == before
        scene.send(scene.upload(scene.honest))
        assert VICTIM in scene.coordinator.state.answered or scene.coordinator.state.stage.name != phase.name


# SHARES


def _shares(change: Callable[[SharesMade], SharesMade]) -> Callable[[Scene, bytes], bytes]:
    return lambda scene, honest: codec.encode_shares_made(
        change(codec.decode_shares_made(honest, limits_of(scene.federation.agreement)))
    )


SHARES: dict[str, tuple[Callable[[SharesMade], SharesMade], type[Exception], str]] = {
    "fewer than are due": (
        lambda made: SharesMade(made.shares[1:]),
        BadPayload,
        "2 other members",
    ),
    "one for a stranger": (
        lambda made: SharesMade((replace(made.shares[0], recipient="clinic-z"), made.shares[1])),
        BadPayload,
        "2 other members",
    ),
    "one for itself": (
        lambda made: SharesMade((replace(made.shares[0], recipient=VICTIM), made.shares[1])),
        BadPayload,
        "2 other members",
    ),
    "one that was made for another": (
        lambda made: SharesMade(
            tuple(
                replace(each, recipient=other.recipient)
                for each, other in zip(made.shares, reversed(made.shares), strict=True)
            )
        ),
        VerificationError,
        "mask-share",
    ),
}


@pytest.mark.parametrize("case", SHARES)
def test_shares(case: str) -> None:
    change, error, match = SHARES[case]
    refused(Phase.SHARES, _shares(change), error, match)


def test_shares_for_all_others() -> None:
    """Three where two are agreed: whoever adds a holder has not drawn."""

    def change(scene: Scene, honest: bytes) -> bytes:
        made = codec.decode_shares_made(honest, limits_of(scene.federation.agreement)).shares
        (left,) = set(EVERYONE) - {VICTIM, *(each.recipient for each in made)}
        return codec.encode_shares_made(SharesMade((*made, replace(made[0], recipient=left))))

    refused(Phase.SHARES, change, BadPayload, "2 other members")


# VALUES


def _values(change: Callable[[MaskedValues], MaskedValues]) -> Callable[[Scene, bytes], bytes]:
    def changed(scene: Scene, honest: bytes) -> bytes:
        agreed = scene.federation.agreement
        values = codec.decode_masked_values(honest, limits_of(agreed), values_shape(agreed, 1))
        return codec.encode_masked_values(change(values))

    return changed


def test_values_under_no_word_on_whom_they_are_masked_with() -> None:
    refused(
        Phase.VALUES,
        _values(lambda values: replace(values, signature=bytes(70))),
        VerificationError,
        "mask-sharers",
    )


def test_values_as_in_a_complete_graph() -> None:
    def change(scene: Scene, honest: bytes) -> bytes:
        agreed = scene.federation.agreement
        values = codec.decode_masked_values(honest, limits_of(agreed), values_shape(agreed, 1))
        return codec.encode_payload(values.payload)

    refused(Phase.VALUES, change, CodecError, "masked_values")


def test_values_of_another_length() -> None:
    refused(
        Phase.VALUES,
        _values(
            lambda values: replace(
                values, payload=replace(values.payload, words=(values.payload.words[0][1:],))
            )
        ),
        CodecError,
        "shape",
    )


def test_values_in_a_complete_graph_have_no_such_word() -> None:
    complete = method_agreement(Method.FEDPROTO, Protection.MASKED)
    with stopped_at(complete, VICTIM, Phase.VALUES) as scene:
        payload = codec.decode_payload(scene.honest, limits_of(complete), values_shape(complete, 1))
        with pytest.raises(CodecError):
            scene.send(scene.upload(codec.encode_masked_values(MaskedValues(payload, bytes(70)))))


# UNMASK


def test_a_share_that_was_not_made_for_the_site_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site holds no share of a site that did not draw it. Here nobody draws the first site by name."""
    monkeypatch.setattr(
        "crypto.pairwise.shares.draw_holders",
        lambda binding, site, graph: tuple(each for each in binding.group if each != site)[-graph.holders :],
    )

    def change(scene: Scene, honest: bytes) -> bytes:
        limits = limits_of(scene.federation.agreement)
        released = codec.decode_released_shares(honest, limits).shares
        assert [each.owner for each in released] == [VICTIM]
        return codec.encode_released_shares(
            ReleasedShares((*released, replace(released[0], owner=EVERYONE[1])))
        )

    refused(Phase.UNMASK, change, BadPayload, "not made for")


# What is relayed


def _request(scene: Scene) -> tuple[codec.Limits, bytes]:
    return limits_of(scene.federation.agreement), scene.request


def test_a_site_is_sent_the_shares_made_for_it_and_told_all_who_made_some() -> None:
    with stopped_at(agreement(), VICTIM, Phase.VALUES) as scene:
        limits, request = _request(scene)
        received: ReceivedShares = codec.decode_received_shares(request, limits)
        assert received.sharers == EVERYONE
        assert {each.recipient for each in received.shares} <= {VICTIM}


def test_a_site_is_sent_the_word_of_those_whose_shares_it_holds() -> None:
    with stopped_at(agreement(), VICTIM, Phase.UNMASK) as scene:
        limits, request = _request(scene)
        signed: SignedSurvivors = codec.decode_signed_survivors(request, limits)
        released = codec.decode_released_shares(scene.honest, limits).shares
        assert {each.site for each in signed.sharers} == {each.owner for each in released} - {VICTIM}


def test_after_a_restart_the_same_is_sent() -> None:
    """Words on whom sites mask with are read out of what they uploaded, where they are not at hand."""
    with stopped_at(agreement(), VICTIM, Phase.UNMASK) as scene:
        exchange = scene.coordinator._aggregator.exchange(1)
        assert isinstance(exchange, SecureAggregation)
        exchange._on_sharers, exchange._relayed, exchange._on_survivors = (
            AttemptCache(),
            AttemptCache(),
            AttemptCache(),
        )
        assert (
            scene.coordinator._requests.content(scene.coordinator.state, scene.key, VICTIM) == scene.request
        )
