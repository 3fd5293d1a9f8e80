"""Checks on single fields, each of which raises a :class:`CodecError`."""

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
    """No field that the schema does not have, at any depth."""
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise Malformed(f"a {message.DESCRIPTOR.name} has fields that this version does not know")


def check_there(message: Message, *fields: str) -> None:
    """Fields that are messages themselves are present."""
    for field in fields:
        if not message.HasField(field):
            raise Malformed(f"a {message.DESCRIPTOR.name} lacks its {field}")


def check_name(field: str, name: str) -> str:
    """The name of a site or run, if it is permitted as one."""
    if not NAME.fullmatch(name):
        raise Malformed(f"{field} is not 1 to 63 of a-z, 0-9, '.' and '-', starting with a letter or digit")
    return name


def check_scheme(scheme: str) -> str:
    """A scheme and version marker such as ``ckks/1``. Which ones there are is for the protections to say."""
    if not _SCHEME.fullmatch(scheme):
        raise Malformed("a payload's scheme is not of the form name/version")
    return scheme


def check_exact(field: str, value: bytes, size: int = HASH_BYTES) -> bytes:
    """Bytes of one allowed length."""
    if len(value) != size:
        raise Malformed(f"{field} has {len(value)} bytes, not {size}")
    return value


def check_bytes(field: str, value: bytes, most: int, least: int = 1) -> bytes:
    """Bytes, by default at least one."""
    if len(value) < least:
        raise Malformed(f"{field} is empty")
    if len(value) > most:
        raise TooLarge(f"{field} has {len(value)} bytes, at most {most} are taken")
    return value


def check_signature(value: bytes) -> bytes:
    """ECDSA P-256 in DER, by its length."""
    if not _SHORTEST_SIGNATURE <= len(value) <= SIGNATURE_BYTES:
        raise Malformed(f"a signature has {len(value)} bytes")
    return value


def check_count(field: str, values: Sized, least: int, most: int) -> None:
    """Neither too few nor too many."""
    if not least <= len(values) <= most:
        raise Malformed(f"there are {len(values)} {field}, not {least} to {most}")


def check_distinct(field: str, names: Sequence[str]) -> None:
    """None of them twice."""
    if len(set(names)) != len(names):
        raise Malformed(f"{field} are not distinct")


def check_sorted(field: str, names: Iterable[str]) -> tuple[str, ...]:
    """Names in ascending order, none twice."""
    checked = tuple(check_name(field, name) for name in names)
    if any(first >= second for first, second in pairwise(checked)):
        raise Malformed(f"{field} are not sorted and distinct")
    return checked


def check_content_size(size: int) -> int:
    """What a header may announce."""
    if size > CONTENT_CEILING:
        raise TooLarge(f"{size} bytes are announced, at most {CONTENT_CEILING} are ever taken")
    if size == 0:
        raise Malformed("an empty content is announced")
    return size


def check_seconds(field: str, value: float, most: float = math.inf) -> float:
    """A finite time, zero or more."""
    if not (math.isfinite(value) and 0 <= value <= most):
        raise Malformed(f"{field} is not a possible number of seconds")
    return value


def anchor_message(anchor: LedgerAnchor | None) -> pb.LedgerAnchor | None:
    """An anchor as a field of a larger message."""
    return None if anchor is None else pb.LedgerAnchor(key=anchor.key, seq=anchor.seq, head=anchor.head)


def read_anchor(message: pb.LedgerAnchor) -> LedgerAnchor:
    """The reverse of :func:`anchor_message`, for one that is there."""
    if message.seq > MOST_ENTRIES:
        raise Malformed("a ledger's entry has a number that no ledger comes to")
    return LedgerAnchor(
        check_exact("an anchor's key", message.key),
        message.seq,
        check_exact("an anchor's head", message.head),
    )


def encode_bools(values: NDArray[np.bool_]) -> pb.Tensor:
    """A byte for each element."""
    return pb.Tensor(dtype=pb.D_TYPE_BOOL, shape=values.shape, data=values.astype(np.bool_).tobytes())


def decode_bools(tensor: pb.Tensor, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """An array of exactly this shape."""
    _check_tensor(tensor, pb.D_TYPE_BOOL, shape, itemsize=1)
    numbers = np.frombuffer(tensor.data, np.uint8)
    if (numbers > 1).any():
        raise Malformed("a truth value is neither 0 nor 1")
    return numbers.astype(np.bool_).reshape(shape)


def encode_floats(values: NDArray[np.float64]) -> pb.Tensor:
    """Little-endian float64, row-major."""
    data = np.ascontiguousarray(values, dtype="<f8").tobytes()
    return pb.Tensor(dtype=pb.D_TYPE_FLOAT64, shape=values.shape, data=data)


def decode_floats(tensor: pb.Tensor, form: tuple[Axis, ...]) -> NDArray[np.float64]:
    """Finite values of this shape, where it has an :class:`crypto.protection.UpTo` of a length of its own."""
    shape = _fitted(tensor, form)
    _check_tensor(tensor, pb.D_TYPE_FLOAT64, shape, itemsize=8)
    values = np.frombuffer(tensor.data, "<f8").astype(np.float64).reshape(shape)
    if not np.isfinite(values).all():
        raise NotFinite("an array holds NaN or an infinity")
    return values


def encode_words(values: Words) -> pb.Tensor:
    """Little-endian uint32 or uint64. ``ValueError`` for any other type, which is a mistake of the caller."""
    if values.dtype.kind != "u" or values.dtype.itemsize * 8 not in _WORDS:
        raise ValueError(f"words are uint32 or uint64, not {values.dtype}")
    data = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()
    return pb.Tensor(dtype=_WORDS[values.dtype.itemsize * 8], shape=values.shape, data=data)


def decode_words(tensor: pb.Tensor, bits: int, length: Axis) -> Words:
    """``length`` words of ``bits`` bits, 32 or 64: exactly, or at most."""
    _check_tensor(tensor, _WORDS[bits], _fitted(tensor, (length,)), itemsize=bits // 8)
    if bits == 32:
        return np.frombuffer(tensor.data, "<u4").astype(np.uint32)
    return np.frombuffer(tensor.data, "<u8").astype(np.uint64)


def check_one_length(tensors: Sequence[pb.Tensor], forms: Sequence[tuple[Axis, ...]]) -> None:
    """All axes of a free length have the same one. The tensors' shapes are those of the forms."""
    lengths = {
        length
        for tensor, form in zip(tensors, forms, strict=True)
        for length, axis in zip(tensor.shape, form, strict=True)
        if isinstance(axis, UpTo)
    }
    if len(lengths) > 1:
        raise Malformed("arrays that belong together differ in length")


def _fitted(tensor: pb.Tensor, form: tuple[Axis, ...]) -> tuple[int, ...]:
    """The form, with the tensor's own length where that is free and not too large."""
    if len(tensor.shape) != len(form):
        raise Malformed(f"an array has {len(tensor.shape)} axes, not {len(form)}")
    for length, axis in zip(tensor.shape, form, strict=True):
        if isinstance(axis, UpTo) and length > axis.most:
            raise Malformed(f"an axis has length {length}, at most {axis.most} are taken")
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
