"""The blocks of docs/tutorials/first-federation.md, and a shell that types them."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.processes import environment, wait_until

ROOT = Path(__file__).parents[2]
WALKTHROUGH = ROOT / "docs/tutorials/first-federation.md"
SERVICES = ROOT / "docs/how-to/services.md"
SITES = ("north", "south", "west")
ONCE = frozenset({"everyone", "CA holder", "coordinator", "north", "post", "telephone", "trial"})
EACH_SITE = "each site"
_PATIENCE = 600.0
"""Seconds for one block, of which the longest waits for the end of the run."""
NOT_RUN = "root"
"""Blocks that only an administrator of a machine could run: parsed, not tried."""


@dataclass(frozen=True)
class Block:
    """Commands of one party. ``who`` is what the first line says, up to a comma or colon."""

    step: str
    who: str
    commands: str

    @property
    def is_run(self) -> bool:
        """True if the tests run the block."""
        return self.who != NOT_RUN

    @property
    def stays(self) -> bool:
        """True if the block leaves a background process, a child of its shell."""
        return re.search("&$", self.commands, re.M) is not None


def read_blocks(text: str) -> list[Block]:
    """Return every fenced block, in order; ``ValueError`` for one that does not say in a known way who types it."""
    blocks, step = [], ""
    for heading, language, commands in re.findall(r"^## ([^\n]+)$|^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        step = heading or step
        if commands:
            blocks.append(Block(step, _who(language, commands), commands))
    return blocks


def _who(language: str, commands: str) -> str:
    first = commands.partition("\n")[0]
    who = re.split("[,:]", first.removeprefix("# "))[0]
    if language != "sh" or not first.startswith("# ") or who not in ONCE | {EACH_SITE, NOT_RUN}:
        raise ValueError(f"a block in {language!r} that begins with {first!r}: nobody knows who types it")
    return who


class Shell:
    """One bash in which the blocks are typed one after another; it ends at the first command that fails.

    Processes that the blocks leave in the background are its children, and end with it.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self._log_path = folder / "typed.log"
        with self._log_path.open("wb") as log:
            self._bash = subprocess.Popen(
                ["bash", "--noprofile", "--norc", "-euo", "pipefail"],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(variables),
                start_new_session=True,
            )
        assert self._bash.stdin is not None
        self._stdin = self._bash.stdin

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):  # it ended, and so did all that it started
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        with suppress(BrokenPipeError):  # commands that nobody read
            self._stdin.close()

    def type(self, commands: str) -> str:
        """Type the commands and return their output; raise ``AssertionError`` with the output if one of them fails."""
        start, mark = self._log_path.stat().st_size, f"done {secrets.token_hex(8)}"
        self._stdin.write(f"{commands}\nprintf '%s\\n' '{mark}'\n".encode())
        self._stdin.flush()

        def printed() -> str:
            return self._log_path.read_bytes()[start:].decode("utf-8", errors="replace")

        wait_until(
            lambda: mark in printed() or self._bash.poll() is not None, f"end of:\n{commands}", _PATIENCE
        )
        assert mark in printed(), f"failed:\n{commands}\n{printed()}"
        return printed().partition(mark)[0]

    def type_for_each(self, names: Sequence[str], commands: str) -> dict[str, str]:
        """Type the commands once for each ``NAME``, all at once, as people at several machines would.

        They leave no process in the background. Returns what each prints; raises as :meth:`type` does.
        """
        logs = {name: self._log_path.with_name(f"typed-{name}.log") for name in names}
        starts = [f"(NAME={name}\n{commands}\n) > {log} 2>&1 &\nPID_{name}=$!" for name, log in logs.items()]
        waits = [f'wait "$PID_{name}"' for name in names]
        try:
            self.type("\n".join((*starts, *waits)))
        except AssertionError as failure:
            for log in logs.values():
                failure.add_note(log.read_text(encoding="utf-8", errors="replace") if log.exists() else "")
            raise
        return {name: log.read_text(encoding="utf-8", errors="replace") for name, log in logs.items()}


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a user who installed the project: its command on the path, and nothing of the tests."""
    inherited = environment()
    for name in ("PROTOSEAL_KEY_PASSPHRASE", "CREDENTIALS_DIRECTORY", "PYTHONPATH"):
        inherited.pop(name, None)
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited["PATH"]])
    return inherited | {"PATH": path, **variables}
