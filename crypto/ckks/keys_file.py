"""File of a group's evaluation keys, which several processes load."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from crypto.ckks.circuit import Circuit
from crypto.ckks.evaluation_keys import EvaluationKeys
from crypto.errors import KeyStoreError, MalformedError, VerificationError


@dataclass(frozen=True)
class KeysFile:
    """File at ``path`` with :meth:`EvaluationKeys.to_bytes`, and the SHA-256 of its content."""

    path: Path
    hash: bytes

    @classmethod
    def at(cls, path: Path) -> KeysFile:
        """Hash the file as it is now; raise :class:`KeyStoreError` if it cannot be read."""
        try:
            with path.open("rb") as file:
                return cls(path, hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise KeyStoreError(f"the group's evaluation keys are not in {path}: {error.strerror}") from error


# One entry suffices: a group that makes new keys no longer needs the old ones.
@lru_cache(maxsize=1)
def circuit_of(keys: KeysFile) -> Circuit:
    """Load the keys and return the circuit, once per process, because loading takes longer than some rounds.

    Raises :class:`KeyStoreError` for a file that cannot be read, and :class:`VerificationError` for a changed file.
    """
    try:
        loaded = EvaluationKeys.from_bytes(keys.path.read_bytes())
    except OSError as error:
        raise KeyStoreError(f"the evaluation keys in {keys.path} cannot be read: {error.strerror}") from error
    if loaded.hash != keys.hash:
        raise VerificationError(
            f"the evaluation keys in {keys.path} changed while an aggregation was running"
        )
    return Circuit(loaded.load())


@contextmanager
def failures() -> Iterator[None]:
    """Convert SEAL's bare errors, e.g. for the difference of equal ciphertexts, to :class:`MalformedError`."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise MalformedError(f"the payloads cannot be combined: {error}") from error
