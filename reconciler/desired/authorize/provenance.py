"""Authorizes the changes of a revision, commit by commit and object by object.

The commits from the revision in force to a new head come in, the oldest first. Each is judged for
its difference to the one before, by the Access and the mode before it, so that no commit authorizes
itself. Objects whose last change nobody with the right has signed go out (they stay as in force),
and the approvals that count.
"""

from collections.abc import Callable, MutableMapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from reconciler.desired.authorize import (
    authority,
    commit_signers,
    commit_walk,
    object_judge,
    trust_state,
    unread_changes,
)
from reconciler.desired.documents import document_reader, revision_limits
from reconciler.desired.git import commit_log, source, tree_diff
from reconciler.model import desired
from reconciler.model.documents import cluster_spec

#: How often one walk stops on its way.
STOPS_MAX = 100
#: Of so many commits at the end of a line it is found out who signed, although they change nothing.
SIGNERS_MAX = 100


class Provenance:
    """A walker along the commits of one repository. Close it when done.

    ``parsed``: cache of parsed blobs, which is filled; None: no cache.
    """

    def __init__(
        self,
        repository: source.GitSource,
        clock: Callable[[], float],
        parsed: MutableMapping[str, document_reader.File] | None = None,
    ) -> None:
        self._source = repository
        self._parsed = parsed
        self._clock = clock
        self._signers = commit_signers.CommitSigners(repository, clock)

    def close(self) -> None:
        """Forget the keys."""
        self._signers.close()

    def signers(self, commit: commit_log.Commit, trust: trust_state.Trust) -> dict[str, str]:
        """Return who signed a commit that nothing leads to, in the form of
        ``commit_walk.CommitWalk.signers``.

        Raises:
            GitError: it cannot be read, or git cannot verify at all.
        """
        return self._signers.of_lone(commit, trust)

    def walk(
        self,
        line: Sequence[commit_log.Commit],
        trust: trust_state.Trust,
        start: commit_walk.WalkStart,
        unread: unread_changes.UnreadChanges | None = None,
        *,
        whole: bool = False,
        more: bool = False,
    ) -> commit_walk.CommitWalk:
        """Walk along ``line``, the oldest first.

        A commit that changes more than is read at once is put off, and so nothing can be in force
        before its changes are gone or were read: the walk stops before it, once, and then goes on.
        So it is with a commit that has a tree that git would never write.

        Args:
            line: commits from the last revision to the new one.
            trust: state at the last revision.
            start: state in force there.
            unread: changes that were put off; it is added to. None: none.
            whole: walk to the end even past a commit that changes the authority.
            more: further commits follow the line.

        Raises:
            GitError: a commit cannot be read, or git cannot verify at all.
            RevisionTooLargeError: what was put off is there at the end, and too large to be read.
            BrokenTreeError: the last commit has a tree that git would never write.
        """
        if unread is None:
            unread = unread_changes.UnreadChanges(start.limits)
        unasked = trust.mode == "off" and (start.measure is None or start.measure.mode == "off")
        if unasked and not unread and not self._turns_on(line, start.limits):
            approvals = (
                digest for commit in line for digest in commit.trailer(commit_signers.APPROVE)
            )
            return commit_walk.CommitWalk(trust, tuple(approvals))
        judge = object_judge.ObjectJudge(self._source, start, self._parsed, unread)
        steps = _WalkSteps(self._signers, judge, start, trust, unread, whole=whole)
        steps.named = {commit.id for commit in line[-SIGNERS_MAX:]}
        for commit in line:
            if not steps.judge(commit):
                return steps.result(until=steps.revision)
            ends = commit is line[-1] and not more
            if steps.must_apply and not unread and not ends and not whole:
                return steps.result(until=commit.id)
        if more:
            return steps.result(until=steps.revision)
        steps.finish()
        return steps.result()

    def again(
        self, head: str, trust: trust_state.Trust, start: commit_walk.WalkStart
    ) -> trust_state.Trust:
        """Judge again, once, a change that only a clock refused that has been set back since.

        It counts if its signer may by the present Access too. ``head``: the revision in force,
        which its commit must lead to.

        Raises:
            GitError: a commit cannot be read, or git cannot verify at all.
        """
        denied = dict(trust.denied)
        judge = object_judge.ObjectJudge(self._source, start, self._parsed)
        queries: dict[str, authority.AuthorityQuery | None] = {}
        for label, (sha, denial) in trust.due(self._clock()).items():
            if sha not in queries:
                queries[sha] = self._query(sha, head, trust, start)
            query = queries[sha]
            if query is not None and judge.counts(query, label, denial):
                del denied[label]
            else:
                denied[label] = msgspec.structs.replace(denial, timed=None)
        return msgspec.structs.replace(trust, denied=denied)

    def _query(
        self, sha: str, head: str, trust: trust_state.Trust, start: commit_walk.WalkStart
    ) -> authority.AuthorityQuery | None:
        """Return the present authority of a commit, or None if it does not lead to ``head``."""
        if not self._source.log.descends(head, sha):
            return None
        commit = self._source.log.commit(sha)
        return self._signers.query(commit, trust, start.measure, start.parents)

    def _turns_on(
        self, line: Sequence[commit_log.Commit], limits: desired.RevisionLimits | None
    ) -> bool:
        """Return True if a document about verification changes on the way, or if nobody can tell.

        Without verification nobody asks who signed. If a commit turns it on, later ones must be
        signed, even if one of them turns it off again.
        """
        walk = revision_limits.of_walk(limits)
        seen: set[str] = set()
        try:
            return any(self._says_how(one, limits, walk, seen) for one in line if one.parent)
        except (revision_limits.RevisionTooLargeError, tree_diff.BrokenTreeError):
            return True

    def _says_how(
        self,
        commit: commit_log.Commit,
        limits: desired.RevisionLimits | None,
        walk: revision_limits.ReadingBudget,
        seen: set[str],
    ) -> bool:
        """Return True if a commit writes a Cluster that turns verification on."""
        found = [new for _, _, new in self._source.differences(commit.parent, commit.id) if new]
        blobs = [blob for blob in dict.fromkeys(found) if blob not in seen]
        seen.update(blobs)
        return any(
            isinstance(document.part, cluster_spec.ClusterDocument)
            and document.part.spec.verification.mode != "off"
            for data in revision_limits.ReadingBudget(limits, walk=walk).read(self._source, blobs)
            if b"verification" in data
            for document in document_reader.read(data).documents
        )


