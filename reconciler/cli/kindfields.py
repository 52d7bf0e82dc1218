"""The fields of a kind, a row each, made from its schema: for the reference page and the terminal.

A schema comes in; its fields with their path, what they may be, their default, meaning and example
go out, in the words of Markdown: what is to be written as it stands is between backticks.
"""

import json
from collections.abc import Iterator

from reconciler.desired import schema

#: What a quantity may look like, by the unit of its field.
QUANTITIES = {
    "duration": "duration",
    "bytes": "amount of memory",
    "CPUs": "number of CPUs",
    "GPUs": "whole number",
}


def rows(whole: schema.Schema, part: schema.Schema, path: str) -> Iterator[tuple[str, ...]]:
    """A row for each field below ``part``: five cells, or two where it is not built."""
    for name, field in part["properties"].items():
        where = f"{path}{name}"
        if "x-not-built" in field:
            yield f"`{where}`", field["x-not-built"]
            continue
        required = name in part["required"]
        below = below_of(whole, field)
        yield (
            f"`{where}`",
            cell(_type(whole, field)),
            "required" if required else _default(field, below),
            cell(field["description"]),
            f"`{cell(json.dumps(field['examples'][0], ensure_ascii=False))}`",
        )
        if below is not None:
            item = "[]." if _is_list(field) else "."
            yield from rows(whole, below, f"{where}{item}")


def _branches(field: schema.Schema) -> list[schema.Schema]:
    """What a field may be, but null."""
    return [one for one in field.get("anyOf", [field]) if one.get("type") != "null"]


def _is_list(field: schema.Schema) -> bool:
    return any(one.get("type") == "array" for one in _branches(field))


def below_of(whole: schema.Schema, field: schema.Schema) -> schema.Schema | None:
    """The object that stands in a field, or in each item of it."""
    for one in _branches(field):
        inner = one.get("items", one)
        if "$ref" in inner:
            found: schema.Schema = whole["$defs"][inner["$ref"].rsplit("/", 1)[-1]]
            return found
    return None


def _default(field: schema.Schema, below: schema.Schema | None) -> str:
    value = field.get("default")
    if value is None:
        return "—"
    if below is not None and not _is_list(field):
        return "as below"
    return f"`{json.dumps(value)}`"


def _type(whole: schema.Schema, field: schema.Schema) -> str:
    unit = field.get("x-unit")
    if unit in QUANTITIES:
        none = any("none" in one.get("pattern", "") for one in _branches(field))
        return QUANTITIES[unit] + (" or `none`" if none else "")
    return " or ".join(dict.fromkeys(_name(whole, one) for one in _branches(field)))


def _name(whole: schema.Schema, one: schema.Schema) -> str:
    if "enum" in one:
        return ", ".join(f"`{value}`" for value in one["enum"])
    if "$ref" in one:
        return "mapping"
    kind = one["type"]
    if kind == "array":
        return f"list of {_name(whole, one['items'])}s"
    if kind == "object":
        return "mapping of strings"
    if kind == "integer":
        low, high = one.get("minimum"), one.get("maximum")
        if low is None:
            return "whole number"
        return f"whole number, {low} to {high}" if high is not None else f"whole number from {low}"
    return "`true`, `false`" if kind == "boolean" else str(kind)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
