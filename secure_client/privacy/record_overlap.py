"""Warning that a run's records are charged already in another ledger of the site, under another name or the same.

When a run starts, the site sketches its training records: the smallest hashes of the set, from which the share of one
set in another follows, whatever their order (a bottom-k sketch; Broder 1997, "On the resemblance and containment of
documents"). The first payment after each start stores the sketch in the ledger. The site compares its sketch with those
of every ledger in the folder of its own.

Guarantees: sketches are encrypted under :data:`RECORDS_KEY` beside the ledgers, which the site's passphrase opens. All
have one length, and each start stores one. So neither a ledger nor a stolen disk shows which records a ledger is about,
how many they are, or that they changed. Nothing of the comparison is sent, and the run goes on as without it.

Limits. The ledger and the site's privacy statement say in the clear which other ledgers charge some of the records, for
a share from 2 % on; no epsilon covers that. Whoever has the passphrase tests a record at the price of a hash. A share
has a standard error of up to 3 %, and fewer records than a 256th of the other set go unnoticed. Not recognised: records
that were stored again in another format or size (:func:`secure_client.data.sources.hash_training_records`), ledgers in
other folders, and ledgers without a run since they have sketches.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from crypto.errors import CryptoError
from crypto.keys import StorageKey
from crypto.pki.key_files import create_storage_key, read_storage_key
from privacy.errors import LedgerError, RolledBackError
from privacy.ledger.budget_account import Account, read_account
from privacy.ledger.lines import OVERLAPS, RECORDS, Fact

_log = logging.getLogger("protoseal.site")
RECORDS_KEY = "records.key"
"""Name of the key file of a folder's sketches."""
_KEPT, _BYTES = 256, 6
"""Hashes in a sketch, and the bytes of each: enough that a million records have no equal pair by chance."""
_PADDING = (1 << (8 * _BYTES)) - 1
"""Number that fills a sketch of few records up to the common length. A hash of that value counts as no record."""
_LEAST_SHARE = 0.02
_LABEL = b"sketch of records"
_FIRST_LINE = b'"kind":"budget"'
_FIRST_LINE_BYTES = 4096


@dataclass(frozen=True)
class Sketch:
    """Smallest hashes of a set of records, in ascending order; all of them where the set has no more."""

    hashes: tuple[int, ...]

    @classmethod
    def of(cls, hashes: Iterable[bytes]) -> Self:
        """Return the sketch of the records with these hashes. Repeated records count once."""
        smallest: set[int] = set()
        for record in hashes:
            smallest.add(int.from_bytes(record[:_BYTES], "big"))
            if len(smallest) >= 16 * _KEPT:  # bounds the memory
                smallest = set(sorted(smallest)[:_KEPT])
        return cls(tuple(sorted(smallest)[:_KEPT]))

    def share_in(self, other: Sketch) -> float:
        """Return the estimated share, 0 to 1, of this set's records that the other set has too.

        Up to the smaller of the two largest hashes both sketches are complete.
        """
        bound = min(self._bound, other._bound)
        comparable = {number for number in self.hashes if number <= bound}
        return len(comparable.intersection(other.hashes)) / len(comparable) if comparable else 0.0

    @property
    def _bound(self) -> int:
        return self.hashes[-1] if len(self.hashes) == _KEPT else 1 << (8 * _BYTES)

    def encrypt(self, key: StorageKey) -> str:
        """Return the sketch as a ledger's fact, of the same length for any number of records, which it would tell."""
        padded = (*self.hashes, *[_PADDING] * (_KEPT - len(self.hashes)))
        content = b"".join(number.to_bytes(_BYTES, "big") for number in padded)
        return base64.b64encode(key.encrypt(content, _LABEL)).decode("ascii")

    @classmethod
    def decrypt(cls, fact: Fact, key: StorageKey) -> Self | None:
        """Return the sketch of a fact; None for a fact under another key."""
        try:
            content = key.decrypt(base64.b64decode(str(fact), validate=True), _LABEL)
        except (CryptoError, binascii.Error, ValueError):
            return None
        parts = (content[start : start + _BYTES] for start in range(0, len(content), _BYTES))
        numbers = (int.from_bytes(part, "big") for part in parts)
        return cls(tuple(number for number in numbers if number != _PADDING))


@dataclass(frozen=True)
class Overlap:
    """Other ledger in the folder that charges records of this run: ``share`` of these, ``covered`` of its own."""

    ledger: Path
    dataset: str
    share: float
    covered: float

    @property
    def fact(self) -> str:
        """Words for the ledger and the statement, which are shown to others and so have no shares."""
        return f"data set {self.dataset!r} in {self.ledger.name}"

    def __str__(self) -> str:
        return (
            f"about {self.share:.0%} of the training records are charged already to data set {self.dataset!r} in"
            f" {self.ledger.name} (about {self.covered:.0%} of its records)"
        )