class _WalkSteps:
    """The steps of one walk so far, a commit each.

    Attributes:
        revision: the last commit.
        must_apply: True if it must be applied before later commits are judged.
        named: commits that are verified although they change nothing.
    """

    def __init__(
        self,
        signers: commit_signers.CommitSigners,
        judge: object_judge.ObjectJudge,
        start: commit_walk.WalkStart,
        trust: trust_state.Trust,
        unread: unread_changes.UnreadChanges,
        *,
        whole: bool,
    ) -> None:
        self._signers = signers
        self._judge = judge
        self._unread = unread
        self._waits = start.waits
        self._in_force = start.measure
        self._trust = trust
        self._whole = whole
        self._approvals: list[str] = []
        self._signed: dict[str, str] = {}
        self._stops: list[commit_walk.RequiredStop] = []
        #: Objects that differ from those in force, or from those at the last stop.
        self._counted: set[str] = set()
        self.revision = ""
        self.must_apply = False
        self.named: AbstractSet[str] = frozenset()

    def result(self, *, until: str = "") -> commit_walk.CommitWalk:
        """Return the walk up to the last commit. ``until`` is as in ``commit_walk.CommitWalk``."""
        found = tuple(self._approvals), self._signed, tuple(self._stops)
        return commit_walk.CommitWalk(self._trust, *found, until=until)

    def judge(self, commit: commit_log.Commit) -> bool:
        """Judge the next commit. Return False and add nothing if what came before must be in force
        first: no more stops are left, or it is the first that can't be read.
        """
        parents, trust, unread = self._judge.parents, self._trust, bool(self._unread)
        try:
            entries = self._judge.entries(commit)
        except tree_diff.BrokenTreeError as error:
            return self._pass_over(commit, error)
        if self._unread.odd is not None:
            query = self._signers.query(commit, trust, self._in_force, parents)
            self._unread.settle_odd(query, entries)
            entries = []
        if not (entries or commit.id in self.named or commit.trailer(commit_signers.APPROVE)):
            self.revision = commit.id
            return True
        query = self._signers.query(commit, trust, self._in_force, parents)
        approved = self._signers.approvals(commit, trust, self._in_force)
        try:
            steps = self._judge.read(commit, query, entries, trust)
        except revision_limits.RevisionTooLargeError:
            if self.revision and not unread and not self._whole:
                return False
            self._judge.put_off(commit, query, entries)
            steps = []
        changed = {label for step in steps for label in step.changes}
        for step in steps:
            trust = self._judge.judge_step(trust, step)
        if query is None or unread:
            self._counted.update(changed - trust.refused(changed))
        elif not self._stop_if_needed(changed, trust.refused(changed)):
            return False
        if query is not None:
            self._signed[commit.id] = query.who
        self._approvals += approved
        queues_moved = query is not None and self._judge.parents != parents
        self._take(trust, must_apply=queues_moved or (self._waits and bool(approved)))
        self.revision = commit.id
        return True

    def _pass_over(self, commit: commit_log.Commit, error: tree_diff.BrokenTreeError) -> bool:
        """Pass over a commit that nobody can read. Return False if what came before it must be in
        force first.
        """
        if self.revision and not self._unread and not self._whole:
            return False
        query = self._signers.query(commit, self._trust, self._in_force, self._judge.parents)
        self._unread.pass_over(commit, query, error)
        self.revision = commit.id
        return True

    def finish(self) -> None:
        """Judge what was put off, at the end of the whole line.

        Raises:
            RevisionTooLargeError: it is too large.
            BrokenTreeError: the last commit has a tree that git would never write.
        """
        if self._unread.odd is not None:
            raise self._unread.odd.error
        self._take(self._judge.judge_unread(self._trust), must_apply=False)

    def _take(self, trust: trust_state.Trust, *, must_apply: bool) -> None:
        """Take the trust after a commit."""
        before, self._trust = self._trust, trust
        authority_changed = (trust.mode, trust.documents) != (before.mode, before.documents)
        if self._unread:  # nothing can be in force yet: what is in force counts for later ones too
            self.must_apply |= authority_changed or must_apply
            return
        if authority_changed:
            self._in_force = None
        self.must_apply |= authority_changed or must_apply

    def _stop_if_needed(self, changed: AbstractSet[str], denied: set[str]) -> bool:
        """Stop before a commit that denies an earlier valid change of the same object.

        Return False if there were too many stops: the next walk goes on from here, with new ones.
        """
        if denied & self._counted and len(self._stops) < STOPS_MAX:
            self._stops.append(commit_walk.RequiredStop(self.revision, self._trust))
            self._counted.clear()
        elif denied & self._counted and not self._whole:
            return False
        self._counted |= changed - denied
        return True
