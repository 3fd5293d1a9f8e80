"""Coordinator's recording under `masked`, against docs/explanation/threat-model.md: all of its promise, and no more.

Rotated rows have the true inner products, and no two classes, attempts or rounds are turned alike. Masked words are
random to the coordinator, one by one and together, but for the sums over whole groups. Each check is made of runs
with a weakened protection too, which come out right in all else, and has to notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import Protection
from agreement.derived.payload_shapes import limits_of, values_shape
from algorithms.pfpl import Weighting
from crypto import rotation
from crypto.keys import derive
from crypto.pairwise import masks
from crypto.pairwise.attempt import AttemptSecrets, Binding, MaskKeys
from crypto.pairwise.masks import add_streams, mask
from crypto.pairwise.neighbour_graph import Graph
from crypto.protection import Words
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.exchanges import row_protection
from secure_server.exchanges import secure_aggregation as server_side
from secure_server.store import Received
from tests.conformance import equations
from tests.conformance.drop_outs import Clock, Loss, play, set_deadlines
from tests.conformance.federations import agreement_for, data_for, grouped_agreement, two_kinds
from tests.conformance.peer_equations import excess
from tests.conformance.transcripts import Record, Transcript, record_run, recording_federation
from tests.protoseal.audit.masked_words import OpenedError, check_hidden, sums_of, total_of
from tests.support.marks import full_but

Float = NDArray[np.float64]

# Rotations


@dataclass(frozen=True)
class Block:
    """One class of one attempt: the rows of some sites as they are, and as they were sent."""

    place: tuple[int, int, int]
    """Round, attempt, class."""
    true: Mapping[str, Float]
    sent: Mapping[str, Float]


def turned_alike(one: Block, other: Block) -> bool:
    """Return True if the inner products between the two are the true ones, so that one isometry rotated both."""
    return off(one, other) < 1e-6


def off(one: Block, other: Block) -> float:
    """Return the largest error of the inner products between rows of the two, as they were sent."""
    sent, true = (
        np.stack(list(first.values())) @ np.stack(list(second.values())).T
        for first, second in ((one.sent, other.sent), (one.true, other.true))
    )
    return float(np.abs(sent - true).max())


def rotated_run(folder: Path) -> list[Block]:
    """Record PFPL with four sites, three classes and two rounds, the first of which takes two attempts."""
    agreement = agreement_for(Protection.MASKED, Weighting.COMPLEMENT, classes=3, dim=32)
    data = data_for(agreement, np.ones((4, 3), dtype=np.bool_))
    record: Record = {}
    with recording_federation(agreement, data, folder, record, keep=True) as federation:
        clock = Clock()
        set_deadlines(federation, folder / "keys.bin", clock)
        play(federation, clock, [Loss("site-1", 1, Phase.VALUES)])
        received = list(federation.store.received())
    assert all(excess(agreement, record, number) <= 1.0 for number in (1, 2))

    def rows(each: Received) -> Float:
        return codec.decode_payload(each.content, limits_of(agreement), values_shape(agreement, 1)).arrays[0]

    sent = {
        (each.key.round, each.key.attempt, each.site): rows(each)
        for each in received
        if each.key is not None and each.key.phase is Phase.VALUES
    }
    return [
        Block(
            (number, attempt, k),
            {s: record[number, s].prototypes.local[k] / agreement.norm_bound for s in sites},
            {s: sent[number, attempt, s][k] for s in sites},
        )
        for number, attempt in ((1, 1), (1, 2), (2, 1))
        for sites in [[s for r, a, s in sorted(sent) if (r, a) == (number, attempt)]]
        for k in range(3)
    ]


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> list[Block]:
    return rotated_run(tmp_path_factory.mktemp("rotated"))


def test_rotated_rows_keep_inner_products(blocks: list[Block]) -> None:
    assert [len(block.sent) for block in blocks] == [3, 3, 3, 3, 3, 3, 4, 4, 4]
    for block in blocks:
        assert off(block, block) < 1e-14
        for site, row in block.sent.items():
            assert np.abs(row - block.true[site]).max() > 1e-3


def test_rotations_differ_by_class_attempt_and_round(blocks: list[Block]) -> None:
    for one, other in combinations(blocks, 2):
        assert off(one, other) > 1e-3, f"{one.place} and {other.place}"


def test_rotation_second_attempt_is_fresh(blocks: list[Block]) -> None:
    first, second = blocks[:3], blocks[3:6]
    for one, other in zip(first, second, strict=True):
        for site in one.sent:
            np.testing.assert_array_equal(one.true[site], other.true[site])
            assert np.abs(one.sent[site] - other.sent[site]).max() > 1e-3


def one_context(*_: object) -> bytes:
    """Bind rotations to nothing."""
    return b"context"


def one_key(seed: bytes, context: bytes, _: int) -> bytes:
    """Use one key for all classes."""
    return derive(seed, "rotation", context, b"")


@pytest.mark.parametrize(
    ("module", "name", "double", "same"),
    [
        (row_protection, "rotation_context", one_context, 2),  # the class
        (rotation, "class_key", one_key, slice(0, 2)),  # round and attempt
    ],
    ids=["bound to nothing", "one key for all classes"],
)
def test_rotation_check_reused_rotation_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: Any, name: str, double: Any, same: Any
) -> None:
    monkeypatch.setattr(module, name, double)
    pairs = list(combinations(rotated_run(tmp_path), 2))
    alike = [turned_alike(one, other) for one, other in pairs]
    assert alike == [one.place[same] == other.place[same] for one, other in pairs]
    assert any(alike)


# Masked words


def masked_run(folder: Path) -> Transcript:
    """Record FedPC with two groups of four sites, two rounds."""
    agreement = grouped_agreement(Protection.MASKED, classes=3, dim=32, rounds=2)
    return record_run(agreement, data_for(agreement, two_kinds()[:8, 1:4]), folder)


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    return masked_run(tmp_path_factory.mktemp("masked"))


def test_masked_clustering_shows_inner_products_of_sites_alone(
    transcript: Transcript,
) -> None:
    agreement = transcript.agreement
    sent = {
        each.site: codec.decode_payload(
            each.content, limits_of(agreement), values_shape(agreement, 0)
        ).arrays[0][0]
        for each in transcript.received
        if each.key is not None and each.key.phase is Phase.VALUES and not each.key.round
    }
    true = {
        site: transcript.put[0, 1, site].rows.ravel() / (agreement.norm_bound * len(agreement.classes) ** 0.5)
        for site in sent
    }
    whole = Block((0, 1, 0), true, sent)
    assert len(sent) == 8
    assert off(whole, whole) < 1e-14
    for k in range(len(agreement.classes)):
        part = slice(k * agreement.dim, (k + 1) * agreement.dim)
        of_class = Block(
            (0, 1, k), *({site: row[part] for site, row in rows.items()} for rows in (true, sent))
        )
        assert off(of_class, of_class) > 1e-3


def test_masked_words_are_random_but_for_group_sums(transcript: Transcript) -> None:
    sums = sums_of(transcript)
    assert len(sums) == 4
    check_hidden(sums)


def test_masked_sums_equal_sums_of_inputs(transcript: Transcript) -> None:
    fixed = transcript.agreement.fixed_point()
    for each in sums_of(transcript):
        puts = [transcript.put[each.binding.round, 1, site] for site in each.words]
        true = sum(np.concatenate([put.rows.ravel(), put.averaged]) for put in puts)
        held = np.repeat(
            np.sum([put.holds for put in puts], axis=0) >= transcript.agreement.min_holders,
            transcript.agreement.dim,
        )
        seen = np.concatenate([held, np.ones(transcript.agreement.layout.model, dtype=np.bool_)])
        total = fixed.decode_sum(total_of(each), len(puts))
        assert (np.abs(total - np.where(seen, true, 0.0)) <= len(puts) * fixed.resolution / 2.0 + 1e-14).all()


def unmasked(words: Words, *_: object) -> Words:
    """Send values without masks."""
    return words


def added(masked: Mapping[str, Words], *_: object) -> Words:
    """Open a sum that has no masks."""
    return np.asarray(sum(masked.values()))


def with_the_same_stream(words: Words, _: AttemptSecrets, __: Binding, site: str, *___: object) -> Words:
    """Use one stream for all of a site's vectors."""
    return add_streams(words, [stream_of(site)], [])


