"""Methods and protections by name, built in or registered by a third party."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated

from pydantic_core import core_schema

from agreement.extensions.entry_points import AddedT, Registry
from agreement.extensions.types import AddedMethod
from agreement.methods import Method
from agreement.protections import PROTECTIONS, Protection
from agreement.toml_loading import ConfigError, nearest

AnyMethod = Method | AddedMethod
"""Built-in or added method."""
_METHODS = Registry("protoseal.methods", AddedMethod, tuple(Method))
_PROTECTIONS = Registry("protoseal.protections", Protection, PROTECTIONS)


def method_named(name: str) -> AnyMethod:
    """Return the built-in method, or a third party's; raise ``ConfigError``."""
    try:
        return _method(name)
    except ValueError as error:
        raise ConfigError("method", [str(error)]) from error


def _method(value: object) -> AnyMethod:
    if isinstance(value, str) and value in tuple(Method):
        return Method(value)
    return _added(value, "method", _METHODS, tuple(Method))


def _protection(value: object) -> Protection:
    if isinstance(value, str) and value in PROTECTIONS:
        return PROTECTIONS[value]
    if isinstance(value, Protection) and value.built_in:
        return value
    return _added(value, "protection", _PROTECTIONS, PROTECTIONS)


def _added(value: object, kind: str, registry: Registry[AddedT], built_in: Collection[str]) -> AddedT:
    """Return the object that a third party registers by that name; raise ``ValueError`` if there is none."""
    name = value.name if isinstance(value, registry.kind) else value
    if not isinstance(name, str):
        raise ValueError(f"a {kind} is named by text, not {value!r}")
    found = registry.find(name)
    if found is not None and value in (name, found):
        return found
    known = [*map(str, built_in), *registry.names()]
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}{nearest(name, known)}")
    raise ValueError(f"{kind} {name!r} is not what is registered by that name")


@dataclass(frozen=True)
class _ByName:
    """Field that is read from a name or from the object itself, and written as the name."""

    read: Callable[[object], object]

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> core_schema.CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(str, when_used="json")
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)


KnownMethod = Annotated[AnyMethod, _ByName(_method)]
KnownProtection = Annotated[Protection, _ByName(_protection)]
