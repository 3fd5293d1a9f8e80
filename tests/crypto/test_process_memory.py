"""Memory of a process that has keys: no core of it, and no way in for other processes of its user.

Root reads any process's memory. Where the tests run as root, the processes are of a user without rights.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the flag is Linux's")

AS_ROOT = os.getuid() == 0
NOBODY = 65534 if AS_ROOT else None
PROGRAM = """
import ctypes, os, resource, sys
from crypto.ckks.secret_key import CkksSecret
from crypto.process_memory import is_memory_private, keep_memory_private

if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as in a process that this user started
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
if sys.argv[1] == "private":
    keep_memory_private()
secret, _ = CkksSecret.generate()
assert CkksSecret.from_bytes(secret.to_bytes()).to_bytes()  # SEAL saves and loads by /proc/self/fd
print(is_memory_private(), flush=True)
sys.stdin.read()
"""


@contextmanager
def victim(kind: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that has a secret key, of a user without rights; it has said whether its memory is private."""
    folder.chmod(0o777)
    command = [sys.executable, "-c", PROGRAM, kind]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, env=_environment()
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == str(kind == "private").encode() + b"\n"
            yield process
        finally:
            process.kill()


def _environment() -> dict[str, str]:
    root = Path(__file__).parents[2]
    return dict(os.environ, PYTHONPATH=os.pathsep.join([str(root), str(root / "proto")]))


def can_open(pid: int, name: str) -> bool:
    """Return True if another process of that user opens this file of /proc, which takes the right to trace."""
    shell = ["/bin/sh", "-c", f": < /proc/{pid}/{name}"]
    ran = subprocess.run(shell, user=NOBODY, group=NOBODY, stderr=subprocess.DEVNULL, check=False)
    return ran.returncode == 0


def test_keep_memory_private_blocks_ptrace_and_core(
    tmp_path: Path,
) -> None:
    with victim("private", tmp_path) as process:
        assert not any(can_open(process.pid, name) for name in ("mem", "environ", "maps"))
        os.kill(process.pid, signal.SIGABRT)
        _, status = os.waitpid(process.pid, 0)
    assert (os.WTERMSIG(status), os.WCOREDUMP(status)) == (signal.SIGABRT, False)
    assert not list(tmp_path.iterdir())


def test_dumpable_process_memory_can_be_read(tmp_path: Path) -> None:
    """A core is left as well on some machines only."""
    with victim("open", tmp_path) as process:
        assert can_open(process.pid, "environ")