def less_the_same_streams(masked: Mapping[str, Words], *_: object) -> Words:
    return add_streams(added(masked), [], [stream_of(site) for site in masked])


def stream_of(site: str) -> bytes:
    return derive(bytes(32), "mask-self", site.encode())


def with_one_stream(words: Words, *_: object) -> Words:
    """Use one stream for all sites and rounds: a vector by itself reveals nothing."""
    return add_streams(words, [stream_of("all")], [])


def less_one_stream(masked: Mapping[str, Words], *_: object) -> Words:
    return add_streams(added(masked), [], [stream_of("all")] * len(masked))


def without_self_mask(
    words: Words,
    secrets: AttemptSecrets,
    binding: Binding,
    site: str,
    sharers: tuple[str, ...],
    public: Mapping[str, MaskKeys],
    graph: Graph | None,
) -> Words:
    """Use pairwise masks alone: the sum opens before enough sites said who is in it."""
    honest = mask(words, secrets, binding, site, sharers, public, graph)
    return add_streams(honest, [], [masks.self_key(secrets.seed, binding, site)])


def without_pairs(words: Words, secrets: AttemptSecrets, binding: Binding, site: str, *_: object) -> Words:
    """Use the self-mask alone, whose seed every site releases."""
    return add_streams(words, [masks.self_key(secrets.seed, binding, site)], [])


DOUBLES: dict[str, tuple[Callable[..., Words], Callable[..., Words] | None, str]] = {
    "no masks": (unmasked, added, "upload of"),
    "the same masks in every round": (with_the_same_stream, less_the_same_streams, "difference of"),
    "the same mask at every site": (with_one_stream, less_one_stream, "difference of"),
    "no self-masks": (without_self_mask, added, "uploads of a whole group"),
    "no pairwise masks": (without_pairs, None, "self-masks released"),
}
"""The site's half, the coordinator's where it has to be another, and where it shows."""


@pytest.mark.parametrize("name", full_but(DOUBLES, "the same mask at every site", "no self-masks"))
def test_check_hidden_weakened_masks_are_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    site, server, where = DOUBLES[name]
    monkeypatch.setattr(masks, "mask", site)
    if server is not None:
        monkeypatch.setattr(server_side, "unmask", server)
    weakened = masked_run(tmp_path)
    assert all(equations.sum_excess(weakened, number) <= 1.0 for number in (1, 2))  # nothing else would tell
    with pytest.raises(OpenedError, match=where):
        check_hidden(sums_of(weakened))
