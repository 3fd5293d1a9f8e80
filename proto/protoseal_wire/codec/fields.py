"""Checks on single fields, each of which raises a :class:`CodecError`."""

from __future__ import annotations

import math
import re
from collections.abc import Sized

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from crypto.pki.identity import NAME
from protoseal_wire.codec.errors import Malformed, NotFinite, TooLarge
from protoseal_wire.codec.limits import CONTENT_CEILING, HASH_BYTES, SIGNATURE_BYTES
from protoseal_wire.v1 import protoseal_pb2 as pb

_SCHEME = re.compile(r"[a-z][a-z0-9-]{0,30}/[1-9][0-9]{0,2}")
_SHORTEST_SIGNATURE = 8


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


def check_bytes(field: str, value: bytes, most: int) -> bytes:
    """Bytes, at least one."""
    if not value:
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


def decode_floats(tensor: pb.Tensor, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Finite values of exactly this shape."""
    _check_tensor(tensor, pb.D_TYPE_FLOAT64, shape, itemsize=8)
    values = np.frombuffer(tensor.data, "<f8").astype(np.float64).reshape(shape)
    if not np.isfinite(values).all():
        raise NotFinite("an array holds NaN or an infinity")
    return values


def _check_tensor(
    tensor: pb.Tensor, dtype: pb.DType.ValueType, shape: tuple[int, ...], itemsize: int
) -> None:
    if tensor.dtype != dtype:
        raise Malformed(f"an array has dtype {tensor.dtype}, not {pb.DType.Name(dtype)}")
    if len(tensor.shape) != len(shape) or tuple(tensor.shape) != shape:
        raise Malformed(f"an array is not of shape {shape}")
    check_exact("an array's data", tensor.data, math.prod(shape) * itemsize)
