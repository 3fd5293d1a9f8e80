"""Server half of ``ckks``: splits the combination of peers into tasks and joins their results.

The coordinator learns who holds which class (public in the cohort), sizes and times, but no values, no inner products
and no sample counts. Limit: nothing here proves that the coordinator computed the right answers.
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
from crypto.ckks.peer_combination import Pair, needs_distances
from crypto.ckks.precision import check_cohort_size
from crypto.ckks.serialization import read_payload
from crypto.protection import Cohort, Combination, Payload
from crypto.work_pool import Pool


class CkksServer:
    """Server half that combines uploads of one group without its secret key."""

    scheme = SCHEME

    def __init__(self, combination: Combination, keys_path: Path, executor: Pool | None) -> None:
        """Take a file with :meth:`crypto.ckks.evaluation_keys.EvaluationKeys.to_bytes`, which is read when used.

        ``executor`` should run processes, started where forking is safe, and gets as many tasks as it has processes;
        without an executor the work is done inline.
        """
        self._combination = combination
        self._keys_path = keys_path
        self._executor = executor

    def validate(self, payload: Payload, site: str, cohort: Cohort) -> None:
        """Raise :class:`crypto.errors.MalformedError` unless each ciphertext has exactly the form prescribed for it.

        Limit: the encrypted values cannot be checked, so a site can send rows longer than 1, or under another key, and
        spoil the answers of the others.
        """
        cohort.index(site)
        read_payload(payload, upload_forms(self._combination, _packing(cohort).parts))

    def combine(self, payloads: Mapping[str, Payload], cohort: Cohort) -> dict[str, Payload]:
        """Return one answer for each site; noise floods the classes that the site does not hold.

        Memory grows with n, not with n²: each process takes 110 MB and up to 3.5 MB for each site and ciphertext of its
        rows. Each process stores less than 0.5 MB for each site and ciphertext in a temporary folder, which also has
        the uploads.

        Raises :class:`crypto.errors.MalformedError` for payloads that cannot be combined,
        :class:`crypto.errors.KeyStoreError` without evaluation keys, :class:`crypto.errors.PrecisionError` for too many
        sites.
        """
        check_cohort_size(len(cohort.sites))
        uploads = [payloads[site].blobs for site in cohort.sites]
        setting = worker_tasks.Setting(KeysFile.at(self._keys_path), self._combination, _packing(cohort))
        lacks = list(~cohort.holds)
        if self._executor is None or not needs_distances(self._combination):
            answers = worker_tasks.combine(setting, uploads, lacks)
        else:
            answers = _combined(self._executor, setting, uploads, lacks)
        return {
            site: Payload(SCHEME, blobs=tuple(answer))
            for site, answer in zip(cohort.sites, answers, strict=True)
        }


def _combined(
    executor: Pool,
    setting: worker_tasks.Setting,
    uploads: Sequence[Sequence[bytes]],
    lacks: Sequence[NDArray[np.bool_]],
) -> list[list[bytes]]:
    """Run all pairs in blocks, then all answers in as many shares."""
    workers = executor.workers
    blocks = pair_blocks(len(uploads), workers)
    shares = [{i: lacks[i] for i in range(start, len(uploads), workers)} for start in range(workers)]
    with tempfile.TemporaryDirectory(prefix="ckks-") as folder:
        scratch = worker_tasks.Scratch(Path(folder))
        scratch.put_uploads(uploads)
        lacking = {i: each for i, each in enumerate(lacks) if each.any()}
        accumulate = partial(worker_tasks.accumulate, setting, lacking, scratch)
        list(executor.map(accumulate, range(len(blocks)), blocks))
        finish = partial(worker_tasks.finish, setting, scratch, len(blocks))
        answers = {
            site: answer
            for some in executor.map(finish, filter(None, shares))
            for site, answer in some.items()
        }
    return [answers[i] for i in range(len(uploads))]


def pair_blocks(sites: int, workers: int) -> list[worker_tasks.Block]:
    """Return all pairs of sites in one block per worker, whose sizes differ by at most one.

    Sites are split into g groups, and pairs are ordered by their groups, so that a block has few sites: its memory and
    its stored results grow with the number of its sites.
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
