"""Reads YAML into plain Python values, fast and with bounds.

Bytes of one file come in; values of its documents go out, made of ``dict``, ``list``, ``str``,
``int``, ``float``, ``bool`` and ``None`` only. PyYAML's C parser composes nodes; its slow
constructor is never run. Scalars follow YAML 1.2's core schema as far as JSON has them (``yes`` and
``0644`` are text). Tags, merge keys, keys that are not text, duplicate keys, and huge or deep files
are refused.
"""

import itertools
import operator
import re
from typing import Any, NoReturn

import msgspec
import yaml
from yaml import _yaml

from reconciler.model.values import found_values
from reconciler.model.values.text_lines import split_lines

#: A file with more bytes is refused before it is parsed.
FILE_BYTES_MAX = 4 * 2**20
#: The most documents of one file, counted before it is parsed.
FILE_DOCUMENTS_MAX = 5_000
#: The most text that a file comes to, once for each alias of it.
TEXT_CHARACTERS_MAX = 2 * FILE_BYTES_MAX
#: The most nodes of one file, aliases expanded.
NODES_MAX = 250_000
#: The deepest nesting of one document.
DEPTH_MAX = 64
#: The C parser composes nodes recursively; nesting up to here can't exhaust any stack.
SAFE_DEPTH = 5_000
#: The longest number that is read as one; longer ones stay text.
NUMBER_CHARACTERS_MAX = 40

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: Where a tag could begin. Text of a script may match, too: then the events say.
_MAYBE_TAG = re.compile(rb"(?:^|[\s\[{,:?-])!")
#: A line that begins or ends a document. Nothing else may begin a line like this, not even text.
_MARKER = re.compile(rb"(?:\A|[\r\n]|\xc2\x85|\xe2\x80[\xa8\xa9])(?:---|\.\.\.)(?=\s|\Z|\xc2|\xe2)")
#: How git begins, divides and ends two versions of a text.
_CONFLICT = re.compile(rb"^(?:<{7} |={7}$|>{7} )", re.MULTILINE)
#: How a NUL may be written: as an escape between double quotes.
_MAYBE_NUL = re.compile(rb"\\(?:0|x00|u0000|U00000000)")
_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_FIRST_OF_NUMBER = frozenset("0123456789+-.")
#: What a plain scalar that is no text may begin with.
_SPECIAL_FIRST = _FIRST_OF_NUMBER | frozenset("~nNtTfF") | {""}
_INTEGER = re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$")
_FLOAT = re.compile(r"^[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")
_INFINITE = (float("inf"), float("-inf"))

#: Compared by identity; ``Any`` because the tag of a node is not what PyYAML declares.
_SCALAR: Any = yaml.ScalarNode

Path = tuple[str | int, ...]


class YamlError(ValueError):
    """A file that cannot be read. ``line`` and ``column`` count from 1, and are 0 for the file as a
    whole. What stands in the file is quoted by ``found`` alone: not everybody may see it.
    """

    def __init__(
        self, rule: str, message: str, *, line: int = 0, column: int = 0, found: str = ""
    ) -> None:
        self.rule = rule
        self.message = message
        self.line = line
        self.column = column
        self.found = found
        super().__init__(f"{line}:{column}: {message}" if line else message)


class RawDocument(msgspec.Struct, frozen=True):
    """One document: its value and the line on which it begins."""

    value: Any
    line: int


class LineColumn(msgspec.Struct, frozen=True):
    """Line and column from 1."""

    line: int
    column: int


class Positions(msgspec.Struct, frozen=True):
    """Places of the values and keys of one document, by path."""

    values: dict[Path, LineColumn]
    keys: dict[Path, LineColumn]

    def of(self, path: Path, *, key: bool = False) -> LineColumn:
        """Return the place of ``path``, or of the nearest ancestor that has one."""
        if key and path in self.keys:
            return self.keys[path]
        for length in range(len(path), -1, -1):
            if path[:length] in self.values:
                return self.values[path[:length]]
        return LineColumn(0, 0)


def _refuse(rule: str, message: str, mark: Any = None, found: str = "") -> NoReturn:
    if mark is None:
        raise YamlError(rule, message, found=found)
    raise YamlError(rule, message, line=mark.line + 1, column=mark.column + 1, found=found)


