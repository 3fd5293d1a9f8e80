"""``protoseal demo`` for a process of the nursery: its parties are forked off it, and are in its group of processes.

What a start of the command adds, one test of the demo shows, which starts all of them anew.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import protoseal.demo
from protoseal.cli import main
from tests.support.forked_processes import Child, Forks, become_party


def start(
    command: Sequence[str], *, cwd: Path, stdout: IO[bytes], stderr: IO[bytes], env: Mapping[str, str]
) -> Child:
    """Fork a party, where the demo would start its command."""
    assert stdout is stderr
    pid = os.fork()
    if pid:
        return Child(Forks(), pid)
    code: object = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        become_party(str(cwd), [*command[3:]], stdout.name, {"OMP_NUM_THREADS": env["OMP_NUM_THREADS"]})
    except SystemExit as end:
        code = end.code or 0
    finally:  # the demo's own code is above it on the stack, and would end the other parties
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    protoseal.demo.__dict__["subprocess"] = SimpleNamespace(
        Popen=start, TimeoutExpired=subprocess.TimeoutExpired
    )
    main()
