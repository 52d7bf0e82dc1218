"""Judges requests against one revision: which can be done, and which files result.

A batch becomes one push. Requests are judged in order, each on top of those before it; a refused
one leaves the rest as they are. Nothing is written here: files and the steps that led to them come
out.
"""

import collections
import copy
import logging
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from reconciler.changes import requests, yaml_edit
from reconciler.changes.clone import ignored_files
from reconciler.changes.requests import (
    MUSTER,
    AddJob,
    EditObject,
    Person,
    Request,
    RequestResult,
    ReviseObject,
)
from reconciler.changes.writer import changed_files, object_index, refused_copies
from reconciler.desired.documents import document_reader, yaml_reader
from reconciler.desired.git.git_commands import GitError
from reconciler.model import desired
from reconciler.model.rules import redaction
from reconciler.model.values import suggestions

_LOG = logging.getLogger(__name__)

#: Of so many names that are not there a batch tells which ones are like them: each is compared with
#: thousands, and all changes of everybody wait in one line meanwhile.
HINTS_MAX = 3
#: Of what goes together no more is judged once so many are refused.
REFUSED_MAX = 100


class BatchStep(NamedTuple):
    """Contribution of one request to a commit: files, and a part of its message."""

    author: Person
    subject: str
    files: dict[str, bytes | None]
    trailers: tuple[tuple[str, str], ...] = ()


