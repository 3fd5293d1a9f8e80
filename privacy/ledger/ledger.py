"""Privacy ledger: the budget of one data set over all runs, with each release recorded before the release leaves.

The order is: spend, draw the noise, send. :meth:`Ledger.spend` returns when the entry is on the disk.

Guarantee: a process that dies may have spent for a release that was never sent, but has never sent a release that was
not spent. Sending the same bytes again is free; drawing new noise for a release needs a new entry.

Limits: the ledger alone cannot detect a file that was removed, or replaced by an older copy, before the process starts.
Other parties therefore keep :attr:`Ledger.anchor`, and :meth:`Ledger.check_anchor` compares. The ledger cannot detect
either that one data set has two names: a site that renames its records gets another budget.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from privacy.accounting.accounting_rules import Accountant, Accounting
from privacy.accounting.events import Event
from privacy.errors import LedgerError, RolledBackError
from privacy.ledger.budget_account import Account, ledger_faults
from privacy.ledger.hash_chain import NO_LINE, Anchor, Chain, make_line, read_chain
from privacy.ledger.lines import (
    Allowance,
    Budget,
    Entry,
    Exposure,
    Fact,
    Limit,
    Line,
    Loss,
    Spending,
    line_to_json,
    now,
)
from privacy.ledger.remaining_budget import (
    check_covered,
    check_payments,
    fits,
    refusal,
    spent_epsilon,
)
from protoseal_files import append_only_file
from protoseal_files.durable_files import sync_folder

_log = logging.getLogger("protoseal.site")
_NOTHING = Anchor(-1, NO_LINE)
"""Anchor before the first line."""


class Ledger:
    """Ledger of one data set. Any number of threads and processes may spend at the same time."""

    def __init__(
        self,
        path: Path,
        dataset: str,
        limit: Limit,
        *,
        epsilon: Accountant,
        most_payments: int | None = None,
    ) -> None:
        """Open the file, or begin a new one; the folder must exist.

        ``epsilon`` is the accountant: the function that returns a history's epsilon at a delta. ``most_payments`` is
        the largest number of entries that one release of an agreement may have. Raises :class:`LedgerError` if the
        file is damaged, cannot be written, or belongs to another data set or limit.
        """
        self._path = path
        self._epsilon = epsilon
        self._most_payments = most_payments
        self._budget = Budget(dataset, limit)
        self._account: Account | None = None
        self._broken = False
        self._unfinished = 0
        self._compared = False
        with self._lock_and_read(create=True):
            # Sync on every opening: a process may have died after it began the file and before it synced the folder.
            sync_folder(path.resolve().parent)  # the target's folder if the path is a link

    @property
    def path(self) -> Path:
        """Path of the ledger's file."""
        return self._path

    @property
    def dataset(self) -> str:
        """Name of the data set, as the site gave it."""
        return self._budget.dataset

    @property
    def limit(self) -> Limit:
        """Limit that this object was opened with, or that it set last."""
        return self._budget.limit

    @property
    def anchor(self) -> Anchor:
        """Number and hash of the last entry that this object has read; all entries up to there are durable.

        Other parties keep the anchor for :meth:`check_anchor`.
        """
        return self._seen.anchor

    @property
    def history(self) -> tuple[Event, ...]:
        """Events that this object has read, oldest first."""
        return self._seen.history

    def spend(self, spending: Spending) -> Anchor:
        """Record a planned release. After the return, the release's noise may be drawn once, and the result sent.

        Raises :class:`privacy.errors.BudgetError` if the release would exceed the limit, is not covered by the
        accountant, or has its most payments already; nothing was recorded. Raises :class:`LedgerError` if the entry
        could not be made durable: the release must not be sent, and may count as spent.
        """
        # One lock from reading to writing: two processes that both saw room for the last release would both spend it.
        with self._lock_and_read() as file:
            history = self.history
            # No refusal depends on a record: the coordinator sees that the site leaves.
            check_covered(self._seen.entries, spending, self._budget.limit)
            check_payments(self._seen.entries, spending, self._most_payments)
            if fits(history, spending.event, self._budget.limit, self._epsilon):
                self._append(file, self.anchor, Entry(spending, now()))
                return self.anchor
        # Outside the lock, so that other runs can spend meanwhile: counting the releases that would fit takes the
        # accountant many times as long.
        raise refusal(history, spending, self._budget, self._epsilon)

    def check_covered(self, spending: Spending) -> None:
        """Raise ``BudgetError`` for a release that the ledger's accountant does not cover; record nothing."""
        with self._lock_and_read():
            check_covered(self._seen.entries, spending, self._budget.limit)

    def record_exposure(
        self, run: str, agreement_hash: bytes, facts: Mapping[str, Fact] | None = None
    ) -> bool:
        """Record that exact values are about to leave in this run; return False if that was recorded before.

        ``facts`` are of the records, as those of a spending are.

        Raises :class:`LedgerError` if the line could not be made durable: the values must not be sent.
        """
        with self._lock_and_read() as file:
            if any(
                (exposure.run, exposure.agreement_hash) == (run, agreement_hash)
                for exposure in self._seen.exposures
            ):
                return False
            self._append(file, self.anchor, Exposure(run, agreement_hash, now(), facts or {}))
        return True

    def record_loss(self, seq: int) -> None:
        """Record that an earlier ledger of the data set, which had reached entry ``seq``, is lost.

        Raises :class:`LedgerError` if the line could not be made durable.
        """
        with self._lock_and_read() as file:
            self._drop_unfinished(file, "the entry was cut after it was acknowledged, and is lost")
            self._append(file, self.anchor, Loss(seq, now()))

    def allow(self, limit: Limit, reason: str) -> Anchor:
        """Set the limit; the change is durable on return. No more releases fit if less than the spent ε is allowed.

        A changed accountant counts all entries from the first on, in a :class:`Ledger` opened with that accountant.
        Raises ``ValueError`` for an invalid reason, another unit, another accountant in place of the Rényi filter, or
        an unchanged limit. Raises :class:`LedgerError` if the last line is unfinished and :meth:`check_anchor` compared
        no anchor, or if the line could not be made durable; the change may then be in force all the same.
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
        with self._lock_and_read() as file:
            if self._unfinished and not self._compared:
                raise LedgerError(
                    f"{self._path}: the last line is incomplete, and no anchor tells whether its entry was acknowledged"
                    " and cut later; start the client, which compares the ledger with the coordinator's anchor;"
                    " `protoseal budget verify --anchor` compares an entry that another party has recorded"
                )
            self._append(file, self.anchor, allowance)
            self._budget = replace(self._budget, limit=limit)
            return self.anchor

    def is_guaranteed(self) -> bool:
        """Return True if every entry recorded so far, by any process, has a guarantee (:attr:`Account.guaranteed`)."""
        with self._lock_and_read():
            return self._seen.guaranteed

    def epsilon_spent(self) -> float:
        """Return the epsilon of all entries recorded so far, by any process, at the limit's delta."""
        with self._lock_and_read():
            history = self.history
        return spent_epsilon(history, self._budget.limit, self._epsilon)

    def check_anchor(self, anchor: Anchor) -> None:
        """Raise :class:`RolledBackError` unless the file has the entry whose number and hash another party kept."""
        with self._lock_and_read():
            self._seen.check_anchor(anchor)
            self._compared = True

    @property
    def _seen(self) -> Account:
        if self._account is None:
            raise LedgerError(f"{self._path} was not read")
        return self._account

    @contextmanager
    def _lock_and_read(self, *, create: bool = False) -> Iterator[int]:
        """Lock, repair and read the file, and yield its descriptor. The lock excludes other threads as well."""
        with ledger_faults(self._path), append_only_file.lock_file(self._path, create=create) as file:
            # The system may report success for a sync after one that failed, although the data are gone.
            if self._broken:
                raise LedgerError(
                    f"{self._path}: an entry could be neither made durable nor removed; repair the disk, then restart"
                )
            self._catch_up(file, create=create)
            yield file

    def _catch_up(self, file: int, *, create: bool) -> None:
        """Read the whole file again, so that any change is seen; the accountant takes longer than the reading."""
        chain = read_chain(append_only_file.read_all(file))
        # Before anything is counted from it: a line that a power cut could still take back must not be relied on.
        self._finish(file, chain)
        if not chain.contents:
            if not create:
                raise RolledBackError(
                    f"{self._path} is empty, but had entries before; restore the latest copy"
                )
            _log.warning("%s: a new privacy budget begins for data set %r", self._path, self._budget.dataset)
            self._append(file, _NOTHING, replace(self._budget, time=now()))
            return
        account = Account(self._path, chain)
        _check_same(account, self._budget)
        if self._account is not None:
            # Lines that this process has read cannot vanish without an older copy taking the file's place.
            account.check_anchor(self._account.anchor)
        append_only_file.make_private(file)
        self._account = account

    def _finish(self, file: int, chain: Chain) -> None:
        """Give the last line its newline if a process died before it wrote that; on return, the file is on the disk.

        Others may have read a whole line without its newline. An unfinished line stays until another one is written:
        until then an anchor may show that the line was acknowledged and cut later (:meth:`Account.check_anchor`).
        """
        if chain.torn and not chain.contents:
            # A crash may have left part of this data set's first line. The bytes before the line's hash tell: the hash
            # covers a salt and a time that nobody knows again.
            first_line = make_line(_NOTHING, line_to_json(self._budget)).partition(b'"hash"')[0]
            if not first_line.startswith(chain.torn[: len(first_line)]):
                raise LedgerError(f"{self._path} is not a privacy ledger; give the ledger a place of its own")
        try:
            # A process may have died between its write and its sync: what is counted has to be on the disk first.
            if chain.unended:
                append_only_file.append(file, b"\n")
            else:
                append_only_file.sync(file)
        except OSError:
            self._broken = True
            raise
        self._unfinished = len(chain.torn)

    def _drop_unfinished(self, file: int, why: str) -> None:
        """Drop an unfinished last line, if there is one."""
        if not self._unfinished:
            return
        _log.warning("%s: dropped %d bytes of an unfinished entry: %s", self._path, self._unfinished, why)
        try:
            append_only_file.cut(file, append_only_file.size(file) - self._unfinished)
        except OSError:
            self._broken = True
            raise
        self._unfinished = 0

    def _append(self, file: int, after: Anchor, content: Line) -> None:
        """Write a line durably, in place of an unfinished one.

        A site compares the ledger with all anchors that it is shown before it writes, so none of these anchors has the
        unfinished line. Limit: without any anchor, a crash cannot be told from a later cut.
        """
        self._drop_unfinished(
            file,
            "a crash while writing, for which nothing was released: no anchor that was compared has it"
            if self._compared
            else "a crash while writing, or a later cut: no anchor was compared",
        )
        line, end = make_line(after, line_to_json(content)), append_only_file.size(file)
        try:
            append_only_file.append(file, line)
        except OSError as error:
            # Nothing is sent for the line, so it is removed. If it cannot be, this object spends no more.
            try:
                append_only_file.cut(file, end)
            except OSError:
                self._broken = True
            raise LedgerError(
                f"{self._path}: an entry could not be made durable ({error.strerror}); nothing may be sent for it"
            ) from error
        self._account = Account(self._path, read_chain(append_only_file.read_all(file)))


def _check_same(account: Account, wanted: Budget) -> None:
    place, budget = account.path, account.budget
    if budget.dataset != wanted.dataset:
        raise LedgerError(
            f"{place} is the ledger of data set {budget.dataset!r}, not of {wanted.dataset!r}: give each its own"
        )
    if account.limit != wanted.limit:
        raise LedgerError(
            f"{place} has a limit of {account.limit}, and is asked for {wanted.limit}: a limit does not change by"
            " itself; `protoseal budget allow` changes it, with the reason"
        )
