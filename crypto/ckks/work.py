"""The pieces of work that the coordinator's half hands to processes. Bytes in, bytes out.

Top-level functions and plain values, so that they run in a spawned process as well as inline. SEAL holds the
interpreter's lock, so only processes run at the same time. No piece holds all n² distances: a distance is used
for both of its sites and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.ckks import drowning
from crypto.ckks.circuit import Circuit, Parts
from crypto.ckks.evaluation_keys import EvaluationKeys
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import CORRECTION, PROTOTYPE, Ciphertext, Level
from crypto.ckks.serialization import dump, load, read_ciphertext
from crypto.errors import KeyStoreError, MalformedError, VerificationError
from crypto.protection import Combination

Pair = tuple[int, int]


@dataclass(frozen=True)
class Setting:
    """What all pieces of one aggregation have in common. ``keys_hash`` is the SHA-256 of the keys' file."""

    keys_path: Path
    keys_hash: bytes
    combination: Combination
    packing: Packing


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


def add_up(setting: Setting, uploads: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Σ_m C_m over all sites, part by part, at the level of products."""
    circuit = _circuit(setting)
    with _failures():
        total = _prototypes(setting, uploads[0])
        for upload in uploads[1:]:
            total = [circuit.add(x, y) for x, y in zip(total, _prototypes(setting, upload), strict=True)]
        return [dump(circuit.lower(part, Level.PRODUCT)) for part in total]


def accumulate(
    setting: Setting, pairs: Sequence[Pair], uploads: Mapping[int, Sequence[bytes]]
) -> dict[int, list[bytes]]:
    """For each site of some pairs {i, m}: Σ_m d_im·C_m part by part (three polynomials), then Σ_m d_im.

    ``uploads`` holds the payloads of the sites that occur.
    """
    circuit = _circuit(setting)
    with _failures():
        high = {site: _prototypes(setting, upload) for site, upload in uploads.items()}
        low = {site: [circuit.lower(x, Level.PRODUCT) for x in parts] for site, parts in high.items()}
        sums: dict[int, list[Ciphertext]] = {}
        for i, m in pairs:
            distance = circuit.squared_distance(high[i], high[m], setting.packing.rotations)
            for receiver, peer in ((i, m), (m, i)):
                terms = [*(circuit.multiply(distance, part) for part in low[peer]), distance]
                sums[receiver] = _add_parts(circuit, sums[receiver], terms) if receiver in sums else terms
        return {site: [dump(term) for term in terms] for site, terms in sums.items()}


def finish(setting: Setting, receiver: Receiver) -> list[bytes]:
    """One site's answer, in the forms of :func:`crypto.ckks.parameters.answer_forms`."""
    circuit = _circuit(setting)
    with _failures():
        if setting.combination is Combination.UNIFORM:
            peers = [circuit.lower(part, Level.ANSWER) for part in _peers(setting, circuit, receiver)]
            return [dump(part) for part in _drowned_rows(setting, circuit, receiver, peers)]
        *products, denominator = _sum_of_partials(circuit, receiver)
        if setting.combination is Combination.COMPLEMENT:
            products = _complement(setting, circuit, receiver, products, denominator)
        numerators = [circuit.rescale(circuit.relinearise(part)) for part in products]
        noise = drowning.drown_replicated(setting.packing, receiver.drowned)
        denominator = circuit.add_values(circuit.lower(denominator, Level.ANSWER), noise)
        return [dump(x) for x in (*_drowned_rows(setting, circuit, receiver, numerators), denominator)]


def _complement(
    setting: Setting, circuit: Circuit, receiver: Receiver, products: Parts, denominator: Ciphertext
) -> list[Ciphertext]:
    """(den − corr)·Σ_{m≠i} C_m − Σ_m d_im·C_m; the bare sum would give both peers away among three holders."""
    distance = circuit.subtract(denominator, read_ciphertext(receiver.upload[-1], CORRECTION))
    peers = _peers(setting, circuit, receiver)
    return [
        circuit.subtract(circuit.multiply(distance, peer), product)
        for peer, product in zip(peers, products, strict=True)
    ]


def _peers(setting: Setting, circuit: Circuit, receiver: Receiver) -> list[Ciphertext]:
    """Σ_{m≠i} C_m at the level of products."""
    own = [circuit.lower(part, Level.PRODUCT) for part in _prototypes(setting, receiver.upload)]
    total = _load_parts(receiver.total)
    return [circuit.subtract(x, y) for x, y in zip(total, own, strict=True)]


def _sum_of_partials(circuit: Circuit, receiver: Receiver) -> list[Ciphertext]:
    total = _load_parts(receiver.partials[0])
    for partial in receiver.partials[1:]:
        total = _add_parts(circuit, total, _load_parts(partial))
    return total


def _drowned_rows(setting: Setting, circuit: Circuit, receiver: Receiver, parts: Parts) -> list[Ciphertext]:
    noise = drowning.drown_rows(setting.packing, receiver.drowned)
    return [circuit.add_values(part, slots) for part, slots in zip(parts, noise, strict=True)]


def _add_parts(circuit: Circuit, left: Parts, right: Parts) -> list[Ciphertext]:
    return [circuit.add(x, y) for x, y in zip(left, right, strict=True)]


def _prototypes(setting: Setting, upload: Sequence[bytes]) -> list[Ciphertext]:
    return [read_ciphertext(blob, PROTOTYPE) for blob in upload[: setting.packing.parts]]


def _load_parts(blobs: Sequence[bytes]) -> list[Ciphertext]:
    """This half's own intermediate results, whose form needs no check."""
    return [load(sealapi.Ciphertext(), blob) for blob in blobs]


def _circuit(setting: Setting) -> Circuit:
    return _circuit_for(setting.keys_path, setting.keys_hash)


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
