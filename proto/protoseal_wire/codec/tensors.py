"""Arrays on the wire: little-endian, row-major, with a dtype and a shape that the receiver already knows.

``encode_`` functions return the fields of a ``pb.Tensor``, which protobuf sets in the message that holds the tensor: a
finished ``pb.Tensor`` would be copied into it, some megabytes for each level of nesting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto.protection import Axis, UpTo, Words
from protoseal_wire.codec.errors import Malformed, NotFinite
from protoseal_wire.codec.shapes import check_names
from protoseal_wire.v1 import protoseal_pb2 as pb

check_names("Tensor", pb.Tensor.DESCRIPTOR.fields_by_name, ("dtype", "shape", "data"))

_WORDS = {32: pb.D_TYPE_UINT32, 64: pb.D_TYPE_UINT64}


def encode_bools(values: NDArray[np.bool_]) -> dict[str, Any]:
    """Encode a byte for each element."""
    return {"dtype": pb.D_TYPE_BOOL, "shape": values.shape, "data": values.astype(np.bool_).tobytes()}


def decode_bools(tensor: pb.Tensor, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Decode an array of exactly this shape."""
    numbers = np.frombuffer(_checked_data(tensor, pb.D_TYPE_BOOL, shape, itemsize=1), np.uint8)
    # numpy reads any byte but 0 as True: 255 byte strings would then stand for one signed statement.
    if (numbers > 1).any():
        raise Malformed("a truth value is neither 0 nor 1")
    return numbers.astype(np.bool_).reshape(shape)


def encode_floats(values: NDArray[np.float64]) -> dict[str, Any]:
    """Encode as float64."""
    data = np.ascontiguousarray(values, dtype="<f8").tobytes()
    return {"dtype": pb.D_TYPE_FLOAT64, "shape": values.shape, "data": data}


def decode_floats(tensor: pb.Tensor, form: tuple[Axis, ...]) -> NDArray[np.float64]:
    """Decode finite values of this shape; an axis with :class:`crypto.protection.UpTo` has the sender's length.

    The array is read-only, since it is a view of the message's bytes.
    """
    shape = _fit_shape(tensor, form)
    data = _checked_data(tensor, pb.D_TYPE_FLOAT64, shape, itemsize=8)
    values = np.frombuffer(data, "<f8").astype(np.float64, copy=False).reshape(shape)
    # One NaN in a sum makes the sum NaN, and with it the model of every site.
    if not np.isfinite(values).all():
        raise NotFinite("an array has NaN or an infinity")
    return values


def encode_words(values: Words) -> dict[str, Any]:
    """Encode as uint32 or uint64; raise ``ValueError`` for another type, a mistake of the caller."""
    if values.dtype.kind != "u" or values.dtype.itemsize * 8 not in _WORDS:
        raise ValueError(f"words must be uint32 or uint64, not {values.dtype}")
    data = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()
    return {"dtype": _WORDS[values.dtype.itemsize * 8], "shape": values.shape, "data": data}


def decode_words(tensor: pb.Tensor, bits: int, length: Axis) -> Words:
    """Decode words of ``bits`` bits, 32 or 64: exactly ``length``, or up to its :class:`crypto.protection.UpTo`."""
    data = _checked_data(tensor, _WORDS[bits], _fit_shape(tensor, (length,)), itemsize=bits // 8)
    # astype copies, because masks are added in place and a buffer of bytes is read-only.
    if bits == 32:
        return np.frombuffer(data, "<u4").astype(np.uint32)
    return np.frombuffer(data, "<u8").astype(np.uint64)


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


def _fit_shape(tensor: pb.Tensor, form: tuple[Axis, ...]) -> tuple[int, ...]:
    """Return the form with the tensor's own lengths for axes of free length; raise for too large a length."""
    if len(tensor.shape) != len(form):
        raise Malformed(f"an array has {len(tensor.shape)} axes, not {len(form)}")
    for length, axis in zip(tensor.shape, form, strict=True):
        if isinstance(axis, UpTo) and length > axis.most:
            raise Malformed(f"an axis has length {length}; at most {axis.most} is allowed")
    return tuple(
        length if isinstance(axis, UpTo) else axis for length, axis in zip(tensor.shape, form, strict=True)
    )


def _checked_data(
    tensor: pb.Tensor, dtype: pb.DType.ValueType, shape: tuple[int, ...], itemsize: int
) -> bytes:
    """Return the bytes of a tensor that has this type and shape. Each read of ``tensor.data`` copies the bytes."""
    if tensor.dtype != dtype:
        raise Malformed(f"an array has dtype {tensor.dtype}, not {pb.DType.Name(dtype)}")
    if tuple(tensor.shape) != shape:
        raise Malformed(f"an array is not of shape {shape}")
    data, size = tensor.data, math.prod(shape) * itemsize
    if len(data) != size:
        raise Malformed(f"an array's data has {len(data)} bytes, not {size}")
    return data
