"""Under which key the anchors of a privacy ledger are kept by others."""

from __future__ import annotations

import hashlib

from crypto.encoding import encode

_LABEL = "ledger-anchor"


def anchor_key(federation: str, site: str, dataset: str) -> bytes:
    """32 bytes, the same in every run: a ledger that was lost or begun anew is looked up under it all the same.

    They hide the data set's name from whoever cannot guess it, and nothing else: the same data set has the same key in
    all of a federation's runs, which shows that it is the same. So no random number goes into it, which could be lost
    together with the ledger.
    """
    return hashlib.sha256(encode(_LABEL, federation.encode(), site.encode(), dataset.encode())).digest()
