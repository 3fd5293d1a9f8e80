"""Tasks that the coordinator's half gives to worker processes.

Tasks are top-level functions of plain values, so that they run in a spawned process as well as inline. SEAL holds the
interpreter's lock, so only processes run in parallel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.ckks.answer_receiver import Receiver
from crypto.ckks.circuit import Ciphertexts
from crypto.ckks.evaluation_keys import EvaluationKeys
from crypto.ckks.keys_file import KeysFile, circuit_of, failures
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import CORRECTION, PROTOTYPE, Ciphertext, context, upload_forms
from crypto.ckks.peer_combination import Combining, Pair, needs_bare_sum
from crypto.ckks.serialization import dump, read_ciphertext
from crypto.protection import Combination


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
        paths = [self._folder / f"{name}.{number}" for number in range(parts)]
        return [_load_file(path) for path in paths if path.exists()]

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
    with failures():
        receivers = [_receiver(setting, *each) for each in zip(uploads, lacks, strict=True)]
        prototypes = [_prototypes(setting, upload) for upload in uploads]
        return [[dump(part) for part in each] for each in combining.answers(prototypes, receivers)]


def accumulate(
    setting: Setting, lacks: Mapping[int, NDArray[np.bool_]], scratch: Scratch, number: int, block: Block
) -> None:
    """Store :meth:`Combining.weighted_sums` of a block's pairs, and the sum of the prototypes that the block adds.

    Among the sites that the block adds, :meth:`Combining.lengths` of those in ``lacks`` are stored as well.
    """
    combining = _combining(setting)
    uploads = {i: scratch.upload(i, setting.packing.parts) for i in block.sites}
    with failures():
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
    blobs, answers = len(upload_forms(setting.combination, parts)), {}
    totals = [scratch.take(f"total-{number}", parts) for number in range(blocks)]
    with failures():
        total = combining.sum(filter(None, totals))
    for site, classes in lacks.items():
        upload = scratch.upload(site, blobs)
        partials = [scratch.take(f"sums-{number}-{site}", parts + 1) for number in range(blocks)]
        with failures():
            receiver, peers = _receiver(setting, upload, classes), []
            if needs_bare_sum(setting.combination):
                peers = combining.less(total, combining.lower(_prototypes(setting, upload)))
            lengths = scratch.take(f"lengths-{site}", 2)
            answer = combining.answer(combining.sum(filter(None, partials)), peers, receiver, lengths)
            answers[site] = [dump(part) for part in answer]
    return answers


def _receiver(setting: Setting, upload: Sequence[bytes], lacks: NDArray[np.bool_]) -> Receiver:
    """Return the receiver that sent ``upload`` and lacks the classes ``lacks`` (K,)."""
    return Receiver(circuit_of(setting.keys), setting.packing, lacks, _correction(setting, upload))


def _prototypes(setting: Setting, upload: Sequence[bytes]) -> list[Ciphertext]:
    return [read_ciphertext(blob, PROTOTYPE) for blob in upload[: setting.packing.parts]]


def _correction(setting: Setting, upload: Sequence[bytes]) -> Ciphertext | None:
    """Return the correction after the prototypes, if the combination is ``complement``."""
    if setting.combination is not Combination.COMPLEMENT:
        return None
    return read_ciphertext(upload[setting.packing.parts], CORRECTION)


def _load_file(path: Path) -> Ciphertext:
    ciphertext = sealapi.Ciphertext()
    ciphertext.load(context(), str(path))
    return ciphertext


def _combining(setting: Setting) -> Combining:
    return Combining(circuit_of(setting.keys), setting.combination, setting.packing)
