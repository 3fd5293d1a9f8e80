"""Reference of the configuration files, from the models that validate them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from agreement import Agreement, Method, Protection, Section
from protoseal.simulation.config import SimulationConfig
from scripts.documentation.reference import escaped, from_docstring, table
from secure_client.config import SiteConfig
from secure_server.config import CoordinatorConfig

Schema = Mapping[str, Any]

FILES: tuple[tuple[str, type[Section]], ...] = (
    ("The agreement", Agreement),
    ("The coordinator's file", CoordinatorConfig),
    ("A site's file", SiteConfig),
    ("A simulation's file", SimulationConfig),
)
_HEAD = ("key", "type", "default", "meaning")
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_KINDS = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`"}


class _Lenient(GenerateJsonSchema):
    """Schemas in which a value that only code can check has no type, and a protection is its name."""

    def encode_default(self, dft: Any) -> Any:
        return str(dft) if isinstance(dft, Method | Protection) else super().encode_default(dft)

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:  # noqa: ARG002
        return {}


def configuration() -> str:
    """Return a section for each file, with a table for each of its TOML tables."""
    described: set[str] = set()
    return "\n\n".join(part for title, model in FILES for part in _file(title, model, described))


def _file(title: str, model: type[Section], described: set[str]) -> Iterator[str]:
    schema = model.model_json_schema(schema_generator=_Lenient)
    yield f"## {title}"
    yield from _section(model.__name__, schema, schema.get("$defs", {}), "", title, described)


def _section(
    name: str, schema: Schema, types: Schema, path: str, title: str, described: set[str]
) -> Iterator[str]:
    meanings = dict(_meanings(_models()[name]))
    if "description" in schema:
        yield from_docstring(schema["description"])
    plain, nested = [], []
    for key, field in schema["properties"].items():
        of, inner = _resolved(field, types)
        opening = "["
        if "$ref" in inner.get("items", {}):
            (of, inner), opening = _resolved(inner["items"], types), "[["
        if "properties" in inner and key != "agreement":
            nested.append((f"{path}.{key}".lstrip("."), opening, of, inner))
        kind, default = _type_and_default(key, field, types, required=key in schema.get("required", ()))
        plain.append((f"`{key}`", kind, default, escaped(meanings[key])))
    yield table(_HEAD, plain)
    for below, opening, of, inner in nested:
        if of not in described:
            described.add(of)
            yield f"### {title}: `{opening}{below}{opening.replace('[', ']')}`"
            yield from _section(of, inner, types, below, title, described)


def _type_and_default(key: str, field: Schema, types: Schema, *, required: bool) -> tuple[str, str]:
    _, inner = _resolved(field, types)
    is_table = "properties" in inner
    default = "required" if required else "" if is_table else _value(field.get("default"))
    kind = "path of the agreement" if key == "agreement" else "table" if is_table else _type(field, types)
    return kind, default


def _models() -> dict[str, type[Section]]:
    """Return every model of a table by its name."""
    found: dict[str, type[Section]] = {}
    todo: list[type[Section]] = [Section]
    while todo:
        todo += (below := todo.pop().__subclasses__())
        found |= {kind.__name__: kind for kind in below}
    return found


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return (
        f"`{value:g}`" if isinstance(value, float) else f"`{value}`" if value not in ([], {}, "") else "empty"
    )


def _resolved(field: Schema, types: Schema) -> tuple[str, Schema]:
    """Return the name and the schema that a reference leads to, through an optional one."""
    options = [each for each in field.get("anyOf", (field,)) if each.get("type") != "null"]
    reference = str(options[0].get("$ref", "")).rpartition("/")[2]
    return reference, types[reference] if reference else options[0]


def _type(field: Schema, types: Schema) -> str:
    _, inner = _resolved(field, types)
    if "enum" in inner:
        return ", ".join(f"`{value}`" for value in inner["enum"])
    if inner.get("type") == "array":
        items = inner.get("items") or inner.get("prefixItems", [{}])[0]
        return f"list of {_type(items, types)}"
    if inner.get("type") == "object":
        return "table"
    kind = _KINDS.get(inner.get("type", ""), "text")
    bounds = [f"{sign} {_number(inner[bound])}" for bound, sign in _BOUNDS.items() if bound in inner]
    return " ".join(["path" if inner.get("format") == "path" else kind, ", ".join(bounds)]).strip()


def _number(value: float) -> str:
    """Return a bound; a large power of two as a power."""
    whole = int(value)
    return (
        f"2^{whole.bit_length() - 1}"
        if whole > 10_000 and whole.bit_count() == 1
        else f"{value:,g}"
        if value < 1
        else f"{value:,}"
    )


def _meanings(model: type[Section]) -> Iterator[tuple[str, str]]:
    """Yield the docstring below each field of a model and of those that it extends, by the key in TOML."""
    for kind in reversed(model.__mro__):
        if issubclass(kind, Section) and kind is not Section:
            tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
            (body,) = (each.body for each in tree.body if isinstance(each, ast.ClassDef))
            for field, below in pairwise(body):
                if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                    name, text = ast.unparse(field.target), ast.literal_eval(below.value)
                    if name in kind.model_fields:  # a constant is no setting
                        yield kind.model_fields[name].alias or name, " ".join(text.split())
