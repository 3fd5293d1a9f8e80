"""Contents in chunks."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protoseal_wire.codec import CHUNK_BYTES, Assembly, Corrupted, Malformed, TooLarge, chunks


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


@pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_content_survives_being_cut(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    pieces = list(chunks(content))
    assert all(len(piece) == CHUNK_BYTES for piece in pieces[:-1])
    assembly = Assembly(size, sha256(content))
    for piece in pieces:
        assembly.add(piece)
    assert assembly.content() == content


@given(content=st.binary(min_size=1, max_size=300), cuts=st.lists(st.integers(1, 299)))
def test_where_it_is_cut_does_not_matter(content: bytes, cuts: list[int]) -> None:
    assembly = Assembly(len(content), sha256(content))
    ends = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    for start, end in pairwise(ends):
        assembly.add(content[start:end])
    assert assembly.content() == content


def test_no_more_is_kept_than_was_announced() -> None:
    assembly = Assembly(3, sha256(b"abc"))
    assembly.add(b"ab")
    with pytest.raises(TooLarge, match="announced 3 bytes"):
        assembly.add(b"cd")
    assembly.add(b"c")
    assert assembly.content() == b"abc"


def test_less_than_announced_is_corrupted() -> None:
    assembly = Assembly(3, sha256(b"abc"))
    assembly.add(b"ab")
    with pytest.raises(Corrupted, match="2 of the announced 3"):
        assembly.content()


def test_other_bytes_than_announced_are_corrupted() -> None:
    assembly = Assembly(3, sha256(b"abc"))
    assembly.add(b"abd")
    with pytest.raises(Corrupted, match="SHA-256"):
        assembly.content()


def test_the_hash_is_what_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protoseal_wire.codec.assembly._check_hash", lambda *_: None)
    assembly = Assembly(3, sha256(b"abc"))
    assembly.add(b"abd")
    assert assembly.content() == b"abd"


@pytest.mark.parametrize("chunk", [b"", bytes(CHUNK_BYTES + 1)], ids=["empty", "too long"])
def test_chunks_have_1_byte_to_256_kib(chunk: bytes) -> None:
    with pytest.raises(Malformed):
        Assembly(2**30, bytes(32)).add(chunk)
