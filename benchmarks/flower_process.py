"""Process that plays Flower's SecAgg+ in a Python of its own (:mod:`benchmarks.flower_worker`)."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agreement.errors import UserError
from benchmarks.record import Spent

SCRIPT = Path(__file__).with_name("flower_worker.py")


@dataclass(frozen=True)
class FlowerSettings:
    """An exchange of Flower's: ``shares`` of each secret, as many as sites for all; ``threshold`` open it."""

    sites: int
    values: int
    shares: int
    threshold: int
    dropped: int


class FlowerProcess:
    """A process that has played an exchange up to its end and repeats parts of it on demand.

    ``version`` of flwr; ``sent`` and ``received``: bytes of one site's contents in all stages. Raises
    :class:`UserError` if that Python cannot do it.
    """

    def __init__(self, python: Path, settings: FlowerSettings) -> None:
        self.settings = settings
        command = [str(python), "-I", str(SCRIPT), json.dumps(vars(settings))]
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed with this)
        self._process = subprocess.Popen(  # noqa: S603 (the user names the Python)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        facts = self._line()
        self.version: str = facts["flwr"]
        self.sent, self.received = sum(facts["sent"].values()), sum(facts["received"].values())

    def take(self, task: str) -> Spent:
        """Time ``shares``, ``values`` (of one site) or ``unmask`` (the server's whole stage) once."""
        if self._process.stdin is None:
            raise UserError("the process with flwr has no input")
        self._process.stdin.write(task + "\n")
        self._process.stdin.flush()
        spent = self._line()
        return Spent(spent["wall"], spent["cpu"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _line(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            self._process.communicate()
            self._log.seek(0)
            last = self._log.read().strip().splitlines()[-1:] or ["it said nothing"]
            self._log.close()
            raise UserError(f"--flwr-python cannot run flwr's SecAgg+, pip install flwr there: {last[0]}")
        read: dict[str, Any] = json.loads(line)
        return read
