"""Assembly of a content from chunks, and contents that differ from what was announced."""

from __future__ import annotations

import hashlib

import pytest

from protoseal_wire.codec import CHUNK_BYTES, Assembly, Corrupted, Malformed, TooLarge, chunks


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


@pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_chunks_assembled_equal_content(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    pieces = list(chunks(content))
    assert all(len(piece) == CHUNK_BYTES for piece in pieces[:-1])
    assembly = Assembly(size, sha256(content))
    for piece in pieces:
        assembly.add(piece)
    assert assembly.content() == content


@pytest.mark.parametrize("size", [3, CHUNK_BYTES + 3])
@pytest.mark.parametrize("length", [0, 1, 2, CHUNK_BYTES - 1, CHUNK_BYTES + 1])
def test_assembly_chunk_of_other_length_refused(size: int, length: int) -> None:
    """Chunks of a byte would cost the receiver a message's work for a byte."""
    assembly = Assembly(size, sha256(bytes(size)))
    with pytest.raises((Malformed, TooLarge)):
        assembly.add(bytes(length))
    for chunk in chunks(bytes(size)):
        assembly.add(chunk)
    assert assembly.content() == bytes(size)


def test_assembly_too_many_bytes_refused_and_not_kept() -> None:
    assembly = Assembly(3, sha256(b"abc"))
    with pytest.raises(TooLarge, match="3"):
        assembly.add(b"abcd")
    assembly.add(b"abc")
    assert assembly.content() == b"abc"


def test_assembly_too_few_bytes_corrupted() -> None:
    with pytest.raises(Corrupted, match="0 of the announced 3"):
        Assembly(3, sha256(b"abc")).content()


def test_assembly_other_bytes_corrupted() -> None:
    assembly = Assembly(3, sha256(b"abc"))
    assembly.add(b"abd")
    with pytest.raises(Corrupted, match="SHA-256"):
        assembly.content()
