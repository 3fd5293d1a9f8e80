"""What a coordinator recorded of a run with hidden presence: messages, their sizes and times, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from algorithms.pfpl import Weighting
from protoseal.config import Agreement, Method, Protection
from protoseal.evaluation.recording import describe
from protoseal.files import SitePrototypes, ViewLine
from protoseal.terms import limits_of, values_form
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_server.store import Received
from tests.conformance.grouped_runs import grouped_agreement, run_grouped
from tests.conformance.runs import HIDDEN, Record, agreement_for, data_for, recording_federation

PRESENCE = "which site has which class"
HOLDS = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1]], dtype=np.bool_)
ROUNDS = 2
METHODS = ("pfpl", "fedproto")
each_method = pytest.mark.parametrize("method", METHODS)


class Recorded:
    """A run's messages, and the sites' prototypes of its last round."""

    def __init__(self, agreement: Agreement, received: list[Received], last: dict[str, SitePrototypes]):
        self.agreement, self.received, self.last = agreement, received, last

    def lines(self, received: Iterable[Received] | None = None) -> dict[str, ViewLine]:
        """What is reported of it, or of other messages in their place."""
        described = describe(list(received or self.received), self.agreement, self.last)
        return {line.what: line for line in described}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recorded]:
    def fedproto(folder: Path) -> Recorded:
        agreement = grouped_agreement(
            Protection.CKKS, method=Method.FEDPROTO, classes=3, dim=64, rounds=ROUNDS, **HIDDEN
        )
        book = run_grouped(agreement, data_for(agreement, HOLDS), folder)
        taken = {site: each.prototypes for (number, site), each in book.taken.items() if number == ROUNDS}
        return Recorded(agreement, book.received, taken)

    def pfpl(folder: Path) -> Recorded:
        agreement = agreement_for(
            Protection.CKKS, Weighting.COMPLEMENT, classes=3, dim=64, rounds=ROUNDS, **HIDDEN
        )
        record: Record = {}
        data = data_for(agreement, HOLDS)
        with recording_federation(agreement, data, folder, record, keep=True) as federation:
            federation.run()
            received = list(federation.store.received())
        taken = {site: each.prototypes for (number, site), each in record.items() if number == ROUNDS}
        return Recorded(agreement, received, taken)

    make = {"pfpl": pfpl, "fedproto": fedproto}
    return cache(lambda method: make[method](tmp_path_factory.mktemp(method)))


def seen(lines: dict[str, ViewLine]) -> set[str]:
    return {what for what, line in lines.items() if line.seen}


@each_method
def test_nothing_but_messages_is_seen(runs: Callable[[str], Recorded], method: str) -> None:
    lines = runs(method).lines()
    assert seen(lines) == {"messages, their sizes and times"}
    each = {"pfpl": 3, "fedproto": 1}[method]
    assert lines[PRESENCE].evidence == (
        f"8 signed presence statements, 0 of which name classes; {each} ciphertexts in each upload"
    )


@each_method
def test_one_statement_that_names_a_class_would_be_seen(runs: Callable[[str], Recorded], method: str) -> None:
    recorded = runs(method)
    limits, changed = limits_of(recorded.agreement), list(recorded.received)
    at = next(i for i, each in enumerate(changed) if each.key and each.key.phase is Phase.PRESENCE)
    statement = codec.decode_presence(changed[at].content, limits)
    content = codec.encode_presence(replace(statement, holds=HOLDS[0]))
    changed[at] = replace(changed[at], content=content)
    assert recorded.lines(changed)[PRESENCE].seen
    assert (
        "8 signed presence statements, 1 of which name classes" in recorded.lines(changed)[PRESENCE].evidence
    )


def test_one_upload_of_another_form_would_be_seen(runs: Callable[[str], Recorded]) -> None:
    recorded = runs("pfpl")
    changed, form = list(recorded.received), values_form(recorded.agreement, 1)
    at = next(i for i, each in enumerate(changed) if each.key and each.key.phase is Phase.VALUES)
    payload = codec.decode_payload(changed[at].content, limits_of(recorded.agreement), form)
    short = codec.encode_payload(replace(payload, blobs=payload.blobs[:-1]))
    changed[at] = replace(changed[at], content=short)
    assert recorded.lines(changed)[PRESENCE].seen
