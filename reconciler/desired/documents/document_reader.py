"""Reads the bytes of one file into typed documents.

Each document comes out as a value of its kind's type, with the hash of its execution fields, or
with the faults that refuse it. A fault has a path in the document; lines and columns are looked up
only for messages (:func:`problem`). Nothing here knows file or repository, so that equal bytes are
read once.
"""

import difflib
import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from reconciler.desired.documents import schema_errors, yaml_reader
from reconciler.desired.documents.faults import Fault
from reconciler.model import desired
from reconciler.model.documents import fields, kinds
from reconciler.model.protocol import decoders
from reconciler.model.values import found_values

#: What a job executes: these fields as written, and no others, make the hash of a run.
EXECUTION_FIELDS = (
    "groups",
    "command",
    "script",
    "environment",
    "count",
    "resources",
    "workingDirectory",
    "framework",
    "runtime",
    "image",
    "secrets",
    "array",
    "checkpoint",
    "pools",
    "nodeSelector",
    "min",
    "max",
    "tasksPerNode",
    "topology",
    "affinity",
    "tolerations",
    "placement",
    "exclusive",
    "volumes",
    "stage",
    "submitted",
    "modules",
    "arguments",
    "code",
)
#: Elements that are stopped while a run is alive: fields of its array that are not in the hash.
STOPPED = frozenset({"cancelled", "held"})
_HASH_CHARACTERS = 16
#: The most documents of a file whose faults are explained; of the others one is told, in short.
EXPLAINED_MAX = 50
#: The most faults of a file that are listed; the others are counted.
LISTED_MAX = 50
#: The rule of the problem that counts them.
MORE_FAULTS = "more-faults"
_encode = msgspec.json.Encoder(order="deterministic").encode


class Document(msgspec.Struct, frozen=True):
    """One document of a file.

    ``kind`` and ``name`` are empty if they cannot be read. ``part`` is None exactly if there are
    ``faults``. ``hash`` is set for jobs. ``places`` has that of each fault, of the first documents
    of a file that have some; of the others the line tells.
    """

    index: int
    line: int
    kind: str = ""
    name: str = ""
    part: fields.DocumentPart | None = None
    hash: str = ""
    faults: tuple[Fault, ...] = ()
    places: tuple[yaml_reader.LineColumn, ...] = ()

    @property
    def label(self) -> str:
        """``Kind/name`` as far as known."""
        return f"{self.kind}/{self.name}" if self.kind and self.name else self.kind

    @property
    def structural(self) -> bool:
        """True if it is, or was meant to be, an object that is not a job."""
        return bool(self.kind) and self.kind != "Job"

    @property
    def opaque(self) -> bool:
        """True if its kind or name is unknown."""
        return self.kind not in kinds.KINDS or not self.name


class File(msgspec.Struct, frozen=True):
    """The documents of one file; ``error`` if it cannot be read at all."""

    documents: tuple[Document, ...] = ()
    error: yaml_reader.YamlError | None = None

    @property
    def opaque(self) -> bool:
        """True if it may hold objects with unknown names."""
        return self.error is not None or any(document.opaque for document in self.documents)

    @property
    def count(self) -> int:
        """The number of its documents, as far as known."""
        return len(self.documents) if self.error is None else 1


def execution_hash(spec: dict[str, Any]) -> str:
    """Return the hash over the execution fields of a job's ``spec`` as written, before defaults.

    Of the folders of a submission their paths count: their numbers change with each boot, and a
    command that is submitted again there is the same work. Elements that are cancelled or held are
    stopped in the run that is alive.
    """
    written = {field: value for field in EXECUTION_FIELDS if (value := spec.get(field)) is not None}
    if isinstance(elements := written.get("array"), dict):
        written["array"] = {key: one for key, one in elements.items() if key not in STOPPED}
    if isinstance(place := written.get("submitted"), dict):
        folders = {name: one for name, one in place.items() if isinstance(one, dict)}
        written["submitted"] = {name: one.get("path") for name, one in folders.items()}
    return hashlib.sha256(_encode(written)).hexdigest()[:_HASH_CHARACTERS]


