"""Serialization of SEAL objects, and the checks that SEAL's own loading omits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tenseal import sealapi

from crypto.ckks.parameters import SCHEME, Ciphertext, CiphertextShape, context, level_id
from crypto.errors import MalformedError, UnknownSchemeError
from crypto.protection import Payload

# SEAL's header: magic (2 bytes), header size, version (2), compression, reserved (2), then the total length.
_LENGTH = slice(8, 16)


def dump(item: Any) -> bytes:
    """Return the SEAL serialization of a key or ciphertext."""
    # The bindings can save and load by path only; a memfd keeps secrets off the disk.
    descriptor = os.memfd_create("seal")
    try:
        item.save(f"/proc/self/fd/{descriptor}")
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def load(item: Any, content: bytes) -> Any:
    """Fill an empty SEAL object from bytes and return it; raise :class:`MalformedError` if SEAL cannot.

    Limits: SEAL checks little more than that the content fits the context, so most flipped bits pass. SEAL inflates
    content while reading: it rejects ciphertexts and secret keys of wrong dimensions before that, so that these take at
    most 16 polynomials, but a set of evaluation keys can take any amount of memory.
    """
    descriptor = os.memfd_create("seal")
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        item.load(context(), f"/proc/self/fd/{descriptor}")
    except (RuntimeError, ValueError) as error:
        raise MalformedError(
            f"not the serialization of a SEAL object of these parameters: {error}"
        ) from error
    except MemoryError as error:
        raise MalformedError("a serialized SEAL object takes too much memory") from error
    finally:
        os.close(descriptor)
    return item


def read_payload(payload: Payload, shapes: Sequence[CiphertextShape]) -> list[Ciphertext]:
    """Return the ciphertexts of a payload; raise :class:`MalformedError` unless they have these shapes, in order."""
    if payload.scheme != SCHEME:
        raise UnknownSchemeError(f"expected a payload of scheme {SCHEME!r}, not {payload.scheme!r}")
    if payload.arrays or len(payload.blobs) != len(shapes):
        raise MalformedError(
            f"a payload has {len(payload.blobs)} blobs and {len(payload.arrays)} arrays instead of "
            f"{len(shapes)} ciphertexts"
        )
    return read_ciphertexts(payload.blobs, shapes)


def read_ciphertexts(blobs: Sequence[bytes], shapes: Sequence[CiphertextShape]) -> list[Ciphertext]:
    """Return each blob's ciphertext; raise :class:`MalformedError` unless each has its shape."""
    return [read_ciphertext(blob, shape) for blob, shape in zip(blobs, shapes, strict=True)]


def read_ciphertext(content: bytes, shape: CiphertextShape) -> Ciphertext:
    """Return a ciphertext; raise :class:`MalformedError` unless it has exactly this ``shape``.

    Limit: the encrypted content cannot be checked; a well-formed ciphertext under another key decrypts to noise.
    """
    if len(content) > shape.max_bytes:
        raise MalformedError(f"a ciphertext has {len(content)} bytes; at most {shape.max_bytes} are allowed")
    # SEAL reads as many bytes as its header declares; what follows would travel unread.
    if int.from_bytes(content[_LENGTH], "little") != len(content):
        raise MalformedError("a ciphertext's length is not what its header declares")
    ciphertext = load(sealapi.Ciphertext(), content)
    # At another level the circuit would fail, or rescale by another prime and so to another scale.
    if list(ciphertext.parms_id()) != level_id(shape.level):
        raise MalformedError("a ciphertext has another level than prescribed")
    # Three polynomials are a product that was not relinearised.
    if ciphertext.size() != 2:
        raise MalformedError(f"a ciphertext has {ciphertext.size()} polynomials instead of 2")
    # Decryption divides by the scale that the sender states: with twice the scale the reader gets half of the values.
    if ciphertext.scale != shape.scale:
        raise MalformedError("a ciphertext has another scale than prescribed")
    # CKKS computes on number-theoretic transforms, and SEAL does not convert.
    if not ciphertext.is_ntt_form():
        raise MalformedError("a ciphertext is not in NTT form")
    # The second polynomial of a transparent ciphertext is 0, so everyone can read it; no encryption gives one.
    if ciphertext.is_transparent():
        raise MalformedError("a ciphertext is transparent: it can be read without the key")
    return ciphertext
