"""The bytes that are signed, hashed and bound: frozen, and different for different values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.keys import derive
from crypto.signed_encoding import encode

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "encoding.json").read_text())
LABELS = st.from_regex(r"[a-z0-9-]{1,20}", fullmatch=True)
LABEL_BYTES = b"abcdefghijklmnopqrstuvwxyz0123456789-"
FIELDS = st.lists(st.binary(max_size=20), max_size=4)


def _fields(case: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(field) for field in case["fields"]]


@pytest.mark.parametrize("case", VECTORS["encode"], ids=lambda case: case["name"])
def test_encoding_is_frozen(case: dict[str, Any]) -> None:
    assert encode(case["label"], *_fields(case)).hex() == case["encoded"]


@pytest.mark.parametrize("case", VECTORS["bad_encode"], ids=lambda case: case["name"])
def test_bad_encoding_vectors_differ_from_the_encoding(case: dict[str, Any]) -> None:
    assert encode(case["label"], *_fields(case)).hex() != case["encoded"]


@pytest.mark.parametrize("case", VECTORS["derive"], ids=lambda case: case["name"])
def test_derivation_is_frozen(case: dict[str, Any]) -> None:
    assert derive(bytes.fromhex(case["secret"]), case["label"], *_fields(case)).hex() == case["derived"]


@pytest.mark.parametrize("case", VECTORS["bad_derive"], ids=lambda case: case["name"])
def test_bad_derivation_vectors_differ_from_the_derivation(case: dict[str, Any]) -> None:
    assert derive(bytes.fromhex(case["secret"]), case["label"], *_fields(case)).hex() != case["derived"]


@given(LABELS, FIELDS, LABELS, FIELDS)
def test_different_values_give_different_bytes(
    label: str, fields: list[bytes], other_label: str, other_fields: list[bytes]
) -> None:
    same = (label, fields) == (other_label, other_fields)
    assert (encode(label, *fields) == encode(other_label, *other_fields)) is same


@given(LABELS, FIELDS)
def test_values_can_be_read_back(label: str, fields: list[bytes]) -> None:
    """Bytes that parse in only one way cannot have two meanings."""
    rest = encode(label, *fields).removeprefix(b"protoseal/v1/").lstrip(LABEL_BYTES)
    parsed = []
    while rest:
        size, rest = int.from_bytes(rest[:8], "big"), rest[8:]
        parsed.append(rest[:size])
        rest = rest[size:]
    assert parsed == fields


@pytest.mark.parametrize("label", ["", "A", "a b", "a\x00", "a/b", "é", "a\n"])
def test_labels_are_constants_of_one_form(label: str) -> None:
    with pytest.raises(ValueError, match="must consist of"):
        encode(label)
