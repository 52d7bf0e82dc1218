"""Edits YAML that people wrote and leaves everything else as they wrote it.

The text of a file and an edit come in; the new text comes out, or None if nothing is left. A scalar
is replaced in place, a field is inserted as one line, and everything else goes through ruamel.yaml,
which keeps comments. Each result is read again and compared: an edit does what it says or fails.
"""

import copy
import io
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import ruamel.yaml
import yaml
from ruamel.yaml.error import YAMLError
from ruamel.yaml.resolver import VersionedResolver

from reconciler.desired.documents import yaml_reader
from reconciler.desired.documents.yaml_reader import Path


class EditError(ValueError):
    """The edit cannot be made; the message says why and what to do."""


class _Removed:
    """Marker for a value that must be deleted."""

    def __repr__(self) -> str:
        return "REMOVED"


#: As a value: take the field away.
REMOVED = _Removed()

_SEPARATOR = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_OUTSIDE = re.compile(r"^(%|\.\.\.(\s|$))", re.MULTILINE)
_SAFE_TEXT = re.compile(r"^[A-Za-z0-9_/][A-Za-z0-9_./@+-]*$")
_LIST_BELOW_KEY = re.compile(r"^( *)[^\s#-][^\n]*:[ ]*\n( *)- ", re.MULTILINE)
_KEY_BELOW_KEY = re.compile(r"^( *)[^\s#-][^\n]*:[ ]*\n( +)[^\s#-]", re.MULTILINE)
_WIDTH = 4096


class _Chunk(msgspec.Struct, frozen=True):
    """One document of a file: the separator line above it, and its text."""

    head: str
    body: str

    @property
    def text(self) -> str:
        return self.head + self.body


def _split(text: str) -> list[_Chunk]:
    if _OUTSIDE.search(text):
        raise EditError("the file has YAML directives or `...` lines: edit it by hand")
    starts = [match.start() for match in _SEPARATOR.finditer(text)]
    if not starts or starts[0] > 0:
        starts.insert(0, 0)
    chunks = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        piece = text[start:end]
        head = "---" if _SEPARATOR.match(piece) else ""
        if head:
            line, newline, _ = piece.partition("\n")
            head = line + newline if line.strip() == "---" else head
        chunks.append(_Chunk(head, piece[len(head) :]))
    return chunks


def is_object(value: Any, kind: str, name: str) -> bool:
    """Return True if a document is this object of Muster; its ``spec`` may be anything."""
    if not isinstance(value, dict):
        return False
    version, metadata = value.get("apiVersion"), value.get("metadata")
    return (
        isinstance(version, str)
        and version.startswith("muster/")
        and value.get("kind") == kind
        and isinstance(metadata, dict)
        and metadata.get("name") == name
    )


def documents(text: str) -> list[Any]:
    """Return the values of the documents of a file.

    Raises:
        EditError: it is not YAML.
    """
    try:
        return [document.value for document in yaml_reader.read(text.encode())]
    except yaml_reader.YamlError as error:
        raise EditError(f"the file can't be read: {error}") from error


_MARK = "\ufeff"


def _plain(text: str) -> str:
    """Return a text without a byte order mark, with Unix line ends."""
    return text.removeprefix(_MARK).replace("\r\n", "\n")


def _as_it_was(before: str, after: str) -> str:
    """Return an edited plain text with the byte order mark and line ends of its original.

    New lines end like most others do.
    """
    mark = _MARK if before.startswith(_MARK) else ""
    windows, all_ends = before.count("\r\n"), before.count("\n")
    if not windows:
        return mark + after
    if windows == all_ends:
        return mark + after.replace("\n", "\r\n")
    old, new = before.removeprefix(_MARK).split("\n"), after.split("\n")
    ends = ["\r" if line.endswith("\r") else "" for line in old]
    usual = "\r" if 2 * windows > all_ends else ""
    at_most = min(len(old), len(new))
    same = [line.removesuffix("\r") for line in old]
    first = next((n for n in range(at_most) if same[n] != new[n]), at_most)
    behind = range(1, at_most - first + 1)
    last = next((n for n in behind if same[-n] != new[-n]), at_most - first + 1) - 1
    middle = [usual] * (len(new) - first - last)
    found = [*ends[:first], *middle, *ends[len(old) - last :]]
    found[-1] = ""  # nothing ends behind the last line end
    return mark + "\n".join(line + end for line, end in zip(new, found, strict=True))


def append_document(text: str, document: str) -> str:
    """Return the file with one more document at its end."""
    if not text.strip(_MARK + " \r\n\t"):
        return _appended("", document)
    return _as_it_was(text, _appended(_plain(text), _plain(document)))


def _appended(text: str, document: str) -> str:
    addition = document if document.endswith("\n") else document + "\n"
    if not text.strip():
        return addition
    whole = text if text.endswith("\n") else text + "\n"
    if not _SEPARATOR.match(addition):
        addition = "---\n" + addition
    before, made = documents(text), documents(whole + addition)
    if made[: len(before)] != before or len(made) != len(before) + 1:
        raise EditError("the document can't be put behind what stands in the file")
    return whole + addition


