"""Server half of :mod:`crypto.ckks.group_mixing`: splits the mixing into tasks and joins their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from tenseal import sealapi

from crypto.ckks.circuit import Circuit
from crypto.ckks.group_mixing import COSINE_SCALE, ROTATIONS, MixForm
from crypto.ckks.keys_file import KeysFile, circuit_of, failures
from crypto.ckks.parameters import SCHEME, Ciphertext, Form
from crypto.ckks.serialization import dump, load, read_ciphertext, read_ciphertexts, read_payload
from crypto.errors import MalformedError
from crypto.protection import Payload

Pair = tuple[int, int]
Cosines = Mapping[Pair, bytes]
_PARTS_AT_ONCE = 8
"""Number of vectors' parts in one task, which also loads the cosines of all groups."""


@dataclass(frozen=True)
class Columns:
    """Parts of the vectors of all groups: ``parts``[p][j] is part p of group j, in the form ``form``."""

    form: Form
    parts: Sequence[Sequence[bytes]] = field(repr=False)


class MixingServer:
    """Server half that mixes groups without the sites' secret key."""

    def __init__(self, form: MixForm, keys_path: Path, executor: Executor | None) -> None:
        """Take the evaluation keys' file and an executor, as :class:`crypto.ckks.server.CkksServer`."""
        self._form, self._keys_path = form, keys_path
        self._map: Callable[..., Iterable[Any]] = executor.map if executor else map

    def validate(self, payload: Payload) -> None:
        """Raise :class:`crypto.errors.MalformedError` unless each ciphertext has exactly the form prescribed."""
        read_payload(payload, self._form.uploads)

    def mix(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return each group's sums, in the groups' order.

        Each pair of groups costs 12 key switches (11 rotations and a relinearisation), each part of each answer one.
        Raises :class:`crypto.errors.MalformedError` for payloads that cannot be combined, and
        :class:`crypto.errors.KeyStoreError` without evaluation keys.
        """
        keys, forms = KeysFile.at(self._keys_path), self._form.uploads
        directions, vectors = zip(*map(self._split, payloads), strict=True)
        pairs = list(combinations(range(len(payloads)), 2))
        sides = [(directions[j], directions[k]) for j, k in pairs]
        cosines = dict(zip(pairs, self._map(partial(_cosine, keys, forms[0]), sides), strict=True))
        parts = list(zip(*vectors, strict=True))
        columns = [
            Columns(forms[-1], parts[start : start + _PARTS_AT_ONCE])
            for start in range(0, len(parts), _PARTS_AT_ONCE)
        ]
        mixed = [part for piece in self._map(partial(_mixed, keys, cosines), columns) for part in piece]
        return [Payload(SCHEME, blobs=blobs) for blobs in zip(*mixed, strict=True)]

    def _split(self, payload: Payload) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Return the ciphertexts of a direction and of a vector, whose forms are checked when they are read."""
        if len(payload.blobs) != len(self._form.uploads):
            raise MalformedError(
                f"a payload has {len(payload.blobs)} ciphertexts instead of {len(self._form.uploads)}"
            )
        split = self._form.direction_parts
        return payload.blobs[:split], payload.blobs[split:]


def _cosine(keys: KeysFile, form: Form, sides: tuple[Sequence[bytes], Sequence[bytes]]) -> bytes:
    """Return ⟨u_j, u_k⟩ in every slot, at the level of products."""
    circuit = circuit_of(keys)
    with failures():
        left, right = (read_ciphertexts(side, (form,) * len(side)) for side in sides)
        products = [circuit.multiply(x, y) for x, y in zip(left, right, strict=True)]
        total = circuit.rescale(circuit.relinearise(circuit.add_all(products)))
        for step in ROTATIONS:
            total = circuit.add(total, circuit.rotate(total, step))
        return dump(total)


def _mixed(keys: KeysFile, cosines: Cosines, columns: Columns) -> list[list[bytes]]:
    """Return for each part a list of one ciphertext for each group."""
    circuit = circuit_of(keys)
    with failures():
        loaded = {pair: load(sealapi.Ciphertext(), blob) for pair, blob in cosines.items()}
        return [_mixed_part(circuit, loaded, part, columns.form) for part in columns.parts]


def _mixed_part(
    circuit: Circuit, cosines: Mapping[Pair, Ciphertext], blobs: Sequence[bytes], form: Form
) -> list[bytes]:
    vectors = [read_ciphertext(blob, form) for blob in blobs]
    totals = [circuit.scale_up(vector, COSINE_SCALE) for vector in vectors]
    for (j, k), cosine in cosines.items():
        circuit.add_to(totals[j], circuit.multiply(cosine, vectors[k]))
        circuit.add_to(totals[k], circuit.multiply(cosine, vectors[j]))
    return [dump(circuit.rescale(circuit.relinearise(total))) for total in totals]
