"""The pieces of work that the coordinator's half hands to processes. Bytes in, bytes out.

Top-level functions and plain values, so that they run in a spawned process as well as inline. SEAL holds the
interpreter's lock, so only processes run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.ckks.circuit import Circuit, Parts
from crypto.ckks.combining import Combining, Pair
from crypto.ckks.evaluation_keys import EvaluationKeys
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import CORRECTION, PROTOTYPE, Ciphertext
from crypto.ckks.serialization import dump, load, read_ciphertext
from crypto.errors import KeyStoreError, MalformedError, VerificationError
from crypto.protection import Combination


@dataclass(frozen=True)
class Setting:
    """What all pieces of one aggregation have in common. ``keys_hash`` is the SHA-256 of the keys' file."""

    keys_path: Path
    keys_hash: bytes
    combination: Combination
    packing: Packing

    @property
    def weighs(self) -> bool:
        """Whether distances are needed."""
        return self.combination is not Combination.UNIFORM

    @property
    def adds_up(self) -> bool:
        """Whether the bare sum of all sites' prototypes is needed."""
        return self.combination is not Combination.DISTANCE


@dataclass(frozen=True)
class Receiver:
    """One site's share of the last step. ``upload`` is its own payload, ``drowned`` the classes (K,) it has not.

    ``partials`` are what :func:`accumulate` gave for the site; ``total`` is what :func:`add_up` gave.
    """

    upload: Sequence[bytes] = field(repr=False)
    drowned: NDArray[np.bool_]
    partials: Sequence[Sequence[bytes]] = field(default=(), repr=False)
    total: Sequence[bytes] = field(default=(), repr=False)


def check_keys(content: bytes) -> bytes:
    """The SHA-256 of a group's evaluation keys; :class:`MalformedError` unless they can be computed with."""
    keys = EvaluationKeys.from_bytes(content)
    keys.load()
    return keys.hash


def combine(
    setting: Setting, uploads: Sequence[Sequence[bytes]], drowned: Sequence[NDArray[np.bool_]]
) -> list[list[bytes]]:
    """All answers in one piece, from all sites' payloads and the classes (K,) that each has not."""
    circuit, combining = _tools(setting)
    with _failures():
        prototypes = [_prototypes(setting, upload) for upload in uploads]
        low = [combining.lower(parts) for parts in prototypes]
        total = _sum(circuit, low) if setting.adds_up else []
        sums: dict[int, list[Ciphertext]] = {}
        if setting.weighs:
            sites = {i: combining.prepare(parts) for i, parts in enumerate(prototypes)}
            sums = combining.weighted_sums(list(combinations(sites, 2)), sites)
            del sites
        del prototypes
        peers = (_less(circuit, total, own) for own in low)
        corrections = (_correction(setting, upload) for upload in uploads)
        answers = zip(peers, corrections, drowned, strict=True)
        return [
            [dump(part) for part in combining.answer(sums.pop(i, []), *rest)]
            for i, rest in enumerate(answers)
        ]


def add_up(setting: Setting, uploads: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Σ_m C_m over all sites, part by part, at the level of products."""
    circuit, combining = _tools(setting)
    with _failures():
        low = (combining.lower(_prototypes(setting, upload)) for upload in uploads)
        return [dump(part) for part in _sum(circuit, low)]


def accumulate(
    setting: Setting, pairs: Sequence[Pair], uploads: Mapping[int, Sequence[bytes]]
) -> dict[int, list[bytes]]:
    """:meth:`Combining.weighted_sums` of some pairs. ``uploads`` holds the payloads of the sites that occur."""
    _, combining = _tools(setting)
    with _failures():
        sites = {i: combining.prepare(_prototypes(setting, upload)) for i, upload in uploads.items()}
        sums = combining.weighted_sums(pairs, sites)
        return {site: [dump(term) for term in terms] for site, terms in sums.items()}


def finish(setting: Setting, receiver: Receiver) -> list[bytes]:
    """One site's answer, in the forms of :func:`crypto.ckks.parameters.answer_forms`."""
    circuit, combining = _tools(setting)
    with _failures():
        peers: list[Ciphertext] = []
        if receiver.total:
            own = combining.lower(_prototypes(setting, receiver.upload))
            peers = _less(circuit, _load_parts(receiver.total), own)
        sums = _sum(circuit, map(_load_parts, receiver.partials))
        correction = _correction(setting, receiver.upload)
        return [dump(part) for part in combining.answer(sums, peers, correction, receiver.drowned)]


def _sum(circuit: Circuit, vectors: Iterable[Parts]) -> list[Ciphertext]:
    """Part by part; of no vectors, no parts."""
    total: list[Ciphertext] = []
    for parts in vectors:
        total = [circuit.add(x, y) for x, y in zip(total, parts, strict=True)] if total else list(parts)
    return total


def _less(circuit: Circuit, total: Parts, own: Parts) -> list[Ciphertext]:
    """total − own; nothing where there is no total."""
    return [circuit.subtract(x, y) for x, y in zip(total, own, strict=True)] if total else []


def _prototypes(setting: Setting, upload: Sequence[bytes]) -> list[Ciphertext]:
    return [read_ciphertext(blob, PROTOTYPE) for blob in upload[: setting.packing.parts]]


def _correction(setting: Setting, upload: Sequence[bytes]) -> Ciphertext | None:
    """What comes after the prototypes where the combination is ``complement``."""
    if setting.combination is not Combination.COMPLEMENT:
        return None
    return read_ciphertext(upload[setting.packing.parts], CORRECTION)


def _load_parts(blobs: Sequence[bytes]) -> list[Ciphertext]:
    """This half's own intermediate results, whose form needs no check."""
    return [load(sealapi.Ciphertext(), blob) for blob in blobs]


def _tools(setting: Setting) -> tuple[Circuit, Combining]:
    circuit = _circuit_for(setting.keys_path, setting.keys_hash)
    return circuit, Combining(circuit, setting.combination, setting.packing)


# One entry: a group that makes new keys has no use for the old ones.
@lru_cache(maxsize=1)
def _circuit_for(path: Path, expected_hash: bytes) -> Circuit:
    """Loading the keys takes longer than some rounds, so each process does it once."""
    try:
        keys = EvaluationKeys.from_bytes(path.read_bytes())
    except OSError as error:
        raise KeyStoreError(f"the evaluation keys in {path} cannot be read: {error.strerror}") from error
    if keys.hash != expected_hash:
        raise VerificationError(f"the evaluation keys in {path} changed while an aggregation was running")
    return Circuit(keys.load())


@contextmanager
def _failures() -> Iterator[None]:
    """SEAL refuses some results, such as the difference of two equal ciphertexts, with bare errors."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise MalformedError(f"the payloads cannot be combined: {error}") from error
