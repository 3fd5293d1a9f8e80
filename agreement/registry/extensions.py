"""Methods and protections of other distributions: their entry points, look-up by name, and settings in an agreement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Generic, TypeAlias, TypeVar

from pydantic import SerializeAsAny, ValidationInfo
from pydantic_core import core_schema

from agreement.registry.methods import METHODS, Method
from agreement.registry.protections import PROTECTIONS, Protection
from agreement.toml_loading import ConfigError, Section, nearest, validate

Extension: TypeAlias = Method | Protection
"""Method or protection of a third party."""
ExtensionT = TypeVar("ExtensionT", Method, Protection)


@dataclass(frozen=True)
class Registry(Generic[ExtensionT]):
    """Group of entry points, whose objects are of one ``kind``; none of them may have a ``built_in`` name."""

    group: str
    kind: type[ExtensionT]
    built_in: Collection[str]

    def find(self, name: str) -> ExtensionT | None:
        """Return the object registered by that name, the same object each time; None if there is none.

        Raises ``ValueError``, naming distribution and entry point, for a name that two distributions register or that
        is built in, and for an entry point that cannot be imported, is of another kind, or has another name than its
        object.
        """
        if (self.group, name) not in _LOADED:
            point = self._find_point(name)
            if point is None:
                return None
            # Methods and protections are compared by identity, so the first load of a name stands for the process.
            _LOADED.setdefault((self.group, name), (self._load(point), _distribution(point)))
        extension, _ = _LOADED[self.group, name]
        if not isinstance(extension, self.kind):
            raise TypeError(f"{extension!r} is registered in the wrong group of entry points")
        return extension

    def names(self) -> list[str]:
        """Return all registered names, for messages; nothing is imported."""
        return sorted({point.name for point in entry_points(group=self.group)})

    def _find_point(self, name: str) -> EntryPoint | None:
        points = tuple(entry_points(group=self.group))
        # A distribution that shadows a built-in name is refused whatever is looked up: it may be in use elsewhere.
        for point in points:
            if point.name in self.built_in:
                raise ValueError(
                    f"{_describe(point)} registers the built-in name {point.name!r}: rename or uninstall that"
                    " extension"
                )
        named = [point for point in points if point.name == name]
        if len(named) > 1:
            raise ValueError(
                f"{name!r} is registered more than once, by {' and '.join(map(_describe, named))}: remove all but one"
            )
        return named[0] if named else None

    def _load(self, point: EntryPoint) -> ExtensionT:
        try:
            extension = point.load()
        except Exception as error:  # a third party's module may raise anything
            raise ValueError(
                f"{_describe(point)} cannot be loaded ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(extension, self.kind):
            raise ValueError(f"{_describe(point)} must be a {self.kind.__name__}, not {type(extension)}")
        if extension.name != point.name:
            raise ValueError(
                f"{_describe(point)} loads an object named {extension.name!r}: both names must be equal"
            )
        try:
            extension.check_complete()
        except ValueError as error:
            raise ValueError(f"{_describe(point)} cannot be used: {error}") from error
        return extension


_LOADED: dict[tuple[str, str], tuple[Extension, str]] = {}
"""Loaded objects and the distributions that register them, by group and name."""


def find_distribution(extension: Extension) -> str:
    """Return name and version of the distribution that registers the object; raise ``ValueError`` if none does."""
    for loaded, distribution in _LOADED.values():
        if loaded is extension:
            return distribution
    raise ValueError(
        f"no entry point registers {extension.name!r}: install the distribution that defines it"
        " (docs/how-to/extending.md)"
    )


def _distribution(point: EntryPoint) -> str:
    return "no distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _describe(point: EntryPoint) -> str:
    return f"{_distribution(point)}, entry point {point.name} = {point.value!r} of {point.group}"


_METHODS = Registry("protoseal.methods", Method, METHODS)
_PROTECTIONS = Registry("protoseal.protections", Protection, PROTECTIONS)


def method_named(name: str) -> Method:
    """Return the built-in method, or a third party's; raise ``ConfigError``."""
    try:
        return _method(name)
    except ValueError as error:
        raise ConfigError("method", [str(error)]) from error


def _method(value: object) -> Method:
    return _look_up(value, "method", _METHODS, METHODS)


def _protection(value: object) -> Protection:
    return _look_up(value, "protection", _PROTECTIONS, PROTECTIONS)


def _look_up(
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
    extension = registry.find(name)
    if extension is not None and value in (name, extension):
        return extension
    names = [*built_in, *registry.names()]
    if name not in names:
        raise ValueError(f"unknown {kind} {name!r}{nearest(name, names)}")
    # An object that only has the name of a registered one could do anything under that name.
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


ExtensionTables = dict[str, SerializeAsAny[Section]]
"""Settings of third parties' methods and protections, by their names."""


def used_so_far(info: ValidationInfo) -> list[Extension]:
    """Return the method and protection validated so far; errors in the others are reported elsewhere."""
    return [info.data[name] for name in ("method", "protection") if name in info.data]


def extensions_among(used: Iterable[Extension]) -> list[Extension]:
    """Return those that are not built in."""
    return [extension for extension in used if not extension.built_in]


def extension_settings(
    tables: Mapping[str, object], used: Iterable[Extension], source: str
) -> dict[str, Section]:
    """Return the settings of all third parties' objects among those ``used``, by name, with every default.

    A table is the content of a file, or settings that were read before. Raises ``ConfigError`` for settings that
    their owner refuses, ``ValueError`` for a table that belongs to no used object, or for one name of two objects.
    """
    extensions = _by_name(used)
    for name in tables:
        if name not in extensions:
            raise ValueError(
                f"no third-party method or protection {name!r} is in use{nearest(name, extensions)}"
            )
    return {
        name: _settings(extension, tables.get(name, {}), source) for name, extension in extensions.items()
    }


def extension_distributions(stated: Mapping[str, str], used: Iterable[Extension]) -> dict[str, str]:
    """Return name and version of the distribution of each third party's object among those ``used``, by its name.

    Raises ``ValueError`` where another distribution is ``stated``, or one for an object that is not used: parties
    with the same text then run the same distributions. The limit: a version is what a distribution says of itself.
    """
    installed = {name: find_distribution(extension) for name, extension in _by_name(used).items()}
    for name, agreed in stated.items():
        if name not in installed:
            raise ValueError(f"no third-party method or protection {name!r} is in use: remove the entry")
        if agreed != installed[name]:
            raise ValueError(
                f"the agreement has {name!r} of {agreed!r}, but {installed[name]!r} is installed: install the agreed"
                " version, or change the agreement"
            )
    return installed


def _by_name(used: Iterable[Extension]) -> dict[str, Extension]:
    """Return objects by name; raise ``ValueError`` if a method and a protection share one, and so their settings."""
    extensions: dict[str, Extension] = {}
    for extension in extensions_among(used):
        if extensions.setdefault(extension.name, extension) is not extension:
            raise ValueError(
                f"a method and a protection are both called {extension.name!r}: use only one of them"
            )
    return extensions


def _settings(extension: Extension, table: object, source: str) -> Section:
    if isinstance(table, extension.settings):
        return table
    if not isinstance(table, dict):
        raise ValueError(f"the settings of {extension.name!r} must be a table, [extension.{extension.name}]")
    return validate(
        extension.settings, table, source=f"{source}: extension.{extension.name}", directory=Path()
    )
