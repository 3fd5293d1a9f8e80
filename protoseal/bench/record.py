"""Record of a benchmark.

``{"schema": 1, "name", "machine", "cases": [{…, "seconds", "baseline_seconds", "ratio"}]}``; a case without a
baseline has null there.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agreement.storage.run_files import write_text

Value = str | int | float | None
Task = Callable[[], object]


class Spent(NamedTuple):
    """Seconds of wall-clock time, and CPU seconds of this process."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Case:
    """One comparison: the case's fields, and the times of both sides; no ratio without a baseline."""

    what: Mapping[str, Value]
    spent: Sequence[Spent]
    baseline: Sequence[Spent] = ()

    @property
    def ratio(self) -> float | None:
        """Speed relative to the baseline: the median over pairs that ran one after the other."""
        return self._ratio([each.wall for each in self.baseline], [each.wall for each in self.spent])

    @property
    def cpu_ratio(self) -> float | None:
        """Speed relative to the baseline in CPU seconds, which other load on the machine disturbs less.

        The ratio is valid for one thread only: threads of one program wait for each other, and waiting counts.
        """
        return self._ratio([each.cpu for each in self.baseline], [each.cpu for each in self.spent])

    def as_json(self) -> dict[str, Value]:
        """Return one object of ``cases``."""
        return {
            **self.what,
            "seconds": statistics.median(each.wall for each in self.spent),
            "baseline_seconds": _median([each.wall for each in self.baseline]),
            "ratio": self.ratio,
            "cpu_ratio": self.cpu_ratio,
            "repeats": len(self.spent),
        }

    @staticmethod
    def _ratio(baseline: Sequence[float], ours: Sequence[float]) -> float | None:
        return _median([theirs / own for theirs, own in zip(baseline, ours, strict=True)] if baseline else [])


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def spent_on(task: Task) -> Spent:
    """Return the time of a task."""
    begin = time.perf_counter(), time.process_time()
    task()
    return Spent(time.perf_counter() - begin[0], time.process_time() - begin[1])


def compare(what: Mapping[str, Value], ours: Task, baseline: Task, repeats: int) -> Case:
    """Time both sides alternately, so that other load affects both equally, after one warm-up run."""
    pairs = [(spent_on(baseline), spent_on(ours)) for _ in range(repeats + 1)][1:]
    return Case(what, [own for _, own in pairs], [theirs for theirs, _ in pairs])


def machine(**more: Value) -> dict[str, Value]:
    """Describe the machine. ``load`` is of the last minute; a value well above 1 means that the machine was shared."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        **more,
    }


def peak_memory() -> int:
    """Return the peak memory of this process in bytes, as Linux counts it; elsewhere 0."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    kibibytes = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(kibibytes[0]) * 1024 if kibibytes else 0


def as_record(name: str, machine: Mapping[str, Value], cases: Sequence[Case]) -> dict[str, object]:
    """Return the content of the whole file."""
    return {"schema": 1, "name": name, "machine": dict(machine), "cases": [each.as_json() for each in cases]}


def write_record(path: Path, record: Mapping[str, object]) -> Path:
    """Write the record as JSON; raise for NaN and infinity, which JSON lacks."""
    return write_text(path, json.dumps(record, indent=2, allow_nan=False) + "\n")


def _processor() -> str:
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
