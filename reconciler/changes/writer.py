"""Writes to the desired repository: batches of requests become commits, without a work tree.

Many requests come in at once and share one write: their commits (one an author, in order) are
made by ``git fast-import`` and become the branch's head by compare-and-swap, or by a push. Where
somebody else was faster, their commits are taken up and the batch is built again on top. An
acknowledged request is in the branch; each one that is not says why.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from reconciler.changes import edit, index, pushing, requests, scraps, signing, turns, worktrees
from reconciler.changes.requests import (
    MUSTER,
    AddJob,
    EditObject,
    Person,
    Request,
    Result,
    ReviseObject,
)
from reconciler.desired import documents, gitobjects, source
from reconciler.desired.gitobjects import GitError
from reconciler.model import nearest

_LOG = logging.getLogger(__name__)

#: How often a batch is built again because somebody else's push came first.
ATTEMPTS_MAX = 8
#: How long a person's turn in it is waited for.
TURN_S = 30.0
#: The most requests of one batch; more are done in several.
BATCH_MAX = 1_000
_SUBJECTS_MAX = 50


class _Step(NamedTuple):
    """What one request makes of a commit: files, and what its message says."""

    author: Person
    subject: str
    files: dict[str, bytes | None]
    trailers: tuple[tuple[str, str], ...] = ()


class _Batch:
    """Requests judged against one revision, and the files that they change."""

    def __init__(self, known: index.Index, sub_path: str) -> None:
        self._index = known
        self._prefix = f"{sub_path}/" if sub_path else ""
        #: Files as changed so far; None: taken away.
        self.files: dict[str, bytes | None] = {}
        #: Where objects stand now that were added or taken out.
        self._moved: dict[tuple[str, str], tuple[str, ...]] = {}
        self.results: list[Result] = []
        #: Of each request that changed something, in order.
        self.steps: list[_Step] = []

    def _paths_of(self, kind: str, name: str) -> tuple[str, ...]:
        """Where an object stands; a file once for each document of the name.

        Raises:
            MissingError: nowhere.
        """
        key = (kind, name)
        found = self._moved[key] if key in self._moved else self._index.paths_of(kind, name)
        if not found:
            hint = nearest.hint(name, self._index.names(kind))
            unreadable = self._index.unreadable()
            if unreadable:
                hint += f"; {unreadable[0]} can't be read and may hold it: mend that file first"
            raise requests.MissingError(f"there is no {kind}/{name} in the repository{hint}")
        return found

    def _only_path_of(self, kind: str, name: str) -> str:
        """Where an object stands.

        Raises:
            MissingError: nowhere.
            ConflictError: several documents have its name.
        """
        path, *others = self._paths_of(kind, name)
        if others:
            raise requests.ConflictError(requests.several(kind, name, [path, *others]))
        return path

    def _text(self, path: str) -> str:
        data = self.files[path] if path in self.files else self._index.read(path)
        return (data or b"").decode()

    def judge(self, request: Request | requests.Together) -> None:
        """Take up one request or refuse it; of several that go together all or none."""
        if not isinstance(request, requests.Together):
            self._judge(request)
            return
        files, moved, steps = dict(self.files), dict(self._moved), len(self.steps)
        first = len(self.results)
        for one in request.requests:
            self._judge(one)
        mine = self.results[first:]
        if any(result.status in requests.BAD for result in mine):
            self.files, self._moved = files, moved
            del self.steps[steps:]
            withdrawn = Result("withdrawn", message="another that goes together with it is refused")
            self.results[first:] = [
                result if result.status in requests.BAD else withdrawn for result in mine
            ]

    def _judge(self, request: Request) -> None:
        try:
            if isinstance(request, AddJob):
                result = self._add(request)
            elif isinstance(request, EditObject | ReviseObject):
                result = self._edit(request)
            elif isinstance(request, requests.Approve):
                result = self._approve(request)
            else:
                result = self._remove(request)
        except requests.MissingError as error:
            result = Result("missing", message=str(error))
        except requests.ConflictError as error:
            result = Result("conflict", message=str(error))
        except requests.ElsewhereError as error:
            result = Result("elsewhere", message=str(error))
        except (edit.EditError, UnicodeError) as error:
            result = Result("refused", message=str(error))
        except Exception as error:
            if isinstance(error, GitError | OSError):
                raise  # it is the repository, and concerns all
            # Many people share a batch: what nobody thought of costs one of them the change.
            _LOG.exception("%s of the batch can't be judged", type(request).__name__)
            told = "an unexpected error while it was made; the controller's log has it"
            result = Result("defect", message=told)
        self.results.append(result)

    def _approve(self, request: requests.Approve) -> Result:
        subject = requests.approval_subject(request.digest, request.reason)
        trailers = ((requests.APPROVE_TRAILER, request.digest),)
        self.steps.append(_Step(request.author, subject, {}, trailers))
        return Result("accepted")

    def _change(self, files: dict[str, bytes | None], author: Person, subject: str) -> Result:
        self.files.update(files)
        self.steps.append(_Step(author, subject, files))
        return Result("accepted", next(iter(files)))

    def _add(self, request: AddJob) -> Result:
        data = request.text.encode()
        file = documents.read(data)
        path = f"{self._prefix}{index.JOBS_FOLDER}/{request.name}.yaml"
        problems = documents.problems(path, data, file)
        if problems:
            return Result("refused", path, message="\n".join(p.text() for p in problems))
        if [(d.kind, d.name) for d in file.documents] != [("Job", request.name)]:
            message = f"a submission is one document, of kind Job and name {request.name}"
            return Result("refused", path, message=message)
        key = ("Job", request.name)
        taken = self._moved[key] if key in self._moved else self._index.paths_of(*key)
        if taken:
            wanted = edit.documents(request.text)[0]
            for present in dict.fromkeys(taken):
                if wanted in edit.documents(self._text(present)):
                    return Result("unchanged", present, self._index.head, "it is there already")
            present = taken[0]
            message = (
                f"another job of the name {request.name} stands in {present}: choose another "
                "name, or change that one"
            )
            return Result("refused", present, message=message)
        if path in self.files or self._index.has_file(path):
            before = self._text(path)
            text = edit.append_document(before, request.text) if before else request.text
            data = text.encode()
        self._moved[key] = (path,)
        return self._change({path: data}, request.author, f"Submit Job/{request.name}")

    def _edit(self, request: EditObject | ReviseObject) -> Result:
        if not request.name:
            names = self._index.names(request.kind)
            if len(names) != 1:
                return Result(
                    "missing", message=f"the repository has {len(names)} of {request.kind}, not one"
                )
            request = msgspec.structs.replace(request, name=names[0])
        path = self._only_path_of(request.kind, request.name)
        _require_below((path,), request.below)
        before = self._text(path)
        if isinstance(request, ReviseObject):
            fields = request.revise(_document(before, request.kind, request.name))
        else:
            fields = request.fields
        after = edit.set_fields(before, request.kind, request.name, fields)
        if after == before:
            return Result("unchanged", path, self._index.head, "it is so already")
        problems = documents.validate(path, after.encode())
        label = f"{request.kind}/{request.name}"
        mine = [problem for problem in problems if problem.object == label]
        if mine:
            return Result("refused", path, message="\n".join(p.text() for p in mine))
        what = ", ".join(str(step[-1]) for step, _ in fields)
        subject = request.subject or f"Change {what} of {label}"
        subject += f": {request.reason}" if request.reason else ""
        return self._change({path: after.encode()}, request.author, subject)

    def _differ(self, paths: Sequence[str], kind: str, name: str) -> bool:
        """Whether documents of one name say different things."""
        texts = map(self._text, dict.fromkeys(paths))
        first, *others = [one for text in texts for one in _documents(text, kind, name)]
        return any(one != first for one in others)

    def _remove(self, request: requests.RemoveObject) -> Result:
        kind, name = request.kind, request.name
        paths = self._paths_of(kind, name)
        if request.several == "conflict" or (
            request.several == "alike" and self._differ(paths, kind, name)
        ):
            paths = (self._only_path_of(kind, name),)
        _require_below(paths, request.below)
        files: dict[str, bytes | None] = {}
        for path in paths:
            data = files[path] if path in files else self._text(path).encode()
            after = edit.remove_document((data or b"").decode(), kind, name)
            files[path] = None if after is None else after.encode()
        self._moved[kind, name] = ()
        subject = request.subject or f"Remove {kind}/{name}"
        subject += f": {request.reason}" if request.reason else ""
        return self._change(files, request.author, subject)


def _require_below(paths: Sequence[str], below: str) -> None:
    """Raise ElsewhereError where a file is not below a folder."""
    for path in paths:
        why = requests.confined(path, below)
        if why:
            raise requests.ElsewhereError(why)


def _documents(text: str, kind: str, name: str) -> list[Any]:
    """All documents of one name in a file."""
    return [one for one in edit.documents(text) if edit.is_object(one, kind, name)]


def _document(text: str, kind: str, name: str) -> Mapping[str, Any]:
    """One document of a file."""
    for document in _documents(text, kind, name):
        found: Mapping[str, Any] = document
        return found
    raise edit.EditError(f"{kind}/{name} can't be read")


class Writer:
    """Writes to one branch. One thread at a time.

    Args:
        repository: where to write; a local one is written in place, others by push.
        committer: whom commits name as committer; authors are those of the requests.
        attempts_max: how often to build on top of what others pushed.
        signing_key: file with the SSH key that signs commits; None: they are not signed.
    """

    def __init__(
        self,
        repository: source.Source,
        *,
        committer: Person = MUSTER,
        attempts_max: int = ATTEMPTS_MAX,
        signing_key: Path | None = None,
    ) -> None:
        self._signing_key = signing_key
        self._source = repository
        self._committer = committer
        self._attempts_max = attempts_max
        self._index = index.Index(repository)
        self._tidied = False
        if repository.local:
            try:
                worktrees.finish(repository)
            except (GitError, OSError) as error:
                _LOG.warning(
                    "%s can't be looked at before the first change: %s", repository.address, error
                )

    def close(self) -> None:
        """End the processes that it holds."""
        self._source.close()

    def write(
        self, batch: Sequence[Request | requests.Together], *, now: int, dry_run: bool = False
    ) -> list[Result]:
        """Put requests into the branch; one result each, in their order.

        Args:
            now: seconds since the epoch, for the commits.
            dry_run: only tell; what would be accepted has no commit.

        Never raises for what git says: such requests are ``failed``.
        """
        results: list[Result] = []
        for start in range(0, len(batch), BATCH_MAX):
            part = batch[start : start + BATCH_MAX]
            try:
                results += self._write(part, now, dry_run=dry_run)
            except (GitError, OSError) as error:
                self._index.head = None
                failed = Result("failed", message=str(error))
                results += [failed] * sum(map(_count, part))
        return results

    def _write(
        self, part: Sequence[Request | requests.Together], now: int, *, dry_run: bool
    ) -> list[Result]:
        why = ""
        for _ in range(self._attempts_max):
            self._source.fetch()
            if self._source.local:
                with turns.taken(self._source.folder, wait_s=TURN_S):
                    worktrees.finish(self._source)
            if not self._tidied:
                scraps.tidy(self._source.folder)
                self._tidied = True
            try:
                head = self._source.head()
            except source.MissingBranchError:
                if not self._is_new():
                    raise
                head = self._first_commit(now)
            self._index.advance(head)
            judged = _Batch(self._index, self._source.sub_path)
            for request in part:
                judged.judge(request)
            if dry_run or not judged.steps:
                return judged.results
            commit = self._commit(head, judged, now)
            why = self._publish(head, commit)
            if not why:
                self._index.take(commit, judged.files)
                return [
                    Result("accepted", result.path, commit)
                    if result.status == "accepted"
                    else result
                    for result in judged.results
                ]
        raise GitError(f"others pushed {self._attempts_max} times in between; last: {why}")

    def _is_new(self) -> bool:
        """Whether the repository has no branch at all yet: then one may be made."""
        if self._source.branch is None or not self._source.local:
            return False
        return not gitobjects.run(self._source.folder, "for-each-ref", "refs/heads/").stdout

    def _first_commit(self, now: int) -> str:
        """An empty commit in an empty repository, so that everything after it is alike."""
        tree = gitobjects.run(self._source.folder, "mktree").stdout.decode().strip()
        who = self._committer
        stamp = f"{now} +0000"
        identity = {
            "GIT_AUTHOR_NAME": who.name,
            "GIT_AUTHOR_EMAIL": who.email,
            "GIT_AUTHOR_DATE": stamp,
            "GIT_COMMITTER_NAME": who.name,
            "GIT_COMMITTER_EMAIL": who.email,
            "GIT_COMMITTER_DATE": stamp,
        }
        made = gitobjects.run(
            self._source.folder, "commit-tree", tree, "-m", "Begin", extra=identity
        )
        commit = made.stdout.decode().strip()
        gitobjects.run(
            self._source.folder, "update-ref", self._source.reference, commit, "0" * len(commit)
        )
        return commit

    def _commit(self, head: str, judged: _Batch, now: int) -> str:
        """Make the commits, one for each run of requests of one author; the id of the last."""
        # fast-import wants a name for what it makes; it is given up in the same breath, so that
        # nothing is left of it whenever this process ends
        reference = f"{scraps.WRITING}{os.getpid()}-{id(self)}"
        parts, groups = [f"reset {reference}\nfrom {head}\n\n".encode()], _by_author(judged.steps)
        for mark, group in enumerate(groups, 1):
            parts.append(self._commit_command(reference, group, mark, now))
            for path, data in group.files.items():
                if data is None:
                    parts.append(f"D {_quoted(path)}\n".encode())
                    continue
                parts.append(f"M 100644 inline {_quoted(path)}\ndata {len(data)}\n".encode())
                parts += [data, b"\n"]
        folder = self._source.folder
        parts.append(f"get-mark :{len(groups)}\n".encode())
        parts.append(f"reset {reference}\nfrom {'0' * len(head)}\n\ndone\n".encode())
        done = gitobjects.run(
            folder, "fast-import", "--quiet", "--force", "--done", data=b"".join(parts)
        )
        commit = done.stdout.decode().split()[-1]
        if self._signing_key is not None:
            commit = signing.sign(self._source, head, commit, self._signing_key)
        return commit

    def _commit_command(self, reference: str, group: "_Group", mark: int, now: int) -> bytes:
        # One line each: what people write as a reason is no place for trailers.
        subjects = [" ".join(subject.replace("\0", "").split()) for subject in group.subjects]
        message = subjects[0] if len(subjects) == 1 else f"Apply {len(subjects)} requests"
        if len(subjects) > 1:
            listed = [f"- {line}" for line in subjects[:_SUBJECTS_MAX]]
            if len(subjects) > _SUBJECTS_MAX:
                listed.append(f"- and {len(subjects) - _SUBJECTS_MAX} more")
            message += "\n\n" + "\n".join(listed)
        trailers = [*group.trailers, (requests.SUBMITTER_TRAILER, group.author.address)]
        message += "\n\n" + "\n".join(f"{key}: {value}" for key, value in trailers)
        data = (message + "\n").encode("utf-8", "replace")
        head = (
            f"commit {reference}\n"
            f"mark :{mark}\n"
            f"author {group.author.text()} {now} +0000\n"
            f"committer {self._committer.text()} {now} +0000\n"
            f"data {len(data)}\n"
        )
        return head.encode("utf-8", "replace") + data

    # --- making it the head -----------------------------------------------------------------

    def _publish(self, head: str, commit: str) -> str:
        """Make ``commit`` the branch's head; why not, where somebody else was faster."""
        if not self._source.local:
            return self._push(head, commit)
        with turns.taken(self._source.folder, wait_s=TURN_S):
            found = self._source.head()
            return f"it is at {found}" if found != head else self._advance(head, commit)

    def _advance(self, head: str, commit: str) -> str:
        """Move the local branch, and the files of its work trees with it."""
        reference = self._full_reference()
        trees = worktrees.prepare(self._source, reference, head, commit)
        done = gitobjects.run(
            self._source.folder,
            *("update-ref", "-m", "muster", reference, commit, head),
            good=(0, 1, 128),
        )
        if done.returncode:
            worktrees.withdraw(self._source, trees)
            said = done.stderr.decode("utf-8", "replace").strip()
            if self._source.head() == head:
                raise GitError(f"the branch can't be written: {said}")
            return said
        worktrees.follow(self._source, trees, head, commit)
        return ""

    def _full_reference(self) -> str:
        if self._source.branch is not None:
            return self._source.reference
        found = gitobjects.run(self._source.folder, "symbolic-ref", "HEAD")
        return found.stdout.decode().strip()

    def _push(self, head: str, commit: str) -> str:
        """Push to where the mirror comes from."""
        branch = self._source.branch
        if branch is None:
            raise GitError("name the branch to push to")
        folder = self._source.folder
        why = pushing.push(folder, self._source.address, commit, f"refs/heads/{branch}")
        if not why:
            gitobjects.run(folder, "update-ref", self._source.reference, commit, head)
        return why


def _count(request: Request | requests.Together) -> int:
    """How many results it has."""
    return len(request.requests) if isinstance(request, requests.Together) else 1


class _Group(NamedTuple):
    """Steps that become one commit."""

    author: Person
    subjects: list[str]
    files: dict[str, bytes | None]
    trailers: list[tuple[str, str]]


def _by_author(steps: Sequence[_Step]) -> list[_Group]:
    """Steps that follow each other and have one author, together."""
    groups: list[_Group] = []
    for step in steps:
        if not groups or groups[-1].author != step.author:
            groups.append(_Group(step.author, [], {}, []))
        groups[-1].subjects.append(step.subject)
        groups[-1].files.update(step.files)
        groups[-1].trailers.extend(step.trailers)
    return groups


def _quoted(path: str) -> str:
    """A path for fast-import."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
