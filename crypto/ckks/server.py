"""The coordinator's half of ``ckks``: which pieces of work there are, and how they fit together.

The coordinator learns who holds which class (public in the cohort), sizes and times; no values, no inner
products, no sample counts. It can return wrong answers: nothing here proves that it computed what it should.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import combinations, combinations_with_replacement, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crypto.ckks import work
from crypto.ckks.combining import Pair
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import SCHEME, upload_forms
from crypto.ckks.precision import check_cohort_size
from crypto.ckks.serialization import read_payload
from crypto.errors import KeyStoreError
from crypto.protection import Cohort, Combination, Payload

Partials = Mapping[int, Sequence[Sequence[bytes]]]


class CkksServer:
    """Combines uploads of one group without its secret key."""

    scheme = SCHEME

    def __init__(self, combination: Combination, keys_path: Path, executor: Executor | None) -> None:
        """``keys_path``: a file with :meth:`crypto.ckks.evaluation_keys.EvaluationKeys.to_bytes`, read when used.

        ``executor`` should run processes, started where forking is safe; without one the work is done inline.
        """
        self._combination = combination
        self._keys_path = keys_path
        self._executor = executor

    def validate(self, payload: Payload, site: str, cohort: Cohort) -> None:
        """Raise :class:`MalformedError` unless each ciphertext has exactly the form prescribed for it.

        What is encrypted cannot be checked: a site can send rows longer than 1, or under another key, and so
        spoil the answers of the others.
        """
        cohort.index(site)
        read_payload(payload, upload_forms(self._combination, _packing(cohort).parts))

    def combine(self, payloads: Mapping[str, Payload], cohort: Cohort) -> dict[str, Payload]:
        """One answer for each site; classes that a site does not hold are drowned in its answer.

        Memory grows with n·parts, not with n². Raises :class:`MalformedError` for payloads that cannot be
        combined, :class:`KeyStoreError` without evaluation keys, :class:`PrecisionError` for too many sites.
        """
        check_cohort_size(len(cohort.sites))
        uploads = [payloads[site].blobs for site in cohort.sites]
        setting = work.Setting(self._keys_path, self._keys_hash(), self._combination, _packing(cohort))
        drowned = list(~cohort.holds)
        if self._executor is None:
            answers: Iterable[list[bytes]] = work.combine(setting, uploads, drowned)
        else:
            receivers = _receivers(self._executor, setting, uploads, drowned)
            answers = self._executor.map(partial(work.finish, setting), receivers)
        return {
            site: Payload(SCHEME, blobs=tuple(answer))
            for site, answer in zip(cohort.sites, answers, strict=True)
        }

    def _keys_hash(self) -> bytes:
        try:
            with self._keys_path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise KeyStoreError(
                f"the group's evaluation keys are not in {self._keys_path}: {error.strerror}"
            ) from error


def _receivers(
    executor: Executor,
    setting: work.Setting,
    uploads: Sequence[Sequence[bytes]],
    drowned: Sequence[NDArray[np.bool_]],
) -> list[work.Receiver]:
    adding = executor.submit(work.add_up, setting, uploads) if setting.adds_up else None
    partials: Partials = _accumulated(executor, setting, uploads) if setting.weighs else {}
    total = adding.result() if adding else []
    return [work.Receiver(upload, drowned[i], partials.get(i, ()), total) for i, upload in enumerate(uploads)]


def _accumulated(executor: Executor, setting: work.Setting, uploads: Sequence[Sequence[bytes]]) -> Partials:
    """All pairs, in blocks; for each site what the blocks gave for it."""
    blocks = pair_blocks(len(uploads), os.cpu_count() or 1)
    needed = [{i: uploads[i] for pair in block for i in pair} for block in blocks]
    gathered = defaultdict(list)
    for result in executor.map(partial(work.accumulate, setting), blocks, needed):
        for site, sums in result.items():
            gathered[site].append(sums)
    return gathered


def pair_blocks(sites: int, workers: int) -> list[list[Pair]]:
    """All pairs of sites, in blocks that touch few sites each; the largest block first.

    Sites are split into g groups, and the pairs within a group or between two of them are a block. A block
    returns sums for each site it touches, g·n in all, so g is the smallest that keeps all workers busy.
    """
    count = 1
    while count * (count + 1) // 2 < workers and count < sites:
        count += 1
    groups = [range(start, sites, count) for start in range(count)]
    blocks = [
        list(combinations(a, 2)) if a is b else list(product(a, b))
        for a, b in combinations_with_replacement(groups, 2)
    ]
    return sorted(filter(None, blocks), key=len, reverse=True)


def _packing(cohort: Cohort) -> Packing:
    return Packing(cohort.classes, cohort.dim)
