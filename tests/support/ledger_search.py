"""Search of a coordinator or peer that guesses a ledger's line and compares hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from privacy.ledger.hash_chain import Anchor


def is_line(content: Mapping[str, object], before: Anchor, after: Anchor, salt: str | None = None) -> bool:
    """Return True if ``content`` is the line between two anchors. Only the site can give the line's ``salt``."""
    line = {**content, "seq": after.seq, "prev": before.head} | ({} if salt is None else {"salt": salt})
    return hashlib.sha256(canonical(line)).hexdigest() == after.head


def canonical(line: Mapping[str, object]) -> bytes:
    """Return a line's text without its newline."""
    return json.dumps(line, sort_keys=True, separators=(",", ":")).encode()
