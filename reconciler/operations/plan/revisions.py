"""Two revisions beside each other: reading desired state that is not in force, to compare it.

They go through the same loader as the controller's, beside each other through shared objects.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from reconciler.desired.apply import jobs_in_force, loader, parallel_reader
from reconciler.desired.documents import document_reader
from reconciler.desired.git import source
from reconciler.model import desired
from reconciler.model.rules import review_findings
from reconciler.model.values import suggestions
from reconciler.model.values.text_lines import split_lines
from reconciler.operations import scratch_repository
from reconciler.operations.plan import diff, plan_types

#: The most names of branches that a wrong one is compared with.
_NAMES_MAX = 1000


class ControllerRevision(msgspec.Struct, frozen=True):
    """The state in force at a controller, if that is not one revision as a whole.

    Attributes:
        revision: of its jobs.
        structure: of its structure, if that of ``revision`` is held or refused.
        staying: jobs in force whose files were deleted, because their removal is held; by name.
        jobs: jobs in force, by name, as they run; None if unknown. Some of them may have no file.
        begun: jobs whose newest run has begun or ended, with its key.
    """

    revision: str
    structure: str | None = None
    staying: Mapping[str, desired.Job] = {}
    jobs: Mapping[str, desired.Job] | None = None
    begun: Mapping[str, str] = {}

    def has_begun(self, names: Collection[str]) -> Mapping[str, str]:
        """Those of some jobs whose newest run has begun or ended, with its key."""
        return {name: self.begun[name] for name in names if name in self.begun}


class Comparison(msgspec.Struct, frozen=True):
    """Two revisions beside each other, the second as it would stand after the first.

    Attributes:
        base_commit, head_commit: full ids; the base is the revision that its structure is of.
        merged: ``head`` does not follow ``base``, so that what is shown is the merge of both.
        apart: why there is no such merge, although it does not; empty: there is, or it does.
        changes: objects that differ, removals first.
        paths: files that differ.
        structure_refused: the structure of the second does not apply, and that of the first did
            or the second changes some of it.
        approvals: digests that commits from the first to the second approve, as far as they count.
        is_base: what is looked at is the revision that it is compared with, of which something is
            held or refused.
        while_held: the second as it stands while the structure is held that was held before it;
            None where nothing was, or the second changes some structure itself.
        runs_known: jobs that were admitted earlier are in the first, whatever is wrong with their
            documents.
    """

    base: desired.Desired
    head: desired.Desired
    base_commit: str
    head_commit: str
    changes: tuple[diff.DocumentDiff, ...]
    merged: bool = False
    apart: plan_types.Apart = ""
    paths: frozenset[str] = frozenset()
    structure_refused: bool = False
    approvals: tuple[str, ...] = ()
    is_base: bool = False
    while_held: desired.Desired | None = None
    runs_known: bool = False

    def changes_to(self, head: desired.Desired) -> tuple[diff.DocumentDiff, ...]:
        """Return the differences from the first state to another one than the second."""
        return diff.between(self.base, head, runs_known=self.runs_known)


def compare(
    repository: Path,
    sub_path: str,
    base: str,
    head: str,
    *,
    before: Sequence[str] = (),
    live: ControllerRevision | None = None,
    read: parallel_reader.Read | None = None,
) -> Comparison:
    """Return the changes from ``base`` to ``head``, or to the merge of both if they have diverged.

    Nobody has signed such a merge yet, so the commits of ``head`` count.

    Args:
        repository: a clone, or a bare repository.
        sub_path: folder of it with the cluster's YAML.
        base, head: anything that names a commit.
        before: revisions in force before ``base``, oldest first: if the structure of ``base`` was
            refused, theirs is in force. Those that do not exist are left out.
        live: what a controller has in force. If ``base`` is its newest revision, or follows it,
            then
            what that one left held is held at ``base``, and the comparison is with what is in
            force.
            A structure whose revision does not exist is left out.
        read: content of blobs that was read already.

    Raises:
        RevisionError: the repository or a revision can't be read, or the two can't be merged.
    """
    folder = Path(scratch_repository.git_folder(repository))
    known = _at(folder, base, live)
    structure_commit = (
        scratch_repository.known_commit(folder, known.structure)
        if known and known.structure
        else None
    )
    of_runs = _Known(
        jobs=known.jobs if known is not None else None,
        begun=jobs_in_force.nothing_begun if live is None else live.has_begun,
        read={} if read is None else read,
    )
    if structure_commit is not None and structure_commit != _commit_of(folder, base):
        found = _from_in_force(folder, sub_path, structure_commit, (base, head), of_runs)
    else:
        earlier = (live.structure,) if live is not None and live.structure else before
        found = _between(folder, sub_path, (base, head), earlier, of_runs)
    return _with_staying(found, known.staying) if known is not None else found


def _at(folder: Path, base: str, live: ControllerRevision | None) -> ControllerRevision | None:
    """Return what is in force, if ``base`` is based on it."""
    newest = scratch_repository.known_commit(folder, live.revision) if live is not None else None
    if newest is None:
        return None
    first = _commit_of(folder, base)
    return (
        live if first == newest or scratch_repository.is_ancestor(folder, newest, first) else None
    )


def _with_staying(found: Comparison, staying: Mapping[str, desired.Job]) -> Comparison:
    """Return the comparison, with jobs before it that are in force and have no file."""
    if not staying.keys() - found.base.jobs.keys():
        return found
    base = msgspec.structs.replace(found.base, jobs={**staying, **found.base.jobs})
    found = msgspec.structs.replace(found, base=base)
    return msgspec.structs.replace(found, changes=found.changes_to(found.head))


class _Known(NamedTuple):
    """Facts that are known before two revisions are read.

    They are the jobs in force at the first (None: unknown), jobs whose runs have begun, and blobs.
    """

    jobs: Mapping[str, desired.Job] | None
    begun: jobs_in_force.Begun
    read: parallel_reader.Read

    def loader(
        self, copy: source.GitSource, gate: review_findings.ChangeGate | None = None
    ) -> loader.Loader:
        """Return a loader with these facts."""
        return loader.Loader(copy, gate=gate, read=self.read, begun=self.begun)


class _Pair(msgspec.Struct, frozen=True):
    """Two revisions in a repository of their own, which nobody sees.

    ``goal`` is what the second comes to: the merge of both where they have parted.
    """

    repository: Path
    first: str
    last: str
    merge: str | None
    sub_path: str

    @property
    def goal(self) -> str:
        return self.merge or self.last

    def _apart(self) -> plan_types.Apart:
        if self.merge is not None or self.first == self.last:
            return ""
        if scratch_repository.is_ancestor(self.repository, self.first, self.last):
            return ""
        behind = scratch_repository.is_ancestor(self.repository, self.last, self.first)
        return "behind" if behind else "unrelated"

    def source(self) -> source.GitSource:
        return source.GitSource(str(self.repository), branch="main", sub_path=self.sub_path)

    def load(self, loading: loader.Loader, commit: str, *after: str) -> desired.Desired:
        """Return what a loader makes of a commit; earlier commits need not lead to it."""
        scratch_repository.git(self.repository, "update-ref", "refs/heads/main", commit)
        if not all(
            scratch_repository.is_ancestor(self.repository, one, commit)
            for one in after
            if one != commit
        ):
            loading.accept(commit)  # what follows is judged as the controller would
        return loading.load_all()

    def compared(
        self,
        old: desired.Desired,
        new: desired.Desired,
        start: str,
        *,
        refused: bool,
        runs_known: bool,
    ) -> Comparison:
        """Both beside each other; ``start``: the revision that the first structure is of."""
        listed = scratch_repository.git(
            self.repository, "diff", "--name-only", "--no-renames", "-z", start, self.goal
        )
        return Comparison(
            base=old,
            head=new,
            base_commit=start,
            head_commit=self.last,
            changes=diff.between(old, new, runs_known=runs_known),
            merged=self.merge is not None,
            apart=self._apart(),
            paths=frozenset(listed.split("\0")),
            structure_refused=refused,
            is_base=self.goal == self.first,
            runs_known=runs_known,
        )


@contextmanager
def _pair(folder: Path, sub_path: str, base: str, head: str) -> Iterator[_Pair]:
    with scratch_repository.repository() as repository:
        scratch_repository.share_objects(repository, folder)
        first, last = (_commit_of(folder, revision) for revision in (base, head))
        merge = scratch_repository.merge(repository, first, last)
        yield _Pair(repository, first, last, merge, sub_path)


def _between(
    folder: Path,
    sub_path: str,
    both: tuple[str, str],
    before: Sequence[str],
    runs: _Known,
) -> Comparison:
    """Return the changes from one to the other, both as the repository has them."""
    with _pair(folder, sub_path, *both) as pair:
        known = (scratch_repository.known_commit(folder, one) for one in before)
        order = [*(one for one in known if one and one != pair.first), pair.first, pair.goal]
        copy = pair.source()
        loading = runs.loader(copy)
        loading.admit(runs.jobs or {})
        if pair.merge is not None:
            loading.judge_by(pair.merge, pair.last)
        try:
            states = [
                pair.load(loading, commit, *order[:position])
                for position, commit in enumerate(order)
            ]
            old, new = states[-2:]
            refused = _is_refused(new, pair.goal) and (
                not _is_refused(old, pair.first) or _touches_structure(copy, pair.first, pair.goal)
            )
            is_known = runs.jobs is not None
            found = pair.compared(old, new, pair.first, refused=refused, runs_known=is_known)
        finally:
            loading.close()
    return msgspec.structs.replace(found, approvals=loading.approved)


def _from_in_force(
    folder: Path,
    sub_path: str,
    kept: str,
    both: tuple[str, str],
    runs: _Known,
) -> Comparison:
    """Return the changes to the second from the structure of ``kept`` with the jobs of the
    first.
    """
    with _pair(folder, sub_path, *both) as pair:
        first, goal = pair.first, pair.goal
        copy = pair.source()
        stays = _StructureStays()
        as_is = runs.loader(copy, stays)
        free = runs.loader(pair.source())
        if pair.merge is not None:
            for one in (as_is, free):
                one.judge_by(pair.merge, pair.last)
        try:
            applied = pair.load(as_is, kept, kept)
            stays.is_wanted = True
            as_is.admit(runs.jobs or {})
            old = pair.load(as_is, first, kept)
            pair.load(free, kept, kept)
            free.admit(runs.jobs or {})
            before = pair.load(free, first, kept)
            if _is_refused(before, first):  # nothing holds what is right of it
                old = before
            approved = free.approved
            new = pair.load(free, goal, kept)
            refused = _is_refused(new, goal) and (
                goal == first
                or not _is_refused(old, first)
                or bool(old.status.held)
                or _touches_structure(copy, first, goal)
            )
            while_held: desired.Desired | None = None
            if goal == first:  # what is wrong with it is news to what is in force
                old = msgspec.structs.replace(old, status=applied.status)
            elif old.structure != before.structure == new.structure:
                while_held = _without_hold(pair.load(as_is, goal, kept))
            is_known = runs.jobs is not None
            found = pair.compared(old, new, kept, refused=refused, runs_known=is_known)
        finally:
            as_is.close()
            free.close()
    return msgspec.structs.replace(
        found,
        approvals=tuple(dict.fromkeys((*approved, *free.approved))),
        while_held=while_held,
    )


def _without_hold(state: desired.Desired) -> desired.Desired:
    """Return the state without messages about a hold, which the caller decides and words."""
    rest = tuple(one for one in state.status.problems if one.rule not in review_findings.RULES)
    status = msgspec.structs.replace(state.status, problems=rest, held=())
    return msgspec.structs.replace(state, status=status)


class _StructureStays:
    """Holds whatever a revision changes of the structure, from when that ``is_wanted``."""

    def __init__(self) -> None:
        self.is_wanted = False

    def judge(
        self, before: desired.Desired, after: desired.Desired, approvals: frozenset[str]
    ) -> review_findings.Judgement:
        """Hold the structure where it differs, and let everything else apply."""
        del approvals
        if not self.is_wanted or before.structure == after.structure:
            return review_findings.Judgement()
        finding = review_findings.Finding("structure", "over-limit", "it is not in force")
        return review_findings.Judgement((finding,))


def _is_refused(state: desired.Desired, commit: str) -> bool:
    """Return True if the structure in force is that of an earlier revision."""
    return state.status.structure_revision != commit


def _touches_structure(copy: source.GitSource, before: str, after: str) -> bool:
    """Return True if files differ that hold, or may hold, objects other than jobs."""
    differing = copy.differences(before, after)
    ids = {blob for _, *both in differing for blob in both if blob is not None}
    files = map(document_reader.read, copy.blobs(ids))
    return any(file.opaque or any(document_reader.structural(file)) for file in files)


def _commit_of(folder: Path, revision: str) -> str:
    found = scratch_repository.known_commit(folder, revision)
    if found is None:
        names = split_lines(
            scratch_repository.git(folder, "for-each-ref", "--format=%(refname:short)")
        )
        known = [name for name in names if name][:_NAMES_MAX]
        raise scratch_repository.RevisionError(
            f"there is no revision {revision} in {folder}{suggestions.hint(revision, known)}; name "
            "a branch, a tag or a commit that is fetched"
        )
    return found


def has_commit(repository: Path, revision: str) -> bool:
    """Return True if a repository has a commit."""
    return (
        scratch_repository.known_commit(Path(scratch_repository.git_folder(repository)), revision)
        is not None
    )


def uncommitted(repository: Path, sub_path: str) -> list[str]:
    """Return the files of desired state in a clone with changes that no commit has. A bare
    repository has none.

    Args:
        repository: any folder of the clone.
        sub_path: the folder of it that is read.
    """
    below = f"{sub_path.strip('/')}/" if sub_path.strip("/") else ""
    places = [f":(top,glob){below}**/*.{ending}" for ending in ("yaml", "yml")]
    try:
        changes = scratch_repository.git_in(
            repository,
            "status",
            "--porcelain",
            "-z",
            "--no-renames",
            "--untracked-files=all",
            "--",
            *places,
        )
    except scratch_repository.RevisionError:
        return []
    # the first character may have been stripped with what surrounds the answer
    paths = [one.lstrip()[2:].lstrip() for one in changes.split("\0") if one]
    return [one for one in paths if not any(part.startswith(".") for part in one.split("/"))]


def default_base(repository: Path, head: str) -> str:
    """Return the revision to compare with by default: the target branch.

    That is the remote's main branch, else ``main`` or ``master``; if that is the revision itself,
    or there is none, its parent.

    Raises:
        RevisionError: there is nothing to compare it with.
    """
    folder = Path(scratch_repository.git_folder(repository))
    tip = _commit_of(folder, head)
    for name in ("refs/remotes/origin/HEAD", "refs/heads/main", "refs/heads/master"):
        found = scratch_repository.known_commit(folder, name)
        if found is not None and found != tip:
            return found
        if found == tip:
            break
    parent = f"{head}~1"
    if scratch_repository.known_commit(folder, parent) is None:
        raise scratch_repository.RevisionError(
            f"{head} is the first commit, there is nothing to compare it with; name a revision "
            "with --base"
        )
    return parent
