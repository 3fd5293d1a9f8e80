"""Keys, streams and masks as they were when they were frozen, from a computation that shares no code."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from crypto import errors
from crypto.errors import MalformedError
from crypto.keys import encode
from crypto.pairwise.attempt import AttemptSecrets, Binding, MaskKeys, fewest_against, threshold
from crypto.pairwise.masks import add_streams, mask, pair_keys, self_key
from crypto.pairwise.member_signatures import verify_sharers
from crypto.pairwise.neighbour_graph import Graph, sparse_graph
from crypto.protection import Words
from crypto.roster import Member
from tests.crypto.masked_group import pair_key

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "pairwise.json").read_text())
WORDS = {32: np.uint32, 64: np.uint64}
SECRETS = {
    name: AttemptSecrets.from_bytes(bytes.fromhex(value)) for name, value in VECTORS["secrets"].items()
}
PUBLIC = {
    name: MaskKeys(bytes.fromhex(keys["mask"]), bytes.fromhex(keys["share"]))
    for name, keys in VECTORS["public"].items()
}


def _cases(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", VECTORS[name], ids=lambda case: case.get("name", ""))


def _binding(values: dict[str, Any]) -> Binding:
    hashes = {name: bytes.fromhex(values[name]) for name in ("roster_hash", "agreement_hash", "broadcast")}
    return Binding(**(values | hashes | {"group": tuple(values["group"])}))


def _keys(case: dict[str, Any]) -> tuple[str, str]:
    binding, site, peer = _binding(case["binding"]), case["site"], case["peer"]
    pair = pair_key(SECRETS[site].mask, PUBLIC[peer], binding, site, peer)
    assert pair_key(SECRETS[peer].mask, PUBLIC[site], binding, peer, site) == pair
    return pair.hex(), self_key(SECRETS[site].seed, binding, site).hex()


def _mask(case: dict[str, Any], words: Words) -> Words:
    site = case["site"]
    secrets = SECRETS.get(case.get("secrets", site), SECRETS["clinic-a"])
    return mask(words, secrets, _binding(VECTORS["binding"]), site, case["sharers"], PUBLIC)


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_mask_public_keys_equal_vectors(name: str) -> None:
    assert SECRETS[name].public == PUBLIC[name]
    assert SECRETS[name].to_bytes().hex() == VECTORS["secrets"][name]


@_cases("key_schedule")
def test_mask_keys_equal_vectors(case: dict[str, Any]) -> None:
    assert encode("binding", *_binding(case["binding"]).fields()).hex() == case["fields"]
    assert _keys(case) == (case["pair_key"], case["self_key"])


@_cases("bad_key_schedule")
def test_mask_keys_differ_from_bad_vectors(case: dict[str, Any]) -> None:
    pair, own = _keys(case)
    assert pair != case["pair_key"]
    assert own != case["self_key"]


@_cases("coins")
def test_linked_equals_vectors(case: dict[str, Any]) -> None:
    """A coin of c shows heads from a chance of c + 1 on, from either side."""
    binding, site, peer = _binding(case["binding"]), case["site"], case["peer"]
    for chance, heads in ((case["coin"], False), (case["coin"] + 1, True)):
        graph = Graph(len(binding.group), 2, 2, chance)
        for one, other in ((site, peer), (peer, site)):
            masks = pair_keys(SECRETS[one].mask, PUBLIC, binding, one, (other,), graph)
            assert (other in masks) == heads


@_cases("graphs")
def test_graph_of_equals_vectors(case: dict[str, Any]) -> None:
    graph = sparse_graph(case["members"], case["colluding"], case["dropped"])
    assert asdict(graph) == {name: case[name] for name in ("members", "holders", "threshold", "linked")}


@_cases("bad_graphs")
def test_sparse_graph_bad_vectors_refused(case: dict[str, Any]) -> None:
    with pytest.raises(getattr(errors, case["failure"]), match=case["match"]):
        sparse_graph(case["members"], case["colluding"], case["dropped"])


def _verify_sharers(case: dict[str, Any]) -> None:
    known = VECTORS["sharers"]
    point = bytes.fromhex(known["public_key"])
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    binding, signature = _binding(VECTORS["binding"]), bytes.fromhex(case["signature"])
    verify_sharers(Member(known["site"], b"", key, ""), binding, case["sharers"], signature)


def test_verify_sharers_accepts_vector() -> None:
    _verify_sharers(VECTORS["sharers"])


@_cases("bad_sharers")
def test_verify_sharers_bad_vectors_refused(case: dict[str, Any]) -> None:
    with pytest.raises(getattr(errors, case["failure"]), match=case["match"]):
        _verify_sharers(case)


@_cases("bad_bindings")
def test_binding_bad_fields_refused(case: dict[str, Any]) -> None:
    with pytest.raises(getattr(errors, case["failure"]), match=case["match"]):
        _binding(VECTORS["binding"] | case["change"])


def test_threshold_equals_vectors() -> None:
    assert {str(n): threshold(n) for n in range(2, 22)} == VECTORS["thresholds"]
    assert all(3 * threshold(n) > 2 * n >= 3 * (threshold(n) - 1) for n in range(2, 200))
    with pytest.raises(ValueError, match="2"):
        threshold(1)


def test_fewest_against_resists_colluders() -> None:
    """The coordinator may list any number of members from the least one on; each has to withstand c of them."""
    assert all(3 * (2 * threshold(n) - n) >= n + 2 for n in range(2, 1000))

    def held_off(colluders: int, least: int) -> bool:
        withstand = all(colluders < 2 * threshold(n) - n for n in range(least, 1000))
        return withstand and least - colluders >= 2

    smallest = {c: next(least for least in range(2, 1000) if held_off(c, least)) for c in range(1, 100)}
    assert (
        smallest
        == {c: fewest_against(c) for c in range(1, 100)}
        == {c: max(3 * c - 1, c + 2) for c in smallest}
    )
    assert [smallest[c] for c in (1, 2, 3)] == [3, 5, 8]


@_cases("streams")
def test_stream_begins_as_vectors(case: dict[str, Any]) -> None:
    zeros = np.zeros(len(case["first"]), WORDS[case["bits"]])
    plus = add_streams(zeros, [bytes.fromhex(case["key"])], [])
    minus = add_streams(zeros, [], [bytes.fromhex(case["key"])])
    assert [str(word) for word in plus.tolist()] == case["first"]
    assert [str(-word % 2 ** case["bits"]) for word in minus.tolist()] == case["first"]


@_cases("seams")
def test_stream_across_chunks_equals_vectors(case: dict[str, Any]) -> None:
    start, count = case["start"], len(case["words"])
    stream = add_streams(np.zeros(start + count, WORDS[case["bits"]]), [bytes.fromhex(case["key"])], [])
    assert [str(word) for word in stream[start:].tolist()] == case["words"]


@_cases("masks")
def test_mask_equals_vectors(case: dict[str, Any]) -> None:
    words = np.array([int(word) for word in case["words"]], dtype=WORDS[case["bits"]])
    masked = _mask(case, words)
    assert masked.dtype == words.dtype
    assert [str(word) for word in masked.tolist()] == case["masked"]


@_cases("bad_masks")
def test_mask_bad_sharers_refused(case: dict[str, Any]) -> None:
    with pytest.raises(getattr(errors, case["failure"]), match=case["match"]):
        _mask(case, np.zeros(3, np.uint64))


def test_mask_other_dtype_or_shape_refused() -> None:
    case = VECTORS["masks"][0]
    arrays: list[Any] = [
        np.zeros(3),
        np.zeros(3, np.int64),
        np.zeros((3, 1), np.uint64),
        np.zeros(3, np.uint16),
    ]
    for words in arrays:
        with pytest.raises(MalformedError, match=r"uint32"):
            _mask(case, words)
