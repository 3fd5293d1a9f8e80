"""Checks and conversions of single fields; each check raises a :class:`protoseal_wire.codec.errors.CodecError`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence, Sized
from itertools import pairwise

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from crypto.pki.identity import NAME
from crypto.protection import Axis, UpTo, Words
from protoseal_wire.codec.errors import Malformed, NotFinite, TooLarge
from protoseal_wire.codec.limits import CONTENT_CEILING, HASH_BYTES, MOST_ENTRIES, SIGNATURE_BYTES
from protoseal_wire.messages import LedgerAnchor
from protoseal_wire.v1 import protoseal_pb2 as pb

_SCHEME = re.compile(r"[a-z][a-z0-9-]{0,30}/[1-9][0-9]{0,2}")
_SHORTEST_SIGNATURE = 8
_WORDS = {32: pb.D_TYPE_UINT32, 64: pb.D_TYPE_UINT64}


def check_known_fields(message: Message) -> None:
    """Raise for a field that the schema does not have, at any depth."""
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise Malformed(f"a {message.DESCRIPTOR.name} has fields that this version does not know")


def check_present(message: Message, *fields: str) -> None:
    """Raise unless these fields, which are messages, are present."""
    for field in fields:
        if not message.HasField(field):
            raise Malformed(f"a {message.DESCRIPTOR.name} lacks its {field}")


def check_name(field: str, name: str) -> str:
    """Return the name of a site or run if it is permitted."""
    if not NAME.fullmatch(name):
        raise Malformed(f"{field} is not 1 to 63 of a-z, 0-9, '.' and '-', starting with a letter or digit")
    return name


def check_scheme(scheme: str) -> str:
    """Return a scheme and version marker such as ``ckks/1``; the protections check that the scheme is known."""
    if not _SCHEME.fullmatch(scheme):
        raise Malformed("a payload's scheme is not of the form name/version")
    return scheme


def check_exact(field: str, value: bytes, size: int = HASH_BYTES) -> bytes:
    """Return the bytes if they have this length."""
    if len(value) != size:
        raise Malformed(f"{field} has {len(value)} bytes, not {size}")
    return value


def check_bytes(field: str, value: bytes, most: int, least: int = 1) -> bytes:
    """Return the bytes if they are neither too few, by default at least one, nor too many."""
    if len(value) < least:
        raise Malformed(f"{field} is empty")
    if len(value) > most:
        raise TooLarge(f"{field} has {len(value)} bytes; at most {most} are allowed")
    return value


def check_signature(value: bytes) -> bytes:
    """Return the bytes if they have the length of an ECDSA P-256 signature in DER."""
    if not _SHORTEST_SIGNATURE <= len(value) <= SIGNATURE_BYTES:
        raise Malformed(f"a signature has {len(value)} bytes, not {_SHORTEST_SIGNATURE} to {SIGNATURE_BYTES}")
    return value


def check_count(field: str, values: Sized, least: int, most: int) -> None:
    """Raise for too few or too many values."""
    if not least <= len(values) <= most:
        raise Malformed(f"there are {len(values)} {field}, not {least} to {most}")


def check_distinct(field: str, names: Sequence[str]) -> None:
    """Raise for a repeated name."""
    if len(set(names)) != len(names):
        raise Malformed(f"{field} are not distinct")


def check_sorted(field: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names if all are permitted, in ascending order and distinct."""
    checked = tuple(check_name(field, name) for name in names)
    if any(first >= second for first, second in pairwise(checked)):
        raise Malformed(f"{field} are not sorted and distinct")
    return checked


def check_content_size(size: int) -> int:
    """Return the size if a header may announce it."""
    if size > CONTENT_CEILING:
        raise TooLarge(f"a header announces {size} bytes; at most {CONTENT_CEILING} are allowed")
    if size == 0:
        raise Malformed("a header announces an empty content")
    return size


def check_seconds(field: str, value: float, most: float = math.inf) -> float:
    """Return the seconds if they are finite, at least 0 and at most ``most``."""
    if not (math.isfinite(value) and 0 <= value <= most):
        raise Malformed(f"{field} is not a possible number of seconds")
    return value


def anchor_message(anchor: LedgerAnchor | None) -> pb.LedgerAnchor | None:
    """Return an anchor as a field of a larger message."""
    return None if anchor is None else pb.LedgerAnchor(key=anchor.key, seq=anchor.seq, head=anchor.head)