def remove_document(text: str, kind: str, name: str) -> str | None:
    """Return the file without one object; None if no document is left.

    Raises:
        EditError: it is not there, or the file cannot be read.
    """
    left = Sheet.read(text).without(kind, name)
    return None if left is None else left.text


def set_fields(text: str, kind: str, name: str, changes: Sequence[tuple[Path, Any]]) -> str:
    """Return the file with fields of one object set, or deleted if the value is ``REMOVED``.

    A list index equal to the length of the list appends to it.

    Raises:
        EditError: the object, or a field around the target, does not exist.
    """
    return Sheet.read(text).having(kind, name, changes).text


class Sheet(msgspec.Struct, frozen=True):
    """A file split into its documents, so that many edits of it parse each document once.

    YAML documents end at their separator. So an edit is right if the document that it touches, and
    the seam to the one above, read as expected.

    Attributes:
        text: the file.
        chunks: its documents as plain text.
        values: parsed values of ``chunks``; none for an empty one.
    """

    text: str
    chunks: tuple[_Chunk, ...]
    values: tuple[tuple[Any, ...], ...]

    @classmethod
    def read(cls, text: str) -> "Sheet":
        """Split a file.

        Raises:
            EditError: it cannot be read, or not document by document.
        """
        plain = _plain(text)
        whole, chunks = documents(plain), _split(plain)
        values = [whole] if len(chunks) == 1 else [documents(one.body) for one in chunks]
        if [value for each in values for value in each] != whole:
            raise EditError("its documents can't be told apart safely: edit the file by hand")
        return cls(text, tuple(chunks), tuple(map(tuple, values)))

    def find(self, kind: str, name: str) -> list[Any]:
        """Return the documents of one object, in order; do not change them."""
        return [one for each in self.values for one in each if is_object(one, kind, name)]

    def _at(self, kind: str, name: str) -> tuple[int, Any]:
        for index, each in enumerate(self.values):
            for value in each:
                if is_object(value, kind, name):
                    return index, value
        raise EditError(f"{kind}/{name} does not stand in this file")

    def without(self, kind: str, name: str) -> "Sheet | None":
        """Return the file without one object; None if no document is left.

        Raises:
            EditError: it is not there.
        """
        index, _ = self._at(kind, name)
        chunks = [*self.chunks[:index], *self.chunks[index + 1 :]]
        values = [*self.values[:index], *self.values[index + 1 :]]
        if index == 0 and chunks:
            chunks[0] = _Chunk("", chunks[0].body)
        if not any(values):
            return None
        return self._made(chunks, values, index)

    def having(self, kind: str, name: str, changes: Sequence[tuple[Path, Any]]) -> "Sheet":
        """Return the file with fields of one object set: see ``set_fields``.

        Raises:
            EditError: the object, or a field around the target, does not exist.
        """
        index, value = self._at(kind, name)
        body, chunks, values = self.chunks[index].body, [*self.chunks], [*self.values]
        for path, wanted in changes:
            expected = changed(value, path, wanted)
            if expected == value:
                continue
            body = _edited(body, value, path, wanted, expected)
            value = expected
        chunks[index], values[index] = _Chunk(chunks[index].head, body), (value,)
        return self._made(chunks, values, index)

    def _made(self, chunks: list[_Chunk], values: list[tuple[Any, ...]], index: int) -> "Sheet":
        """Return a file with another document at ``index``, or with the next one there."""
        near = slice(max(0, index - 1), index + 2)
        seam = "".join(chunk.text for chunk in chunks[near])
        is_alone = seam == chunks[index].body if index < len(chunks) else False
        wanted = [value for each in values[near] for value in each]
        if not is_alone and documents(seam) != wanted:  # of one that is, each step was read
            raise EditError("it can't be changed in this file safely: edit it by hand")
        plain = "".join(chunk.text for chunk in chunks)
        return Sheet(_as_it_was(self.text, plain), tuple(chunks), tuple(values))


def changed(value: Any, path: Path, wanted: Any) -> Any:
    """Return a copy of ``value`` with ``path`` set to ``wanted``; mappings on the way are created.

    Raises:
        EditError: something on the way is no mapping or list, or an index is out of range.
    """
    if not path:
        raise EditError("a field must be named")
    result = copy.deepcopy(value)
    current: Any = result
    for depth, step in enumerate(path[:-1]):
        following = path[depth + 1]
        if isinstance(current, dict) and isinstance(step, str) and current.get(step) is None:
            if wanted is REMOVED:
                return value
            current[step] = {} if isinstance(following, str) else []
        current = _step(current, step, path[: depth + 1])
    last = path[-1]
    if wanted is REMOVED:
        there = (isinstance(current, dict) and last in current) or (
            isinstance(current, list) and isinstance(last, int) and last < len(current)
        )
        if there:
            del current[last]
    elif isinstance(current, list) and last == len(current):
        current.append(wanted)
    else:
        if not (isinstance(current, dict) and isinstance(last, str)):
            _step(current, last, path)
        current[last] = wanted
    return result


