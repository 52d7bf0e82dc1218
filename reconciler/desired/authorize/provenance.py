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
)
from reconciler.desired.documents import document_reader
from reconciler.desired.git import commit_log, source
from reconciler.model.documents import cluster_spec

#: How often one walk stops on its way.
STOPS_MAX = 100


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
        *,
        whole: bool = False,
    ) -> commit_walk.CommitWalk:
        """Walk along ``line``, the oldest first.

        Args:
            line: commits from the last revision to the new one.
            trust: state at the last revision.
            start: state in force there.
            whole: walk to the end even past a commit that changes the authority.

        Raises:
            GitError: a commit cannot be read, or git cannot verify at all.
            RevisionTooLargeError: a commit changes more than is read at once.
        """
        unasked = trust.mode == "off" and (start.measure is None or start.measure.mode == "off")
        if unasked and not self._turns_on(line):
            approvals = (
                digest for commit in line for digest in commit.trailer(commit_signers.APPROVE)
            )
            return commit_walk.CommitWalk(trust, tuple(approvals))
        judge = object_judge.ObjectJudge(self._source, start, self._parsed)
        steps = _WalkSteps(self._signers, judge, start, trust, whole=whole)
        for commit in line:
            if not steps.judge(commit):
                return steps.result(until=steps.revision)
            if steps.must_apply and commit is not line[-1] and not whole:
                return steps.result(until=commit.id)
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

    def _turns_on(self, line: Sequence[commit_log.Commit]) -> bool:
        """Return True if a document about verification changes on the way.

        Without verification nobody asks who signed. If a commit turns it on, later ones must be
        signed, even if one of them turns it off again.
        """
        return any(commit.parent and self._says_how(commit) for commit in line)

    def _says_how(self, commit: commit_log.Commit) -> bool:
        """Return True if a commit writes a Cluster that turns verification on."""
        blobs = [new for _, _, new in self._source.differences(commit.parent, commit.id) if new]
        return any(
            isinstance(document.part, cluster_spec.ClusterDocument)
            and document.part.spec.verification.mode != "off"
            for data in self._source.blobs(blobs)
            if b"verification" in data
            for document in document_reader.read(data).documents
        )


class _WalkSteps:
    """The steps of one walk so far, a commit each.

    Attributes:
        revision: the last commit.
        must_apply: True if it must be applied before later commits are judged.
    """

    def __init__(
        self,
        signers: commit_signers.CommitSigners,
        judge: object_judge.ObjectJudge,
        start: commit_walk.WalkStart,
        trust: trust_state.Trust,
        *,
        whole: bool,
    ) -> None:
        self._signers = signers
        self._judge = judge
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

    def result(self, *, until: str = "") -> commit_walk.CommitWalk:
        """Return the walk up to the last commit. ``until`` is as in ``commit_walk.CommitWalk``."""
        found = tuple(self._approvals), self._signed, tuple(self._stops)
        return commit_walk.CommitWalk(self._trust, *found, until=until)

    def judge(self, commit: commit_log.Commit) -> bool:
        """Judge the next commit. Return False and add nothing if no more stops are left for it."""
        parents, trust = self._judge.parents, self._trust
        query = self._signers.query(commit, trust, self._in_force, parents)
        changes = self._judge.changes(commit)
        approved = self._signers.approvals(commit, trust, self._in_force)
        if query is None:
            self._counted.update(changes)
            trust = self._judge.take(trust, changes)
        else:
            for label, files in changes.items():
                trust = self._judge.judge(trust, commit, label, files, query)
            if not self._stop_if_needed(changes.keys(), trust.refused(changes)):
                return False
            self._signed[commit.id] = query.who
        self._approvals += approved
        authority_changed = (trust.mode, trust.documents) != (
            self._trust.mode,
            self._trust.documents,
        )
        if authority_changed:
            self._in_force = None
        queues_moved = query is not None and self._judge.parents != parents
        self.must_apply = authority_changed or queues_moved or (self._waits and bool(approved))
        self.revision, self._trust = commit.id, trust
        return True

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
