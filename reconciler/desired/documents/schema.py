"""JSON Schema (2020-12) of every kind, generated from the types.

The types in ``reconciler.model.documents`` come in; one schema a kind goes out, with title,
description, unit, default and example of each field. Features that are not built are in it and
refused with the reason. ``python -m reconciler.desired.documents.schema`` writes them to
``schemas/``.
"""

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from reconciler import package_data
from reconciler.model.documents import kinds
from reconciler.model.documents.fields import DocumentPart

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def _not_built(reason: str) -> Schema:
    return {"not": {}, "description": f"Not built yet: {reason}", "x-not-built": reason}


def _parts(part: type[DocumentPart]) -> dict[str, type[DocumentPart]]:
    """Return the types inside ``part``, itself included, by name."""
    found: dict[str, Any] = {}
    waiting: list[Any] = [msgspec.inspect.type_info(part)]
    while waiting:
        info = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls.__name__ in found:
                continue
            found[info.cls.__name__] = info.cls
            waiting.extend(field.type for field in info.fields)
        elif isinstance(info, msgspec.inspect.UnionType):
            waiting.extend(info.types)
        elif isinstance(info, msgspec.inspect.Metadata):
            waiting.append(info.type)
        elif isinstance(info, msgspec.inspect.ListType):
            waiting.append(info.item_type)
        elif isinstance(info, msgspec.inspect.DictType):
            waiting.append(info.value_type)
    return found


@functools.cache
def of_kind(kind: str) -> Schema:
    """Return the schema of one kind of ``kinds.KINDS``."""
    part = kinds.KINDS[kind]
    schema = msgspec.json.schema(part)
    definitions: Schema = schema["$defs"]
    for name, inner in _parts(part).items():
        properties = definitions[name]["properties"]
        for field, reason in inner.not_built.items():
            properties[field] = _not_built(reason)
    top = definitions.pop(part.__name__)
    head = top["properties"]["kind"]
    head["description"] = "Kind of the object."
    head["examples"] = [kind]
    schema = {"$schema": DIALECT, **top, "title": f"Muster {kind}", "$defs": definitions}
    if kind in kinds.KINDS_NOT_BUILT:
        reason = kinds.KINDS_NOT_BUILT[kind]
        schema["not"] = {}
        schema["x-not-built"] = reason
        schema["description"] = f"Not built yet: {reason}"
    return schema


def render(kind: str) -> str:
    """Return the text of the committed file of one kind."""
    return json.dumps(of_kind(kind), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def file_name(kind: str) -> str:
    """Return the name of the file of one kind: ``nodepool.json``."""
    return f"{kind.lower()}.json"


def of_any_kind() -> Schema:
    """Return the schema of a document of any kind, for editors."""
    return {
        "$schema": DIALECT,
        "title": "Muster",
        "description": "A document of any kind.",
        "type": "object",
        "required": ["apiVersion", "kind", "metadata"],
        "properties": {"kind": {"enum": list(kinds.KINDS)}},
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                "then": {"$ref": file_name(kind)},
            }
            for kind in kinds.KINDS
        ],
    }


#: The file that holds the schema of any kind.
ANY_KIND = "muster.json"


def render_any_kind() -> str:
    """Return the text of ``ANY_KIND``."""
    return json.dumps(of_any_kind(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write(folder: Path) -> list[Path]:
    """Write the schemas of all kinds and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in kinds.KINDS:
        path = folder / file_name(kind)
        path.write_text(render(kind), encoding="utf-8")
        written.append(path)
    written.append(folder / ANY_KIND)
    written[-1].write_text(render_any_kind(), encoding="utf-8")
    return written


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Write the JSON schemas of all kinds.")
    arguments.add_argument("folder", nargs="?", type=Path, default=package_data.schemas())
    for written_path in write(arguments.parse_args().folder):
        sys.stdout.write(f"{written_path}\n")