class Batch:
    """Requests judged against one revision, and the files that they change.

    Args:
        known: contents of the revision.
        sub_path: folder of desired state; empty: the whole repository.
        refused: tells of jobs with documents that are refused; a change of one takes them out.
        committer: author of that.
        committed: commits of submissions that have waited for git and are in the history.
        trees: work trees whose files follow: nothing untracked there is overwritten.
    """

    def __init__(
        self,
        known: object_index.Index,
        sub_path: str,
        trees: Sequence[Path] = (),
        refused: refused_copies.RefusedJobs = refused_copies.none_refused,
        committer: Person = MUSTER,
        *,
        committed: Mapping[str, str] = types.MappingProxyType({}),
    ) -> None:
        self._committed = committed
        self._refused = refused
        self._committer = committer
        self._index = known
        self._trees = trees
        self._prefix = f"{sub_path}/" if sub_path else ""
        self._changed = changed_files.ChangedFiles(known)
        #: Where objects stand now that were added or taken out.
        self._moved: dict[tuple[str, str], tuple[str, ...]] = {}
        self.results: list[RequestResult] = []
        #: Of each request that changed something, in order.
        self.steps: list[BatchStep] = []
        self._hints = 0

    @property
    def files(self) -> dict[str, bytes | None]:
        """Files as changed so far; None: taken away."""
        return self._changed.files

    def _paths_of(self, kind: str, name: str) -> tuple[str, ...]:
        """Return the files that hold an object, once for each document of the name.

        Raises:
            MissingTargetError: none does.
        """
        key = (kind, name)
        found = self._moved[key] if key in self._moved else self._index.paths_of(kind, name)
        if not found:
            self._hints += 1
            known = self._index.names(kind) if self._hints <= HINTS_MAX else ()
            hint = suggestions.hint(name, known)
            unreadable = self._index.unreadable()
            if unreadable:
                hint += f"; {unreadable[0]} can't be read and may hold it: mend that file first"
            raise requests.MissingTargetError(f"there is no {kind}/{name} in the repository{hint}")
        return found

    def _only_path_of(self, kind: str, name: str) -> str:
        """Return the file that holds an object.

        Raises:
            MissingTargetError: none does.
            ConflictError: several documents have its name.
        """
        path, *others = self._paths_of(kind, name)
        if others:
            raise requests.ConflictError(requests.several(kind, name, [path, *others]))
        return path

    def judge(self, request: Request | requests.RequestGroup) -> None:
        """Accept or refuse one request; a group is accepted or refused as a whole."""
        if not isinstance(request, requests.RequestGroup):
            self._judge(request)
            return
        files, moved, steps = dict(self._changed.files), dict(self._moved), len(self.steps)
        first, refused = len(self.results), 0
        for one in request.requests:
            if refused == REFUSED_MAX:
                self.results.append(RequestResult("withdrawn"))
                continue
            self._judge(one)
            refused += self.results[-1].status in requests.BAD
        mine = self.results[first:]
        if refused:
            self._changed.files, self._moved = files, moved
            del self.steps[steps:]
            withdrawn = RequestResult(
                "withdrawn", message="another that goes together with it is refused"
            )
            self.results[first:] = [
                result if result.status in requests.BAD else withdrawn for result in mine
            ]

    def _judge(self, request: Request) -> None:
        undo: Callable[[], None] | None = None
        try:
            undo = self._take_out_refused(request)
            if isinstance(request, AddJob):
                result = self._add(request)
            elif isinstance(request, EditObject | ReviseObject):
                result = self._edit(request)
            elif isinstance(request, requests.Approve):
                result = self._approve(request)
            else:
                result = self._remove(request)
        except requests.MissingTargetError as error:
            result = RequestResult("missing", message=str(error))
        except requests.ConflictError as error:
            result = RequestResult("conflict", message=str(error))
        except requests.ElsewhereError as error:
            result = RequestResult("elsewhere", message=str(error))
        except requests.ForbiddenError as error:
            result = RequestResult("forbidden", message=str(error))
        except requests.UndecidedError as error:
            result = RequestResult("undecided", message=str(error))
        except (yaml_edit.EditError, UnicodeError) as error:
            result = RequestResult("refused", message=str(error))
        except (GitError, OSError):
            raise  # it is the repository, and concerns all
        except Exception:  # many people share a batch: a defect costs one of them theirs
            _LOG.exception("%s of the batch can't be judged", type(request).__name__)
            told = "an unexpected error while it was made; the controller's log has it"
            result = RequestResult("defect", message=told)
        if undo is not None and result.status != "accepted":
            undo()
        self.results.append(result)

    def _take_out_refused(self, request: Request) -> Callable[[], None] | None:
        """Take out the refused documents of the job that is changed; return what undoes it.

        It is a commit before that of the change: in one commit, a document that leaves one file
        and comes into another would count as moved.
        """
        if isinstance(request, requests.Approve) or getattr(request, "kind", "Job") != "Job":
            return None
        name, key = request.name, ("Job", request.name)
        found = None if key in self._moved else self._refused(name)
        if found is None or not (found.home or isinstance(request, AddJob)):
            return None  # what is not in force at all is changed as it is written
        paths = self._index.refused_in(name, found)
        if not paths:
            return None
        files, moved, steps = dict(self._changed.files), dict(self._moved), len(self.steps)
        present = self._index.paths_of(*key)
        changed = {path: self._changed.without(path, key, present.count(path)) for path in paths}
        self._moved[key] = tuple(path for path in present if path not in paths)
        self._change(changed, self._committer, f"Take out refused documents of Job/{name}")

        def undo() -> None:
            self._changed.files, self._moved = files, moved
            del self.steps[steps:]

        return undo

    def _require_permit(
        self, permit: requests.Permit | None, label: str = "", paths: Sequence[str] = ()
    ) -> None:
        """Raise ForbiddenError if the requester may not do it to the object in that file."""
        if permit is None:
            return
        kind, _, name = label.partition("/")
        raw = [one for path in dict.fromkeys(paths) for one in self._changed.raw(path, kind, name)]
        found = document_reader.of_raw(raw).documents
        why = permit(tuple(one for one in found if one.label == label))
        if why:
            raise requests.ForbiddenError(why)

    def _approve(self, request: requests.Approve) -> RequestResult:
        self._require_permit(request.permit)
        made = self._index.approval(request.digest, request.author.address, request.held_at)
        if made is not None:
            return RequestResult("unchanged", commit=made, message=requests.approved_already(made))
        subject = requests.approval_subject(request.digest, request.reason)
        trailers = ((requests.APPROVE_TRAILER, request.digest),)
        if any(one.author == request.author and one.trailers == trailers for one in self.steps):
            return RequestResult("accepted")
        self.steps.append(BatchStep(request.author, subject, {}, trailers))
        return RequestResult("accepted")

    def _change(
        self,
        files: dict[str, bytes | None],
        author: Person,
        subject: str,
        trailers: tuple[tuple[str, str], ...] = (),
    ) -> RequestResult:
        self._changed.files.update(files)
        self.steps.append(BatchStep(author, subject, files, trailers))
        return RequestResult("accepted", next(iter(files)))

    def _add(self, request: AddJob) -> RequestResult:
        if request.submission in self._committed:
            commit = self._committed[request.submission]
            return RequestResult("unchanged", "", commit, requests.WAS_COMMITTED)
        self._require_permit(request.permit)
        data = request.text.encode()
        file = document_reader.read(data)
        path = f"{self._prefix}{object_index.JOBS_FOLDER}/{request.name}.yaml"
        problems = document_reader.problems(path, data, file)
        if problems:
            # what has waited for git is refused in front of everybody: what it runs is not quoted
            told = "\n".join(redaction.unquoted(one).text() for one in problems)
            return RequestResult("refused", path, message=told)
        if [(d.kind, d.name) for d in file.documents] != [("Job", request.name)]:
            message = f"a submission is one document, of kind Job and name {request.name}"
            return RequestResult("refused", path, message=message)
        key = ("Job", request.name)
        taken = self._moved[key] if key in self._moved else self._index.paths_of(*key)
        if taken:
            wanted = yaml_edit.documents(request.text)[0]
            for present in dict.fromkeys(taken):
                if wanted in yaml_edit.documents(self._changed.text(present)):
                    return RequestResult("unchanged", present, self._index.head, requests.IS_THERE)
            present = taken[0]
            message = requests.name_is_taken(request.name, present)
            return RequestResult("refused", present, message=message)
        if request.spent is not None and (why := request.spent()):
            raise requests.ConflictError(why)
        if path in self._changed.files or self._index.has_file(path):
            before = self._changed.text(path)
            text = yaml_edit.append_document(before, request.text) if before else request.text
            data = text.encode()
        else:
            self._require_room(path)
        self._moved[key] = (path,)
        subject = f"Submit Job/{request.name}"
        trailers = ((requests.SUBMISSION_TRAILER, request.submission),)
        return self._change(
            {path: data}, request.author, subject, trailers if request.submission else ()
        )

    def _require_room(self, path: str) -> None:
        """Raise ConflictError if a new file would overwrite anything."""
        why = self._index.in_the_way(path)
        if why:
            raise requests.ConflictError(f"{why}: choose another name, or move what stands there")
        for tree in self._trees:
            if ignored_files.in_place_of(tree, [path]):
                raise requests.ConflictError(
                    f"{path} is to be written, and something that is not committed stands in its "
                    f"place in {tree}: commit it, move it away, or choose another name"
                )

    def _edit(self, request: EditObject | ReviseObject) -> RequestResult:
        if not request.name:
            names = self._index.names(request.kind)
            if len(names) != 1:
                return RequestResult(
                    "missing", message=f"the repository has {len(names)} of {request.kind}, not one"
                )
            request = msgspec.structs.replace(request, name=names[0])
        path = self._only_path_of(request.kind, request.name)
        label = f"{request.kind}/{request.name}"
        self._require_permit(request.permit, label, (path,))
        _require_below((path,), request.below)
        before = self._changed.sheet(path)
        if isinstance(request, ReviseObject):
            fields = request.revise(_document(before, request.kind, request.name))
        else:
            fields = request.fields
        after = before.having(request.kind, request.name, fields)
        if after.text == before.text:
            return RequestResult("unchanged", path, self._index.head, "it is so already")
        mine = _problems(path, after, label)
        if mine:
            return RequestResult("refused", path, message="\n".join(p.text() for p in mine))
        self._changed.keep(path, after)
        what = ", ".join(str(step[-1]) for step, _ in fields)
        subject = request.subject or f"Change {what} of {label}"
        subject += f": {request.reason}" if request.reason else ""
        return self._change({path: after.text.encode()}, request.author, subject)

    def _differ(self, paths: Sequence[str], kind: str, name: str) -> bool:
        """Return True if documents of one name differ."""
        texts = map(self._changed.text, dict.fromkeys(paths))
        first, *others = [one for text in texts for one in _documents(text, kind, name)]
        return any(one != first for one in others)

    def _remove(self, request: requests.RemoveObject) -> RequestResult:
        kind, name = request.kind, request.name
        paths = self._paths_of(kind, name)
        if request.several == "conflict" or (
            request.several == "alike" and self._differ(paths, kind, name)
        ):
            paths = (self._only_path_of(kind, name),)
        self._require_permit(request.permit, f"{kind}/{name}", paths)
        _require_below(paths, request.below)
        often = collections.Counter(paths)
        files = {path: self._changed.without(path, (kind, name), often[path]) for path in often}
        self._moved[kind, name] = ()
        subject = request.subject or f"Remove {kind}/{name}"
        subject += f": {request.reason}" if request.reason else ""
        return self._change(files, request.author, subject)


