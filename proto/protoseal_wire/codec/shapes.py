"""Shapes: how values are written to the fields of a message, and how they are read back with their checks.

The codec is a table of shapes, such as ::

    shape(pb.Roster, Roster, statements=repeated("statements", STATEMENT))

from which one function writes a message and one reads it. A shape compares its names with the protobuf schema and with
the value's dataclass when it is built, on import: a field that is added to the schema alone raises ``TypeError``, so
that it can neither be dropped on sending nor accepted without a check.

Reading raises a :class:`~protoseal_wire.codec.errors.CodecError` that names the field and never repeats its content.
Writing checks nothing: the receiver does.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Sequence, Sized
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from crypto.pki.identity import NAME
from crypto.protection import PayloadShape
from protoseal_wire.codec.errors import Malformed, TooLarge
from protoseal_wire.codec.limits import HASH_BYTES, SIGNATURE_BYTES, Limits

W = TypeVar("W")
V = TypeVar("V")
M = TypeVar("M", bound=Message)
E = TypeVar("E", bound=IntEnum)

_SHORTEST_SIGNATURE = 8


@dataclass(frozen=True)
class Bounds:
    """Bounds that a field is read with: the sizes of the run, and the shape of the payload, empty if there is none."""

    limits: Limits
    payload: PayloadShape


@dataclass(frozen=True)
class Field(Generic[W, V]):
    """Field of a message: ``write`` returns a value as protobuf takes it, ``read`` the checked value.

    A field of a message must be present unless it is ``optional``, and then None stands for its absence.
    """

    write: Callable[[V], W]
    read: Callable[[W, Bounds], V]
    optional: bool = False


def shape(
    message: type[M],
    value: type[V],
    /,
    *,
    check: Callable[[V, Limits], None] = lambda *_: None,
    elsewhere: Collection[str] = (),
    **fields: Field[Any, Any],
) -> Field[M, V]:
    """Return the shape of a message whose fields are those of a dataclass.

    ``fields`` are read in their order; then ``check`` compares the fields with each other. ``elsewhere`` names fields
    of the message that other code reads and writes. Raises ``TypeError`` for other names than in schema and dataclass.
    """
    schema = message.DESCRIPTOR.fields_by_name
    check_names(message.DESCRIPTOR.name, schema, {*fields, *elsewhere})
    check_names(value.__name__, [field.name for field in dataclasses.fields(value)], fields)  # type: ignore[arg-type]
    required = [name for name in fields if schema[name].has_presence and not fields[name].optional]

    def write(whole: V) -> M:
        parts = {name: getattr(whole, name) for name in fields}
        return message(**{name: fields[name].write(part) for name, part in parts.items() if part is not None})

    def read(wire: M, bounds: Bounds) -> V:
        for name in required:
            _check_present(wire, name)
        parts = {
            name: None
            if field.optional and not wire.HasField(name)
            else field.read(getattr(wire, name), bounds)
            for name, field in fields.items()
        }
        whole = value(**parts)
        check(whole, bounds.limits)
        return whole

    return Field(write, read)


def sole(message: type[M], name: str, field: Field[Any, V]) -> Field[M, V]:
    """Return the shape of a message that carries the value of one field; its others may only be alternatives to it."""
    schema = message.DESCRIPTOR.fields_by_name
    oneof = schema[name].containing_oneof
    check_names(message.DESCRIPTOR.name, schema, [part.name for part in oneof.fields] if oneof else [name])

    def read(wire: M, bounds: Bounds) -> V:
        if schema[name].has_presence:
            _check_present(wire, name)
        return field.read(getattr(wire, name), bounds)

    return Field(lambda value: message(**{name: field.write(value)}), read)


def one_of(message: type[M], **alternatives: tuple[type, Field[Any, Any]]) -> Field[M, Any]:
    """Return the shape of a message that carries one of several values, told apart by their classes."""
    check_names(message.DESCRIPTOR.name, message.DESCRIPTOR.fields_by_name, alternatives)
    (oneof,) = message.DESCRIPTOR.oneofs_by_name
    names = {value: name for name, (value, _) in alternatives.items()}

    def write(value: object) -> M:
        name = names[type(value)]
        return message(**{name: alternatives[name][1].write(value)})

    def read(wire: M, bounds: Bounds) -> Any:
        name = wire.WhichOneof(oneof)
        if name is None:
            raise Malformed(f"a {message.DESCRIPTOR.name} is empty")
        return alternatives[name][1].read(getattr(wire, name), bounds)

    return Field(write, read)


def check_names(where: str, expected: Collection[str], names: Collection[str]) -> None:
    """Raise ``TypeError`` unless a table has exactly the expected names."""
    if set(names) != set(expected):
        wrong = sorted(set(names) ^ set(expected))
        raise TypeError(f"{where}: the codec's table and the schema or dataclass differ in {wrong}")


def _check_present(message: Message, name: str) -> None:
    if not message.HasField(name):
        raise Malformed(f"a {message.DESCRIPTOR.name} lacks its {name}")


def optional(field: Field[W, V]) -> Field[W, V]:
    """Return a field that may be absent."""
    return dataclasses.replace(field, optional=True)


def checked(field: Field[W, V], check: Callable[[V], None]) -> Field[W, V]:
    """Return a field whose value must pass one more check."""

    def read(wire: W, bounds: Bounds) -> V:
        value = field.read(wire, bounds)
        check(value)
        return value

    return Field(field.write, read)


def repeated(
    label: str,
    item: Field[Any, V],
    least: int = 1,
    most: Callable[[Limits], int] = lambda limits: limits.sites,
    check: Callable[[tuple[V, ...]], None] = lambda _: None,
) -> Field[Any, tuple[V, ...]]:
    """Return a field of ``least`` to ``most`` items, by default one for each site; ``check`` compares the items."""

    def read(wire: Sequence[Any], bounds: Bounds) -> tuple[V, ...]:
        check_count(label, wire, least, most(bounds.limits))
        values = tuple(item.read(part, bounds) for part in wire)
        check(values)
        return values

    return Field(lambda values: [item.write(value) for value in values], read)


def scalar(check: Callable[[Any], V], write: Callable[[V], Any] = lambda value: value) -> Field[Any, V]:
    """Return a field of a number, text or byte string; ``check`` returns the value or raises."""
    return Field(write, lambda wire, _: check(wire))


PLAIN: Field[Any, Any] = scalar(lambda value: value)
"""Field that the schema's type alone bounds."""