@dataclass(frozen=True)
class OverlapComparison:
    """Outcome of comparing a run's records with the ledgers of the folder.

    ``unknown`` are charged ledgers whose records cannot be compared; ``namesakes`` are other ledgers of the same name.
    ``facts`` are for the ledger, with the first payment after the start.
    """

    overlaps: tuple[Overlap, ...]
    unknown: tuple[Path, ...]
    namesakes: tuple[Path, ...]
    facts: Mapping[str, Fact]

    @property
    def warnings(self) -> list[str]:
        """Warnings for the log and for ``client check``; none if the records are charged nowhere else."""
        overlapping = [
            f"{overlap}: what both ledgers spend adds up for these records; keep one name and one ledger for them"
            for overlap in self.overlaps
        ]
        twice = [
            f"the data set has another ledger, {path}: what is spent there is not counted here; keep one ledger"
            for path in self.namesakes
        ]
        return [*overlapping, *twice]


def open_records_key(ledger: Path, passphrase: bytes, like: Path) -> StorageKey:
    """Return the key of the sketches in the ledger's folder; make it, with the work factor of the key file ``like``.

    Raises :class:`crypto.errors.KeyStoreError` for a key of another passphrase, or one that cannot be written.
    """
    path = ledger.resolve().with_name(RECORDS_KEY)
    if path.exists():
        return read_storage_key(path, passphrase)
    return create_storage_key(path, passphrase, like)


def compare_records(sketch: Sketch, key: StorageKey, ledger: Path, dataset: str) -> OverlapComparison:
    """Compare a run's records with all ledgers in the folder of the run's ledger. Changes nothing."""
    path = ledger.resolve()
    charged_here = read_account(path) if path.exists() else None
    overlaps: list[Overlap] = []
    unknown: list[Path] = []
    namesakes: list[Path] = []
    for account in _charged_beside(path):
        if charged_here is not None and _is_copy(account, charged_here):
            continue
        charged = _sketches(account, key)
        share = max((sketch.share_in(other) for other in charged), default=0.0)
        covered = max((other.share_in(sketch) for other in charged), default=0.0)
        if not charged:
            unknown.append(account.path)
        if max(share, covered) >= _LEAST_SHARE:
            overlaps.append(Overlap(account.path, account.budget.dataset, share, covered))
        if account.budget.dataset == dataset:
            namesakes.append(account.path)
    before = [] if charged_here is None else _sketches(charged_here, key)
    if before and max(sketch.share_in(earlier) for earlier in before) < 1 / 2:
        _log.info("%s: most of data set %r is new since its last runs; all share one budget", ledger, dataset)
    # Always: a sketch that only changed records brought would tell that they changed.
    facts: dict[str, Fact] = {RECORDS: sketch.encrypt(key)}
    if overlaps:
        facts[OVERLAPS] = "; ".join(overlap.fact for overlap in overlaps)
    return OverlapComparison(tuple(overlaps), tuple(unknown), tuple(namesakes), facts)


def _sketches(account: Account, key: StorageKey) -> list[Sketch]:
    """Return all sketches of a ledger that the key opens: the records of a data set may change from run to run."""
    read = (Sketch.decrypt(facts[RECORDS], key) for facts in account.facts if RECORDS in facts)
    return [sketch for sketch in read if sketch is not None]


def _charged_beside(ledger: Path) -> Iterator[Account]:
    """Yield the other ledgers of the folder in which anything is charged; files that are no ledgers are left out."""
    for path in sorted(ledger.parent.iterdir()):
        try:
            if (
                path.resolve() == ledger
                or path.is_symlink()
                or not path.is_file()
                or not _begins_a_ledger(path)
            ):
                continue
            account = read_account(path)
        except (LedgerError, OSError) as error:
            _log.info("%s is not compared with this run's records: %s", path, error)
            continue
        if account.facts:
            yield account


def _is_copy(account: Account, ledger: Account) -> bool:
    """Return True for an earlier copy of the run's ledger, whose lines are counted in the ledger itself."""
    try:
        ledger.check_anchor(account.anchor)
    except RolledBackError:
        return False
    return True


def _begins_a_ledger(path: Path) -> bool:
    with path.open("rb") as file:
        return _FIRST_LINE in file.read(_FIRST_LINE_BYTES).partition(b"\n")[0]