def read_anchor(message: pb.LedgerAnchor) -> LedgerAnchor:
    """Read an anchor that is present in a larger message."""
    if message.seq > MOST_ENTRIES:
        raise Malformed(f"the number of a ledger's entry is above {MOST_ENTRIES}")
    return LedgerAnchor(
        check_exact("an anchor's key", message.key),
        message.seq,
        check_exact("an anchor's head", message.head),
    )


def encode_bools(values: NDArray[np.bool_]) -> pb.Tensor:
    """Encode a byte for each element."""
    return pb.Tensor(dtype=pb.D_TYPE_BOOL, shape=values.shape, data=values.astype(np.bool_).tobytes())


def decode_bools(tensor: pb.Tensor, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Decode an array of exactly this shape."""
    _check_tensor(tensor, pb.D_TYPE_BOOL, shape, itemsize=1)
    numbers = np.frombuffer(tensor.data, np.uint8)
    if (numbers > 1).any():
        raise Malformed("a truth value is neither 0 nor 1")
    return numbers.astype(np.bool_).reshape(shape)


def encode_floats(values: NDArray[np.float64]) -> pb.Tensor:
    """Encode as little-endian float64, row-major."""
    data = np.ascontiguousarray(values, dtype="<f8").tobytes()
    return pb.Tensor(dtype=pb.D_TYPE_FLOAT64, shape=values.shape, data=data)


def decode_floats(tensor: pb.Tensor, form: tuple[Axis, ...]) -> NDArray[np.float64]:
    """Decode finite values of this shape; an axis with :class:`crypto.protection.UpTo` has the sender's length."""
    shape = _fitted(tensor, form)
    _check_tensor(tensor, pb.D_TYPE_FLOAT64, shape, itemsize=8)
    values = np.frombuffer(tensor.data, "<f8").astype(np.float64).reshape(shape)
    if not np.isfinite(values).all():
        raise NotFinite("an array has NaN or an infinity")
    return values


def encode_words(values: Words) -> pb.Tensor:
    """Encode as little-endian uint32 or uint64; raise ``ValueError`` for another type, a mistake of the caller."""
    if values.dtype.kind != "u" or values.dtype.itemsize * 8 not in _WORDS:
        raise ValueError(f"words must be uint32 or uint64, not {values.dtype}")
    data = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()
    return pb.Tensor(dtype=_WORDS[values.dtype.itemsize * 8], shape=values.shape, data=data)


def decode_words(tensor: pb.Tensor, bits: int, length: Axis) -> Words:
    """Decode words of ``bits`` bits, 32 or 64: exactly ``length``, or up to its :class:`crypto.protection.UpTo`."""
    _check_tensor(tensor, _WORDS[bits], _fitted(tensor, (length,)), itemsize=bits // 8)
    if bits == 32:
        return np.frombuffer(tensor.data, "<u4").astype(np.uint32)
    return np.frombuffer(tensor.data, "<u8").astype(np.uint64)


def check_one_length(tensors: Sequence[pb.Tensor], forms: Sequence[tuple[Axis, ...]]) -> None:
    """Raise unless all axes of free length have the same length; the tensors' shapes already fit the forms."""
    lengths = {
        length
        for tensor, form in zip(tensors, forms, strict=True)
        for length, axis in zip(tensor.shape, form, strict=True)
        if isinstance(axis, UpTo)
    }
    if len(lengths) > 1:
        raise Malformed("arrays that belong together differ in length")


def _fitted(tensor: pb.Tensor, form: tuple[Axis, ...]) -> tuple[int, ...]:
    """Return the form with the tensor's own lengths for axes of free length; raise for too large a length."""
    if len(tensor.shape) != len(form):
        raise Malformed(f"an array has {len(tensor.shape)} axes, not {len(form)}")
    for length, axis in zip(tensor.shape, form, strict=True):
        if isinstance(axis, UpTo) and length > axis.most:
            raise Malformed(f"an axis has length {length}; at most {axis.most} is allowed")
    return tuple(
        length if isinstance(axis, UpTo) else axis for length, axis in zip(tensor.shape, form, strict=True)
    )


def _check_tensor(
    tensor: pb.Tensor, dtype: pb.DType.ValueType, shape: tuple[int, ...], itemsize: int
) -> None:
    if tensor.dtype != dtype:
        raise Malformed(f"an array has dtype {tensor.dtype}, not {pb.DType.Name(dtype)}")
    if len(tensor.shape) != len(shape) or tuple(tensor.shape) != shape:
        raise Malformed(f"an array is not of shape {shape}")
    check_exact("an array's data", tensor.data, math.prod(shape) * itemsize)
