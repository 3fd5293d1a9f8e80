"""Coordinator's recording of FedPLCC under `masked`: cosines, numbers of prototypes, sums, and no more.

No norm, no number of samples, no prototype and no model of a site, in any message; and nothing in what follows from
several of them. The same searches find all of it under `plain`, and under masks that were weakened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import Method, Protection
from agreement.derived.payload_shapes import directions_shape, limits_of
from agreement.registry.round_plan import CLUSTERED_SUM
from crypto.pairwise import masks
from crypto.protection import Words
from crypto.rotation import RotationSite
from protoseal.audit.coordinator_view import describe_view, search_messages
from protoseal.reports.result_files import ViewLine
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.exchanges import cluster_directions
from secure_server.exchanges import cluster_assignment
from secure_server.exchanges import secure_aggregation as server_side
from tests.conformance.equations import cluster_excess
from tests.conformance.federations import data_for, grouped_agreement
from tests.conformance.transcripts import ClusterTranscript, record_cluster_run
from tests.protoseal.audit.masked_words import OpenedError, check_hidden, sums_of

Vectors = NDArray[np.float64]
ROUNDS, SITES, DIM = 2, 5, 64


def recorded(protection: Protection, folder: Path) -> ClusterTranscript:
    """Record five sites, all with the same three classes."""
    agreement = grouped_agreement(
        protection, method=Method.FEDPLCC, classes=3, dim=DIM, rounds=ROUNDS, norm_bound=20.0
    )
    holds = np.ones((SITES, 3), dtype=np.bool_)
    return record_cluster_run(agreement, data_for(agreement, holds), folder)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> ClusterTranscript:
    return recorded(Protection.MASKED, tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ClusterTranscript:
    return recorded(Protection.PLAIN, tmp_path_factory.mktemp("plain"))


def prototypes(transcript: ClusterTranscript) -> Vectors:
    """Return every local prototype of the run; its direction is the same vector to the search."""
    return varied(np.concatenate([local.rows for local in transcript.local.values()]))


def class_means(transcript: ClusterTranscript) -> Vectors:
    return varied(np.concatenate([put.rows for put in transcript.put.values()]))


def models(transcript: ClusterTranscript) -> Vectors:
    """Return d weights of the first layer of each model that a site sent; times samples they point the same way."""
    first = slice(0, 16 * DIM)
    return np.concatenate([put.averaged[first].reshape(-1, DIM) for put in transcript.put.values()])


def varied(vectors: Vectors) -> Vectors:
    return np.asarray(vectors[np.ptp(vectors, axis=1) > 1e-3])


WANTED: dict[str, Callable[[ClusterTranscript], Vectors]] = {
    "prototypes": prototypes,
    "class means": class_means,
    "models": models,
}
each_secret = pytest.mark.parametrize("secret", WANTED)


@each_secret
def test_search_masked_clusters_finds_no_prototype_or_model(masked: ClusterTranscript, secret: str) -> None:
    found = search_messages(masked.received, masked.agreement, WANTED[secret](masked))
    assert not found.leaks
    assert found.threshold < 0.98


@each_secret
def test_search_plain_clusters_finds_them(plain: ClusterTranscript, secret: str) -> None:
    assert search_messages(plain.received, plain.agreement, WANTED[secret](plain)).leaks


def test_search_unrotated_direction_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(RotationSite, "rotate_rows", lambda _site, rows, _classes: rows)
    weakened = recorded(Protection.MASKED, tmp_path)
    assert all(cluster_excess(weakened, number) <= 1.0 for number in (1, 2))  # nothing else would tell
    assert search_messages(weakened.received, weakened.agreement, prototypes(weakened)).leaks


def sent_directions(transcript: ClusterTranscript) -> Iterator[tuple[str, Vectors, Vectors]]:
    """Return (site, rows, classes) of every DIRECTIONS."""
    limits, form = limits_of(transcript.agreement), directions_shape(transcript.agreement)
    for each in transcript.received:
        if each.key is not None and each.key.phase is Phase.DIRECTIONS:
            rows, classes = codec.decode_payload(each.content, limits, form).arrays
            yield each.site, rows, classes


def check_no_norms(transcript: ClusterTranscript) -> None:
    """Raise ``AssertionError`` unless all directions have length 1; their message has only their classes besides."""
    for _, rows, classes in sent_directions(transcript):
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=0.0, atol=1e-14)
        assert set(classes) == {0.0, 1.0, 2.0}


def test_directions_hold_no_norms_and_no_counts(masked: ClusterTranscript) -> None:
    norms = np.concatenate([np.linalg.norm(local.rows, axis=1) for local in masked.local.values()])
    assert np.ptp(norms) > 0.01
    assert len(list(sent_directions(masked))) == SITES * ROUNDS
    check_no_norms(masked)


def test_directions_check_sent_norms_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster_directions, "directions", lambda rows: rows / 20.0)
    monkeypatch.setattr(cluster_assignment, "NORM_SLACK", 1.0)
    weakened = recorded(Protection.MASKED, tmp_path)
    assert all(cluster_excess(weakened, number) <= 1.0 for number in (1, 2))
    with pytest.raises(AssertionError):
        check_no_norms(weakened)


def told(transcript: ClusterTranscript) -> dict[int, bytes]:
    """Return the assignment of each round."""
    return {number: content for (number, _), (content,) in transcript.told.items()}


def test_masked_cluster_words_are_random_but_for_whole_sums(masked: ClusterTranscript) -> None:
    """Prototypes by cluster, samples and models are in the words, and show only in the sum over all sites."""
    sums = sums_of(masked, told(masked))
    assert len(sums) == ROUNDS
    for each in sums:
        check_hidden([each])


def unmasked(words: Words, *_: object) -> Words:
    return words


def added(words: dict[str, Words], *_: object) -> Words:
    return np.asarray(sum(words.values()))


def test_check_hidden_words_without_masks_are_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(masks, "mask", unmasked)
    monkeypatch.setattr(server_side, "unmask", added)
    weakened = recorded(Protection.MASKED, tmp_path)
    assert all(cluster_excess(weakened, number) <= 1.0 for number in (1, 2))
    with pytest.raises(OpenedError, match="upload of"):
        check_hidden(sums_of(weakened, told(weakened))[:1])


def test_cluster_run_sends_no_other_message(masked: ClusterTranscript) -> None:
    kinds = {None if each.key is None else each.key.phase for each in masked.received}
    assert kinds == {None, Phase.ROSTER, Phase.SECRET, Phase.PRESENCE, *CLUSTERED_SUM, Phase.RESULT}


def lines_by_topic(transcript: ClusterTranscript) -> dict[str, ViewLine]:
    last = {site: taken.prototypes for (number, site), taken in transcript.taken.items() if number == ROUNDS}
    return {line.what: line for line in describe_view(transcript.received, transcript.agreement, last)}


def test_describe_view_encrypted_clusters_shows_directions_alone(tmp_path: Path) -> None:
    lines = lines_by_topic(recorded(Protection.CKKS, tmp_path))
    assert lines["inner products of sites' prototypes"].evidence.endswith("of their directions alone")


def test_describe_view_clusters_says_what_was_seen(
    masked: ClusterTranscript, plain: ClusterTranscript
) -> None:
    by_masked, by_plain = (lines_by_topic(transcript) for transcript in (masked, plain))
    assert {line.what for line in by_masked.values() if line.seen} == {
        "messages, their sizes and times",
        "which site has which class",
        "inner products of sites' prototypes",
        "how many prototypes of each class a site has",
        "the mean over sites of prototypes and models",
    }
    assert by_masked["inner products of sites' prototypes"].evidence.endswith("of their directions alone")
    assert by_plain["prototypes as plain numbers"].seen
