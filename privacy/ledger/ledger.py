"""The privacy budget of one data set, over all runs: what was released of it, durable before it leaves.

The order is: spend, draw the noise, send. :meth:`Ledger.spend` returns when the entry is on the disk; so a process that
dies may have spent for what it never sent, and has never sent what it had not spent. Sending the same bytes once more
is free; the same release with new noise is a new entry.

What this cannot see: an older copy of the file put in its place before the process starts, or the file removed. For
that, :attr:`Ledger.anchor` is kept by others, and :meth:`Ledger.check_anchor` compares. Nor can it see what the data
set really is: a site that gives the same records another name has another budget.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from privacy.accounting.accounting_rules import Accounting
from privacy.accounting.events import Event
from privacy.errors import LedgerError, RolledBackError
from privacy.ledger import append_only_file
from privacy.ledger.decisions import (
    Allowance,
    Exposure,
    Line,
    Loss,
    allowance_to_json,
    exposure_to_json,
    line_from_json,
    loss_to_json,
)
from privacy.ledger.entries import (
    Budget,
    Entry,
    Limit,
    Release,
    Spending,
    budget_from_json,
    budget_to_json,
    is_guaranteed,
    now,
    spending_to_json,
)
from privacy.ledger.hash_chain import NO_LINE, Anchor, Chain, ChainError, make_line, read_chain
from privacy.ledger.remaining_budget import Accountant, check_covered, epsilon_of, fits, refusal, remaining

_log = logging.getLogger("protoseal.site")
_NOTHING = Anchor(-1, NO_LINE)
"""What the first line follows."""


class Account:
    """What a ledger says, every line of it checked."""

    def __init__(self, path: Path, chain: Chain) -> None:
        """:class:`ChainError` if a line says what no ledger of this version does, or there is none."""
        self.path, self._chain = path, chain
        self.lines: tuple[Line, ...] = tuple(
            _parsed(line_from_json, number, content) for number, content in enumerate(chain.contents[1:], 2)
        )
        """All after the first, oldest first; entry ``seq`` of the chain is at ``seq`` - 1."""
        self.budget: Budget = _parsed(budget_from_json, 1, chain.contents[0] if chain.contents else {})

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that was spent, oldest first."""
        return tuple(each for each in self.lines if isinstance(each, Entry))

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """The runs in which exact values left, oldest first."""
        return tuple(each for each in self.lines if isinstance(each, Exposure))

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The ledgers of this data set that were lost before, oldest first."""
        return tuple(each for each in self.lines if isinstance(each, Loss))

    @property
    def allowances(self) -> tuple[Allowance, ...]:
        """How the limit changed, oldest first."""
        return tuple(each for each in self.lines if isinstance(each, Allowance))

    @property
    def limit(self) -> Limit:
        """What may be spent now: as it was last changed."""
        allowances = self.allowances
        return allowances[-1].limit if allowances else self.budget.limit

    @property
    def guaranteed(self) -> bool:
        """Return True if all that this ledger records has a guarantee, and no earlier ledger is lost.

        The limit: what left of the same records without this ledger is not known here.
        """
        return not (self.exposures or self.losses) and all(map(is_guaranteed, self.entries))

    @property
    def history(self) -> tuple[Event, ...]:
        """The events of all entries, oldest first."""
        return tuple(each.spending.event for each in self.entries)

    @property
    def anchor(self) -> Anchor:
        """Of the last line."""
        return self._chain.anchor

    @property
    def unfinished(self) -> int:
        """Bytes of an unfinished line. If a crash cut it off it was never acknowledged, so nothing was sent for it."""
        return len(self._chain.torn)

    def check_anchor(self, anchor: Anchor) -> None:
        """:class:`RolledBackError` unless the ledger has the anchored entry."""
        if anchor.seq > self.anchor.seq:
            raise RolledBackError(
                f"{self.path} ends with entry {self.anchor.seq}, and has had {anchor.seq}: an older copy was put in "
                "its place, or it was begun anew; bring the latest back"
            )
        if not self._chain.has(anchor):
            raise RolledBackError(
                f"{self.path} has another entry {anchor.seq} than it once had: it went on from an older copy, or was "
                "begun anew; bring the anchored one back"
            )


Content = TypeVar("Content")


def _parsed(
    parse: Callable[[Mapping[str, object]], Content], number: int, content: Mapping[str, object]
) -> Content:
    try:
        return parse(content)
    except ValueError as error:
        raise ChainError(f"line {number} says what no ledger of this version does: {error}") from error


def read_account(path: Path) -> Account:
    """A ledger as it stands, checked and left as it is. :class:`LedgerError` if it is damaged or not there."""
    with _named(path), append_only_file.locked(path, read_only=True) as file:
        return Account(path, read_chain(append_only_file.read_all(file)))


class Ledger:
    """The ledger of one data set; any number of threads and processes may spend by it at once."""

    def __init__(self, path: Path, dataset: str, limit: Limit, *, epsilon: Accountant) -> None:
        """Open the file, or begin it; its folder must be there.

        ``epsilon`` is the accountant: what a history costs at a delta. :class:`LedgerError` if the file is damaged,
        cannot be written, or is of another data set or limit.
        """
        self._path, self._epsilon = path, epsilon
        self._budget = Budget(
            dataset, limit, secrets.token_hex(16)
        )  # the salt of a ledger that this one begins
        self._account: Account | None = None
        self._broken = False
        with self._opened(create=True):
            # Every time: a process that died may have begun the file and not come so far.
            append_only_file.sync_folder(path.resolve().parent)  # the file's own, where the path is a link

    @property
    def path(self) -> Path:
        """Where the ledger is."""
        return self._path

    @property
    def anchor(self) -> Anchor:
        """The number and hash of the last entry that this object has seen, all of which are durable.

        For others to keep: see :meth:`check_anchor`.
        """
        return self._seen.anchor

    @property
    def history(self) -> tuple[Event, ...]:
        """All events that this object has seen, oldest first."""
        return self._seen.history

    def spend(self, spending: Spending) -> Anchor:
        """Record a release that is about to be made; once this returned, it may be drawn and sent, once.

        :class:`BudgetError` if it would exceed the limit: nothing was recorded. :class:`LedgerError` if it could not
        be made durable: it must not be sent, and may count as spent all the same.
        """
        with self._opened() as file:
            history = self.history
            check_covered(self._seen.entries, spending, self._budget.limit)
            if fits(history, spending.event, self._budget.limit, self._epsilon):
                self._append(file, self.anchor, spending_to_json(spending, now()))
                return self.anchor
        # Not under the lock: it takes the accountant many times as long to say what would have fitted.
        raise refusal(history, spending, self._budget, self._epsilon)

    def check_covered(self, spending: Spending) -> None:
        """Raise :class:`BudgetError` for what the ledger's accountant does not cover. Records nothing."""
        with self._opened():
            check_covered(self._seen.entries, spending, self._budget.limit)

    def expose(self, run: str, agreement_hash: bytes) -> bool:
        """Record that exact values are about to leave in this run, unless it says so already; whether it did not.

        :class:`LedgerError` if that could not be made durable: they must not be sent.
        """
        with self._opened() as file:
            if any((each.run, each.agreement_hash) == (run, agreement_hash) for each in self._seen.exposures):
                return False
            self._append(file, self.anchor, exposure_to_json(Exposure(run, agreement_hash, now())))
        return True

    def lose(self, seq: int) -> None:
        """Record that an earlier ledger of the data set, which had come to entry ``seq``, is lost.

        :class:`LedgerError` if that could not be made durable.
        """
        with self._opened() as file:
            self._append(file, self.anchor, loss_to_json(Loss(seq, now())))

    def allow(self, limit: Limit, reason: str) -> Anchor:
        """Set the limit, which may be less than what is spent: then nothing more fits. Durable when this returns.

        Another accountant counts all entries from the first on, in a :class:`Ledger` that is opened with it.
        ``ValueError`` for a reason that is none, for another unit, for an accountant in place of the Rényi filter, and
        where that is the limit already;
        :class:`LedgerError` if it could not be made durable, and may hold all the same.
        """
        allowance = Allowance(limit, reason, now())
        if limit == self._budget.limit:
            raise ValueError(f"the limit is {limit} already")
        if limit.unit != self._budget.limit.unit:
            raise ValueError(
                f"what is counted for one {self._budget.limit.unit} says nothing of one {limit.unit}"
            )
        if self._budget.limit.accountant is Accounting.RENYI and limit.accountant is not Accounting.RENYI:
            raise ValueError(
                f"{Accounting.RENYI.value} may have let agreements follow from earlier outputs, which no other"
                " accountant covers: it stays"
            )
        with self._opened() as file:
            self._append(file, self.anchor, allowance_to_json(allowance))
            self._budget = replace(self._budget, limit=limit)
            return self.anchor

    def guaranteed(self) -> bool:
        """Whether all that any process has recorded so far is true of a record."""
        with self._opened():
            return self._seen.guaranteed

    def spent(self, release: Release) -> bool:
        """Whether any process has recorded a release under this name, whether or not it was sent."""
        with self._opened():
            return any(each.spending.release == release for each in self._seen.entries)

    def entries(self) -> tuple[Entry, ...]:
        """All that any process has recorded so far."""
        with self._opened():
            return self._seen.entries

    def epsilon_spent(self) -> float:
        """The epsilon of all that any process has recorded so far, at the limit's delta."""
        with self._opened():
            history = self.history
        return epsilon_of(history, self._budget.limit, self._epsilon)

    def remaining(self, event: Event) -> int:
        """How many more releases like ``event`` fit, or steps of DP-SGD: see :func:`limits.remaining`."""
        return remaining(self.history, event, self._budget.limit, self._epsilon)

    def check_anchor(self, seq: int, head: str) -> None:
        """:class:`RolledBackError` unless the file has the entry that others have kept the number and hash of."""
        with self._opened():
            self._seen.check_anchor(Anchor(seq, head))

    @property
    def _first_line(self) -> bytes:
        return make_line(_NOTHING, budget_to_json(self._budget))

    @property
    def _seen(self) -> Account:
        if self._account is None:
            raise LedgerError(f"{self._path} was not read")
        return self._account

    @contextmanager
    def _opened(self, *, create: bool = False) -> Iterator[int]:
        """The file, locked, mended and read to its end. The lock is of this opening: it keeps out threads as well."""
        with _named(self._path), append_only_file.locked(self._path, create=create) as file:
            if self._broken:
                raise LedgerError(
                    f"{self._path}: an entry could be neither made durable nor taken back; mend the disk, and start "
                    "again"
                )
            self._catch_up(file, create=create)
            yield file

    def _catch_up(self, file: int, *, create: bool) -> None:
        """Read all of it again: a few thousand lines take less than the accountant, and any change is seen."""
        chain = read_chain(append_only_file.read_all(file))
        if self._mend(file, chain):
            chain = read_chain(append_only_file.read_all(file))
        if not chain.contents:
            self._begin(file, create=create)
            return
        found = Account(self._path, chain)
        _check_same(found, self._budget)
        if self._account is not None:
            found.check_anchor(self._account.anchor)
        append_only_file.make_private(file)
        self._account = found

    def _begin(self, file: int, *, create: bool) -> None:
        if not create:
            raise RolledBackError(f"{self._path} is empty, and was not; bring the latest copy back")
        _log.warning("%s: a new privacy budget begins for data set %r", self._path, self._budget.dataset)
        self._append(file, _NOTHING, budget_to_json(self._budget))

    def _mend(self, file: int, chain: Chain) -> bool:
        """Finish or drop the line of a process that died while it wrote; whether there was one.

        What is dropped was never acknowledged, so nothing was sent for it. What is whole may have been read by others,
        and is kept. All that was read is on the disk when this returns.
        """
        if chain.torn and not chain.contents and not self._is_begun(chain.torn):
            raise LedgerError(f"{self._path} is not a privacy ledger; give the ledger a place of its own")
        try:
            if chain.unended:
                append_only_file.append(file, b"\n")
            elif chain.torn:
                _log.warning(
                    "%s: dropped %d bytes of an entry that a crash cut off", self._path, len(chain.torn)
                )
                append_only_file.cut(file, chain.complete)
            else:
                append_only_file.sync(file)
        except OSError:
            self._broken = True
            raise
        return chain.unended or bool(chain.torn)

    def _is_begun(self, torn: bytes) -> bool:
        """Whether this may be a part of this data set's first line: it is as far as nothing random is in it."""
        known = self._first_line.partition(b'"hash"')[0]
        return known.startswith(torn[: len(known)])

    def _append(self, file: int, after: Anchor, content: dict[str, object]) -> None:
        line, end = make_line(after, content), append_only_file.size(file)
        try:
            append_only_file.append(file, line)
        except OSError as error:
            self._take_back(file, end)
            raise LedgerError(
                f"{self._path}: an entry could not be made durable ({error.strerror}); nothing may be sent for it"
            ) from error
        self._account = Account(self._path, read_chain(append_only_file.read_all(file)))

    def _take_back(self, file: int, end: int) -> None:
        """After a failure the system may have dropped what it had still to write, and say later that all is well.

        So waiting for the disk is not tried again for what was written: it is removed, or nothing more is spent here.
        """
        try:
            append_only_file.cut(file, end)
        except OSError:
            self._broken = True


def _check_same(found: Account, wanted: Budget) -> None:
    place, budget = found.path, found.budget
    if budget.dataset != wanted.dataset:
        raise LedgerError(
            f"{place} is the ledger of data set {budget.dataset!r}, not of {wanted.dataset!r}: give each its own"
        )
    if found.limit != wanted.limit:
        raise LedgerError(
            f"{place} has a limit of {found.limit}, and is asked for {wanted.limit}: a limit does not change by itself;"
            " `protoseal budget allow` changes it, with the reason"
        )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What goes wrong with the file, in one line that names it."""
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
