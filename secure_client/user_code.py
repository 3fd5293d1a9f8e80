"""Loader of a site's own code: ``module:function``, found on the path or in the current working directory."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import reprlib
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb
from typing import Any, TypeVar

from secure_client.error_containment import one_line
from secure_client.errors import DataLost, PluginError, SiteError

E = TypeVar("E", bound=SiteError)
_log = logging.getLogger("protoseal.site")


def load_function(spec: str, purpose: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names; ``purpose`` ("model", "dataset") appears in the errors.

    The current working directory becomes importable, after everything installed, so that a file there never replaces an
    installed module. Importing runs the module's code with the rights of this process: treat a configuration that names
    a module like a program.

    Raises :class:`PluginError` when the spec has another form, the import fails, or the module has no such callable.
    """
    module_name, separator, function_name = spec.partition(":")
    if not (separator and function_name.isidentifier() and _is_module_name(module_name)):
        as_module = _find_module(module_name)
        such_as = f"my_{purpose}:build" if as_module is None else f"{as_module}:{function_name or 'build'}"
        raise PluginError(f"{purpose} {spec!r} is not of the form module:function, such as {such_as}")
    # Last, so that a file with the name of an installed module cannot take its place.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # a module that calls sys.exit must not end this program without a word
        # The module itself, or a package that has it, is missing; not a module that it imports.
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            as_module = _find_module(module_name)
            if as_module is not None:
                raise PluginError(
                    f"{purpose} {spec!r}: a module has no .py in its name; write {as_module}:{function_name}"
                ) from error
            near = _suggest_name(module_name, (path.stem for path in Path.cwd().glob("*.py")))
            raise PluginError(
                f"{purpose} {spec!r}: there is no module {error.name!r}{near}; put"
                f" {str(error.name).replace('.', '/')}.py into {os.getcwd()} or install it"
            ) from error
        raise describe_failure(
            PluginError, f"{purpose} {spec!r}: importing {module_name!r}", error
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        place = getattr(module, "__file__", None) or "a package without a file"
        near = _suggest_name(function_name, (name for name, value in vars(module).items() if callable(value)))
        raise PluginError(
            f"{module_name!r} ({place}) has no function {function_name!r}{near}; define it there"
        )
    return function  # type: ignore[no-any-return]  # getattr cannot know


def call_function(function: Callable[..., Any], spec: str, **arguments: object) -> Any:
    """Call a site's function by keyword; :class:`PluginError` when it does not take these keywords, or raises."""
    try:
        inspect.signature(function).bind(**arguments)
    except (TypeError, ValueError) as error:  # ValueError for a function in C without a signature
        wanted = ", ".join(f"{name}=" for name in arguments)
        raise PluginError(f"{spec} does not accept the keyword arguments {wanted}: {error}") from error
    try:
        return function(**arguments)
    except BaseException as error:
        raise describe_failure(PluginError, spec, error) from error


def describe_failure(kind: type[E], what: str, error: BaseException) -> E:
    """Return a one-line error about an exception that a site's code raised in ``what``, for the caller to raise.

    The line has the exception's type and text, and the line of the site's code that raised it. The log has the
    traceback, at debug level. Errors of this program pass with their own text, also those that a site's code raises;
    Ctrl-C is raised again. Limit: a site's code that raises ``KeyboardInterrupt`` itself counts as Ctrl-C.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    _log.debug("%s: the error's origin", what, exc_info=error)
    if isinstance(error, SiteError):
        return kind(f"{what}: {error}")
    text = one_line(error)
    return kind(f"{what}: raised {type(error).__name__}{f' ({text})' if text else ''}{_find_origin(error)}")


@contextmanager
def describe_failures(kind: type[SiteError], what: str) -> Iterator[None]:
    """Raise ``kind`` in place of any exception of a site's code in the block; errors of this program pass.

    The door for code that reads a site's objects in many places, whose attributes, lengths and iterators may raise.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, SiteError) and not isinstance(error, DataLost):
            raise
        raise describe_failure(kind, what, error) from error


def describe_value(value: object) -> str:
    """Return what a value from a site's code is, in a few words."""
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    name = type(value).__name__
    kind = f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
    if value is None or isinstance(value, float | str):
        return reprlib.repr(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{kind} of shape {tuple(value.shape)} and dtype {value.dtype}"
    if isinstance(value, Mapping):
        return f"{kind} with {', '.join(map(str, value))}"
    return f"{kind} of {len(value)}" if isinstance(value, tuple | list) else kind


def _find_origin(error: BaseException) -> str:
    """Return the last line of code that is neither this program's, installed, nor Python's."""
    installed = (
        str(Path(__file__).parent),
        *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")),
    )
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(installed)]
    frames = [frame for frame in frames if Path(frame.filename).is_file()]
    return f", in line {frames[-1].lineno} of {frames[-1].filename}" if frames else ""


def _suggest_name(name: str, others: Iterable[str]) -> str:
    matches = get_close_matches(name, list(others), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def _find_module(path: str) -> str | None:
    """Return the module in the file ``path`` below the working directory; None if there is no such file."""
    name = path.removeprefix("./").removesuffix(".py").replace("/", ".")
    file = Path(name.replace(".", "/") + ".py")
    return name if name != path and _is_module_name(name) and file.is_file() else None


def _is_module_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
