"""Tiny model that notes what the first run in its process was given; with a GPU it waits for a second run beside it.

If the folder of the notes has a file :data:`TERMINATE`, the first process deletes it and sends itself SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from socket import AF_INET, AF_INET6, inet_ntop

import torch
from torch import nn

from tests.support import tiny_models

NOTES = "PROTOSEAL_TEST_NOTES"
"""Environment variable with the folder of the notes, a file for each process."""
TERMINATE = "terminate"
SECONDS = 60.0


def build(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Build a model of one layer."""
    folder = Path(os.environ[NOTES])
    with suppress(FileNotFoundError):
        (folder / TERMINATE).unlink()
        os.kill(os.getpid(), signal.SIGTERM)
    note = folder / f"{os.getpid()}.json"
    if not note.exists():
        facts = {
            "start": time.time(),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "threads": torch.get_num_threads(),
            "statistics": os.environ.get("RAY_USAGE_STATS_ENABLED"),
            "listening": listening_addresses(f"{NOTES}={folder}"),
        }
        note.write_text(json.dumps(facts), encoding="utf-8")
        deadline = time.monotonic() + SECONDS
        while facts["gpus"] and len(list(folder.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    return tiny_models.build_tanh(num_classes, dim)


def listening_addresses(variable: str) -> list[str]:
    """Return the addresses on which the processes with this variable in their environment accept TCP connections."""
    sockets = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended in the meantime
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                sockets |= {os.readlink(file) for file in (process / "fd").iterdir()}
    addresses = set()
    for table, family in (("tcp", AF_INET), ("tcp6", AF_INET6)):
        for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                words = bytes.fromhex(local.partition(":")[0])  # 32-bit words in the machine's order of bytes
                swapped = b"".join(words[start : start + 4][::-1] for start in range(0, len(words), 4))
                addresses.add(inet_ntop(family, swapped))
    return sorted(addresses)
