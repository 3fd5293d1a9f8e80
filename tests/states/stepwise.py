"""Steps of a ledger's file between which another process can come: before each read, write and lock."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from protoseal_files import append_only_file


@contextmanager
def stepwise(pause: Callable[[], None]) -> Iterator[None]:
    """Call ``pause`` where another process could come in between, and while a process waits for the lock."""
    with ExitStack() as patches:
        for name in ("read_all", "cut", "sync"):
            patches.enter_context(
                patch.object(append_only_file, name, _paused(pause, getattr(append_only_file, name)))
            )
        patches.enter_context(
            patch.object(append_only_file, "append", _around(pause, append_only_file.append))
        )
        if append_only_file._lock is not no_lock:
            patches.enter_context(patch.object(append_only_file, "_lock", _locked(pause)))
        yield


def no_lock(file: int, kind: int, path: Path) -> None:
    """Lock nothing, in place of ``durable._lock``, as the weakened double does."""


def _paused(pause: Callable[[], None], step: Callable[..., object]) -> Callable[..., object]:
    def paused(*arguments: object) -> object:
        pause()
        return step(*arguments)

    return paused


def _around(pause: Callable[[], None], append: Callable[[int, bytes], None]) -> Callable[[int, bytes], None]:
    def around(file: int, content: bytes) -> None:
        pause()
        append(file, content)
        pause()

    return around


def _locked(pause: Callable[[], None]) -> Callable[[int, int, Path], None]:
    def locked(file: int, kind: int, path: Path) -> None:
        while True:
            pause()
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return

    return locked
