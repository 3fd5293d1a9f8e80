"""Tasks of an aggregation's workers: their number, their files on the disk, and the memory of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tenseal import sealapi

from crypto.ckks import peer_server
from crypto.ckks.circuit import Circuit
from crypto.ckks.peer_server import CkksServer
from crypto.protection import Cohort, Combination, Payload
from tests.crypto.ckks_reference import cohort_of, group, random_stack, uploads
from tests.support.inline_pool import InlinePool

CLASSES, DIM = 8, 1024
"""Sizes for which a row takes two ciphertexts."""
PARTS = 2
MB = 1_000_000

Sent = tuple[Cohort, dict[str, Payload]]


def sent(sites: int) -> Sent:
    cohort = cohort_of(np.ones((sites, CLASSES), dtype=np.bool_), DIM)
    stack = random_stack((sites, CLASSES, DIM), 0.5, seed=4)
    return cohort, uploads(stack, cohort, Combination.COMPLEMENT)


def combined(given: Sent, pool: InlinePool) -> None:
    cohort, payloads = given
    CkksServer(Combination.COMPLEMENT, group().keys_path, pool).combine(payloads, cohort)


class Alive(sealapi.Ciphertext):  # type: ignore[misc]
    """Counts how many there are, and the most that there were."""

    now = most = 0

    def __init__(self) -> None:
        super().__init__()
        Alive.now += 1
        Alive.most = max(Alive.most, Alive.now)

    def __del__(self) -> None:
        Alive.now -= 1


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Alive]:
    monkeypatch.setattr(sealapi, "Ciphertext", Alive)
    Alive.now = Alive.most = 0
    return Alive


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes in the folder before each of the last pieces, the uploads' apart from the rest: their sums."""
    found: list[int] = []
    finish = peer_server.finish

    def noted(setting: Any, scratch: Any, *others: Any) -> Any:
        files = [path for path in scratch._folder.iterdir() if not path.name.startswith("upload-")]
        found.append(sum(path.stat().st_size for path in files))
        return finish(setting, scratch, *others)

    monkeypatch.setattr(peer_server, "finish", noted)
    return found


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_there_are_as_many_pieces_as_processes_and_not_as_cores(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    pool = InlinePool(workers)
    combined(sent(4), pool)
    assert pool.names == ["accumulate"] * workers + ["finish"] * workers


@pytest.mark.parametrize("workers", [1, 2])
def test_each_process_leaves_half_a_megabyte_for_each_site_and_ciphertext(
    workers: int, left: list[int]
) -> None:
    of = {}
    for sites in (6, 12):
        combined(sent(sites), InlinePool(workers))
        assert 0 < left[-1] < 0.5 * MB * workers * sites * PARTS
        of[sites] = left[-1]
    assert of[12] < 2.1 * of[6]


def most_at_once(counted: type[Alive], workers: int) -> dict[int, int]:
    """Ciphertexts, by the number of sites."""
    found = {}
    for sites in (6, 12):
        given = sent(sites)
        before = counted.most = counted.now
        combined(given, InlinePool(workers))
        found[sites] = counted.most - before
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_holds_few_ciphertexts_for_each_that_was_sent(workers: int, counted: type[Alive]) -> None:
    """Half a megabyte each: less than 3.5 for a site and ciphertext of its rows. Pairs would be four times as many."""
    most = most_at_once(counted, workers)
    assert all(held <= 7 * sites * PARTS for sites, held in most.items())
    assert most[12] < 2.1 * most[6]


def test_products_that_were_kept_would_show(counted: type[Alive], monkeypatch: pytest.MonkeyPatch) -> None:
    multiply, kept = Circuit.multiply, []

    def keeping(circuit: Circuit, *factors: Any) -> Any:
        kept.append(multiply(circuit, *factors))
        return kept[-1]

    monkeypatch.setattr(Circuit, "multiply", keeping)
    most = most_at_once(counted, 1)
    kept.clear()
    assert most[12] > 2.1 * most[6]