def read(data: bytes) -> File:
    """Read one file; faults in it are returned, never raised."""
    try:
        return of_nodes(yaml_reader.read_nodes(data))
    except yaml_reader.YamlError as error:
        return File(error=error)


def of_raw(raw: Sequence[yaml_reader.RawDocument]) -> File:
    """Return the documents of a file with these plain values, without places of faults."""
    return of_nodes([(item, None) for item in raw])


def of_nodes(found: Sequence[tuple[yaml_reader.RawDocument, Any]]) -> File:
    """Return the documents of a file with these plain values and nodes."""
    documents: list[Document] = []
    refused = 0
    for index, (item, node) in enumerate(found):
        explained = refused < EXPLAINED_MAX
        document = _document(index, item, explained=explained)
        if document.faults:
            refused += 1
            if explained and node is not None:
                document = _located(document, yaml_reader.located(node))
        documents.append(document)
    return File(tuple(documents))


def _located(document: Document, positions: yaml_reader.Positions) -> Document:
    """Return a document with the places of its faults."""
    places = tuple(positions.of(fault.path, key=fault.at_key) for fault in document.faults)
    return msgspec.structs.replace(document, places=places)


def sound(index: int, line: int, kind: str, digest: str, value: msgspec.Raw) -> Document:
    """Return a valid document that was read before, from its plain value in MessagePack."""
    part: Any = _UNPACK[kind](value)
    return Document(index, line, kind, part.metadata.name, part, digest)


def _document(index: int, raw: yaml_reader.RawDocument, *, explained: bool) -> Document:
    value = raw.value
    try:
        kind = value["kind"]
        part = _BUILT[kind](value)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        return _refused(index, raw, str(error), explained=explained)
    digest = execution_hash(value["spec"]) if kind == "Job" else ""
    return Document(index, raw.line, kind, value["metadata"]["name"], part, digest)


_BUILT = {
    kind: decoders.converter(part)
    for kind, part in kinds.KINDS.items()
    if kind not in kinds.KINDS_NOT_BUILT
}


_UNPACK = {
    kind: msgspec.msgpack.Decoder(part).decode
    for kind, part in kinds.KINDS.items()
    if kind not in kinds.KINDS_NOT_BUILT
}


def _refused(
    index: int, raw: yaml_reader.RawDocument, refusal: str, *, explained: bool
) -> Document:
    """Return the document with all its faults, or only the first one if it is not explained."""
    value = raw.value
    if not isinstance(value, dict):
        fault = Fault(
            "not-an-object",
            "a document must be a mapping with apiVersion, kind, metadata and spec",
            found=found_values.quote(value),
        )
        return Document(index, raw.line, faults=(fault,))
    kind, name = _identity(value)
    faults = _head_faults(value)
    if not faults:
        explain = schema_errors.faults if explained else schema_errors.first_fault
        faults = explain(kind, value, refusal)
    return Document(index, raw.line, kind, name, faults=tuple(faults))


def _identity(value: dict[str, Any]) -> tuple[str, str]:
    """Return kind and name as far as they can be read. An unknown kind counts as structure."""
    kind = value.get("kind")
    if not isinstance(kind, str) or not _is_muster(value):
        return "", ""
    if kind not in kinds.KINDS and _nearest_kind(kind) == "Job":
        return "", ""
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return kind, name if isinstance(name, str) else ""


def _is_muster(value: dict[str, Any]) -> bool:
    version = value.get("apiVersion")
    return isinstance(version, str) and version.startswith("muster/")


def _nearest_kind(kind: str) -> str | None:
    by_lower = {known.lower(): known for known in kinds.KINDS}
    nearest = difflib.get_close_matches(kind.lower(), by_lower, n=1)
    return by_lower[nearest[0]] if nearest else None


