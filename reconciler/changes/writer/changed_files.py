"""The files of a revision as a batch has changed them so far, and what their documents say."""

import contextlib

from reconciler.changes import requests, yaml_edit
from reconciler.changes.writer import object_index
from reconciler.desired.documents import yaml_reader
from reconciler.model.values import found_values

#: The largest file that is edited: the writer is a thread of the server, and parsing a document
#: holds up its other threads.
FILE_BYTES_MAX = 2**20
#: Of so many files it is kept what their documents say, until they are changed again.
SHEETS_MAX = 16


class ChangedFiles:
    """Files of a revision with changes on top.

    Args:
        known: contents of the revision.

    Attributes:
        files: those changed so far; None: taken away.
    """

    def __init__(self, known: object_index.Index) -> None:
        self._index = known
        self.files: dict[str, bytes | None] = {}
        #: Files taken apart, as they are by now; the one used last is the last.
        self._sheets: dict[str, yaml_edit.Sheet] = {}

    def text(self, path: str) -> str:
        """Return the text of a file.

        Raises:
            ConflictError: git cannot handle a file of that name, or it is too large to be edited.
        """
        if "\n" in path:
            raise requests.ConflictError(
                f"{found_values.quote(path)} has a line break in its name: rename it in a clone "
                "first (git mv)"
            )
        data = self.files[path] if path in self.files else self._index.read(path)
        if len(data or b"") > FILE_BYTES_MAX:
            raise requests.ConflictError(
                f"{path} has {len(data or b'')} bytes, and only files of at most {FILE_BYTES_MAX} "
                "bytes are changed from here. To fix: commit this change in a clone, or split the "
                "file"
            )
        return (data or b"").decode()

    def sheet(self, path: str) -> yaml_edit.Sheet:
        """Return a parsed file; parts that edits leave unchanged are not parsed again.

        Raises:
            ConflictError: as ``text``.
            EditError: it cannot be parsed.
        """
        text, known = self.text(path), self._sheets.pop(path, None)
        if known is None or known.text != text:
            known = yaml_edit.Sheet.read(text)
        self.keep(path, known)
        return known

    def keep(self, path: str, sheet: yaml_edit.Sheet) -> None:
        """Keep what the documents of a file say, until it is changed again."""
        self._sheets.pop(path, None)
        self._sheets[path] = sheet
        if len(self._sheets) > SHEETS_MAX:
            del self._sheets[next(iter(self._sheets))]

    def without(self, path: str, key: tuple[str, str], times: int) -> bytes | None:
        """Return a file without so many documents of an object; None if nothing is left."""
        left: yaml_edit.Sheet | None = self.sheet(path)
        for _ in range(times):
            left = left.without(*key) if left is not None else None
        if left is None:
            return None
        self.keep(path, left)
        return left.text.encode()

    def raw(self, path: str, kind: str, name: str) -> list[yaml_reader.RawDocument]:
        """Return the documents of an object in a file, without places; none if it is no YAML."""
        try:
            return [yaml_reader.RawDocument(one, 0) for one in self.sheet(path).find(kind, name)]
        except yaml_edit.EditError:  # it can be read, perhaps, and not be edited
            with contextlib.suppress(yaml_reader.YamlError):
                return yaml_reader.read(self.text(path).encode())
            return []
