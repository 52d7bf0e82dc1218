"""What leads to a head of the branch: its commits, as whom they count, and what was accepted.

The commits between what is in force and a head answer for it, each for its own difference. A head
to which nothing leads that could be judged answers for itself: it is the first one, or somebody who
starts the controller has said that it is right.
"""

from collections.abc import Callable, Mapping, Sequence

from reconciler.desired.authorize import commit_walk, provenance, trust_state
from reconciler.desired.documents import name_owners
from reconciler.desired.git import source, tree_diff
from reconciler.model.values import revision_names

#: Heads that were accepted and are remembered.
TAKEN_MAX = 100


class HeldError(Exception):
    """The head is not applied, and why."""

    def __init__(self, rule: str, message: str) -> None:
        self.rule = rule
        super().__init__(message)


class Lineage:
    """The commits of the last new head, the oldest first, and as whom they count.

    Args:
        repository: where they are.
        accept_revision: a head to take, once, although it does not follow the last one.
        taken: heads that were taken so before.

    Attributes:
        taken: those and the ones since: a branch that is reset to one of them later is held.
        at: the commit of ``line`` that is applied now; empty: the last one.
        line: the commits; of a head that answers for itself: that one.
        signers: as whom those count whose signatures were looked at, by id; empty: as nobody.
    """

    def __init__(
        self,
        repository: source.GitSource,
        accept_revision: str | None = None,
        taken: tuple[str, ...] = (),
    ) -> None:
        self._source = repository
        self.taken = taken
        self.at = ""
        self._accepted: set[str] = set()
        if accept_revision:
            self.accept(accept_revision)
        self._merges: dict[str, str] = {}
        #: Nothing that could be judged leads to the head.
        self._alone = False
        self.line: tuple[source.Commit, ...] = ()
        self.signers: Mapping[str, str] = {}

    def forget(self) -> None:
        """There is another head, and nothing is known of what leads to it."""
        self.line, self.signers, self.at = (), {}, ""

    def accept(self, revision: str) -> None:
        """Take ``revision``, or what begins so, although it is no successor.

        Raises:
            ValueError: it could be another one.
        """
        self._accepted.add(revision_names.accepted(revision))

    def is_accepted(self, head: str) -> bool:
        """Whether somebody has said from outside that it is right, and it was not taken since."""
        return head not in self.taken and self._is_named(head)

    def _is_named(self, head: str) -> bool:
        return head.startswith(tuple(self._accepted))

    def was_taken(self, head: str) -> None:
        """A head is in force: that it was accepted is used up."""
        if self.is_accepted(head):
            self.taken = (*self.taken, head)[-TAKEN_MAX:]

    def judge_by(self, merge: str, branch: str) -> None:
        """Let the commits of ``branch`` answer for ``merge``, which nobody has made yet."""
        self._merges[merge] = branch

    def is_merge(self, head: str) -> bool:
        """Whether the commits of a branch answer for it."""
        return head in self._merges

    def walk(
        self,
        head: str,
        base: str | None,
        judge: provenance.Provenance,
        trust: trust_state.Trust,
        before: Callable[[], commit_walk.WalkStart],
    ) -> commit_walk.CommitWalk:
        """Who answers for what leads from ``base`` to ``head``.

        The first revision, and one that was accepted from outside and does not follow, or not in
        as many commits as can be judged, are taken as they are: what they say of people and keys is
        what later ones are measured by.

        Args:
            head: the new one. base: what is in force; None: nothing is.
            judge: of signatures and access.
            trust: in whom, as ``base`` says. before: what is in force, by which is judged.

        Raises:
            HeldError: more commits lead there than can be judged.
        """
        if base is None or not self._source.descends(head, base):
            self.take_alone(head, judge, trust)
            return commit_walk.CommitWalk(trust_state.Trust(), as_written=True)
        known = before()
        last = self._merges.get(head, head)
        if last != head:
            base = self._source.merge_base(base, last)
        unasked = trust.mode == "off" and (known.measure is None or known.measure.mode == "off")
        try:
            line = self._source.line(base, last, newest=unasked)
        except source.TooManyCommitsError as error:
            self.take_alone(head, judge, trust)
            if not self.is_accepted(head):
                raise HeldError(
                    "too-many-commits",
                    f"{error}, and who signed each can't be judged at once: look at what they "
                    f"change, and {how_to_accept(head)}",
                ) from None
            return commit_walk.CommitWalk(trust_state.Trust(), as_written=True)
        self.line, self._alone = tuple(line), False
        try:
            found = judge.walk(line, trust, known, whole=self.is_merge(head))
        except tree_diff.BrokenTreeError as error:
            return self._accepted_alone(head, judge, trust, error)
        self.signers = found.signers
        return found

    def walk_on(
        self,
        until: str,
        judge: provenance.Provenance,
        trust: trust_state.Trust,
        before: commit_walk.WalkStart,
    ) -> commit_walk.CommitWalk:
        """Go on behind the commit that a walk has stopped at; the rest as for :meth:`walk`."""
        ids = [commit.id for commit in self.line]
        try:
            found = judge.walk(self.line[ids.index(until) + 1 :], trust, before)
        except tree_diff.BrokenTreeError as error:
            return self._accepted_alone(ids[-1], judge, trust, error)
        self.signers = {**self.signers, **found.signers}
        return found

    def _accepted_alone(
        self,
        head: str,
        judge: provenance.Provenance,
        trust: trust_state.Trust,
        error: tree_diff.BrokenTreeError,
    ) -> commit_walk.CommitWalk:
        """What leads to a head can't be judged: it is taken only where that was accepted."""
        if not self.is_accepted(head):
            raise broken(head, error) from None
        self.take_alone(head, judge, trust)
        return commit_walk.CommitWalk(trust_state.Trust(), as_written=True)

    def take_alone(self, head: str, judge: provenance.Provenance, trust: trust_state.Trust) -> None:
        """A head to which nothing leads that could be judged: it answers for itself."""
        commit = self._source.commit(head)
        self.line, self._alone = (commit,), True
        self.signers = judge.signers(commit, trust)

    def first(self, label: str, paths: Sequence[str]) -> str:
        """Which file held an object first that is in force from none.

        Where nothing leads to the head, the commits that changed these files tell.
        """
        line: Sequence[source.Commit] = self.line
        ids = [one.id for one in line]
        if self.at in ids:
            line = line[: ids.index(self.at) + 1]
        if line and self._alone:
            line = self._source.history(line[-1].id, paths, name_owners.COMMITS_MAX)
        return name_owners.first(self._source, line, label, paths)

    def how_to_restore(self, head: str, kept: str) -> str:
        """What brings everything back that a revision has removed, with ``kept`` in force."""
        if [one.id for one in self.line] == [head] and not self.line[0].merge:
            return f"Put it back: `git revert {head[:12]}`"
        return f"Put it back: `git checkout {kept[:12]} -- .` at the top of a clone, and commit"


def broken(head: str, error: tree_diff.BrokenTreeError) -> HeldError:
    """A head is not applied that has a tree, or follows one, that nobody can be sure of."""
    return HeldError(
        "broken-tree",
        f"{error}; nothing of {head[:12]} is applied. Find out who pushed it, take it out of the "
        f"branch, or look at what it holds now, and where that is right, {how_to_accept(head)}. "
        "`receive.fsckObjects=true` on the server refuses such a push",
    )


def how_to_accept(head: str) -> str:
    """What takes a head as it is."""
    how = f"--accept-revision {head}"
    return f"start the controller again with `{how}`, which `muster up` takes too"
