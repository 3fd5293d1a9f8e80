"""SHA-256 of contents, computed once for a large content that a process names several times.

A site needs the hash of a result for the transfer, for its journal and as the base of later rounds; a coordinator needs
it for each site that shares the result. Limit: the last large content stays in memory, with its hash.
"""

from __future__ import annotations

import hashlib

_LARGE = 64 * 1024


class ContentHashes:
    """Hashes of contents, with the last large one kept."""

    def __init__(self) -> None:
        self._last = (b"", hashlib.sha256(b"").digest())

    def sha256(self, content: bytes) -> bytes:
        """Return the SHA-256 (32 bytes) of a content."""
        last = self._last  # another thread may replace the pair meanwhile
        # Identity suffices, since bytes cannot change: a comparison would cost a pass over them.
        if content is last[0]:
            return last[1]
        digest = hashlib.sha256(content).digest()
        if len(content) >= _LARGE:
            self._last = (content, digest)
        return digest


content_hash = ContentHashes().sha256
"""The process's hashes of contents."""