def _head_faults(value: dict[str, Any]) -> list[Fault]:
    """Return faults of ``apiVersion`` and ``kind``, before any schema can be chosen."""
    version = value.get("apiVersion")
    if not _is_muster(value):
        return [
            Fault(
                "not-muster",
                f"not an object of Muster: those begin with `apiVersion: {fields.API_VERSION}`; "
                "a folder that Muster reads holds nothing else",
                path=("apiVersion",) if "apiVersion" in value else (),
                found=found_values.quote(version) if "apiVersion" in value else "no apiVersion",
                expected=fields.API_VERSION,
            )
        ]
    if version != fields.API_VERSION:
        return [
            Fault(
                "api-version",
                "this version of the format is unknown",
                path=("apiVersion",),
                found=found_values.quote(version),
                expected=fields.API_VERSION,
            )
        ]
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in kinds.KINDS:
        nearest = _nearest_kind(kind) if isinstance(kind, str) else None
        hint = f"; did you mean {nearest}?" if nearest else ""
        return [
            Fault(
                "unknown-kind",
                f"unknown kind{hint}" if kind is not None else "`kind` is missing",
                path=("kind",) if "kind" in value else (),
                found=found_values.quote(kind) if kind is not None else "",
                expected="one of " + ", ".join(kinds.KINDS),
            )
        ]
    if kind in kinds.KINDS_NOT_BUILT:
        reason = kinds.KINDS_NOT_BUILT[kind]
        return [Fault("not-built", f"not built yet: {reason}; remove the object", path=("kind",))]
    return []


@functools.lru_cache(maxsize=64)
def _positions(data: bytes) -> Sequence[yaml_reader.Positions]:
    try:
        return yaml_reader.positions(data)
    except yaml_reader.YamlError:
        return ()


def has_place(document: Document, fault: Fault) -> bool:
    """Return True if the document itself knows the place of a fault, without its file."""
    return document.part is None and fault in document.faults


def problem(
    fault: Fault,
    *,
    data: bytes,
    path: str,
    document: Document,
    severity: Literal["error", "warning"] | None = None,
) -> desired.Problem:
    """Return a fault with its place.

    Of a valid document that takes a slow pass over ``data``, once a file.
    """
    place = yaml_reader.LineColumn(document.line, 1)
    if has_place(document, fault):
        place = dict(zip(document.faults, document.places, strict=False)).get(fault, place)
    else:
        places = _positions(data)
        if document.index < len(places):
            place = places[document.index].of(fault.path, key=fault.at_key)
    return desired.Problem(
        rule=fault.rule,
        severity=severity or fault.severity,
        path=path,
        message=fault.message,
        line=place.line,
        column=place.column,
        object=document.label,
        field=yaml_reader.dotted(fault.path),
        found=fault.found,
        expected=fault.expected,
    )


def problems(path: str, data: bytes, file: File) -> tuple[desired.Problem, ...]:
    """Return what refuses the file or its documents: at most ``LISTED_MAX``, then their number."""
    if file.error is not None:
        return (file_problem(path, file.error),)
    faults = [(document, fault) for document in file.documents for fault in document.faults]
    found = [
        problem(fault, data=data, path=path, document=document)
        for document, fault in faults[:LISTED_MAX]
    ]
    if len(faults) > LISTED_MAX:
        found.append(_uncounted(path, faults[LISTED_MAX:]))
    return tuple(found)


def _uncounted(path: str, faults: Sequence[tuple[Document, Fault]]) -> desired.Problem:
    """Return the number of faults that are not listed."""
    wrong = len({document.index for document, _ in faults})
    return desired.Problem(
        MORE_FAULTS,
        "error",
        path,
        f"and {len(faults)} more faults in {wrong} documents of this file. To fix: correct those "
        "that are listed and run `muster validate`, which then lists the next ones",
        line=faults[0][0].line,
        column=1,
    )


def file_problem(path: str, error: yaml_reader.YamlError) -> desired.Problem:
    """Return why a file cannot be read."""
    return desired.Problem(
        rule=error.rule,
        severity="error",
        path=path,
        message=error.message,
        line=error.line,
        column=error.column,
        found=error.found,
    )


def validate(path: str, data: bytes) -> tuple[desired.Problem, ...]:
    """Return the problems of one file by itself, without the rest of its repository."""
    return problems(path, data, read(data))


def structural(file: File) -> Iterable[Document]:
    """Return the documents of a file that are not jobs."""
    return (document for document in file.documents if document.structural)
