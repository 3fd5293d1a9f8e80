"""Worker processes: a killed one is replaced, and what a site sent can spend no more than its worker's share."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from agreement import Protection
from algorithms.pfpl import Weighting
from crypto.ckks.evaluation_keys import EvaluationKeys
from crypto.ckks.parameters import PROTOTYPE
from crypto.ckks.peer_server import CkksServer
from crypto.ckks.serialization import read_ciphertext
from crypto.errors import MalformedError
from crypto.process_memory import is_memory_private
from crypto.protection import Combination
from secure_server import process_pool
from secure_server.aggregator import Aggregator
from secure_server.process_pool import Workers, run_isolated
from tests.crypto.ckks_reference import cohort_of, group, random_stack, uploads
from tests.support.seal_keys import FULL, bomb, inflating_ciphertext, key_set
from tests.support.small import small_agreement

COHORT = cohort_of(np.ones((3, 2), dtype=np.bool_), 8)
MIB = 2**20
BOMB_KEYS = 200
"""300 MiB of them: more than a worker may spend, and nothing to the machine that runs the tests."""


def kill_the_worker(executor: Executor) -> None:
    """Kill the worker while it computes, so that the pool knows by the time this returns."""
    worker = executor.submit(os.getpid).result()
    under_way: Future[None] = executor.submit(time.sleep, 60.0)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(BrokenProcessPool):
        under_way.result()


def test_workers_killed_process_is_replaced() -> None:
    stack = random_stack((3, 2, 8), 0.5, seed=3)
    payloads = uploads(stack, COHORT, Combination.UNIFORM)
    expected = CkksServer(Combination.UNIFORM, group().keys_path, None).combine(payloads, COHORT)
    with Workers(1) as executor:
        server = CkksServer(Combination.UNIFORM, group().keys_path, executor)
        kill_the_worker(executor)
        assert server.combine(payloads, COHORT) == expected
        kill_the_worker(executor)
        assert server.combine(payloads, COHORT) == expected


def test_workers_idle_pool_starts_no_process() -> None:
    with Workers(2) as executor:
        assert not executor._pool._processes
        assert executor.submit(is_memory_private).result() == (sys.platform == "linux")
        assert executor._pool._processes


def test_library_pool_killed_process_stays_broken() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        kill_the_worker(executor)
        with pytest.raises(BrokenProcessPool):
            executor.submit(os.getpid)


def test_run_isolated_uses_another_process_and_raises_its_error() -> None:
    assert run_isolated(os.getpid) != os.getpid()
    with pytest.raises(ValueError, match="invalid literal"):
        run_isolated(int, "x")


@pytest.mark.full
def test_run_isolated_endless_call_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_isolated(signal.alarm, 0) > 0
    monkeypatch.setattr(process_pool, "_ISOLATED_SECONDS", 1)
    with pytest.raises(BrokenProcessPool):
        run_isolated(time.sleep, 60.0)


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[Aggregator]:
    agreement = small_agreement(Protection.CKKS, Weighting.COMPLEMENT)
    with Workers(1) as executor:
        yield Aggregator(agreement, tmp_path / "keys", executor)


def test_run_isolated_valid_keys_stay_far_below_limits(
    aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "_ISOLATED_BYTES", process_pool._ISOLATED_BYTES // 2)
    assert aggregator.check_keys(group().keys.to_bytes()) == group().keys.hash


@pytest.mark.full
def test_check_keys_inflating_keys_end_only_the_worker(
    aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = EvaluationKeys(key_set([FULL]), bomb(BOMB_KEYS)).to_bytes()
    assert len(content) < 3 * MIB
    monkeypatch.setattr(process_pool, "_ISOLATED_SECONDS", 4)  # which the test waits for
    with pytest.raises(MalformedError, match="memory"):
        aggregator.check_keys(content)
    # The double: as much as they like, and time for it on a busy machine.
    monkeypatch.setattr(process_pool, "_ISOLATED_BYTES", 1024 * MIB)
    monkeypatch.setattr(process_pool, "_ISOLATED_SECONDS", 120)
    with pytest.raises(MalformedError, match=r"memory|incomplete"):
        aggregator.check_keys(content)


@pytest.mark.parametrize("polynomials", [2, 2**10])
def test_check_inflating_ciphertext_is_refused_before_decompression(
    polynomials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator therefore checks ciphertexts in its own process."""
    blob = inflating_ciphertext(polynomials, 128 * MIB // 8)
    monkeypatch.setattr(process_pool, "_ISOLATED_BYTES", 64 * MIB)
    with pytest.raises(MalformedError, match=r"serialization"):
        run_isolated(read_ciphertext, blob, PROTOTYPE)
