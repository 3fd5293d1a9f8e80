"""PFPL's combination at the coordinator: tasks for processes, keys from a file, memory and disk of each task."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenseal import sealapi

from crypto.ckks import peer_server
from crypto.ckks.circuit import Circuit, KeysFile
from crypto.ckks.packing import Packing
from crypto.ckks.peer_server import CkksServer, pair_blocks
from crypto.errors import KeyStoreError, MalformedError, UnknownSchemeError, VerificationError
from crypto.protection import Cohort, Combination, Payload
from secure_server.process_pool import Workers
from tests.crypto.ckks_reference import cohort_of, group, random_stack, received, server_half, uploads
from tests.support.inline_pool import InlinePool

COHORT = cohort_of(np.ones((5, 3), dtype=np.bool_), 8)
STACK = random_stack((5, 3, 8), 0.5, seed=21)


@pytest.mark.parametrize("combination", list(Combination))
def test_combine_in_processes_equals_inline(combination: Combination) -> None:
    """The results differ in the last bytes: processes pack other sums together, which changes the noise."""
    payloads = uploads(STACK, COHORT, combination)
    with Workers(2) as executor:
        split = CkksServer(combination, group().keys_path, executor).combine(payloads, COHORT)
    inline = server_half(combination).combine(payloads, COHORT)
    got, expected = (received(answers, STACK, COHORT, combination) for answers in (split, inline))
    np.testing.assert_allclose(got, expected, atol=1e-7)


def test_combine_in_processes_raises_their_errors() -> None:
    payloads = uploads(STACK, COHORT, Combination.DISTANCE)
    payloads[COHORT.sites[1]] = payloads[COHORT.sites[0]]
    with Workers(1) as executor:
        server = CkksServer(Combination.DISTANCE, group().keys_path, executor)
        with pytest.raises(MalformedError, match=r"combined"):
            server.combine(payloads, COHORT)


@given(sites=st.integers(2, 60), workers=st.integers(1, 70))
def test_pair_blocks_hold_each_pair_once(sites: int, workers: int) -> None:
    blocks = pair_blocks(sites, workers)
    pairs = [frozenset(pair) for block in blocks for pair in block.pairs]
    assert len(pairs) == len(set(pairs)) == sites * (sites - 1) // 2
    assert all(len(pair) == 2 for pair in pairs)
    assert len(blocks) <= workers
    assert sorted(i for block in blocks for i in block.needs_bare_sum) == list(range(sites))
    assert all({i for pair in block.pairs for i in pair} >= set(block.needs_bare_sum) for block in blocks)


@pytest.mark.parametrize("workers", range(1, 17))
def test_pair_blocks_even_and_few_sites(workers: int) -> None:
    blocks = pair_blocks(50, workers)
    sizes = [len(block.pairs) for block in blocks]
    assert len(sizes) == workers
    assert max(sizes) <= min(sizes) + 1
    if workers > 3:
        assert np.mean([len(block.sites) for block in blocks]) < 45
    if workers > 9:
        assert np.mean([len(block.sites) for block in blocks]) < 30


def test_combine_missing_keys_named(tmp_path: Path) -> None:
    server = CkksServer(Combination.DISTANCE, tmp_path / "none.bin", None)
    with pytest.raises(KeyStoreError, match=r"none\.bin"):
        server.combine(uploads(STACK, COHORT, Combination.DISTANCE), COHORT)


def test_combine_bad_keys_file_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.bin"
    path.write_bytes(b"something else")
    with pytest.raises(UnknownSchemeError):
        CkksServer(Combination.DISTANCE, path, None).combine(
            uploads(STACK, COHORT, Combination.DISTANCE), COHORT
        )


def test_combine_changed_keys_file_refused() -> None:
    setting = peer_server.Setting(KeysFile(group().keys_path, b"\0" * 32), Combination.UNIFORM, Packing(3, 8))
    with pytest.raises(VerificationError, match=r"changed"):
        peer_server.combine(setting, [], [])


def test_combine_replaced_keys_file_used(tmp_path: Path) -> None:
    """After a maker failed, another one makes the group's keys."""
    path, payloads = tmp_path / "keys.bin", uploads(STACK, COHORT, Combination.DISTANCE)
    server = CkksServer(Combination.DISTANCE, path, None)
    path.write_bytes(group(1).keys.to_bytes())
    garbage = server.combine(payloads, COHORT)
    path.write_bytes(group().keys.to_bytes())
    assert server.combine(payloads, COHORT) == server_half(Combination.DISTANCE).combine(payloads, COHORT)
    assert server.combine(payloads, COHORT) != garbage


def test_server_modules_import_no_torch_and_no_secret() -> None:
    code = (
        "import sys, crypto.ckks.peer_server;"
        "print([name for name in ('torch', 'crypto.ckks.secret_key', 'crypto.ckks.site') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
def test_combine_one_block_for_each_worker(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    pool = InlinePool(workers)
    combined(sent(4), pool)
    assert pool.names == ["accumulate"] * workers + ["finish"] * workers


@pytest.mark.parametrize("workers", [1, 2])
def test_accumulate_disk_within_stated_bound(workers: int, left: list[int]) -> None:
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
def test_accumulate_memory_within_stated_bound(workers: int, counted: type[Alive]) -> None:
    """Half a megabyte each: less than 3.5 for a site and ciphertext of its rows. Pairs would be four times as many."""
    most = most_at_once(counted, workers)
    assert all(held <= 7 * sites * PARTS for sites, held in most.items())
    assert most[12] < 2.1 * most[6]


def test_accumulate_keeping_products_double_found(
    counted: type[Alive], monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply, kept = Circuit.multiply, []

    def keeping(circuit: Circuit, *factors: Any) -> Any:
        kept.append(multiply(circuit, *factors))
        return kept[-1]

    monkeypatch.setattr(Circuit, "multiply", keeping)
    most = most_at_once(counted, 1)
    kept.clear()
    assert most[12] > 2.1 * most[6]
