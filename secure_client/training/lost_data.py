"""Training records that a site reads as it needs them, and the end of a session whose data can no longer be read.

Without ``[privacy]`` a record that cannot be read is read again for a minute, after which :class:`DataLost` ends the
session: zeros in its place would enter every peer's targets. All reads take place in PRESENCE, before the attempt has
values of this site, so that the site drops out of no sum that it is part of.

With ``[privacy]`` an end that followed from a record would show the record's presence. A record that cannot be read
counts as zeros (:mod:`secure_client.training.feature_pass`), and the session ends only if the folder or file that the
site's file names as ``data_root`` cannot be opened, or is empty and was not, as a folder is whose file system is no
longer mounted. That is tried before every training and after every pass, whichever records could be read.

Limits. A read that never returns, as on some network file systems, silences the site. Data sets that hide an error, or
read from elsewhere than ``data_root``, are believed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from secure_client.errors import DataError, DataLost
from secure_client.training.batches import Batch, BatchSource

RETRY_SECONDS = 60.0
"""Time for which a site tries to read data again: the length of most interruptions of a network or a mount."""
_PAUSE_SECONDS = 1.0
_log = logging.getLogger("protoseal.site")
R = TypeVar("R")


class RetryingSource:
    """Source that reads a batch again if it cannot be read, and raises :class:`DataLost` at the end of the retries."""

    def __init__(self, source: BatchSource, site: str) -> None:
        self._source = source
        self._site = site

    def __len__(self) -> int:
        return len(self._source)

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """Yield (inputs, int64 labels) for each group of indices, in the given order."""
        # One batch for each call of the source: a generator that raised cannot be resumed.
        for group in groups:
            yield _retry_read(partial(self._read, group), self._site)

    def _read(self, group: Sequence[int]) -> Batch:
        return next(self._source.batches([group]))


class PrivateSource:
    """Source of records that leave the site with noise alone, below the folder or file ``root``.

    A record that cannot be read raises at once. ``unreadable`` is true if one did since it was last set. Limit: a
    root that did not open when the site started is not checked later, since the data come from elsewhere.
    """

    def __init__(self, source: BatchSource, site: str, root: Path | None) -> None:
        self._source = source
        self._site = site
        self._root = root
        self._had_content = False
        self.unreadable = False
        try:
            self._had_content = root is not None and _has_content(root)
        except OSError:
            self._root = None

    def __len__(self) -> int:
        return len(self._source)

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """Yield (inputs, int64 labels) for each group of indices, in the given order."""
        try:
            yield from self._source.batches(groups)
        except DataError:
            self.unreadable = True
            raise

    def check_root(self) -> None:
        """Raise :class:`DataLost` if the root cannot be opened, or is empty and was not, for as long as the retries."""
        if self._root is not None:
            _retry_read(partial(self._open, self._root), self._site)

    def _open(self, root: Path) -> None:
        try:
            has_content = _has_content(root)
        except OSError as error:
            raise DataError(f"{root}: cannot be opened ({error.strerror})") from error
        if self._had_content and not has_content:
            raise DataError(f"{root}: is empty, as a folder whose file system is not mounted")


def _has_content(path: Path) -> bool:
    # One byte or one entry proves that the file system answers; its listing can be long.
    if not path.is_dir():
        with path.open("rb") as file:
            return bool(file.read(1))
    with os.scandir(path) as entries:
        return next(entries, None) is not None


def _retry_read(read: Callable[[], R], site: str) -> R:
    """Return the outcome of ``read``, which is repeated after a :class:`DataError` until the retries end."""
    end: float | None = None
    while True:
        try:
            return read()
        except DataError as error:
            now = time.monotonic()
            # The time runs from the first failure, so that a read that itself takes long is not repeated for longer.
            if end is None:
                end = now + RETRY_SECONDS
                _log.warning("%s: %s; this site tries again for %.0f seconds", site, error, RETRY_SECONDS)
            if now >= end:
                raise DataLost(
                    f"{error}; its data could not be read for {RETRY_SECONDS:.0f} seconds, so that this site leaves"
                    " the run: start the site again once they can be read"
                ) from error
            time.sleep(_PAUSE_SECONDS)
