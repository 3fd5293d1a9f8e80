"""Hashes of contents: the same as of SHA-256 itself, also for a content that comes again."""

from __future__ import annotations

import hashlib

import pytest

from protoseal_wire.content_hash import ContentHashes

SMALL, LARGE, OTHER = b"acknowledged", bytes(100_000), bytes(99_999) + b"x"


@pytest.mark.parametrize(
    "contents", [(SMALL, SMALL), (LARGE, LARGE), (LARGE, OTHER, LARGE), (LARGE, SMALL, LARGE), (b"", LARGE)]
)
def test_hash_of_contents_in_turn_is_sha256(contents: tuple[bytes, ...]) -> None:
    hashes = ContentHashes()
    assert [hashes.sha256(content) for content in contents] == [
        hashlib.sha256(content).digest() for content in contents
    ]


def test_large_content_that_comes_again_is_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = ContentHashes()
    digest = hashes.sha256(LARGE)
    monkeypatch.setattr(hashlib, "sha256", None)
    assert hashes.sha256(LARGE) == digest
