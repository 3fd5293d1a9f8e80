"""Times at which a coordinator hands out requests and receives the answers, written to a file line by line.

``protoseal`` with a :data:`tests.support.killed_party.ARRIVALS` file in its environment calls :func:`write_arrivals`.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from protoseal_wire.messages import DownloadRequest, Phase, UploadHeader
from secure_server.coordinator import Coordinator


@dataclass(frozen=True)
class Arrival:
    """One answer: seconds from handing out its request to its first byte."""

    site: str
    phase: Phase
    round: int
    seconds: float


def write_arrivals(path: Path) -> None:
    """Have the coordinator of this process write its times to ``path``."""
    download, check_upload = Coordinator.download, Coordinator.check_upload
    handed_out: dict[tuple[str, Phase], float] = {}

    @wraps(download)
    def timed_download(coordinator: Coordinator, site: str, request: DownloadRequest) -> bytes:
        content = download(coordinator, site, request)
        handed_out[site, request.key.phase] = time.monotonic()
        return content

    @wraps(check_upload)
    def timed_upload(coordinator: Coordinator, site: str, header: UploadHeader) -> None:
        seconds = time.monotonic() - handed_out[site, header.key.phase]
        line = {"site": site, "phase": header.key.phase.name, "round": header.key.round, "seconds": seconds}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        check_upload(coordinator, site, header)

    doubles: dict[str, Any] = {"download": timed_download, "check_upload": timed_upload}
    for name, double in doubles.items():
        setattr(Coordinator, name, double)


def read_arrivals(path: Path) -> list[Arrival]:
    """Return what :func:`write_arrivals` wrote."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Arrival(each["site"], Phase[each["phase"]], each["round"], each["seconds"]) for each in lines]
