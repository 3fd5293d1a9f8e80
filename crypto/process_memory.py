"""Protection of a process's memory, which has keys, against other processes of the same user and core dumps.

On Linux the process is made undumpable: the kernel writes no core, and another process of the same user can neither
trace it nor read its ``/proc/PID/mem`` and ``/proc/PID/environ``. Children inherit the limit of cores; a program that a
child executes is dumpable until it asks for the same.

Limits: a process with CAP_SYS_PTRACE, as root's are, reads all the same. What was copied before the call is out of
reach, and so is memory that the system writes to swap or to a hibernation image.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import sys

_log = logging.getLogger("protoseal.security")
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4  # linux/prctl.h


def keep_memory_private() -> None:
    """Forbid core dumps of this process, and on Linux the reading of its memory by others of its user. Idempotent."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux" and _prctl(_PR_SET_DUMPABLE, 0) != 0:
        _log.warning(
            "other processes of this user can read this process's memory: prctl(PR_SET_DUMPABLE) failed (%s)",
            os.strerror(ctypes.get_errno()),
        )


def is_memory_private() -> bool:
    """Return True if the kernel neither dumps this process nor lets its user trace it; False without such a flag."""
    return sys.platform == "linux" and _prctl(_PR_GET_DUMPABLE, 0) == 0


def _prctl(option: int, value: int) -> int:
    # prctl has variadic arguments of type unsigned long.
    arguments = [ctypes.c_ulong(argument) for argument in (value, 0, 0, 0)]
    result: int = ctypes.CDLL(None, use_errno=True).prctl(option, *arguments)
    return result
