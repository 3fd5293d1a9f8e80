"""Account of a privacy ledger: the lines of its file, read and checked without changing the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from privacy.accounting.events import Event
from privacy.errors import LedgerError, RolledBackError
from privacy.ledger.hash_chain import Anchor, Chain, ChainError, read_chain
from privacy.ledger.lines import (
    Allowance,
    Budget,
    Entry,
    Exposure,
    Fact,
    Limit,
    Line,
    Loss,
    is_guaranteed,
    line_from_json,
)
from protoseal_files import append_only_file


class Account:
    """Content of a ledger, with every line checked."""

    def __init__(self, path: Path, chain: Chain) -> None:
        """Raise :class:`ChainError` if a line is not one of this version's ledgers, or the chain is empty."""
        self.path = path
        self._chain = chain
        lines = [_read_line(number, content) for number, content in enumerate(chain.contents, 1)]
        if [isinstance(line, Budget) for line in lines] != [True] + [False] * (len(lines) - 1):
            raise ChainError("the first line, and no other, has to be the budget of a data set")
        self.budget = cast("Budget", lines[0])
        self.lines: tuple[Line, ...] = tuple(lines[1:])
        """Lines after the first, oldest first; entry ``seq`` of the chain is at ``seq`` - 1."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Spending entries, oldest first."""
        return tuple(line for line in self.lines if isinstance(line, Entry))

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """Runs in which exact values left the site, oldest first."""
        return tuple(line for line in self.lines if isinstance(line, Exposure))

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Earlier ledgers of this data set that are lost, oldest first."""
        return tuple(line for line in self.lines if isinstance(line, Loss))

    @property
    def allowances(self) -> tuple[Allowance, ...]:
        """Changes of the limit, oldest first."""
        return tuple(line for line in self.lines if isinstance(line, Allowance))

    @property
    def limit(self) -> Limit:
        """Limit in force: the last change, or the initial limit."""
        allowances = self.allowances
        return allowances[-1].limit if allowances else self.budget.limit

    @property
    def guaranteed(self) -> bool:
        """True if every entry of this ledger has a guarantee, no exact value left, and no earlier ledger is lost.

        The limit: releases of the same records outside this ledger are unknown here.
        """
        return not (self.exposures or self.losses) and all(map(is_guaranteed, self.entries))

    @property
    def history(self) -> tuple[Event, ...]:
        """Events of all entries, oldest first."""
        return tuple(entry.spending.event for entry in self.entries)

    @property
    def facts(self) -> tuple[Mapping[str, Fact], ...]:
        """Facts of all entries and exposures, oldest first."""
        return tuple(
            line.spending.facts if isinstance(line, Entry) else line.facts
            for line in self.lines
            if isinstance(line, Entry | Exposure)
        )

    @property
    def anchor(self) -> Anchor:
        """Anchor of the last line."""
        return self._chain.anchor

    @property
    def unfinished(self) -> int:
        """Number of bytes of an unfinished last line.

        A line that a crash cut off was never acknowledged, so nothing was sent for it. A line that was cut off later
        looks the same: only an anchor of that line, for :meth:`check_anchor`, tells one from the other.
        """
        return len(self._chain.torn)

    def check_anchor(self, anchor: Anchor) -> None:
        """Raise :class:`RolledBackError` unless the ledger has the anchored entry.

        An anchor is of an entry that was acknowledged, hence whole on the disk, so a missing one is never the effect of
        a crash. The limit: a disk that loses what it has synced looks like a cut.
        """
        last = self.anchor.seq
        if anchor.seq == last + 1 and self.unfinished:
            raise RolledBackError(
                f"{self.path}: entry {anchor.seq} was cut after it was acknowledged, and {self.unfinished} bytes of it "
                "are left: a crash while writing leaves no anchor; restore the latest copy"
            )
        if anchor.seq > last:
            raise RolledBackError(
                f"{self.path} ends with entry {last}, and entry {anchor.seq} was acknowledged: its end was cut off "
                "after that, an older copy was put in its place, or the ledger was begun anew; a crash does none of "
                "these; restore the latest copy"
            )
        if not self._chain.has(anchor):
            raise RolledBackError(
                f"{self.path} has another entry {anchor.seq} than before: the ledger continued from an older copy, or "
                "was begun anew; restore the copy with the anchored entry"
            )


def _read_line(number: int, content: Mapping[str, object]) -> Line:
    try:
        return line_from_json(content)
    except ValueError as error:
        raise ChainError(f"line {number} is not valid in this version of the ledger: {error}") from error


def read_account(path: Path) -> Account:
    """Read and check a ledger without changing the file. Raises :class:`LedgerError` if it is damaged or missing."""
    with ledger_faults(path), append_only_file.lock_file(path, read_only=True) as file:
        return Account(path, read_chain(append_only_file.read_all(file)))


@contextmanager
def ledger_faults(path: Path) -> Iterator[None]:
    """Raise :class:`LedgerError` with the file's path for every fault of the file."""
    try:
        yield
    except ChainError as error:
        raise LedgerError(
            f"{path} is damaged, or no privacy ledger: {error}; bring back the latest copy that `verify` accepts"
        ) from error
    except FileNotFoundError as error:
        raise LedgerError(f"{path} or its folder is not there; give its place, or bring it back") from error
    except OSError as error:
        raise LedgerError(f"{path}: {error.strerror or error}") from error
