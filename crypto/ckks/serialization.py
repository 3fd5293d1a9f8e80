"""SEAL objects to bytes and back, and the checks that SEAL's own loading leaves out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tenseal import sealapi

from crypto.ckks.parameters import SCHEME, Ciphertext, Form, context, level_id
from crypto.errors import MalformedError, UnknownSchemeError
from crypto.protection import Payload

# SEAL's header: magic (2 bytes), its own size, version (2), compression, reserved (2), then the total length.
_LENGTH = slice(8, 16)


def dump(item: Any) -> bytes:
    """The SEAL serialization of a key or ciphertext."""
    # The bindings save to and load from paths only; a memfd keeps secrets off the disk.
    descriptor = os.memfd_create("seal")
    try:
        item.save(f"/proc/self/fd/{descriptor}")
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def load(item: Any, content: bytes) -> Any:
    """Fill an empty SEAL object from bytes and return it; :class:`MalformedError` when SEAL cannot.

    SEAL checks that the content fits the context, and little more: most flipped bits pass. It inflates while it
    reads. A ciphertext or secret key of wrong dimensions is refused before that, so neither takes more than its
    16 polynomials; a set of evaluation keys takes as much memory as its sender likes.
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
        raise MalformedError("the serialization of a SEAL object that takes too much memory") from error
    finally:
        os.close(descriptor)
    return item


def read_payload(payload: Payload, forms: Sequence[Form]) -> list[Ciphertext]:
    """The ciphertexts of a payload, one in each of the prescribed forms, or :class:`MalformedError`."""
    if payload.scheme != SCHEME:
        raise UnknownSchemeError(f"expected a payload of scheme {SCHEME!r}, not {payload.scheme!r}")
    if payload.arrays or len(payload.blobs) != len(forms):
        raise MalformedError(
            f"a payload of {len(payload.blobs)} blobs and {len(payload.arrays)} arrays, where "
            f"{len(forms)} ciphertexts belong"
        )
    return read_ciphertexts(payload.blobs, forms)


def read_ciphertexts(blobs: Sequence[bytes], forms: Sequence[Form]) -> list[Ciphertext]:
    """Each blob as the ciphertext its form prescribes, or :class:`MalformedError`."""
    return [read_ciphertext(blob, form) for blob, form in zip(blobs, forms, strict=True)]


def read_ciphertext(content: bytes, form: Form) -> Ciphertext:
    """A ciphertext that is exactly what ``form`` prescribes, or :class:`MalformedError`.

    Nothing can be said about what is inside: a well-formed ciphertext under another key decrypts to noise.
    """
    check_length(content, form)
    ciphertext = load(sealapi.Ciphertext(), content)
    check_level(ciphertext, form)
    check_size(ciphertext)
    check_scale(ciphertext, form)
    check_domain(ciphertext)
    check_not_transparent(ciphertext)
    return ciphertext


def check_length(content: bytes, form: Form) -> None:
    """Bounded, and nothing behind the end that the header declares."""
    if len(content) > form.max_bytes:
        raise MalformedError(f"a ciphertext of {len(content)} bytes, where at most {form.max_bytes} belong")
    if int.from_bytes(content[_LENGTH], "little") != len(content):
        raise MalformedError("a ciphertext's length is not what its header declares")


def check_level(ciphertext: Ciphertext, form: Form) -> None:
    """At another level the circuit would fail, or rescale to another scale."""
    if list(ciphertext.parms_id()) != level_id(form.level):
        raise MalformedError("a ciphertext of another level than prescribed")


def check_size(ciphertext: Ciphertext) -> None:
    """Two polynomials: products are relinearised before they travel."""
    if ciphertext.size() != 2:
        raise MalformedError(f"a ciphertext of {ciphertext.size()} polynomials instead of 2")


def check_scale(ciphertext: Ciphertext, form: Form) -> None:
    """Exactly: the scale is the factor by which the decrypted value is read."""
    if ciphertext.scale != form.scale:
        raise MalformedError("a ciphertext of another scale than prescribed")


def check_domain(ciphertext: Ciphertext) -> None:
    """CKKS ciphertexts are kept in the number-theoretic transform's domain."""
    if not ciphertext.is_ntt_form():
        raise MalformedError("a ciphertext that is not in NTT form")


def check_not_transparent(ciphertext: Ciphertext) -> None:
    """A transparent ciphertext can be read without the key; no encryption gives one."""
    if ciphertext.is_transparent():
        raise MalformedError("a ciphertext that hides nothing")