def scalar(text: str) -> Any:
    """Return the value of a plain scalar."""
    first = text[:1]
    if first in _FIRST_OF_NUMBER:
        if len(text) <= NUMBER_CHARACTERS_MAX:
            if _INTEGER.match(text):
                return int(text)
            if _FLOAT.match(text):
                number = float(text)
                if number in _INFINITE:
                    return text
                # JSON Schema calls 4.0 an integer; so that all agree it is one here.
                return int(number) if number.is_integer() else number
        return text
    return _WORDS.get(text, text)


class _Parser(_yaml.CParser):
    """A parser whose nodes keep in ``tag`` what the event said: ``.step[0]`` is true when plain.

    It calls these three around every node. Functions of the interpreter itself cost a fraction of
    any written here, and ``slice`` is one that keeps three values.
    """

    resolve = staticmethod(slice)
    descend_resolver = staticmethod(operator.is_)
    ascend_resolver = staticmethod(object)


class _Builder:
    """A builder that turns the nodes of one file into values and counts what aliases expand to.

    ``aliased``: it may have aliases. Without them its text is at most as long as the file.
    """

    def __init__(self, *, aliased: bool) -> None:
        self.left = NODES_MAX
        self.aliased = aliased
        self.characters_left = TEXT_CHARACTERS_MAX

    def build(self, node: Any, depth: int) -> Any:
        """Return the value of a node."""
        content = node.value
        if node.__class__ is _SCALAR:
            return scalar(content) if node.tag.step[0] else content
        self.left -= len(content)
        if depth > DEPTH_MAX:
            _refuse("yaml-too-deep", f"nested deeper than {DEPTH_MAX} levels", node.start_mark)
        if self.left < 0:
            _refuse(
                "yaml-expands-too-far",
                f"the file expands to more than {NODES_MAX} values; write less, or split it",
                node.start_mark,
            )
        if self.aliased:
            self._count_text(node)
        if node.__class__ is yaml.MappingNode:
            return self._mapping(content, depth)
        result = []
        for item in content:
            value = item.value
            if item.__class__ is not _SCALAR:
                value = self.build(item, depth + 1)
            elif value[:1] in _SPECIAL_FIRST and item.tag.step[0]:
                value = scalar(value)
            result.append(value)
        return result

    def _count_text(self, node: Any) -> None:
        """Count text that aliases repeat: it exists once until it is written out."""
        inside = node.value
        if node.__class__ is yaml.MappingNode:
            inside = itertools.chain.from_iterable(inside)
        self.characters_left -= sum(len(one.value) for one in inside if one.__class__ is _SCALAR)
        if self.characters_left < 0:
            _refuse(
                "yaml-expands-too-far",
                f"the file expands to more than {TEXT_CHARACTERS_MAX} characters; write less, or "
                "split it",
                node.start_mark,
            )

    def _mapping(self, content: Any, depth: int) -> dict[str, Any]:
        result = {}
        for key_node, item in content:
            value = item.value
            if item.__class__ is not _SCALAR:
                value = self.build(item, depth + 1)
            elif value[:1] in _SPECIAL_FIRST and item.tag.step[0]:
                value = scalar(value)
            key = key_node.value
            if key.__class__ is not str or (key[:1] in _SPECIAL_FIRST and key_node.tag.step[0]):
                self._check_key(key_node)
            result[key] = value
        if len(result) != len(content) or "<<" in result:
            self._refuse_mapping(content)
        return result

    @staticmethod
    def _check_key(key_node: Any) -> None:
        if key_node.__class__ is not _SCALAR:
            _refuse("yaml-key", "a key must be text, not a list or mapping", key_node.start_mark)
        if isinstance(scalar(key_node.value), str):
            return
        _refuse(
            "yaml-key",
            "a key must be text: write it in quotes",
            key_node.start_mark,
            found=found_values.quote(key_node.value),
        )

    @staticmethod
    def _refuse_mapping(content: Any) -> NoReturn:
        seen: dict[str, Any] = {}
        for key_node, _ in content:
            key = key_node.value
            mark = key_node.start_mark
            if key == "<<":
                _refuse("yaml-merge-key", "merge keys `<<` are not supported: write it out", mark)
            if key in seen:
                first = seen[key].line + 1
                _refuse(
                    "yaml-duplicate-key",
                    f"this key occurs twice, first on line {first}; keep one of the two",
                    mark,
                    found=found_values.quote(key),
                )
            seen[key] = mark
        raise YamlError("yaml-duplicate-key", "a key occurs twice")


