"""Coordinator's recording of sums, groups and clusters under `ckks`: sizes, holders of each class, rotated rows.

No prototype of a site, no sum or mean, no model and no number of samples, neither as it is nor scaled. The same
searches find what sites sent under `plain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import Method, Protection
from agreement.derived.payload_shapes import directions_shape, limits_of, sums_shape, values_shape
from crypto.protection import Payload
from crypto.rotation import RotationSite
from protoseal.audit.coordinator_view import search_messages
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_server.store import Received
from tests.conformance.federations import data_for, grouped_agreement
from tests.conformance.transcripts import ClusterTranscript, Put, Transcript, record_cluster_run, record_run

Vectors = NDArray[np.float64]
Transcripts = Callable[[Method, Protection], Transcript]
SITES, DIM, ROUNDS = 3, 64, 2
METHODS = (Method.FEDDBP, Method.FEDAVG, Method.FEDPC, Method.FEDPLCC)
STEPS = {
    Method.FEDDBP: {Phase.VALUES},
    Method.FEDAVG: {Phase.VALUES},
    Method.FEDPC: {Phase.VALUES, Phase.MEANS},
    Method.FEDPLCC: {Phase.DIRECTIONS, Phase.VALUES},
}
each_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> Transcripts:
    """Record three sites in one group, with the same three classes."""

    @cache
    def transcript(method: Method, protection: Protection) -> Transcript:
        agreement = grouped_agreement(
            protection,
            method=method,
            classes=3,
            dim=DIM,
            rounds=ROUNDS,
            norm_bound=20.0,
            fedpc={"groups": 1},
        )
        run = record_cluster_run if method is Method.FEDPLCC else record_run
        return run(
            agreement,
            data_for(agreement, np.ones((SITES, 3), dtype=np.bool_)),
            tmp_path_factory.mktemp("run"),
        )

    return transcript


def puts(transcript: Transcript) -> Iterator[Put]:
    return (put for (number, _, _), put in transcript.put.items() if number)


def prototypes(transcript: Transcript) -> Vectors:
    """Return the prototypes of every site and round, local ones where a class has several."""
    if isinstance(transcript, ClusterTranscript):
        return varied(np.concatenate([local.rows for local in transcript.local.values()]))
    return varied(np.concatenate([put.rows for put in puts(transcript)]))


def sums(transcript: Transcript) -> Vectors:
    """Return the sums of each round's prototypes over all sites: a mean points the same way."""
    by_round = [[put.rows for (r, _, _), put in transcript.put.items() if r == number] for number in (1, 2)]
    return varied(np.concatenate([np.sum(rows, axis=0) for rows in by_round]))


def models(transcript: Transcript) -> Vectors:
    """Return the first d weights of every site's first layer; times samples they point the same way."""
    first = slice(0, 4 * DIM)
    return varied(np.concatenate([put.averaged[first].reshape(-1, DIM) for put in puts(transcript)]))


def varied(vectors: Vectors) -> Vectors:
    return np.asarray(vectors[np.ptp(vectors, axis=1) > 1e-3])


def searched(transcript: Transcript) -> list[Received]:
    """Return all of the recording but the evaluation keys, which precede all secrets and take minutes to search."""
    return [each for each in transcript.received if each.key is None or each.key.phase is not Phase.ROSTER]


def has_models(method: Method) -> bool:
    return method is not Method.FEDDBP


@pytest.mark.full
@each_method
def test_search_ckks_finds_no_site_and_no_sum(transcripts: Transcripts, method: Method) -> None:
    transcript = transcripts(method, Protection.CKKS)
    wanted = [prototypes(transcript), sums(transcript), *([models(transcript)] if has_models(method) else [])]
    found = search_messages(searched(transcript), transcript.agreement, np.concatenate(wanted))
    assert not found.leaks
    assert found.threshold < 0.99


@each_method
def test_search_plain_finds_sites(transcripts: Transcripts, method: Method) -> None:
    transcript = transcripts(method, Protection.PLAIN)
    if method is not Method.FEDAVG:  # which adds up no prototypes
        assert search_messages(searched(transcript), transcript.agreement, prototypes(transcript)).leaks
    if has_models(method):
        assert search_messages(searched(transcript), transcript.agreement, models(transcript)).leaks


# Bytes


def exact(transcript: Transcript, *, weighted: bool) -> dict[str, list[bytes]]:
    """Return float64 bytes as in messages: sites' rows and models, sums of both, numbers of samples."""
    found: dict[str, list[bytes]] = {"rows": [], "models": [], "samples": [], "sums": []}
    for put in puts(transcript):
        times = put.samples if weighted else 1
        found["rows"] += [row.tobytes() for row in put.rows if np.ptp(row) > 1e-3]
        if len(put.averaged):
            found["models"].append((put.averaged[:16] * times).tobytes())
        found["samples"].append(np.float64(put.samples).tobytes())
    for number in range(1, ROUNDS + 1):
        each = [put for (r, _, _), put in transcript.put.items() if r == number]
        total = np.sum([put.rows for put in each], axis=0)
        found["sums"] += [row.tobytes() for row in total] + [row.tobytes() for row in total / len(each)]
        found["sums"].append(np.float64(sum(put.samples for put in each)).tobytes())
    return found


def contains(transcript: Transcript, wanted: list[bytes]) -> bool:
    return any(part in each.content for each in transcript.received for part in wanted)


