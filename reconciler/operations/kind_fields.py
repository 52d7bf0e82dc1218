"""Fields of a kind, a row each, from its schema: for the reference page and the terminal.

A schema comes in; path, type, default, meaning and example of its fields go out, as Markdown:
literal text is between backticks.
"""

import json
from collections.abc import Iterator

from reconciler.desired.documents import schema

#: What a quantity may look like, by the unit of its field.
QUANTITIES = {
    "duration": "duration",
    "bytes": "amount of memory",
    "CPUs": "number of CPUs",
}


def schema_of(kind: str) -> schema.Schema:
    """Return the JSON Schema of a kind."""
    return schema.of_kind(kind)


def rows_of(whole: schema.Schema) -> list[tuple[str, ...]]:
    """Return the rows of all fields of a kind: of its metadata, then of its spec."""
    spec = below_of(whole, whole["properties"]["spec"])
    return [
        *rows(whole, whole["$defs"]["Metadata"], "metadata."),
        *(rows(whole, spec, "spec.") if spec is not None else ()),
    ]


def rows(whole: schema.Schema, part: schema.Schema, path: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for each field below ``part``: five cells, or two if it is not built."""
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
    """Return the types of a field, except null."""
    return [one for one in field.get("anyOf", [field]) if one.get("type") != "null"]


def _is_list(field: schema.Schema) -> bool:
    return any(one.get("type") == "array" for one in _branches(field))


def below_of(whole: schema.Schema, field: schema.Schema) -> schema.Schema | None:
    """Return the object in a field, or in each item of it."""
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
    unit, branches = field.get("x-unit"), _branches(field)
    if unit == "GPUs":
        return "number of GPUs" if _takes_fractions(branches) else "whole number"
    if unit in QUANTITIES:
        none = any("none" in one.get("pattern", "") for one in branches)
        return QUANTITIES[unit] + (" or `none`" if none else "")
    not_built_text = "; ".join(
        f"`{one}`: {why}" for one, why in field.get("x-not-built-values", {}).items()
    )
    return _names(whole, branches) + (
        f" (not built yet: {not_built_text})" if not_built_text else ""
    )


def _takes_fractions(branches: list[schema.Schema]) -> bool:
    return any(one.get("type") == "number" for one in branches)


def _names(whole: schema.Schema, branches: list[schema.Schema], *, many: bool = False) -> str:
    """Return the types of one value, or of each of ``many``; a number may be a whole one
    as well.
    """
    if _takes_fractions(branches):
        branches = [one for one in branches if one.get("type") != "integer"]
    return " or ".join(dict.fromkeys(_name(whole, one, many=many) for one in branches))


def _name(whole: schema.Schema, one: schema.Schema, *, many: bool = False) -> str:
    if "enum" in one:
        return ", ".join(f"`{value}`" for value in one["enum"])
    plural = "s" if many else ""
    kind = "object" if "$ref" in one else one.get("type", "")
    if kind == "array":
        return f"list{plural} of {_names(whole, _branches(one['items']), many=True)}"
    if kind == "object":
        values = one.get("additionalProperties")
        told = _names(whole, _branches(values), many=True) if isinstance(values, dict) else ""
        return f"mapping{plural}" + (f" of {told}" if told else "")
    if kind in {"integer", "number"}:
        return ("whole number" if kind == "integer" else "number") + plural + _bounds(one)
    return "`true`, `false`" if kind == "boolean" else f"{kind}{plural}" if kind else ""


def _bounds(one: schema.Schema) -> str:
    low, high, above = (one.get(key) for key in ("minimum", "maximum", "exclusiveMinimum"))
    if above is not None:
        return f" above {above:.0f}" + (f", at most {high:.0f}" if high is not None else "")
    if low is None:
        return ""
    return f", {low:.0f} to {high:.0f}" if high is not None else f" from {low:.0f}"


def cell(text: str) -> str:
    """Return a text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")
