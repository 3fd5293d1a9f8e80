"""Independence of a coordinator's view of a run from decryptions, except through what sites train.

Exact decryptions of a known circuit give the key away (Li and Micciancio, eprint 2020/1533), so none may show, nor
anything that follows from one. Here a coordinator adds something of its own to every sum and result, which the sites
take: in the two runs they decrypt other numbers, and train from other ones. All that they send but fresh encryptions
is the same.

The limit is FedPLCC's: directions are rotated and not encrypted, so how many there are, and their cosines, follow from
training, and through it from decryptions. A coordinator that kills features through a sum's model is in
``test_presence_oracle.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tenseal import sealapi

from agreement import FeddbpSection, Method, Protection
from agreement.derived.payload_shapes import directions_shape, limits_of, sums_shape
from crypto.ckks.group_mixing import MixingServer
from crypto.ckks.parameters import CiphertextShape, context, level_id
from crypto.ckks.serialization import dump, read_payload
from crypto.ckks.sums import SummingServer
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.codec import CodecError, Limits
from protoseal_wire.messages import Acknowledgement, Phase, PhaseKey
from secure_client.checkpoints.exchanged_values import ExchangedValues
from secure_client.checkpoints.received_results import Base, ReceivedResults
from tests.conformance.federations import Bool, data_for, grouped_agreement
from tests.conformance.transcripts import Transcript, record_cluster_run, record_run
from tests.support.scripted_sums import MAKES_SECRETS, one_secret

ROUNDS = 3
METHODS = (Method.FEDDBP, Method.FEDPC, Method.FEDPLCC)
Float = NDArray[np.float64]
Place = tuple[str, int, Phase]
Pair = tuple[Transcript, Transcript]


def added_to(payload: Payload, forms: tuple[CiphertextShape, ...]) -> Payload:
    """Add a thousandth of the bound to four numbers of the first prototype: the coordinator needs no key for that."""
    first, *others = read_payload(payload, forms)
    plaintext, slots = sealapi.Plaintext(), np.zeros(4096)
    slots[:4] = 1e-3
    sealapi.CKKSEncoder(context()).encode(slots.tolist(), level_id(forms[0].level), forms[0].scale, plaintext)
    sealapi.Evaluator(context()).add_plain_inplace(first, plaintext)
    return Payload(payload.scheme, blobs=tuple(dump(each) for each in (first, *others)))


def run(method: Method, folder: Path) -> Transcript:
    """Four sites with the same three classes."""
    agreement = grouped_agreement(
        Protection.CKKS,
        method=method,
        classes=3,
        dim=12,
        rounds=ROUNDS,
        norm_bound=40.0,
        fedpc={"groups": 1},
        feddbp=FeddbpSection(own=0.5, top_channels=4),
    )
    data = data_for(agreement, np.ones((4, 3), dtype=np.bool_))
    return (record_cluster_run if method is Method.FEDPLCC else record_run)(agreement, data, folder)


def tampered_run(method: Method, folder: Path, patch: pytest.MonkeyPatch) -> Transcript:
    add, mix = SummingServer.add, MixingServer.mix
    with patch.context() as tampering:
        tampering.setattr(
            SummingServer,
            "add",
            lambda server, payloads: added_to(add(server, payloads), server._layout.answers),
        )
        tampering.setattr(
            MixingServer,
            "mix",
            lambda server, payloads: [
                added_to(each, server._layout.answers) for each in mix(server, payloads)
            ],
        )
        return run(method, folder)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Method], Pair]:
    """An honest run and one that is tampered with."""

    @cache
    def pair(method: Method) -> Pair:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MAKES_SECRETS, one_secret)
            honest = run(method, tmp_path_factory.mktemp("honest"))
            return honest, tampered_run(method, tmp_path_factory.mktemp("tampered"), patch)

    return pair


def told(transcript: Transcript) -> dict[Place, Any]:
    """Return each message of a round without signatures, encryptions and the hashes of what was sent to sites."""
    limits = limits_of(transcript.agreement)
    found: dict[Place, Any] = {}
    for each in transcript.received:
        if each.key is None or each.key.phase in (Phase.ROSTER, Phase.SECRET) or not each.key.round:
            continue
        found[each.site, each.key.round, each.key.phase] = said(transcript, each.key, each.content, limits)
    return found


def said(transcript: Transcript, key: PhaseKey, content: bytes, limits: Any) -> Any:
    match key.phase:
        case Phase.PRESENCE:
            statement = codec.decode_presence(content, limits)
            return statement.site, statement.holds.tolist(), statement.keys, len(statement.base)
        case Phase.VALUES | Phase.MEANS:
            payload = codec.decode_payload(content, limits, sums_shape(transcript.agreement))
            return payload.scheme, len(payload.arrays), len(payload.blobs)
        case Phase.DIRECTIONS:
            return codec.decode_payload(content, limits, directions_shape(transcript.agreement)).scheme
        case _:
            return content


def check_same(honest: Transcript, tampered: Transcript) -> None:
    """``AssertionError`` if anything that was received tells the runs apart."""
    first, second = told(honest), told(tampered)
    assert {Phase.PRESENCE, Phase.VALUES, Phase.RESULT} <= {phase for _, _, phase in first}
    assert first == second


@pytest.mark.parametrize("method", METHODS)
def test_tampered_runs_decrypt_and_train_from_other_numbers(
    pairs: Callable[[Method], Pair], method: Method
) -> None:
    honest, tampered = pairs(method)
    assert set(honest.got) == set(tampered.got)
    assert len(honest.got) == 4 * ROUNDS
    for place, got in tampered.got.items():
        assert np.abs(got.rows - honest.got[place].rows).max() > 1e-3
        assert got.rows.shape == honest.got[place].rows.shape
    moved = [
        np.abs(put.rows - honest.put[place].rows).max() for place, put in tampered.put.items() if place[0] > 1
    ]
    assert max(moved) > 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_sent_bytes_do_not_depend_on_decrypted_numbers(
    pairs: Callable[[Method], Pair], method: Method
) -> None:
    honest, tampered = pairs(method)
    check_same(honest, tampered)
    assert {content for (_, _, phase), content in told(tampered).items() if phase is Phase.RESULT} == {
        b"\x08\x01R\x00"
    }


@pytest.mark.parametrize("method", METHODS)
def test_encryptions_are_as_long_as_each_other_and_never_the_same(
    pairs: Callable[[Method], Pair], method: Method
) -> None:
    """Encryptions differ in length only by how well their random bits compress."""
    sizes: list[int] = []
    contents: list[bytes] = []
    for transcript in pairs(method):
        limits = limits_of(transcript.agreement)
        for each in transcript.received:
            if each.key is not None and each.key.round and each.key.phase is Phase.VALUES:
                blobs = codec.decode_payload(each.content, limits, sums_shape(transcript.agreement)).blobs
                sizes += [len(blob) for blob in blobs]
                contents += blobs
    assert len(set(contents)) == len(contents)
    assert max(sizes) - min(sizes) < 0.01 * max(sizes)


def test_the_stated_limit_directions_follow_from_what_was_trained(
    pairs: Callable[[Method], Pair],
) -> None:
    """The directions are the same in the first round, before any decryption; later their cosines or numbers differ."""
    honest, tampered = (cosines(transcript) for transcript in pairs(Method.FEDPLCC))
    assert set(honest) == set(tampered)
    for place, one in honest.items():
        other = tampered[place]
        same = one.shape == other.shape and bool((np.abs(one - other) < 1e-12).all())
        assert same == (place[0] == 1), place


def cosines(transcript: Transcript) -> dict[tuple[int, str], Float]:
    """Return the cosines between a site's own directions, as the coordinator sees them, by round and site."""
    limits, form, found = limits_of(transcript.agreement), directions_shape(transcript.agreement), {}
    for each in transcript.received:
        if each.key is not None and each.key.phase is Phase.DIRECTIONS:
            rows, classes = codec.decode_payload(each.content, limits, form).arrays
            found[each.key.round, each.site] = np.where(
                classes[:, None] == classes[None, :], rows @ rows.T, 0.0
            )
    return found


