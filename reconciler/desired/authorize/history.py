"""History of the branch: the commits that lead to a head, their identities, and accepted heads.

The commits between the state in force and a head are judged, each by its own difference. A head
that no judgeable commits lead to is judged alone: it is the first one, or an operator has accepted
it.
"""

import re
from collections.abc import Mapping, MutableMapping, Sequence

from reconciler.desired.authorize import (
    commit_walk,
    oversize,
    provenance,
    trust_state,
    unread_changes,
)
from reconciler.desired.documents import document_reader, name_owners, revision_limits
from reconciler.desired.git import commit_log, source, tree_diff
from reconciler.model import desired
from reconciler.model.values import index_ranges, revision_names

#: Heads that were accepted and are remembered.
TAKEN_MAX = 100
#: The rules that hold a head because of its size, and because of the commits that lead to it.
TOO_LARGE = "revision-too-large"
TOO_MANY = "too-many-commits"
#: The most files, and commits of them, that are looked at for who took objects out, if no commit
#: of the line did.
REMOVED_PATHS_MAX, REMOVERS_MAX = 1000, 100
#: The subject of a commit of ``muster cancel``, alone or with other requests of the same person.
_CANCEL = re.compile(
    r"Cancel (?:(?P<label>Job/[^\s:\[]+(?:\[[^\s\]]*\])?)|[0-9]+ jobs?(?:, [^:]*)?)"
    r"(?:: (?P<reason>.+))?"
)


class HeldError(Exception):
    """The head is not applied; the message says why."""

    def __init__(self, rule: str, message: str) -> None:
        self.rule = rule
        super().__init__(message)


