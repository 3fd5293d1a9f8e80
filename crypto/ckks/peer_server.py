"""PFPL's combination of peers at the coordinator: :class:`CkksServer`, and the tasks that it gives to worker processes.

The coordinator learns who holds which class (public in the cohort), sizes and times, but no values, no inner products
and no sample counts. Limit: nothing here proves that the coordinator computed the right answers.

All pairs of sites are split into blocks. :func:`accumulate` runs once for each block and leaves the block's sums in a
folder; :func:`finish` then reads the sums of all blocks and makes the answers of some sites. Tasks are top-level
functions of plain values, so that they run in a spawned process as well as inline. SEAL holds the interpreter's lock,
so only processes run in parallel.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations, combinations_with_replacement, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.ckks.circuit import Ciphertexts, KeysFile, load_circuit, seal_errors_as_malformed
from crypto.ckks.evaluation_keys import EvaluationKeys
from crypto.ckks.noise_flooding import Receiver
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import (
    CORRECTION,
    PROTOTYPE,
    SCHEME,
    Ciphertext,
    check_cohort_size,
    context,
    upload_shapes,
)
from crypto.ckks.peer_combination import Combining, Pair, needs_bare_sum, needs_distances
from crypto.ckks.serialization import dump, read_ciphertext, read_payload
from crypto.protection import Cohort, Combination, Payload, Pool


@dataclass(frozen=True)
class Setting:
    """Settings that all tasks of one aggregation share."""

    keys: KeysFile
    combination: Combination
    packing: Packing


@dataclass(frozen=True)
class Block:
    """Block of pairs of sites, and the sites whose prototypes this block's task also adds."""

    pairs: Sequence[Pair]
    needs_bare_sum: Sequence[int]

    @property
    def sites(self) -> list[int]:
        """Sites that occur in the block, sorted."""
        return sorted({*chain.from_iterable(self.pairs), *self.needs_bare_sum})


class Scratch:
    """Folder in which tasks leave ciphertexts for each other; its content is not secret."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put_uploads(self, uploads: Sequence[Sequence[bytes]]) -> None:
        """Store every site's payload."""
        for site, blobs in enumerate(uploads):
            for number, blob in enumerate(blobs):
                self._upload(site, number).write_bytes(blob)

    def upload(self, site: int, blobs: int) -> list[bytes]:
        """Return the first ``blobs`` blobs of a site's payload."""
        return [self._upload(site, number).read_bytes() for number in range(blobs)]

    def put(self, name: str, parts: Ciphertexts) -> None:
        """Store intermediate results under a name."""
        for number, part in enumerate(parts):
            part.save(str(self._folder / f"{name}.{number}"))

    def take(self, name: str, parts: int) -> list[Ciphertext]:
        """Return the parts that were :meth:`put` under a name, unchecked, or no parts if there are none."""
        ciphertexts = []
        for number in range(parts):
            path = self._folder / f"{name}.{number}"
            if path.exists():
                ciphertext = sealapi.Ciphertext()
                ciphertext.load(context(), str(path))
                ciphertexts.append(ciphertext)
        return ciphertexts

    def _upload(self, site: int, number: int) -> Path:
        return self._folder / f"upload-{site}.{number}"


def check_keys(content: bytes) -> bytes:
    """Return the SHA-256 of a group's evaluation keys; raise ``MalformedError`` unless they are usable."""
    keys = EvaluationKeys.from_bytes(content)
    keys.load()
    return keys.hash


def combine(
    setting: Setting, uploads: Sequence[Sequence[bytes]], lacks: Sequence[NDArray[np.bool_]]
) -> list[list[bytes]]:
    """Return all answers in a single task, from all sites' payloads and the classes (K,) that each site lacks."""
    combining = _combining(setting)
    with seal_errors_as_malformed():
        receivers = [
            _receiver(setting, upload, classes) for upload, classes in zip(uploads, lacks, strict=True)
        ]
        prototypes = [_prototypes(setting, upload) for upload in uploads]
        return [[dump(part) for part in answer] for answer in combining.answers(prototypes, receivers)]


