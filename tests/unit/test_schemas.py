"""The committed schemas are those of the types, say what they should, and agree with msgspec."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest
import referencing
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from reconciler import package_data
from reconciler.desired.documents import document_reader, schema, schema_errors, yaml_reader
from reconciler.model.documents import kinds

BUILT = [kind for kind in kinds.KINDS if kind not in kinds.KINDS_NOT_BUILT]


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_committed_schema_is_current(kind: str) -> None:
    path = package_data.schemas() / schema.file_name(kind)
    assert path.read_text(encoding="utf-8") == schema.render(kind), (
        "run `python -m reconciler.desired.documents.schema` and commit what it writes"
    )


def test_nothing_else_is_committed() -> None:
    names = {path.name for path in package_data.schemas().glob("*.json")}
    assert names == {schema.ANY_KIND, *(schema.file_name(kind) for kind in kinds.KINDS)}


def test_the_schema_of_any_kind_is_current_and_chooses_by_kind() -> None:
    path = package_data.schemas() / schema.ANY_KIND
    assert path.read_text(encoding="utf-8") == schema.render_any_kind()
    jsonschema.Draft202012Validator.check_schema(schema.of_any_kind())
    registry: referencing.Registry[Any] = referencing.Registry().with_resources(
        (schema.file_name(kind), referencing.Resource.from_contents(schema.of_kind(kind)))
        for kind in kinds.KINDS
    )
    whole = jsonschema.Draft202012Validator(schema.of_any_kind(), registry=registry)
    queue = {"apiVersion": "muster/v1", "kind": "Queue", "metadata": {"name": "q"}, "spec": {}}
    assert whole.is_valid(queue)
    assert not whole.is_valid(queue | {"spec": {"command": ["a job's field"]}})
    assert not whole.is_valid(queue | {"kind": "Pool"})


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_schema_is_a_schema(kind: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema.of_kind(kind))


def objects(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    whole = schema.of_kind(kind)
    yield kind, whole
    yield from whole["$defs"].items()


def resolved(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    """A schema that can be used by itself."""
    return {**value, "$defs": schema.of_kind(kind)["$defs"]}


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_field_says_what_it_is(kind: str) -> None:
    for name, part in objects(kind):
        assert part["additionalProperties"] is False, name
        assert part["description"], name
        for field, value in part["properties"].items():
            where = f"{name}.{field}"
            assert value.get("description"), where
            if "x-not-built" in value:
                assert value["not"] == {}, where
                continue
            assert value.get("examples"), where
            assert ("default" in value) != (field in part["required"]), where
            text = json.dumps(value)
            quantity = "[0-9]+w" in text or "(k|M|G" in text or "[0-9]+m$" in text
            assert not quantity or value.get("x-unit"), where
            if kind not in kinds.KINDS_NOT_BUILT:
                for example in value["examples"]:
                    jsonschema.Draft202012Validator(resolved(kind, value)).validate(example)


def test_a_value_that_is_meant_to_come_is_refused_with_its_reason() -> None:
    text = "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: c}\nspec: {engine: %s}\n"
    (slurm,) = document_reader.validate("c.yaml", (text % "slurm").encode())
    assert slurm.rule == "not-built"
    assert slurm.text() == (
        "c.yaml:4:16: error: Cluster/c: spec.engine: not built yet: work runs on Muster's own "
        'agents alone; found "slurm"; expected agents'
    )
    (other,) = document_reader.validate("c.yaml", (text % "kubernetes").encode())
    assert other.rule == "wrong-value"


# --- agreement ------------------------------------------------------------------------------

TEXTS = st.sampled_from(
    [
        *["", "a", "team-a", "A b", "-x", "10", "5m", "1.5", "16Gi", "1h30m", "none", "default"],
        *["1-2", "gpu[1-4]", "afterOk", "SIGTERM", "torchrun", "virtual", "2027-01-31T06:00:00Z"],
        *["x" * 300, "a\n", "16Gi\n", "\u0661\u0662", "a/b", "../a", "a\x00b", "a@example.org"],
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 20_000),
    st.sampled_from([10**6, 10**7, -(10**7), 2**63, 2**64, 10**25]),
    st.sampled_from([0.0, 0.5, 1.0, 4.0, -1.0, 1e30]),
    TEXTS,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def from_schema(kind: str, part: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Mostly values that fit ``part``: its examples, defaults and everything below it."""
    if "$ref" in part:
        return from_schema(kind, schema.of_kind(kind)["$defs"][part["$ref"].split("/")[-1]])
    choices = [st.sampled_from(part["examples"])] if "examples" in part else []
    if "anyOf" in part:
        choices += [from_schema(kind, branch) for branch in part["anyOf"]]
    elif "enum" in part:
        choices.append(st.sampled_from(part["enum"]))
    elif part.get("type") == "object" and "properties" in part:
        fields = {
            name: from_schema(kind, inner)
            for name, inner in part["properties"].items()
            if "x-not-built" not in inner
        }
        required = {name: fields.pop(name) for name in part["required"]}
        choices = [st.fixed_dictionaries(required, optional=fields)]
    elif part.get("type") == "object":
        choices.append(st.dictionaries(TEXTS, TEXTS, max_size=2))
    elif part.get("type") == "array":
        choices.append(st.lists(from_schema(kind, part["items"]), max_size=2))
    else:
        choices.append(SCALARS)
    return st.one_of(choices)


DOCUMENTS = {kind: from_schema(kind, schema.of_kind(kind)) for kind in BUILT}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


@pytest.mark.parametrize("kind", BUILT)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_msgspec_and_jsonschema_agree(kind: str, data: st.DataObject) -> None:
    document = json.loads(json.dumps(data.draw(DOCUMENTS[kind])))
    if data.draw(st.booleans()):
        container, key = data.draw(st.sampled_from(list(places(document))))
        change = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if change == "replace":
            container[key] = data.draw(VALUES)
        elif change == "remove":
            del container[key]
        elif isinstance(container, dict):
            names = ["min", "gpuMemory", "runtime", "weight", "x", "priority"]
            container[data.draw(st.sampled_from(names))] = data.draw(VALUES)
    written = json.dumps(document)
    assume("\\u0000" not in written)  # no file with a NUL is read at all
    document = yaml_reader.read(written.encode())[0].value
    try:
        msgspec.convert(document, kinds.KINDS[kind])
        # msgspec does without the tag of a type that stands alone; reading needs it.
        accepted = "kind" in document
    except msgspec.ValidationError:
        accepted = False
    errors = [error.message for error in schema_errors.validator(kind).iter_errors(document)]
    assert accepted == (not errors), errors
