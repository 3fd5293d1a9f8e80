"""Hashes of contents: the same as of SHA-256 itself, also for a content that comes again."""

from __future__ import annotations

import hashlib

import pytest

from protoseal_wire.codec import content_hash

SMALL, LARGE, OTHER = b"acknowledged", bytes(100_000), bytes(99_999) + b"x"


def test_content_hash_of_contents_in_turn_is_sha256() -> None:
    for content in (SMALL, SMALL, LARGE, LARGE, OTHER, LARGE, SMALL, LARGE, b"", LARGE):
        assert content_hash(content) == hashlib.sha256(content).digest()


def test_content_hash_does_not_hash_a_large_content_again(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = content_hash(LARGE)
    monkeypatch.setattr(hashlib, "sha256", None)
    assert content_hash(LARGE) == digest
