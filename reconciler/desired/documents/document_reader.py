"""Bytes of one file to typed documents: what every revision is made of.

Each document comes out either as a value of its kind's type, with the hash of what it executes,
or with the faults that refuse it. A fault says where in the document it is by path; lines and
columns are looked up only when somebody is told (:func:`problem`). Nothing here knows in which
file or repository the bytes stand, so that equal bytes are read once.
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
    "topology",
    "affinity",
    "tolerations",
    "placement",
    "exclusive",
    "volumes",
    "stage",
)
_HASH_CHARACTERS = 16
_encode = msgspec.json.Encoder(order="deterministic").encode


class Document(msgspec.Struct, frozen=True):
    """One document of a file.

    ``kind`` and ``name`` are empty where they can't be read. ``part`` is None exactly when there
    are ``faults``. ``hash`` is set for jobs.
    """

    index: int
    line: int
    kind: str = ""
    name: str = ""
    part: fields.DocumentPart | None = None
    hash: str = ""
    faults: tuple[Fault, ...] = ()

    @property
    def label(self) -> str:
        """``Kind/name`` as far as known."""
        return f"{self.kind}/{self.name}" if self.kind and self.name else self.kind

    @property
    def structural(self) -> bool:
        """Whether it is, or was meant as, an object of Muster that is no job."""
        return bool(self.kind) and self.kind != "Job"

    @property
    def opaque(self) -> bool:
        """Whether it can't be told which object it is."""
        return self.kind not in kinds.KINDS or not self.name


class File(msgspec.Struct, frozen=True):
    """What one file holds; ``error`` where it can't be read at all."""

    documents: tuple[Document, ...] = ()
    error: yaml_reader.YamlError | None = None

    @property
    def opaque(self) -> bool:
        """Whether it may hold objects that nobody can name."""
        return self.error is not None or any(document.opaque for document in self.documents)

    @property
    def count(self) -> int:
        """How many documents stand in it, as far as anyone can tell."""
        return len(self.documents) if self.error is None else 1


def execution_hash(spec: dict[str, Any]) -> str:
    """The hash over the execution fields of a job's ``spec`` as written, before any default."""
    written = {field: value for field in EXECUTION_FIELDS if (value := spec.get(field)) is not None}
    return hashlib.sha256(_encode(written)).hexdigest()[:_HASH_CHARACTERS]


def read(data: bytes) -> File:
    """Read one file; never raises for what stands in it."""
    try:
        raw = yaml_reader.read(data)
    except yaml_reader.YamlError as error:
        return File(error=error)
    return of_raw(raw)


def of_raw(raw: Sequence[yaml_reader.RawDocument]) -> File:
    """What a file holds whose plain values these are."""
    return File(tuple([_document(index, item) for index, item in enumerate(raw)]))


def sound(index: int, line: int, kind: str, digest: str, value: msgspec.Raw) -> Document:
    """A document that was read before without any fault, from its plain value in MessagePack."""
    part: Any = _UNPACK[kind](value)
    return Document(index, line, kind, part.metadata.name, part, digest)


def _document(index: int, raw: yaml_reader.RawDocument) -> Document:
    value = raw.value
    try:
        kind = value["kind"]
        part = _BUILT[kind](value)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        return _refused(index, raw, str(error))
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


def _refused(index: int, raw: yaml_reader.RawDocument, refusal: str) -> Document:
    """The document with everything that is wrong with it."""
    value = raw.value
    if not isinstance(value, dict):
        fault = Fault(
            "not-an-object",
            "a document must be a mapping with apiVersion, kind, metadata and spec",
            found=schema_errors.shown(value),
        )
        return Document(index, raw.line, faults=(fault,))
    kind, name = _identity(value)
    faults = _head_faults(value)
    if not faults:
        faults = schema_errors.faults(kind, value, refusal)
    return Document(index, raw.line, kind, name, faults=tuple(faults))


def _identity(value: dict[str, Any]) -> tuple[str, str]:
    """Kind and name as far as they can be read. A kind that nobody knows counts as structure."""
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
    """What is wrong with ``apiVersion`` and ``kind``, before any schema can be chosen."""
    version = value.get("apiVersion")
    if not _is_muster(value):
        return [
            Fault(
                "not-muster",
                f"not an object of Muster: those begin with `apiVersion: {fields.API_VERSION}`; "
                "a folder that Muster reads holds nothing else",
                path=("apiVersion",) if "apiVersion" in value else (),
                found=schema_errors.shown(version) if "apiVersion" in value else "no apiVersion",
                expected=fields.API_VERSION,
            )
        ]
    if version != fields.API_VERSION:
        return [
            Fault(
                "api-version",
                "this version of the format is not known here",
                path=("apiVersion",),
                found=schema_errors.shown(version),
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
                f"there is no such kind{hint}" if kind is not None else "`kind` is missing",
                path=("kind",) if "kind" in value else (),
                found=schema_errors.shown(kind) if kind is not None else "",
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


def problem(
    fault: Fault,
    *,
    data: bytes,
    path: str,
    document: Document,
    severity: Literal["error", "warning"] | None = None,
) -> desired.Problem:
    """A fault with its place: the slow pass over ``data``, once a file."""
    places = _positions(data)
    place = yaml_reader.LineColumn(document.line, 1)
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
    """Everything that refuses the file or one of its documents."""
    if file.error is not None:
        return (file_problem(path, file.error),)
    return tuple(
        problem(fault, data=data, path=path, document=document)
        for document in file.documents
        for fault in document.faults
    )


def file_problem(path: str, error: yaml_reader.YamlError) -> desired.Problem:
    """Why a file can't be read."""
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
    """What is wrong with one file by itself, without the rest of its repository."""
    return problems(path, data, read(data))


def structural(file: File) -> Iterable[Document]:
    """The documents of a file that are not jobs."""
    return (document for document in file.documents if document.structural)