def accumulate(
    setting: Setting, lacks: Mapping[int, NDArray[np.bool_]], scratch: Scratch, number: int, block: Block
) -> None:
    """Store :meth:`Combining.weighted_sums` of a block's pairs, and the sum of the prototypes that the block adds.

    Among the sites that the block adds, :meth:`Combining.lengths` of those in ``lacks`` are stored as well.
    """
    combining = _combining(setting)
    uploads = {i: scratch.upload(i, setting.packing.parts) for i in block.sites}
    with seal_errors_as_malformed():
        sites = {i: combining.prepare(_prototypes(setting, upload)) for i, upload in uploads.items()}
        sums = combining.weighted_sums(block.pairs, sites)
        lengths = combining.lengths(sites, {i: lacks[i] for i in block.needs_bare_sum if i in lacks})
        total = combining.sum([sites[i].low for i in block.needs_bare_sum])
    scratch.put(f"total-{number}", total)
    for site, parts in lengths.items():
        scratch.put(f"lengths-{site}", parts)
    for site, terms in sums.items():
        scratch.put(f"sums-{number}-{site}", terms)


def finish(
    setting: Setting, scratch: Scratch, blocks: int, lacks: Mapping[int, NDArray[np.bool_]]
) -> dict[int, list[bytes]]:
    """Return the answers of the sites in ``lacks``, by the classes (K,) they lack, from the results of all blocks."""
    combining, parts = _combining(setting), setting.packing.parts
    blobs, answers = len(upload_shapes(setting.combination, parts)), {}
    totals = [scratch.take(f"total-{number}", parts) for number in range(blocks)]
    with seal_errors_as_malformed():
        total = combining.sum(filter(None, totals))
    for site, classes in lacks.items():
        upload = scratch.upload(site, blobs)
        partials = [scratch.take(f"sums-{number}-{site}", parts + 1) for number in range(blocks)]
        with seal_errors_as_malformed():
            receiver, peers = _receiver(setting, upload, classes), []
            if needs_bare_sum(setting.combination):
                peers = combining.less(total, combining.lower(_prototypes(setting, upload)))
            lengths = scratch.take(f"lengths-{site}", 2)
            answer = combining.answer(combining.sum(filter(None, partials)), peers, receiver, lengths)
            answers[site] = [dump(part) for part in answer]
    return answers


def _receiver(setting: Setting, upload: Sequence[bytes], lacks: NDArray[np.bool_]) -> Receiver:
    """Return the receiver that sent ``upload`` and lacks the classes ``lacks`` (K,)."""
    return Receiver(load_circuit(setting.keys), setting.packing, lacks, _correction(setting, upload))


def _prototypes(setting: Setting, upload: Sequence[bytes]) -> list[Ciphertext]:
    return [read_ciphertext(blob, PROTOTYPE) for blob in upload[: setting.packing.parts]]


def _correction(setting: Setting, upload: Sequence[bytes]) -> Ciphertext | None:
    """Return the correction after the prototypes, if the combination is ``complement``."""
    if setting.combination is not Combination.COMPLEMENT:
        return None
    return read_ciphertext(upload[setting.packing.parts], CORRECTION)


def _combining(setting: Setting) -> Combining:
    return Combining(load_circuit(setting.keys), setting.combination, setting.packing)


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
        read_payload(payload, upload_shapes(self._combination, _packing(cohort).parts))

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
        setting = Setting(KeysFile.at(self._keys_path), self._combination, _packing(cohort))
        # A site reads noise for each class that it does not hold; it holds what its signed presence says.
        lacks = list(~cohort.holds)
        if self._executor is None or not needs_distances(self._combination):
            answers = combine(setting, uploads, lacks)
        else:
            answers = _combine_in_processes(self._executor, setting, uploads, lacks)
        return {
            site: Payload(SCHEME, blobs=tuple(answer))
            for site, answer in zip(cohort.sites, answers, strict=True)
        }


def _combine_in_processes(
    executor: Pool,
    setting: Setting,
    uploads: Sequence[Sequence[bytes]],
    lacks: Sequence[NDArray[np.bool_]],
) -> list[list[bytes]]:
    """Run all pairs in blocks, then all answers in as many shares."""
    workers = executor.workers
    blocks = pair_blocks(len(uploads), workers)
    shares = [{i: lacks[i] for i in range(start, len(uploads), workers)} for start in range(workers)]
    with tempfile.TemporaryDirectory(prefix="ckks-") as folder:
        scratch = Scratch(Path(folder))
        scratch.put_uploads(uploads)
        lacking = {i: classes for i, classes in enumerate(lacks) if classes.any()}
        # All blocks end before the first answer begins: an answer needs the sums of every block.
        list(executor.map(partial(accumulate, setting, lacking, scratch), range(len(blocks)), blocks))
        finish_shares = partial(finish, setting, scratch, len(blocks))
        answers = {
            site: answer
            for some in executor.map(finish_shares, filter(None, shares))
            for site, answer in some.items()
        }
    return [answers[i] for i in range(len(uploads))]


def pair_blocks(sites: int, workers: int) -> list[Block]:
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
        Block(block, [i for i, adder in adders.items() if adder == number])
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
