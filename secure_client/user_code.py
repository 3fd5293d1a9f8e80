"""Loader of a site's own code: ``module:function``, found on the path or in the current working directory."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from secure_client.errors import PluginError


def load_function(spec: str, purpose: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names; ``purpose`` ("model", "dataset") appears in the errors.

    The current working directory becomes importable, after everything installed, so that a file there never replaces an
    installed module. Importing runs the module's code with the rights of this process: treat a configuration that names
    a module like a program.

    Raises :class:`PluginError` when the spec has another form, the import fails, or the module has no such callable.
    """
    module_name, separator, function_name = spec.partition(":")
    if not (separator and function_name.isidentifier() and _is_module_name(module_name)):
        raise PluginError(
            f"{purpose} {spec!r} is not of the form module:function, such as my_{purpose}:build"
        )
    _make_working_directory_importable()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise PluginError(
            f"cannot import {module_name!r} for {purpose} {spec!r} ({type(error).__name__}: {error});"
            f" put {module_name}.py into {os.getcwd()} or install it"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        place = getattr(module, "__file__", None) or "a package without a file"
        raise PluginError(f"{module_name!r} ({place}) has no function {function_name!r}; define it there")
    return function  # type: ignore[no-any-return]  # getattr cannot know


def call_function(function: Callable[..., Any], spec: str, **arguments: object) -> Any:
    """Call a site's function by keyword; :class:`PluginError` when it does not take these keywords.

    Errors that the function itself raises pass through unchanged, with their traceback for the site.
    """
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        wanted = ", ".join(f"{name}=" for name in arguments)
        raise PluginError(f"{spec} does not accept the keyword arguments {wanted}: {error}") from error
    return function(**arguments)


def _is_module_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _make_working_directory_importable() -> None:
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.append(directory)
