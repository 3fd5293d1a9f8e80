"""The pieces of work that the coordinator's half hands to processes.

Top-level functions and plain values, so that they run in a spawned process as well as inline. SEAL holds the
interpreter's lock, so only processes run at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.ckks.circuit import Parts
from crypto.ckks.evaluation_keys import EvaluationKeys
from crypto.ckks.keys_file import KeysFile, circuit_of, failures
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import CORRECTION, PROTOTYPE, Ciphertext, context, upload_forms
from crypto.ckks.peer_combination import Combining, Pair, adds_up
from crypto.ckks.serialization import dump, read_ciphertext
from crypto.ckks.slot_masking import Receiver
from crypto.protection import Combination


@dataclass(frozen=True)
class Setting:
    """What all pieces of one aggregation have in common."""

    keys: KeysFile
    combination: Combination
    packing: Packing


@dataclass(frozen=True)
class Block:
    """Some pairs of sites, and the sites whose prototypes are added up beside them."""

    pairs: Sequence[Pair]
    adds_up: Sequence[int]

    @property
    def sites(self) -> list[int]:
        """All that occur."""
        return sorted({*chain.from_iterable(self.pairs), *self.adds_up})


class Scratch:
    """A folder in which pieces of work leave ciphertexts for each other. Nothing in it is secret."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put_uploads(self, uploads: Sequence[Sequence[bytes]]) -> None:
        """Every site's payload."""
        for site, blobs in enumerate(uploads):
            for number, blob in enumerate(blobs):
                self._upload(site, number).write_bytes(blob)

    def upload(self, site: int, blobs: int) -> list[bytes]:
        """The first blobs of a site's payload."""
        return [self._upload(site, number).read_bytes() for number in range(blobs)]

    def put(self, name: str, parts: Parts) -> None:
        """Intermediate results."""
        for number, part in enumerate(parts):
            part.save(str(self._folder / f"{name}.{number}"))

    def take(self, name: str, parts: int) -> list[Ciphertext]:
        """What was :meth:`put`, whose form needs no check; no parts if it was not."""
        paths = [self._folder / f"{name}.{number}" for number in range(parts)]
        return [_load_file(path) for path in paths if path.exists()]

    def _upload(self, site: int, number: int) -> Path:
        return self._folder / f"upload-{site}.{number}"


def check_keys(content: bytes) -> bytes:
    """The SHA-256 of a group's evaluation keys; :class:`MalformedError` unless they can be computed with."""
    keys = EvaluationKeys.from_bytes(content)
    keys.load()
    return keys.hash


def combine(
    setting: Setting, uploads: Sequence[Sequence[bytes]], drowned: Sequence[NDArray[np.bool_]]
) -> list[list[bytes]]:
    """All answers in one piece, from all sites' payloads and the classes (K,) that each has not."""
    combining = _combining(setting)
    with failures():
        receivers = [_receiver(setting, *each) for each in zip(uploads, drowned, strict=True)]
        prototypes = [_prototypes(setting, upload) for upload in uploads]
        return [[dump(part) for part in each] for each in combining.answers(prototypes, receivers)]


def accumulate(
    setting: Setting, lacks: Mapping[int, NDArray[np.bool_]], scratch: Scratch, number: int, block: Block
) -> None:
    """Leave :meth:`Combining.weighted_sums` of a block's pairs, and the sum of the prototypes that it adds up.

    Of these, :meth:`Combining.lengths` of sites that ``lacks`` says to lack classes are left as well.
    """
    combining = _combining(setting)
    uploads = {i: scratch.upload(i, setting.packing.parts) for i in block.sites}
    with failures():
        sites = {i: combining.prepare(_prototypes(setting, upload)) for i, upload in uploads.items()}
        sums = combining.weighted_sums(block.pairs, sites)
        lengths = combining.lengths(sites, {i: lacks[i] for i in block.adds_up if i in lacks})
        total = combining.sum([sites[i].low for i in block.adds_up])
    scratch.put(f"total-{number}", total)
    for site, parts in lengths.items():
        scratch.put(f"lengths-{site}", parts)
    for site, terms in sums.items():
        scratch.put(f"sums-{number}-{site}", terms)


def finish(
    setting: Setting, scratch: Scratch, blocks: int, drowned: Mapping[int, NDArray[np.bool_]]
) -> dict[int, list[bytes]]:
    """Some sites' answers, from what all ``blocks`` left; ``drowned`` as for :func:`combine`."""
    combining, parts = _combining(setting), setting.packing.parts
    blobs, answers = len(upload_forms(setting.combination, parts)), {}
    totals = [scratch.take(f"total-{number}", parts) for number in range(blocks)]
    with failures():
        total = combining.sum(filter(None, totals))
    for site, classes in drowned.items():
        upload = scratch.upload(site, blobs)
        partials = [scratch.take(f"sums-{number}-{site}", parts + 1) for number in range(blocks)]
        with failures():
            receiver, peers = _receiver(setting, upload, classes), []
            if adds_up(setting.combination):
                peers = combining.less(total, combining.lower(_prototypes(setting, upload)))
            lengths = scratch.take(f"lengths-{site}", 2)
            answer = combining.answer(combining.sum(filter(None, partials)), peers, receiver, lengths)
            answers[site] = [dump(part) for part in answer]
    return answers


def _receiver(setting: Setting, upload: Sequence[bytes], lacks: NDArray[np.bool_]) -> Receiver:
    """The site that sent ``upload``, and has not the classes ``lacks`` (K,)."""
    return Receiver(circuit_of(setting.keys), setting.packing, lacks, _correction(setting, upload))


def _prototypes(setting: Setting, upload: Sequence[bytes]) -> list[Ciphertext]:
    return [read_ciphertext(blob, PROTOTYPE) for blob in upload[: setting.packing.parts]]


def _correction(setting: Setting, upload: Sequence[bytes]) -> Ciphertext | None:
    """What comes after the prototypes where the combination is ``complement``."""
    if setting.combination is not Combination.COMPLEMENT:
        return None
    return read_ciphertext(upload[setting.packing.parts], CORRECTION)


def _load_file(path: Path) -> Ciphertext:
    ciphertext = sealapi.Ciphertext()
    ciphertext.load(context(), str(path))
    return ciphertext


def _combining(setting: Setting) -> Combining:
    return Combining(circuit_of(setting.keys), setting.combination, setting.packing)
