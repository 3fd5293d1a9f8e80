"""A coordinator that writes as fast as it can, for the tests to kill: run as a module with the store's path.

After each durable write it prints its number. ``--die-at N`` kills the process inside the N-th write, between
the upload and the state; ``--without-transaction`` weakens the store by one line.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from protoseal_wire.messages import Phase, PhaseKey
from secure_server.rounds.state import RoundStage, State
from secure_server.store import Store

RUN, AGREEMENT = "r1", b"a" * 32


def key_of(number: int) -> PhaseKey:
    """Return the key of the write of this number."""
    return PhaseKey(RUN, 1, number, Phase.VALUES)


def content_of(number: int) -> bytes:
    """Return that write's upload: 32 KiB."""
    return hashlib.sha256(b"%d" % number).digest() * 1024


def write(store: Store, number: int) -> None:
    """Write one upload, one result and the state they lead to."""
    state = State(RUN, RoundStage.PRESENCE, 0.0, round=1, attempt=number)
    content = content_of(number)
    store.save(state, upload=(key_of(number), "ada", content), results={"ada": content})


class _Dying(Store):
    die_at = 0
    without_transaction = False

    def _put_state(self, state: State) -> None:
        if state.attempt == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._put_state(state)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with nullcontext() if self.without_transaction else super()._transaction():
            yield


def main() -> None:
    """Write until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--die-at", type=int, default=0)
    parser.add_argument("--without-transaction", action="store_true")
    options = parser.parse_args()
    _Dying.die_at, _Dying.without_transaction = options.die_at, options.without_transaction
    store = _Dying.open(options.path, RUN, AGREEMENT)
    stored = store.load()
    number = stored.attempt if stored else 0
    while True:
        number += 1
        write(store, number)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
