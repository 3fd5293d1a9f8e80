"""Parties as processes that need not import torch first: forked off one process that has imported everything.

A site's process spends seconds on its imports, and a test that kills thirty of them spends minutes. Forked off, each
is still a process of its own, which opens its files and sockets itself and takes a signal alone. Nothing is shared but
code: the nursery has no thread, no connection, and runs no party itself.

Limits. What an interpreter does before a party's own code runs, and what it frees after the last of that code, is
tested only where parties are started by the command. So are the pauses between a site's tries to reach a coordinator
that is away: here they are short.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import math
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_IMPORTED = (
    "protoseal.cli",
    "protoseal.commands.client",
    "protoseal.commands.server",
    "secure_client.app",
    "privacy.accounting.loss_accountants",
    "protoseal.reports.statement_files",
    "secure_server.app",
    "torch._dynamo",  # an optimiser's first step imports it
)
_MODULE = "tests.support.forked_processes"
PROTOSEAL = "tests.support.killed_party"
"""The command, and where a test says so, with a point at which it dies."""


class Nursery:
    """The process that others are forked off. Close it when done: it kills those that are left."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """``environment`` is what every party has, beside what is its own."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(environment),
        )
        self._left: set[int] = set()

    def start(
        self,
        folder: Path,
        arguments: Sequence[str],
        log: Path,
        own: Mapping[str, str],
        module: str = PROTOSEAL,
    ) -> Child:
        """Start ``python -m MODULE ARGUMENTS`` in that folder.

        Its output is added to ``log``, and ``own`` to its environment.
        """
        asked = {
            "folder": str(folder),
            "arguments": [*arguments],
            "log": str(log),
            "own": {**own},
            "module": module,
        }
        pid = self._ask(asked)
        self._left.add(pid)
        return Child(self, pid)

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of an ended child (negative for a signal), or None while the child runs."""
        code: int | None = self._ask({"ended": pid})
        if code is not None:
            self._left.discard(pid)
        return code

    def close(self) -> None:
        """End it and all that it forked."""
        for pid in self._left:
            os.kill(pid, signal.SIGKILL)  # it is there, or is remembered, until its exit code was asked for
        self._process.communicate()

    def _ask(self, request: Mapping[str, object]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Forks:
    """Processes that this process forked itself."""

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of an ended child (negative for a signal), or None while the child runs."""
        pid, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None


class Child:
    """A party's process, for which whoever forked it is asked; as far as it goes, a :class:`subprocess.Popen`."""

    def __init__(self, nursery: Nursery | Forks, pid: int) -> None:
        self._nursery, self.pid = nursery, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code of an ended process, or None."""
        if self.returncode is None:
            self.returncode = self._nursery.exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float = math.inf) -> int:
        """Wait for the end; raise ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return code

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Send the signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


# Inside the nursery


_exit_status: list[int] = []
"""Exit status of a party in its own process, once its code has ended."""


def main() -> None:
    """Answer requests, a line each, until there are no more."""
    atexit.register(_leave)  # before all others, hence called after all others
    for module in _IMPORTED:
        importlib.import_module(module)
    wait_less()
    gc.freeze()  # or each child's collector writes to, and so copies, the pages of all that was imported
    while request := sys.stdin.readline():
        sys.stdout.write(json.dumps(_answer(json.loads(request))) + "\n")
        sys.stdout.flush()


def wait_less() -> None:
    """Have parties wait for no disk, since no test cuts the power, and call a coordinator again that was away soon."""

    def fsync(fd: object) -> None:
        pass

    os.fsync = fsync
    transport = importlib.import_module("secure_client.transport")
    transport.__dict__.update(_FIRST_PAUSE=0.05, _LONGEST_PAUSE=0.2)
    short = {"grpc.initial_reconnect_backoff_ms": 50, "grpc.max_reconnect_backoff_ms": 200}
    transport.__dict__["_OPTIONS"] = tuple(
        (name, short.get(name, value)) for name, value in transport._OPTIONS
    )


def _answer(request: dict[str, Any]) -> int | None:
    if "ended" in request:
        return Forks().exit_code(request["ended"])
    pid = os.fork()
    if pid == 0:
        become_party(**request)
    return pid


def become_party(
    folder: str, arguments: list[str], log: str, own: dict[str, str], module: str = PROTOSEAL
) -> NoReturn:
    """Run the module in this forked process, and leave through whoever forked it, as a command does at its end.

    The interpreter waits for threads and calls what is registered for its exit, as it does for a command.
    """
    _give_away_files(log)
    os.chdir(folder)
    os.environ.update(own)
    sys.path[0] = folder  # where a site's own model is looked for, as with python -m
    sys.argv = ["protoseal", *arguments]
    code: object = None
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as end:
        code = end.code
    if code is None or isinstance(code, int):
        _exit_status.append(code or 0)
    raise SystemExit(code)


def _leave() -> None:
    """End a party without freeing what was imported, which would first copy all of it from the nursery."""
    if _exit_status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_status[-1])


def _give_away_files(log: str) -> None:
    """Standard input is nothing, output and error go to the log."""
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
    for old, new in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(old, new)


if __name__ == "__main__":
    main()
