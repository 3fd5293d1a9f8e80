"""Key under which other parties keep the anchors of a site's privacy ledger."""

from __future__ import annotations

import hashlib

from crypto.signed_encoding import encode

_LABEL = "ledger-anchor"


def anchor_key(federation: str, site: str, dataset: str) -> bytes:
    """Return 32 bytes that are equal in every run, so that the anchors of a lost or restarted ledger are still found.

    For the same reason the key has no random part, which could be lost together with the ledger. Limit: the key only
    hides the data set's name, and only from whoever cannot guess it. A data set has the same key in all of a
    federation's runs, so runs with the same data set can be linked.
    """
    return hashlib.sha256(encode(_LABEL, federation.encode(), site.encode(), dataset.encode())).digest()
