"""Judges the changes of single objects, along one walk.

A commit's change of an object and the identity of the commit come in; the trust after it goes out,
in which a change without the right is denied.
"""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence

import msgspec

from reconciler.desired.authorize import (
    authority,
    change_rights,
    commit_walk,
    signatures,
    trust_state,
    trusted_files,
    unread_changes,
)
from reconciler.desired.documents import document_reader, object_changes, revision_limits
from reconciler.desired.git import commit_log, source
from reconciler.model import desired
from reconciler.model.documents import queue_spec

#: Below this folder the controller may change jobs for people, and nowhere else.
JOBS_FOLDER = "jobs"
Blobs = dict[str, str | None]
Changes = Mapping[str, Mapping[str, object_changes.Pair]]


class _Versions(msgspec.Struct, frozen=True):
    """The blobs of an object's files; see ``trust_state.Denial``."""

    before: Blobs
    after: Blobs
    counted: Blobs


class JudgedStep(msgspec.Struct, frozen=True):
    """The changes of a commit in some files, by label; ``query`` None: nothing is required."""

    commit: commit_log.Commit
    query: authority.AuthorityQuery | None
    changes: Changes


class ObjectJudge:
    """A judge of changes, from the state in force on.

    Args:
        repository: of the commits.
        start: the state in force.
        parsed: cache of parsed blobs, which is filled; None: no cache.
        unread: changes that could not be read before; None: none.

    Attributes:
        parents: parent of each queue as of the last commit that counts.
    """

    def __init__(
        self,
        repository: source.GitSource,
        start: commit_walk.WalkStart,
        parsed: MutableMapping[str, document_reader.File] | None = None,
        unread: unread_changes.UnreadChanges | None = None,
    ) -> None:
        self._source = repository
        self._unread = unread_changes.UnreadChanges(None) if unread is None else unread
        prefix = f"{repository.sub_path}/" if repository.sub_path else ""
        self._touched = object_changes.Touched(
            repository, start.by_path, parsed, start.limits, self._unread.walk
        )
        self._rights = change_rights.ChangeRights(f"{prefix}{JOBS_FOLDER}/", start.jobs)
        self._trusted = trusted_files.TrustedFiles(self._touched, start.places)
        self.parents: Mapping[str, str | None] = start.parents

    def entries(self, commit: commit_log.Commit) -> list[object_changes.Entry]:
        """Return the files that a commit changes; behind odd trees, also what they changed.

        Raises:
            BrokenTreeError: it has a tree that git would never write.
        """
        odd = self._unread.odd
        return self._source.differences(odd.base if odd else commit.parent, commit.id)

    def read(
        self,
        commit: commit_log.Commit,
        query: authority.AuthorityQuery | None,
        entries: Sequence[object_changes.Entry],
        trust: trust_state.Trust,
    ) -> list[JudgedStep]:
        """Return what a commit changes, behind what earlier ones did to its files unread.

        All that judging takes is read, and nothing is judged.

        Raises:
            RevisionTooLargeError: that is more than is read at once.
        """
        parts: dict[
            int,
            tuple[commit_log.Commit, authority.AuthorityQuery | None, list[object_changes.Entry]],
        ]
        touches = [(path, one) for path, *_ in entries for one in self._unread.of(path)]
        parts = {}
        for path, one in touches:
            part = parts.setdefault(one.number, (one.commit, one.query, []))
            part[2].append((path, one.before, one.after))
        steps = [parts[number] for number in sorted(parts)]
        steps.append((commit, query, list(entries)))
        self._touched.forget()
        self._touched.fill(blob for *_, files in steps for _, *pair in files for blob in pair)
        found = [JudgedStep(one, by, self._touched.changes(files)) for one, by, files in steps]
        self._fill(trust, {label for step in found for label in step.changes})
        self._unread.forget(path for path, *_ in entries)
        return found

    def _fill(self, trust: trust_state.Trust, labels: Iterable[str]) -> None:
        """Read what judging changes of some objects takes besides what is changed."""
        for label in labels:
            denial = trust.denied.get(label)
            if denial is not None:
                for files in (denial.before, denial.after, denial.counted):
                    self._touched.fill(files.values())
            self._touched.fill(self._trusted.blobs(trust, label))

    def put_off(
        self,
        commit: commit_log.Commit,
        query: authority.AuthorityQuery | None,
        entries: Iterable[object_changes.Entry],
    ) -> None:
        """Note a commit that can't be read."""
        self._unread.add(commit, query, entries)

    def judge_step(self, trust: trust_state.Trust, step: JudgedStep) -> trust_state.Trust:
        """Return the trust after a commit."""
        self._trusted.follow(step.changes)
        if step.query is None:
            return self.take(trust, step.changes)
        for label, files in step.changes.items():
            trust = self.judge(trust, step.commit, label, files, step.query)
        return trust

    def judge_unread(self, trust: trust_state.Trust) -> trust_state.Trust:
        """Return the trust after all that was not read: whoever had a hand in a file needs the
        right to all that differs in it.

        Raises:
            RevisionTooLargeError: what is there now is still too large.
        """
        files = list(self._unread.files())
        self._touched.require_within_limits(entry[2] for entry, _ in files)
        for entry, touches in files:
            self._touched.forget(limited=False)
            self._touched.fill(entry[1:])
            changes = self._touched.changes([entry])
            self._fill(trust, changes)
            self._trusted.follow(changes)
            for label, pairs in changes.items():
                trust = self._judge_touched(trust, label, pairs, touches)
        self._unread.forget([entry[0] for entry, _ in files])
        return trust

    def _judge_touched(
        self,
        trust: trust_state.Trust,
        label: str,
        files: Mapping[str, object_changes.Pair],
        touches: Sequence[unread_changes.Touch],
    ) -> trust_state.Trust:
        """Return the trust after a change of one object by several commits."""
        asked = [(one.commit, one.query) for one in touches if one.query is not None]
        if not asked:
            return self.take(trust, {label: files})
        denial = _prior(trust, label, asked[-1][1])
        versions = self._versions(denial, files)
        change = self._touched.difference(label, versions.before, versions.after)
        refused = [pair for pair in asked if self._rights.refusal(pair[1], label, change)]
        commit, query = next(
            (pair for pair in refused if pair[1].mode == "required"), (refused or asked)[-1]
        )
        return self.judge(trust, commit, label, files, query)

    def take(self, trust: trust_state.Trust, changes: Changes) -> trust_state.Trust:
        """Return the trust after the changes of a commit of which nothing is required."""
        for label, files in changes.items():
            trust = self._trusted.renewed(trust, label)
            self._record_parent(
                label,
                [one for _, new in files.values() for one in self._touched.of(label, new)],
            )
        return trust

    def judge(
        self,
        trust: trust_state.Trust,
        commit: commit_log.Commit,
        label: str,
        files: Mapping[str, object_changes.Pair],
        query: authority.AuthorityQuery,
    ) -> trust_state.Trust:
        """Return the trust after a commit has changed one object in some files.

        As long as an object is denied, its changes add up: the right to everything that differs
        from the state in force is required, so that a second change does not launder the first.
        Valid changes in between are the new reference: reverting them is a change as well.
        """
        prior = _prior(trust, label, query)
        denial = prior or trust_state.Denial(authority.problem(query.mode, commit, label, "", None))
        versions = self._versions(denial, files)
        change = self._touched.difference(label, versions.before, versions.after)
        why = self._rights.refusal(query, label, change)
        problem = denial.problem
        if why is None:
            problem, versions = self._answer(label, files, denial, versions)
        after, counted = versions.after, versions.counted
        unanswered = {p for p in after if not self._touched.same(label, counted[p], after[p])}
        mine = [path for path in files if path in unanswered]
        if why is not None and mine:
            holding = [path for path in mine if self._touched.of(label, after[path])]
            problem = authority.problem(query.mode, commit, label, max(holding or mine), why)
        denied = {name: one for name, one in trust.denied.items() if name != label}
        if unanswered:
            timed = None
            if prior is None and why is not None:
                timed = self._timed(query, why, commit, label, change)
            denied[label] = trust_state.Denial(
                problem, versions.before, after, tuple(sorted(unanswered)), timed, counted
            )
        trust = msgspec.structs.replace(trust, denied=denied)
        if not unanswered or query.mode == "warn":
            return self._count(trust, label, change, after, warned=query.mode == "warn")
        return self._trusted.renewed(trust, label) if why is None else trust

    def counts(
        self, query: authority.AuthorityQuery, label: str, denial: trust_state.Denial
    ) -> bool:
        """Return True if a change that was denied counts by an authority."""
        self._touched.forget()
        try:
            self._touched.fill((*denial.before.values(), *denial.after.values()))
        except revision_limits.RevisionTooLargeError:
            return False
        change = self._touched.difference(label, denial.before, denial.after)
        return self._rights.refusal(query, label, change) is None

    def _versions(
        self, denial: trust_state.Denial | None, files: Mapping[str, object_changes.Pair]
    ) -> _Versions:
        """Return the versions of an object that is denied, if at all, after one more change."""
        before: Blobs = {path: pair[0] for path, pair in files.items()}
        after: Blobs = {path: pair[1] for path, pair in files.items()}
        counted = before
        if denial is not None:
            before = before | denial.before
            after = denial.after | after
            counted = before | denial.counted
        self._touched.fill((*before.values(), *after.values(), *counted.values()))
        return _Versions(before, after, counted)

    def _answer(
        self,
        label: str,
        files: Mapping[str, object_changes.Pair],
        denial: trust_state.Denial,
        versions: _Versions,
    ) -> tuple[desired.Problem, _Versions]:
        """Return problem and versions after somebody with the right changed some files."""
        move = self._touched.move(label, files)
        if move is None or move[0] not in denial.unanswered:
            answered = self._answered(label, files, versions.after)
            return denial.problem, msgspec.structs.replace(
                versions, counted=versions.counted | answered
            )
        # Whoever moves it does not answer for its contents: the denied change has a new place.
        old, new = move
        before, counted = versions.before, versions.counted
        if not self._touched.of(label, counted[new]):
            counted = counted | {new: counted[old], old: None}
        if not self._touched.of(label, before[new]):
            before = before | {new: before[old], old: None}
        problem = msgspec.structs.replace(denial.problem, path=new)
        return problem, _Versions(before, versions.after, counted)

    def _answered(self, label: str, files: Iterable[str], after: Blobs) -> Blobs:
        """Return the files that the signer of a change answers for, deletions included."""
        found = {path: after[path] for path in files}
        if any(self._touched.of(label, blob) for blob in found.values()):
            found |= {p: blob for p, blob in after.items() if not self._touched.of(label, blob)}
        return found

    def _timed(
        self,
        query: authority.AuthorityQuery,
        why: signatures.SignatureRefusal,
        commit: commit_log.Commit,
        label: str,
        change: object_changes.ObjectChange,
    ) -> trust_state.Timed | None:
        """Return the commit and its time if only the controller's clock refuses a change."""
        if not why.until or query.early is None:
            return None
        early = msgspec.structs.replace(query, signer=query.early, also=None)
        counts = self._rights.refusal(early, label, change) is None
        return trust_state.Timed(commit.id, why.until) if counts else None

    def _count(
        self,
        trust: trust_state.Trust,
        label: str,
        change: object_changes.ObjectChange,
        after: Blobs,
        *,
        warned: bool,
    ) -> trust_state.Trust:
        """Let a change count: return the trust after it."""
        readable = self._touched.all_readable(after.values())
        self._rights.record_owner(label, change, readable=readable)
        self._record_parent(label, change.after)
        gone = not any(self._touched.of(label, blob) for blob in after.values())
        if change.paths or warned or not gone:
            return self._trusted.renewed(trust, label)
        return trust

    def _record_parent(self, label: str, written: Iterable[document_reader.Document]) -> None:
        """Record the parent of a queue, from a change that counts."""
        name = label.removeprefix("Queue/")
        for part in [one.part for one in written]:
            if isinstance(part, queue_spec.QueueDocument):
                self.parents = {**self.parents, name: part.spec.parent}


def _prior(
    trust: trust_state.Trust, label: str, query: authority.AuthorityQuery
) -> trust_state.Denial | None:
    """Return the denial that a change of an object adds to."""
    prior = trust.denied.get(label)
    if prior is not None and not prior.binds and query.mode == "required":
        return None  # it was only a warning, so the object is in force
    return prior
