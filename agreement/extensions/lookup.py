"""Methods and protections by name, built in or registered by a third party."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic_core import core_schema

from agreement.extensions.entry_points import ExtensionT, Registry
from agreement.methods import METHODS, Method
from agreement.protections import PROTECTIONS, Protection
from agreement.toml_loading import ConfigError, nearest

_METHODS = Registry("protoseal.methods", Method, METHODS)
_PROTECTIONS = Registry("protoseal.protections", Protection, PROTECTIONS)


def method_named(name: str) -> Method:
    """Return the built-in method, or a third party's; raise ``ConfigError``."""
    try:
        return _method(name)
    except ValueError as error:
        raise ConfigError("method", [str(error)]) from error


def _method(value: object) -> Method:
    return _known(value, "method", _METHODS, METHODS)


def _protection(value: object) -> Protection:
    return _known(value, "protection", _PROTECTIONS, PROTECTIONS)


def _known(
    value: object, kind: str, registry: Registry[ExtensionT], built_in: Mapping[str, ExtensionT]
) -> ExtensionT:
    """Return the object of that name, built in or a third party's; raise ``ValueError`` if there is none."""
    if isinstance(value, str) and value in built_in:
        return built_in[value]
    if isinstance(value, registry.kind) and value.built_in:
        return value
    name = value.name if isinstance(value, registry.kind) else value
    if not isinstance(name, str):
        raise ValueError(f"the name of a {kind} must be text, not {value!r}")
    found = registry.find(name)
    if found is not None and value in (name, found):
        return found
    known = [*built_in, *registry.names()]
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}{nearest(name, known)}")
    raise ValueError(f"{kind} {name!r} is not the object registered under that name")


@dataclass(frozen=True)
class _ByName:
    """Field that is read from a name or from the object itself, and written as the name."""

    read: Callable[[object], object]

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> core_schema.CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(str, when_used="json")
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)


KnownMethod = Annotated[Method, _ByName(_method)]
KnownProtection = Annotated[Protection, _ByName(_protection)]