def _require_below(paths: Sequence[str], below: str) -> None:
    """Raise ElsewhereError if a file is not below a folder."""
    for path in paths:
        why = requests.confined(path, below)
        if why:
            raise requests.ElsewhereError(why)


def _problems(path: str, sheet: yaml_edit.Sheet, label: str) -> list[desired.Problem]:
    """Return the problems of one object of a file, with places if there are any."""
    kind, _, name = label.partition("/")
    raw = [yaml_reader.RawDocument(one, 0) for one in sheet.find(kind, name)]
    if raw and not any(one.faults for one in document_reader.of_raw(raw).documents):
        return []
    found = document_reader.validate(path, sheet.text.encode())
    return [problem for problem in found if problem.object == label]


def _documents(text: str, kind: str, name: str) -> list[Any]:
    """Return all documents of one name in a file."""
    return [one for one in yaml_edit.documents(text) if yaml_edit.is_object(one, kind, name)]


def _document(sheet: yaml_edit.Sheet, kind: str, name: str) -> Mapping[str, Any]:
    """Return a copy of one document of a file, which may be changed."""
    for document in sheet.find(kind, name):
        found: Mapping[str, Any] = copy.deepcopy(document)
        return found
    raise yaml_edit.EditError(f"{kind}/{name} can't be read")