class Lineage:
    """The commits of the last new head, the oldest first, with their identities.

    Args:
        repository: their repository.
        accept_revision: head to accept once although it does not follow the last one.
        taken: heads that were accepted like this before.
        parsed: cache of parsed blobs, which is filled; None: no cache.

    Attributes:
        taken: those and later ones: a branch that is reset to one of them is held.
        at: the commit of ``line`` that is applied now; empty: the last one.
        line: the commits; of a head that is judged alone: that one.
        signers: identity of each commit whose signature was checked, by id; empty: nobody.
    """

    def __init__(
        self,
        repository: source.GitSource,
        accept_revision: str | None = None,
        taken: tuple[str, ...] = (),
        parsed: MutableMapping[str, document_reader.File] | None = None,
    ) -> None:
        self._source = repository
        self._parsed = parsed
        self.taken = taken
        self.at = ""
        self._accepted: set[str] = set()
        if accept_revision:
            self.accept(accept_revision)
        self._merges: dict[str, str] = {}
        #: Nothing that could be judged leads to the head.
        self._alone = False
        #: The commit that the whole line leads to.
        self._last = ""
        #: The end of a portion behind which the next look goes on.
        self._portion = ""
        self._unread = unread_changes.UnreadChanges(None)
        self.line: tuple[commit_log.Commit, ...] = ()
        self.signers: Mapping[str, str] = {}

    def forget(self) -> None:
        """Forget the line: there is another head."""
        self.line, self.signers, self.at = (), {}, ""

    def begin_from(self, taken: tuple[str, ...]) -> None:
        """Return to a state with which these heads had been accepted."""
        self.taken = taken

    def reach(self, head: str) -> None:
        """Note which commit of the line is applied now."""
        self.at = head

    def accept(self, revision: str) -> None:
        """Accept ``revision``, or its prefix, although it is no successor.

        Raises:
            ValueError: it could be another one.
        """
        self._accepted.add(revision_names.accepted(revision))

    def is_accepted(self, head: str) -> bool:
        """Return True if an operator has accepted it, and it was not applied since."""
        return head not in self.taken and self._is_named(head)

    def _is_named(self, head: str) -> bool:
        return head.startswith(tuple(self._accepted))

    def was_taken(self, head: str) -> None:
        """Record that a head is in force: its acceptance is used up."""
        if self.is_accepted(head):
            self.taken = (*self.taken, head)[-TAKEN_MAX:]

    def judge_by(self, merge: str, branch: str) -> None:
        """Authorize ``merge``, which nobody has made yet, by the commits of ``branch``."""
        self._merges[merge] = branch

    def is_merge(self, head: str) -> bool:
        """Return True if a commit is judged by the commits of a branch."""
        return head in self._merges

    def walk(
        self,
        head: str,
        base: str | None,
        judge: provenance.Provenance,
        trust: trust_state.Trust,
        start: commit_walk.WalkStart,
    ) -> commit_walk.CommitWalk:
        """Authorize the commits that lead from ``base`` to ``head``.

        The first revision is taken as it is, and so is one that an operator accepted: nothing is
        walked. Its people and keys are the authority for later ones.

        Args:
            head: the new one.
            base: revision in force; None: none.
            judge: of signatures and access.
            trust: as of ``base``.
            start: state in force, by which commits are judged.

        Raises:
            HeldError: more commits lead there than can be judged, or it is too large.
        """
        if base is None or self.is_accepted(head) or not self._source.log.descends(head, base):
            self.take_alone(head, judge, trust)
            return commit_walk.CommitWalk(trust_state.Trust(), as_written=True)
        last = self._last = self._merges.get(head, head)
        if last != head:
            base = self._source.log.merge_base(base, last)
        unasked = trust.mode == "off" and (start.measure is None or start.measure.mode == "off")
        self._unread = unread_changes.UnreadChanges(start.limits)
        self._portion = ""
        self._list(base, head, judge, trust, newest=unasked)
        return self._walk(self.line, head, judge, trust, start)

    def walk_on(
        self,
        until: str,
        head: str,
        judge: provenance.Provenance,
        trust: trust_state.Trust,
        start: commit_walk.WalkStart,
    ) -> commit_walk.CommitWalk:
        """Continue behind the commit at which a walk stopped. It is otherwise as :meth:`walk`."""
        ids = [commit.id for commit in self.line]
        rest = self.line[ids.index(until) + 1 :]
        if not rest:
            self._list(until, head, judge, trust)
            rest = self.line
        return self._walk(rest, head, judge, trust, start)

    def _list(
        self,
        base: str,
        head: str,
        judge: provenance.Provenance,
        trust: trust_state.Trust,
        *,
        newest: bool = False,
    ) -> None:
        """Find the commits from ``base`` on, or the first portion of them."""
        try:
            line = self._source.log.between(base, self._last, newest=newest)
        except commit_log.TooManyCommitsError as error:
            self.take_alone(head, judge, trust)
            raise HeldError(
                TOO_MANY,
                f"{error}, and who signed each can't be judged at once: look at what they "
                f"change, and {how_to_accept(head)}",
            ) from None
        self.line, self._alone = tuple(line), False

    def _walk(
        self,
        line: Sequence[commit_log.Commit],
        head: str,
        judge: provenance.Provenance,
        trust: trust_state.Trust,
        start: commit_walk.WalkStart,
    ) -> commit_walk.CommitWalk:
        whole, more = self.is_merge(head), line[-1].id != self._last
        try:
            found = judge.walk(line, trust, start, self._unread, whole=whole, more=more)
        except tree_diff.BrokenTreeError as error:
            raise broken(head, error) from None
        except revision_limits.RevisionTooLargeError as error:
            raise self.too_large(head, error) from None
        self.signers = {**self.signers, **found.signers}
        return found

    def may_apply(self, head: str) -> bool:
        """Return True if the revision where a walk stopped may be in force.

        Nobody has read all of it as long as changes were put off. Those of a branch that is to be
        merged lead elsewhere.
        """
        return not self._unread and not self.is_merge(head)

    def is_portion(self, in_force: str | None) -> bool:
        """Return True if a portion of the line is in force, and the next look takes another."""
        return in_force is not None and in_force == self._portion

    def note_applied(self, until: str, head: str) -> None:
        """Note that the revision where a walk stopped is in force.

        Raises:
            HeldError: it was the end of a portion; what follows is left to the next look.
        """
        if until != self.line[-1].id and not self._unread.walk.is_spent:
            return
        self._portion = until
        author = next(commit.author for commit in self.line if commit.id == until)
        raise HeldError(
            TOO_MANY,
            f"more leads to {head[:12]} than is judged at once: more than {commit_log.LINE_MAX} "
            f"commits, or large ones. Up to {until[:12]} by {author} all is judged, and it goes on "
            "by itself",
        )

    def too_large(self, head: str, error: revision_limits.RevisionTooLargeError) -> HeldError:
        """Return the error about a head that is larger than what is read."""
        told = oversize.told(self._source, self.line)
        fix = told.revert if told else "revert it"
        return HeldError(
            TOO_LARGE,
            f"{head[:12]} is too large and was not read: {error}{told.text if told else ''}. To "
            f"fix: {fix}, and push, or raise `spec.sync.revision` of Cluster in a commit before "
            f"it; where it is right as it is, {how_to_accept(head)}",
        )

    def take_alone(self, head: str, judge: provenance.Provenance, trust: trust_state.Trust) -> None:
        """Take a head that no judgeable commits lead to."""
        commit = self._source.log.commit(head)
        self.line, self._alone = (commit,), True
        self.signers = judge.signers(commit, trust)

    def first(self, label: str, paths: Sequence[str]) -> str:
        """Return the file that first held an object that is in force from none.

        If nothing leads to the head, the commits that changed these files tell.
        """
        line = self._reached()
        if line and self._alone:
            line = self._source.log.history(line[-1].id, paths, name_owners.COMMITS_MAX)
        return name_owners.first(self._source, line, label, paths, self._parsed)

    def removals(self, homes: Mapping[str, str]) -> dict[str, desired.Removal]:
        """Return who took objects out of their files, by label, as far as the commits tell.

        A removal that was held is in an older commit than the line, which approves it.

        Args:
            homes: the file of each object, by label.

        Raises:
            GitError: a commit cannot be read.
        """
        line = self._reached()
        if not line:
            return {}
        found = name_owners.removers(self._source, line, homes, self._parsed)
        left = {label: path for label, path in homes.items() if label not in found}
        if left:
            paths = sorted(set(left.values()))[:REMOVED_PATHS_MAX]
            older = self._source.log.history(line[-1].id, paths, REMOVERS_MAX)
            found |= name_owners.removers(self._source, older, left, self._parsed)
        return {
            label: removal_by(commit, self.signers.get(commit.id), label)
            for label, commit in found.items()
        }

    def element_removals(
        self, wanted: Mapping[str, tuple[str, frozenset[int]]]
    ) -> dict[str, desired.Removal]:
        """Return who cancelled elements of arrays, by ``Job/NAME[ELEMENTS]``, as far as the commits
        tell.

        Args:
            wanted: the file of each array, and the elements, by its label.

        Raises:
            GitError: a commit cannot be read.
        """
        line = self._reached()
        if not line:
            return {}
        found = name_owners.cancellers(self._source, line, wanted, self._parsed)
        told: dict[str, desired.Removal] = {}
        for label, commits in found.items():
            for commit, elements in reversed(commits):
                named = f"{label}[{index_ranges.fold(elements)}]"
                told[named] = removal_by(commit, self.signers.get(commit.id), label)
        return told

    def _reached(self) -> Sequence[commit_log.Commit]:
        """Return the line up to the commit that is applied now."""
        ids = [one.id for one in self.line]
        return self.line[: ids.index(self.at) + 1] if self.at in ids else self.line

    def how_to_restore(self, head: str, in_force: str) -> str:
        """Return how to restore everything that a revision removed, with ``in_force`` before it."""
        if [one.id for one in self.line] == [head] and not self.line[0].merge:
            return f"Put it back: `git revert {head[:12]}`"
        return f"Put it back: `git checkout {in_force[:12]} -- .` at the top of a clone, and commit"


