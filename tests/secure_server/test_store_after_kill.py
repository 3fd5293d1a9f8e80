"""Durability of the store under SIGKILL: every acknowledged write is there, and none is torn."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from secure_server.errors import StoreInUse
from secure_server.store import Store
from tests.secure_server.store_writer import AGREEMENT, RUN, content_of, key_of

ROOT = Path(__file__).parents[2]


def writer(path: Path, *options: str) -> subprocess.Popen[str]:
    """Start a process that writes to the store."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.secure_server.store_writer", str(path), *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'proto'}:{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    )


def acknowledged(process: subprocess.Popen[str], *, kill_after: float | None = None) -> int:
    """Return the last number that the process printed in full before it died.

    If it does not kill itself, it is killed ``kill_after`` seconds after its first write.
    """
    with process:
        assert process.stdout is not None
        output = process.stdout.readline()
        if kill_after is not None:
            time.sleep(kill_after)
            process.kill()
        output += process.stdout.read()
    assert process.returncode == -signal.SIGKILL
    return int(output[: output.rindex("\n")].split("\n")[-1])


def consistent(store: Store) -> int:
    """Return the number of writes, each whole, with the state of the last; raise AssertionError otherwise."""
    state = store.load()
    assert state is not None
    uploads = [received for received in store.received() if received.key is not None]
    assert state.attempt == len(uploads)
    for number in range(1, state.attempt + 1):
        assert store.upload(key_of(number), "ada") == content_of(number)
    assert store.result(state.result_key, "ada") == content_of(state.attempt)
    return state.attempt


@pytest.mark.full
def test_save_acknowledged_write_survives_kill(tmp_path: Path) -> None:
    path = tmp_path / "state" / "store.sqlite"
    before = 0
    for _ in range(5):
        last = acknowledged(writer(path), kill_after=random.SystemRandom().uniform(0.0, 0.2))
        with Store.open(path, RUN, AGREEMENT) as store:
            stored = consistent(store)
        assert last <= stored <= last + 1, "the last write may have been stored and not yet acknowledged"
        assert last > before
        before = stored


def test_save_killed_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    assert acknowledged(writer(path, "--die-at", "4")) == 3
    with Store.open(path, RUN, AGREEMENT) as store:
        assert store.upload(key_of(4), "ada") is None
        assert consistent(store) == 3


def test_save_without_transaction_leaves_half_a_write(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    assert acknowledged(writer(path, "--die-at", "4", "--without-transaction")) == 3
    with Store.open(path, RUN, AGREEMENT) as store:
        assert store.upload(key_of(4), "ada") == content_of(4)
        with pytest.raises(AssertionError):
            consistent(store)


def test_open_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    process = writer(path)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(StoreInUse, match=r"in use"):
        Store.open(path, RUN, AGREEMENT)
    acknowledged(process, kill_after=0.0)
    Store.open(path, RUN, AGREEMENT).close()