@each_method
def test_ckks_messages_hold_no_number_of_site_or_sum(transcripts: Transcripts, method: Method) -> None:
    transcript = transcripts(method, Protection.CKKS)
    for what, wanted in exact(transcript, weighted=transcript.agreement.layout.weighted).items():
        assert not contains(transcript, wanted), what


@each_method
def test_plain_messages_hold_numbers_of_sites(transcripts: Transcripts, method: Method) -> None:
    transcript = transcripts(method, Protection.PLAIN)
    layout = transcript.agreement.layout
    wanted = exact(transcript, weighted=layout.weighted)
    assert contains(transcript, wanted["rows"]) == (method is not Method.FEDAVG)
    assert contains(transcript, wanted["models"]) == has_models(method)
    assert contains(transcript, wanted["samples"]) == layout.weighted
    planted = Transcript(transcript.agreement, received=[transcript.received[0]])
    assert not contains(planted, wanted["sums"])
    object.__setattr__(planted.received[0], "content", planted.received[0].content + wanted["sums"][-1])
    assert contains(planted, wanted["sums"])


# What is in the clear


@each_method
def test_ckks_values_and_means_are_ciphertexts_alone(transcripts: Transcripts, method: Method) -> None:
    transcript = transcripts(method, Protection.CKKS)
    for phase, payload in payloads(transcript):
        assert phase in (Phase.VALUES, Phase.MEANS)
        assert payload.scheme == "ckks/1"
        assert len(payload.blobs) > 0
        assert not payload.arrays
        assert not payload.words
    seen = {None if each.key is None else each.key.phase for each in transcript.received}
    assert seen == {None, Phase.ROSTER, Phase.SECRET, Phase.PRESENCE, *STEPS[method], Phase.RESULT}
    acknowledgements = {
        each.content for each in transcript.received if each.key and each.key.phase is Phase.RESULT
    }
    assert len(acknowledgements) == 1


def payloads(transcript: Transcript) -> Iterator[tuple[Phase, Payload]]:
    """Return the values that sites and leaders sent after the clustering."""
    limits = limits_of(transcript.agreement)
    for each in transcript.received:
        if each.key is not None and each.key.round and each.key.phase in (Phase.VALUES, Phase.MEANS):
            yield each.key.phase, codec.decode_payload(each.content, limits, sums_shape(transcript.agreement))


def test_ckks_clustering_shows_rotated_rows_alone(transcripts: Transcripts) -> None:
    transcript = transcripts(Method.FEDPC, Protection.CKKS)
    limits, form = limits_of(transcript.agreement), values_shape(transcript.agreement, 0)
    sent = {
        each.site: codec.decode_payload(each.content, limits, form)
        for each in transcript.received
        if each.key is not None and (each.key.round, each.key.phase) == (0, Phase.VALUES)
    }
    turned = np.concatenate([sent[site].arrays[0] for site in sorted(sent)])
    own = np.stack([transcript.put[0, 1, site].rows.ravel() for site in sorted(sent)])
    own /= transcript.agreement.norm_bound * 3**0.5
    np.testing.assert_allclose(turned @ turned.T, own @ own.T, rtol=0.0, atol=1e-13)
    assert np.abs(turned - own).max() > 0.01
    assert {payload.scheme for payload in sent.values()} == {"rotation/1"}


def directions_of(transcript: Transcript) -> Iterator[tuple[tuple[int, int, str], Vectors, Vectors]]:
    limits, form = limits_of(transcript.agreement), directions_shape(transcript.agreement)
    for each in transcript.received:
        if each.key is not None and each.key.phase is Phase.DIRECTIONS:
            rows, classes = codec.decode_payload(each.content, limits, form).arrays
            yield (each.key.round, each.key.attempt, each.site), rows, classes


def check_turned(transcript: ClusterTranscript) -> None:
    """Raise ``AssertionError`` unless directions have length 1, true cosines in a class, and not the true numbers."""
    for at, rows, classes in directions_of(transcript):
        own = transcript.local[at].rows / np.linalg.norm(transcript.local[at].rows, axis=1, keepdims=True)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=0.0, atol=1e-14)
        same = classes[:, None] == classes[None, :]
        np.testing.assert_allclose((rows @ rows.T)[same], (own @ own.T)[same], rtol=0.0, atol=1e-12)
        assert (np.abs(rows - own).max(axis=1) > 0.01).all()


def test_ckks_clusters_show_directions_without_norms(transcripts: Transcripts) -> None:
    transcript = transcripts(Method.FEDPLCC, Protection.CKKS)
    assert isinstance(transcript, ClusterTranscript)
    assert len(list(directions_of(transcript))) == SITES * ROUNDS
    check_turned(transcript)


# The power of these checks


def test_rotation_check_unrotated_directions_are_noticed(
    transcripts: Transcripts, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(RotationSite, "rotate_rows", lambda _site, rows, _classes: rows)
    agreement = transcripts(Method.FEDPLCC, Protection.CKKS).agreement
    data = data_for(agreement, np.ones((SITES, 3), dtype=np.bool_))
    transcript = record_cluster_run(agreement, data, tmp_path_factory.mktemp("weakened"))
    with pytest.raises(AssertionError):
        check_turned(transcript)
    assert search_messages(searched(transcript), transcript.agreement, prototypes(transcript)).leaks