def test_comparison_detects_a_site_that_states_what_it_decrypted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The power of the above: of classes 1 and 2 it says that it has them by digits of what it trains from."""
    honest_classes = ExchangedValues.held_classes

    bases: dict[ExchangedValues, Base] = {}
    take = ReceivedResults._take

    def noted(received: ReceivedResults, number: int, base: Base) -> None:
        bases[received._values] = base
        take(received, number, base)

    def by_digits(values: ExchangedValues) -> Bool:
        held, base = honest_classes(values), bases.get(values)
        if base is not None:
            held[1:] = [round(float(base.rows.sum()) * times) % 2 for times in (1e3, 1e4)]
        return held

    monkeypatch.setattr(MAKES_SECRETS, one_secret)
    monkeypatch.setattr(ExchangedValues, "held_classes", by_digits)
    monkeypatch.setattr(ReceivedResults, "_take", noted)
    for name in ("honest", "tampered"):
        (tmp_path / name).mkdir()
    honest = run(Method.FEDDBP, tmp_path / "honest")
    tampered = tampered_run(Method.FEDDBP, tmp_path / "tampered", monkeypatch)
    with pytest.raises(AssertionError):
        check_same(honest, tampered)


def test_an_acknowledgement_has_room_for_nothing_else() -> None:
    """A field that is passed over by readers would do."""
    honest, limits = codec.encode_acknowledgement(Acknowledgement()), Limits(classes=3, dim=12, sites=4)
    codec.decode_acknowledgement(honest, limits)
    with pytest.raises(CodecError, match=r"unknown fields|at most"):
        codec.decode_acknowledgement(honest + bytes([0x82, 0x7D, 1, 0x37]), limits)
