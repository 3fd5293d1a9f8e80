"""The coordinator's work: split over processes, with keys from a file, and never with secret material."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.ckks import peer_server
from crypto.ckks.circuit import KeysFile
from crypto.ckks.packing import Packing
from crypto.ckks.peer_server import CkksServer, pair_blocks
from crypto.errors import KeyStoreError, MalformedError, UnknownSchemeError, VerificationError
from crypto.protection import Combination
from secure_server.process_pool import Workers
from tests.crypto.ckks_reference import cohort_of, group, random_stack, received, server_half, uploads

COHORT = cohort_of(np.ones((5, 3), dtype=np.bool_), 8)
STACK = random_stack((5, 3, 8), 0.5, seed=21)


@pytest.mark.parametrize("combination", list(Combination))
def test_processes_give_what_inline_work_gives(combination: Combination) -> None:
    """The results differ in the last bytes: processes pack other sums together, which changes the noise."""
    payloads = uploads(STACK, COHORT, combination)
    with Workers(2) as executor:
        split = CkksServer(combination, group().keys_path, executor).combine(payloads, COHORT)
    inline = server_half(combination).combine(payloads, COHORT)
    got, expected = (received(answers, STACK, COHORT, combination) for answers in (split, inline))
    np.testing.assert_allclose(got, expected, atol=1e-7)


def test_errors_come_back_from_processes() -> None:
    payloads = uploads(STACK, COHORT, Combination.DISTANCE)
    payloads[COHORT.sites[1]] = payloads[COHORT.sites[0]]
    with Workers(1) as executor:
        server = CkksServer(Combination.DISTANCE, group().keys_path, executor)
        with pytest.raises(MalformedError, match="cannot be combined"):
            server.combine(payloads, COHORT)


@given(sites=st.integers(2, 60), workers=st.integers(1, 70))
def test_blocks_hold_each_pair_once(sites: int, workers: int) -> None:
    blocks = pair_blocks(sites, workers)
    pairs = [frozenset(pair) for block in blocks for pair in block.pairs]
    assert len(pairs) == len(set(pairs)) == sites * (sites - 1) // 2
    assert all(len(pair) == 2 for pair in pairs)
    assert len(blocks) <= workers
    assert sorted(i for block in blocks for i in block.needs_bare_sum) == list(range(sites))
    assert all({i for pair in block.pairs for i in pair} >= set(block.needs_bare_sum) for block in blocks)


@pytest.mark.parametrize("workers", range(1, 17))
def test_blocks_are_of_one_size_and_touch_few_sites(workers: int) -> None:
    blocks = pair_blocks(50, workers)
    sizes = [len(block.pairs) for block in blocks]
    assert len(sizes) == workers
    assert max(sizes) <= min(sizes) + 1
    if workers > 3:
        assert np.mean([len(block.sites) for block in blocks]) < 45
    if workers > 9:
        assert np.mean([len(block.sites) for block in blocks]) < 30


def test_missing_keys_are_named(tmp_path: Path) -> None:
    server = CkksServer(Combination.DISTANCE, tmp_path / "none.bin", None)
    with pytest.raises(KeyStoreError, match=r"none\.bin"):
        server.combine(uploads(STACK, COHORT, Combination.DISTANCE), COHORT)


def test_a_file_that_is_no_keys_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.bin"
    path.write_bytes(b"something else")
    with pytest.raises(UnknownSchemeError):
        CkksServer(Combination.DISTANCE, path, None).combine(
            uploads(STACK, COHORT, Combination.DISTANCE), COHORT
        )


def test_keys_that_change_under_a_worker_are_refused() -> None:
    setting = peer_server.Setting(KeysFile(group().keys_path, b"\0" * 32), Combination.UNIFORM, Packing(3, 8))
    with pytest.raises(VerificationError, match="changed while"):
        peer_server.combine(setting, [], [])


def test_new_keys_in_the_same_place_are_used(tmp_path: Path) -> None:
    """After a maker failed, another one makes the group's keys."""
    path, payloads = tmp_path / "keys.bin", uploads(STACK, COHORT, Combination.DISTANCE)
    server = CkksServer(Combination.DISTANCE, path, None)
    path.write_bytes(group(1).keys.to_bytes())
    garbage = server.combine(payloads, COHORT)
    path.write_bytes(group().keys.to_bytes())
    assert server.combine(payloads, COHORT) == server_half(Combination.DISTANCE).combine(payloads, COHORT)
    assert server.combine(payloads, COHORT) != garbage


def test_the_coordinators_modules_import_neither_torch_nor_the_secret() -> None:
    code = (
        "import sys, crypto.ckks.peer_server;"
        "print([name for name in ('torch', 'crypto.ckks.secret_key', 'crypto.ckks.site') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
