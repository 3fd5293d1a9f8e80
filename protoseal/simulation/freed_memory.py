"""Freed memory of a simulation, kept for the next array of a model's length.

The C library returns arrays above 32 MiB to the system as soon as they are freed, and the system clears each page of
the next one. A round makes many such arrays for each site. For ResNet10 that took half of the time beside training.

Limit: only glibc has the setting. Up to 512 MiB that nothing uses stay with the process.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST_KEPT = 256 * 1024 * 1024
_MOST_UNUSED = 512 * 1024 * 1024


def keep_freed_memory() -> None:
    """Keep freed arrays of up to 256 MiB in this process, for reuse. Idempotent; without effect outside glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
        mallopt(_TRIM_THRESHOLD, _MOST_UNUSED)