def count_documents(data: bytes) -> int:
    """Return the number of documents of a file, without parsing it: never too low."""
    if not data:
        return 0
    return 1 + sum(1 for _ in _MARKER.finditer(data))


def _checked(data: bytes) -> bytes:
    """Return the bytes to parse: not too many, UTF-8, without byte order mark, without tags."""
    if len(data) > FILE_BYTES_MAX:
        _refuse(
            "yaml-too-large",
            f"the file has more than {FILE_BYTES_MAX} bytes; split it",
        )
    data = data.removeprefix(_BYTE_ORDER_MARK)
    if count_documents(data) > FILE_DOCUMENTS_MAX:
        _refuse(
            "yaml-too-large",
            f"the file has more than {FILE_DOCUMENTS_MAX} documents. To fix: split it",
        )
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise YamlError(
            "yaml-encoding",
            "the file is not UTF-8; save it as UTF-8",
            line=line,
            column=column,
            found=f"byte 0x{data[error.start]:02x}",
        ) from None
    is_odd = (b"!" in data and _MAYBE_TAG.search(data)) or (
        b"\\" in data and _MAYBE_NUL.search(data)
    )
    if is_odd or _may_be_large(data):
        _scan(data)
    return data


def _may_be_large(data: bytes) -> bool:
    """Return True if the file might exceed a bound, judged by counting bytes: never too low."""
    openers = data.count(b"[") + data.count(b"{")
    separators = sum(data.count(mark) for mark in (b",", b":", b"-", b"?", b"\n", b"*"))
    if 2 * (openers + separators) > NODES_MAX:
        return True
    longest = 0 if openers > SAFE_DEPTH else max(map(len, split_lines(data)), default=0)
    return openers + longest > SAFE_DEPTH


