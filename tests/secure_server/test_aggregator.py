"""Outcomes as bytes: what several sites share is encoded once."""

from __future__ import annotations

import numpy as np
import pytest

from crypto.protection import Payload
from protoseal_wire import codec
from secure_server.aggregator import encode_outcome
from secure_server.exchanges.exchange import Outcome


def test_encode_outcome_shared_payload_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Payload] = []

    def count(payload: Payload) -> bytes:
        encoded.append(payload)
        return b"%d" % len(encoded)

    monkeypatch.setattr(codec, "encode_payload", count)
    first, second = (Payload("plain", (np.zeros(3),)) for _ in range(2))
    results = encode_outcome(Outcome({"site-1": first, "site-2": second, "site-3": first})).results
    assert len(encoded) == 2
    assert results == {"site-1": b"1", "site-2": b"2", "site-3": b"1"}