def _step(current: Any, step: str | int, path: Path) -> Any:
    try:
        return current[step]
    except (KeyError, IndexError, TypeError):
        raise EditError(f"there is nothing at {yaml_reader.dotted(path)}") from None


def _edited(body: str, value: Any, path: Path, wanted: Any, expected: Any) -> str:
    for attempt in (_in_place, _by_line, _by_ruamel):
        result = attempt(body, value, path, wanted)
        if result is None:
            continue
        try:
            if documents(result) == [expected]:
                return result
        except EditError:
            continue
    raise EditError(f"{yaml_reader.dotted(path)} can't be changed safely: edit the file by hand")


def flow(value: Any) -> str:
    """Return a value in one line of YAML."""
    if isinstance(value, str):
        plain = _SAFE_TEXT.match(value) and isinstance(yaml_reader.scalar(value), str)
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(k)}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    return json.dumps(value)


def _node(body: str, path: Path) -> Any:
    """Return the node at ``path``, None if there is none."""
    node: Any = yaml.compose(body, Loader=yaml.CSafeLoader)
    for step in path:
        if isinstance(node, yaml.MappingNode):
            found = [item for key, item in node.value if key.value == step]
            node = found[0] if found else None
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step] if step < len(node.value) else None
        else:
            return None
    return node


def _stands(value: Any, path: Path) -> bool:
    """Return True if there is anything at ``path``, even null."""
    for step in path:
        there = (isinstance(value, dict) and step in value) or (
            isinstance(value, list) and isinstance(step, int) and step < len(value)
        )
        if not there:
            return False
        value = value[step]
    return True


def _in_place(body: str, value: Any, path: Path, wanted: Any) -> str | None:
    """Replace a scalar on one line by another."""
    if wanted is REMOVED or isinstance(wanted, dict | list | tuple) or not _stands(value, path):
        return None
    node = _node(body, path)
    if not isinstance(node, yaml.ScalarNode) or node.style in {"|", ">"}:
        return None
    start, end = node.start_mark, node.end_mark
    if start.line != end.line or start.column == end.column:
        return None
    lines = body.split("\n")
    line = lines[start.line]
    lines[start.line] = line[: start.column] + flow(wanted) + line[end.column :]
    return "\n".join(lines)


def _by_line(body: str, value: Any, path: Path, wanted: Any) -> str | None:
    """Insert a new field as one line, or at the end of a mapping in braces."""
    if wanted is REMOVED:
        return None
    depth = 0
    current = value
    while depth < len(path) and isinstance(current, dict) and current.get(path[depth]) is not None:
        current = current[path[depth]]
        depth += 1
    if depth == len(path) or not isinstance(current, dict) or path[depth] in current:
        return None
    parent = _node(body, path[:depth])
    if not isinstance(parent, yaml.MappingNode) or not parent.value:
        return None
    field: Any = wanted
    for step in reversed(path[depth + 1 :]):
        if isinstance(step, int) and step != 0:
            return None
        field = [field] if isinstance(step, int) else {step: field}
    lines = body.split("\n")
    if parent.flow_style:
        mark = parent.end_mark
        line = lines[mark.line]
        head, tail = line[: mark.column - 1].rstrip(), line[mark.column - 1 :]
        lines[mark.line] = f"{head}, {flow(path[depth])}: {flow(field)}{tail}"
        return "\n".join(lines)
    mark = parent.start_mark
    if lines[mark.line][: mark.column].strip():
        return None
    lines.insert(mark.line, f"{' ' * mark.column}{flow(path[depth])}: {flow(field)}")
    return "\n".join(lines)


class _Resolver(VersionedResolver):
    """A resolver that keeps timestamps as text, as everywhere in Muster."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a scalar."""
        tag = super().resolve(kind, value, implicit)
        return super().resolve(kind, "text", implicit) if str(tag).endswith("timestamp") else tag


def _by_ruamel(body: str, _value: Any, path: Path, wanted: Any) -> str | None:
    """Make any other edit; comments and the present indentation are kept."""
    writer = ruamel.yaml.YAML()
    writer.Resolver = _Resolver
    writer.preserve_quotes = True
    writer.width = _WIDTH
    lists = _LIST_BELOW_KEY.search(body)
    keys = _KEY_BELOW_KEY.search(body)
    offset = len(lists[2]) - len(lists[1]) if lists else 0
    writer.indent(
        mapping=len(keys[2]) - len(keys[1]) if keys else 2, sequence=offset + 2, offset=offset
    )
    try:
        loaded = writer.load(body)
        current = loaded
        for depth, step in enumerate(path[:-1]):
            if isinstance(current, dict) and current.get(step) is None:
                current[step] = {} if isinstance(path[depth + 1], str) else []
            current = current[step]
        if wanted is REMOVED:
            del current[path[-1]]
        elif isinstance(current, list) and path[-1] == len(current):
            current.append(wanted)
        else:
            current[path[-1]] = wanted
        stream = io.StringIO()
        writer.dump(loaded, stream)
    except (YAMLError, KeyError, IndexError, TypeError):
        return None
    return stream.getvalue()