def _scan(data: bytes) -> None:
    """Refuse tags, NULs, too many nodes and too deep nesting by the events alone."""
    parser = _yaml.CParser(data)
    depth = 0
    for _ in range(2 * NODES_MAX):
        event: Any = parser.get_event()
        if event.__class__ is yaml.StreamEndEvent:
            return
        tag: str | None = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            _refuse(
                "yaml-tag",
                "tags are not supported: remove it",
                event.start_mark,
                found=found_values.quote(tag),
            )
        if "\0" in getattr(event, "value", ""):
            _refuse(
                "yaml-syntax",
                "text cannot hold a NUL character: remove it",
                event.start_mark,
                found="U+0000",
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                _refuse("yaml-too-deep", f"nested deeper than {DEPTH_MAX} levels", event.start_mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    _refuse("yaml-too-large", f"the file has more than {NODES_MAX} values; split it")


_OPEN = "the ( of line {line} is not closed, or a comma is missing"
_INDENTED = "is the line indented as its neighbours?"
#: What is wrong in plain words, by the parser's words for it.
_PLAIN = {
    "did not find expected ',' or ']'": _OPEN.replace("(", "["),
    "did not find expected ',' or '}'": _OPEN.replace("(", "{{"),
    "found unexpected end of stream": "the quote of line {line} is not closed",
    "did not find expected node content": "a value is missing, or the wrong bracket closes a list",
    "did not find expected key": f"a field is expected here: {_INDENTED}",
    "did not find expected '-' indicator": f"a list item (- VALUE) is expected here: {_INDENTED}",
    "could not find expected ':'": "the : behind the field of line {line} is missing",
    "found character that cannot start any token": "a value can't begin so: quote it",
    "mapping values are not allowed in this context": (
        "no field can stand here: quote a text that has a colon in it, and indent the line as its "
        "neighbours"
    ),
}


def _plain(error: yaml.MarkedYAMLError) -> str:
    """Return what is wrong in plain words, with the line where it begins. It is empty if it is
    unknown.
    """
    begins = error.context_mark or error.problem_mark
    line = begins.line + 1 if begins is not None else 1
    return _PLAIN.get(error.problem or "", "").format(line=line)


def _explained(error: yaml.YAMLError, data: bytes) -> YamlError:
    """Return an error of PyYAML as an error with a place."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "not YAML"
        rule = "yaml-syntax"
        if conflict := _CONFLICT.search(data):
            return YamlError(
                "yaml-conflict",
                "a conflict marker of git stands here: merge the two versions by hand, and remove "
                "its lines",
                line=data.count(b"\n", 0, conflict.start()) + 1,
                column=1,
                found=found_values.quote(conflict[0].decode()),
            )
        if mark is not None and _is_tab(data, mark):
            rule, problem = "yaml-tab", "a tab stands here; YAML is indented with spaces"
        elif error.context and error.problem and error.problem_mark:
            problem = _plain(error) or f"{error.context}: {error.problem}"
        else:
            problem = _PLAIN.get(problem, problem)
        if mark is not None:
            return YamlError(rule, problem, line=mark.line + 1, column=mark.column + 1)
        return YamlError(rule, problem)
    if isinstance(error, yaml.reader.ReaderError):
        return _unreadable(error, data.removeprefix(_BYTE_ORDER_MARK))
    return YamlError("yaml-syntax", split_lines(str(error))[0])


def _unreadable(error: yaml.reader.ReaderError, data: bytes) -> YamlError:
    """Return the error about a character that YAML does not have; the parser gives its
    byte offset.
    """
    before = data[: error.position]
    begins = before.rfind(b"\n") + 1
    return YamlError(
        "yaml-syntax",
        f"{error.reason}: remove it",
        line=before.count(b"\n") + 1,
        column=len(before[begins:].decode("utf-8", "replace")) + 1,
        found=f"U+{error.character:04X}",
    )


def _is_tab(data: bytes, mark: Any) -> bool:
    lines = data.removeprefix(_BYTE_ORDER_MARK).decode("utf-8", "replace").split("\n")
    return bool(lines[mark.line : mark.line + 1]) and lines[mark.line][mark.column :][:1] == "\t"


def _nodes(data: bytes) -> list[Any]:
    parser = _Parser(_checked(data))
    nodes = []
    while parser.check_node():
        nodes.append(parser.get_node())
        if len(nodes) > NODES_MAX:
            _refuse("yaml-too-large", f"the file has more than {NODES_MAX} documents; split it")
    return nodes


def read(data: bytes) -> list[RawDocument]:
    """Return the documents of a file, without empty ones.

    Raises:
        YamlError: the file is not YAML, or is more than this reader accepts.
    """
    return [document for document, _ in read_nodes(data)]


def read_nodes(data: bytes) -> list[tuple[RawDocument, Any]]:
    """Return the documents as ``read`` does, each with what ``located`` takes.

    Raises:
        YamlError: as :func:`read`.
    """
    try:
        builder = _Builder(aliased=b"*" in data and b"&" in data)
        return [
            (RawDocument(value, node.start_mark.line + 1), node)
            for node in _nodes(data)
            if (value := builder.build(node, 1)) is not None
        ]
    except yaml.YAMLError as error:
        raise _explained(error, data) from error


def located(node: Any) -> Positions:
    """Return the places in a document, by its node."""
    places = Positions({}, {})
    _locate(node, (), places)
    return places


def positions(data: bytes) -> list[Positions]:
    """Return the places in each document of :func:`read`: the slow second pass.

    Raises:
        YamlError: as :func:`read`.
    """
    try:
        nodes = _nodes(data)
    except yaml.YAMLError as error:
        raise _explained(error, data) from error
    builder = _Builder(aliased=b"*" in data and b"&" in data)
    valid = [node for node in nodes if builder.build(node, 1) is not None]
    return [located(root) for root in valid]


def _locate(node: Any, path: Path, places: Positions) -> None:
    places.values[path] = LineColumn(node.start_mark.line + 1, node.start_mark.column + 1)
    if node.__class__ is yaml.MappingNode:
        for key_node, item in node.value:
            inner = (*path, key_node.value)
            mark = key_node.start_mark
            places.keys[inner] = LineColumn(mark.line + 1, mark.column + 1)
            _locate(item, inner, places)
    elif node.__class__ is yaml.SequenceNode:
        for index, item in enumerate(node.value):
            _locate(item, (*path, index), places)


def dotted(path: Path) -> str:
    """Return a path as people write it: ``spec.groups[0].count``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text
