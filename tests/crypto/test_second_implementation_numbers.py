"""Rotations and fixed point computed again, from docs/reference/protocol.md: the frozen answers, not their twins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.crypto import protocol_reference, protocol_reference_numbers

FOLDER = Path(__file__).parents[1] / "vectors"
ROTATION: dict[str, Any] = json.loads((FOLDER / "rotation.json").read_text(encoding="utf-8"))
FIXED: dict[str, Any] = json.loads((FOLDER / "fixed_point.json").read_text(encoding="utf-8"))
_ROUNDING = 1e-12


def _cases(vectors: dict[str, Any], name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", vectors[name], ids=lambda case: case.get("name", ""))


def _key(case: dict[str, Any]) -> bytes:
    return bytes.fromhex(case["key"])


@_cases(ROTATION, "stream")
def test_normal_values(case: dict[str, Any]) -> None:
    found = protocol_reference_numbers.normals(_key(case), case["dim"], case["size"])
    assert found == pytest.approx(case["normals"], abs=_ROUNDING)


@_cases(ROTATION, "rotations")
def test_rotations_and_back(case: dict[str, Any]) -> None:
    for vector, rotated in zip(case["vectors"], case["rotated"], strict=True):
        assert protocol_reference_numbers.rotated(_key(case), vector) == pytest.approx(rotated, abs=_ROUNDING)
        assert protocol_reference_numbers.rotated(_key(case), rotated, back=True) == pytest.approx(
            vector, abs=_ROUNDING
        )


@_cases(ROTATION, "bad_rotations")
def test_not_what_a_mistake_gives(case: dict[str, Any]) -> None:
    found = [protocol_reference_numbers.rotated(_key(case), vector) for vector in case["vectors"]]
    assert found != [pytest.approx(rotated, abs=1e-3) for rotated in case["rotated"]]


@_cases(ROTATION, "class_keys")
def test_class_keys(case: dict[str, Any]) -> None:
    fields = bytes.fromhex(case["context"]), case["number"].to_bytes(4, "big")
    assert protocol_reference.derived(bytes.fromhex(case["seed"]), "rotation", *fields).hex() == case["key"]


@_cases(FIXED, "room")
def test_room(case: dict[str, Any]) -> None:
    bound = float.fromhex(case["bound"])
    assert (
        protocol_reference_numbers.fraction_bits(bound, case["terms"], case["ring_bits"])
        == case["fraction_bits"]
    )


@_cases(FIXED, "bad_room")
def test_too_little_room(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no room"):
        protocol_reference_numbers.fraction_bits(
            float.fromhex(case["bound"]), case["terms"], case["ring_bits"]
        )


def _segments(case: dict[str, Any]) -> list[tuple[int, float]]:
    return [(length, float.fromhex(bound)) for length, bound in case["segments"]]


@_cases(FIXED, "narrowest_ring")
def test_the_narrowest_ring(case: dict[str, Any]) -> None:
    assert protocol_reference_numbers.narrowest_ring(_segments(case), case["terms"]) == case["ring_bits"]


@_cases(FIXED, "bad_narrowest_ring")
def test_a_ring_that_is_too_narrow(case: dict[str, Any]) -> None:
    largest = max(bound for length, bound in _segments(case) if length)
    assert protocol_reference_numbers.narrowest_ring(_segments(case), case["terms"]) != case["ring_bits"]
    with pytest.raises(ValueError, match="no room"):
        protocol_reference_numbers.fraction_bits(largest, case["terms"], case["ring_bits"])


def _words(case: dict[str, Any]) -> list[str]:
    bounds = [float.fromhex(bound) for length, bound in case["segments"] for _ in range(length)]
    values = [float.fromhex(value) for value in case["values"]]
    ring, sites = case["ring_bits"], case["terms"]
    pairs = zip(values, bounds, strict=True)
    return [str(protocol_reference_numbers.word(value, bound, sites, ring)) for value, bound in pairs]


@_cases(FIXED, "encode")
def test_words(case: dict[str, Any]) -> None:
    assert _words(case) == case["words"]


@_cases(FIXED, "bad_encode")
def test_reference_refuses_values_without_a_word(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"beyond its bound|shorter|longer"):
        _words(case)
