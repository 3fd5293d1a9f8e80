"""Reference of the configuration files, from the models that validate them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from protoseal.config import Agreement, CoordinatorConfig, Section, SimulationConfig, SiteConfig
from scripts.documentation.text import escaped, from_docstring, table

Schema = Mapping[str, Any]

FILES: tuple[tuple[str, type[Section]], ...] = (
    ("The agreement", Agreement),
    ("The coordinator's file", CoordinatorConfig),
    ("A site's file", SiteConfig),
    ("A simulation's file", SimulationConfig),
)
SAMPLES = Path(__file__).parents[2] / "deploy" / "samples"
_HEAD = ("key", "type", "default", "meaning")
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_KINDS = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`"}


class _Lenient(GenerateJsonSchema):
    """Schemas in which a value that only code can check has no type."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:  # noqa: ARG002
        return {}


def configuration() -> str:
    """Return a section for each file, with a table for each of its TOML tables."""
    described: set[str] = set()
    return "\n\n".join(part for title, model in FILES for part in _file(title, model, described))


def _file(title: str, model: type[Section], described: set[str]) -> Iterator[str]:
    schema = model.model_json_schema(schema_generator=_Lenient)
    yield f"## {title}"
    yield from _section(schema, schema.get("$defs", {}), "", title, described)


def _section(schema: Schema, types: Schema, path: str, title: str, described: set[str]) -> Iterator[str]:
    if "description" in schema:
        yield from_docstring(schema["description"])
    plain, nested = [], []
    for key, field in schema["properties"].items():
        name, inner = _resolved(field, types)
        if "properties" in inner and key != "agreement":
            nested.append((f"{path}.{key}".lstrip("."), name, inner))
        plain.append(_row(key, field, types, required=key in schema.get("required", ()), path=path))
    yield table(_HEAD, plain)
    for below, name, inner in nested:
        if name not in described:
            described.add(name)
            yield f"### {title}: `[{below}]`"
            yield from _section(inner, types, below, title, described)


def _row(key: str, field: Schema, types: Schema, *, required: bool, path: str) -> tuple[str, str, str, str]:
    _, inner = _resolved(field, types)
    is_table = "properties" in inner
    default = "required" if required else "" if is_table else _value(field.get("default"))
    kind = "path of the agreement" if key == "agreement" else "table" if is_table else _type(field, types)
    meaning = field.get("description") or _comments().get((path, key), "")
    return f"`{key}`", kind, default, escaped(meaning)


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
        return f"list of {_type(inner.get('items', {}), types)}"
    if inner.get("type") == "object":
        return "table"
    kind = _KINDS.get(inner.get("type", ""), "text")
    bounds = [f"{sign} {inner[bound]:g}" for bound, sign in _BOUNDS.items() if bound in inner]
    return " ".join(["path" if inner.get("format") == "path" else kind, ", ".join(bounds)]).strip()


def _comments() -> dict[tuple[str, str], str]:
    """Return what the sample files say beside each key, by table and key; the first sample that says it counts."""
    found: dict[tuple[str, str], str] = {}
    for path in sorted(SAMPLES.glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        tomllib.loads(text)
        at, last = "", None
        for line in text.splitlines():
            if heading := re.match(r"\[([\w.]+)\]", line):
                at, last = heading[1], None
            elif entry := re.match(r"(\w+) = [^#]*?(?:\s# (.*))?$", line):
                last = (at, entry[1]) if entry[2] and (at, entry[1]) not in found else None
                if last:
                    found[last] = entry[2].strip()
            elif last and (more := re.match(r"\s{8,}# (.*)$", line)):
                found[last] += f" {more[1].strip()}"
            else:
                last = None
    return found
