"""The coordinator's half of ``ckks``: which pieces of work there are, and how they fit together.

The coordinator learns who holds which class (public in the cohort), sizes and times; no values, no inner products, no
sample counts. It can return wrong answers: nothing here proves that it computed what it should.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, combinations, combinations_with_replacement, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crypto.ckks import worker_tasks
from crypto.ckks.keys_file import KeysFile
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import SCHEME, upload_forms
from crypto.ckks.peer_combination import Pair, weighs
from crypto.ckks.precision import check_cohort_size
from crypto.ckks.serialization import read_payload
from crypto.protection import Cohort, Combination, Payload
from crypto.work_pool import Pool


class CkksServer:
    """Combines uploads of one group without its secret key."""

    scheme = SCHEME

    def __init__(self, combination: Combination, keys_path: Path, executor: Pool | None) -> None:
        """``keys_path``: a file with :meth:`crypto.ckks.evaluation_keys.EvaluationKeys.to_bytes`, read when used.

        ``executor`` should run processes, started where forking is safe; without one the work is done inline. It is cut
        into as many pieces as there are processes.
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

        Memory grows with n, not with n²: in each process up to 3.5 MB for each site and ciphertext of its rows,
        beside 110 MB. Each process leaves less than 0.5 MB, for each site and ciphertext, in a temporary folder, where
        uploads are too.

        Raises :class:`MalformedError` for payloads that cannot be combined, :class:`KeyStoreError` without evaluation
        keys, :class:`PrecisionError` for too many sites.
        """
        check_cohort_size(len(cohort.sites))
        uploads = [payloads[site].blobs for site in cohort.sites]
        setting = worker_tasks.Setting(KeysFile.at(self._keys_path), self._combination, _packing(cohort))
        drowned = list(~cohort.holds)
        if self._executor is None or not weighs(self._combination):
            answers = worker_tasks.combine(setting, uploads, drowned)
        else:
            answers = _combined(self._executor, setting, uploads, drowned)
        return {
            site: Payload(SCHEME, blobs=tuple(answer))
            for site, answer in zip(cohort.sites, answers, strict=True)
        }


def _combined(
    executor: Pool,
    setting: worker_tasks.Setting,
    uploads: Sequence[Sequence[bytes]],
    drowned: Sequence[NDArray[np.bool_]],
) -> list[list[bytes]]:
    """All pairs in blocks, then all answers in as many shares."""
    workers = executor.workers
    blocks = pair_blocks(len(uploads), workers)
    shares = [{i: drowned[i] for i in range(start, len(uploads), workers)} for start in range(workers)]
    with tempfile.TemporaryDirectory(prefix="ckks-") as folder:
        scratch = worker_tasks.Scratch(Path(folder))
        scratch.put_uploads(uploads)
        lacks = {i: each for i, each in enumerate(drowned) if each.any()}
        accumulate = partial(worker_tasks.accumulate, setting, lacks, scratch)
        list(executor.map(accumulate, range(len(blocks)), blocks))
        finish = partial(worker_tasks.finish, setting, scratch, len(blocks))
        answers = {
            site: answer
            for some in executor.map(finish, filter(None, shares))
            for site, answer in some.items()
        }
    return [answers[i] for i in range(len(uploads))]


def pair_blocks(sites: int, workers: int) -> list[worker_tasks.Block]:
    """All pairs of sites, in a block of the same size for each worker, or one more.

    Sites are split into g groups, and the pairs within a group or between two of them follow each other, so that a
    block touches few sites: what it holds grows with them, and so does what it leaves for the answers.
    """
    groups = next(count for count in range(1, sites + 1) if count * (count + 1) // 2 >= min(workers, sites))
    pairs = _grouped_pairs(sites, groups)
    workers = min(workers, len(pairs))
    blocks = [pairs[len(pairs) * i // workers : len(pairs) * (i + 1) // workers] for i in range(workers)]
    adders = {i: number for number, block in enumerate(blocks) for i in chain.from_iterable(block)}
    return [
        worker_tasks.Block(block, [i for i, adder in adders.items() if adder == number])
        for number, block in enumerate(blocks)
    ]


def _grouped_pairs(sites: int, groups: int) -> list[Pair]:
    members = [range(start, sites, groups) for start in range(groups)]
    return [
        pair
        for a, b in combinations_with_replacement(members, 2)
        for pair in (combinations(a, 2) if a is b else product(a, b))
    ]


def _packing(cohort: Cohort) -> Packing:
    return Packing(cohort.classes, cohort.dim)