def removal_by(commit: commit_log.Commit, signer: str | None, label: str) -> desired.Removal:
    """Return the removal of an object by a commit.

    Args:
        commit: it.
        signer: who signed it. Empty: an unknown signer. None: signatures are not checked.
        label: of the object, or of the array of elements. A request for another one alone says
            nothing about it.
    """
    who = commit.author if signer is None else signer or f"nobody known (claims {commit.author})"
    cancel = _CANCEL.fullmatch(commit.subject)
    if cancel is not None and (cancel["label"] or label).partition("[")[0] != label:
        cancel = None
    return desired.Removal(
        by=who,
        commit=commit.id,
        at=float(commit.at),
        is_cancel=cancel is not None,
        reason=(cancel["reason"] or "") if cancel else "",
    )


def broken(head: str, error: tree_diff.BrokenTreeError) -> HeldError:
    """Return the error about a head with an unreliable tree."""
    return HeldError(
        "broken-tree",
        f"{error}; nothing of {head[:12]} is applied. To fix: find out who pushed it, and push a "
        "commit on top with what was there before: `git read-tree --reset -u COMMIT` of the last "
        "good commit, then `git commit`. `receive.fsckObjects=true` on the server refuses such a "
        "push",
    )


def how_to_accept(head: str) -> str:
    """Return the command that accepts a head as it is."""
    how = f"--accept-revision {head}"
    return f"start the controller again with `{how}`, which `muster up` takes too"
