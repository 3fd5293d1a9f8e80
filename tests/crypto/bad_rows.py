"""Rows that a protection must refuse, wherever they come from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from crypto.errors import MalformedError, UnknownSchemeError
from crypto.plain import PlainServer
from crypto.protection import Cohort, Payload, Rows, SiteHalf

BAD_ROWS: list[tuple[Callable[[Rows], Rows], str]] = [
    (lambda rows: np.where(rows == rows.max(), np.nan, rows), "not finite"),
    (lambda rows: np.where(rows == rows.max(), np.inf, rows), "not finite"),
    (lambda rows: rows / np.linalg.norm(rows, axis=1).max() * 1.001, "norm"),
    (lambda rows: rows[:, :2].copy(), "shape"),
    (lambda rows: rows[:1], "shape"),
    (lambda rows: rows.astype(np.float32), "float64"),
]
"""Corruptions of a site's rows (K, d), and the reason for the refusal."""


def other_payloads(scheme: str, cohort: Cohort) -> list[tuple[Payload, type[Exception]]]:
    """Payloads that are not the one array (K, d) of a scheme, and what they are refused with."""
    name, version = scheme.split("/")
    rows = np.zeros((len(cohort.holds.T), cohort.dim))
    return [
        (Payload("ckks/1", arrays=(rows,)), UnknownSchemeError),
        (Payload(f"{name}/{int(version) + 1}", arrays=(rows,)), UnknownSchemeError),
        (Payload(scheme), MalformedError),
        (Payload(scheme, arrays=(rows, rows)), MalformedError),
        (Payload(scheme, arrays=(rows,), blobs=(b"x",)), MalformedError),
        (Payload(scheme, arrays=(rows,), words=(np.zeros(1, np.uint64),)), MalformedError),
    ]


def check_rows_refused(
    site: SiteHalf, server: PlainServer, bad: Rows, own: Rows, cohort: Cohort, reason: str
) -> None:
    """``AssertionError`` unless ``bad`` in the place of ``own`` is refused on each way: of site a, out and back."""
    with pytest.raises(MalformedError, match=reason):
        site.protect(bad, "a", cohort)
    check_payload_refused(
        site, server, Payload(site.scheme, arrays=(bad,)), own, cohort, MalformedError, reason
    )


def check_payload_refused(
    site: SiteHalf,
    server: PlainServer,
    payload: Payload,
    own: Rows,
    cohort: Cohort,
    error: type[Exception],
    reason: str | None = None,
) -> None:
    """``AssertionError`` unless the server refuses it from site a, and site a from the server."""
    with pytest.raises(error, match=reason):
        server.validate(payload, "a", cohort)
    with pytest.raises(error, match=reason):
        site.unprotect(payload, own, "a", cohort)