def matching(
    pattern: re.Pattern[str], refusal: str, write: Callable[[str], str] = lambda text: text
) -> Field[str, str]:
    """Return a field of a text that matches a pattern as a whole; ``refusal`` names the field and states the rule."""

    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise Malformed(refusal)
        return text

    return scalar(check, write)


def name(label: str) -> Field[str, str]:
    """Return a field of the name of a site or run; a name may become a part of a path."""
    return matching(NAME, f"{label} is not 1 to 63 of a-z, 0-9, '.' and '-', starting with a letter or digit")


def sorted_names(label: str, least: int = 1) -> Field[Any, tuple[str, ...]]:
    """Return a field of sites' names, ascending and distinct, so that a set of sites has one byte string."""
    return repeated(label, name(label), least, check=lambda names: check_ascending(label, names))


def exact(label: str, size: int = HASH_BYTES, *, or_empty: bool = False) -> Field[bytes, bytes]:
    """Return a field of ``size`` bytes, by default a SHA-256; with ``or_empty`` no bytes stand for no value."""

    def check(value: bytes) -> bytes:
        if len(value) != size and (value or not or_empty):
            raise Malformed(f"{label} has {len(value)} bytes, not {size}")
        return value

    return scalar(check)


def bounded(label: str, most: int, least: int = 1) -> Field[bytes, bytes]:
    """Return a field of ``least`` to ``most`` bytes; more are :class:`TooLarge`."""

    def check(value: bytes) -> bytes:
        if len(value) < least:
            raise Malformed(f"{label} is empty")
        if len(value) > most:
            raise TooLarge(f"{label} has {len(value)} bytes; at most {most} are allowed")
        return value

    return scalar(check)


def positive(label: str) -> Field[int, int]:
    """Return a field of a number that counts from 1; 0 would be a field that was not set."""

    def check(number: int) -> int:
        if number == 0:
            raise Malformed(f"{label} must be at least 1")
        return number

    return scalar(check)


def seconds(label: str, most: float = math.inf) -> Field[float, float]:
    """Return a field of finite seconds, 0 to ``most``."""

    def check(value: float) -> float:
        if not (math.isfinite(value) and 0 <= value <= most):
            raise Malformed(f"{label} is not a possible number of seconds")
        return value

    return scalar(check)


def member(label: str, enum: type[E]) -> Field[Any, E]:
    """Return a field of a member of an enumeration; proto3 also parses numbers that the schema does not have."""

    def check(number: int) -> E:
        try:
            return enum(number)
        except ValueError as error:
            raise Malformed(f"{label} {number} does not exist") from error

    return scalar(check, int)


def _check_signature(value: bytes) -> bytes:
    if not _SHORTEST_SIGNATURE <= len(value) <= SIGNATURE_BYTES:
        raise Malformed(f"a signature has {len(value)} bytes, not {_SHORTEST_SIGNATURE} to {SIGNATURE_BYTES}")
    return value


SIGNATURE = scalar(_check_signature)
"""ECDSA P-256 signature in DER, by its length alone: the receiver verifies it."""


def check_count(label: str, values: Sized, least: int, most: int) -> None:
    """Raise for too few or too many values."""
    if not least <= len(values) <= most:
        raise Malformed(f"there are {len(values)} {label}, not {least} to {most}")


def check_distinct(label: str, names: Sequence[str]) -> None:
    """Raise for a repeated name."""
    if len(set(names)) != len(names):
        raise Malformed(f"{label} are not distinct")


def check_ascending(label: str, names: Sequence[str]) -> None:
    """Raise unless the names are in ascending order and distinct."""
    if any(first >= second for first, second in pairwise(names)):
        raise Malformed(f"{label} are not sorted and distinct")
