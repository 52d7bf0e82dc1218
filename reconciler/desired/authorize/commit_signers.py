"""Identifies who stands behind a commit, by its signature and an Access.

A commit and the authority before it come in; the identity that it counts as goes out, and the
digests that it approves. What a commit changes is not looked at.
"""

from collections.abc import Callable, Mapping

from reconciler.desired.authorize import authority, signatures, trust_state
from reconciler.desired.git import commit_log, source
from reconciler.model.policy import access

APPROVE = "Muster-Approve"
SUBMITTER = "Muster-Submitter"


class CommitSigners:
    """The identities of a repository's commits. Close it when done."""

    def __init__(self, repository: source.GitSource, clock: Callable[[], float]) -> None:
        self._verifier = signatures.Verifier(repository)
        self._clock = clock

    def close(self) -> None:
        """Forget the keys."""
        self._verifier.close()

    def query(
        self,
        commit: commit_log.Commit,
        trust: trust_state.Trust,
        in_force: authority.Authority | None,
        parents: Mapping[str, str | None],
    ) -> authority.AuthorityQuery | None:
        """Return the identity of a commit and its authority; None: nothing is required of it."""
        found: authority.AuthorityQuery | None = None
        for rule in reversed(authority.of_all(authority.of_trust(trust), in_force)):
            signer = self._identify(commit, rule.known, self._clock())
            early = None
            if isinstance(signer, signatures.SignatureRefusal) and signer.until is not None:
                early = self._identify(commit, rule.known, commit.at)
            mode = authority.stricter(rule.mode, found.mode) if found else rule.mode
            found = authority.AuthorityQuery(signer, mode, rule.known, parents, early, found)
        return found

    def approvals(
        self,
        commit: commit_log.Commit,
        trust: trust_state.Trust,
        in_force: authority.Authority | None,
    ) -> list[str]:
        """Return the digests that a commit approves, if its signer may."""
        digests = commit.trailer(APPROVE)
        measure = in_force or authority.of_trust(trust)
        if not digests or measure.mode != "required":
            return digests
        signer = self._identify(commit, measure.known, self._clock())
        if isinstance(signer, signatures.SignatureRefusal):
            return []
        return digests if access.of_approval(measure.known, signer.who).allowed else []

    def of_lone(self, commit: commit_log.Commit, trust: trust_state.Trust) -> dict[str, str]:
        """Return who signed a commit that nothing leads to, in the form of
        ``commit_walk.CommitWalk.signers``.

        Raises:
            GitError: it cannot be read, or git cannot verify at all.
        """
        if trust.mode == "off":
            return {}
        found = self._identify(commit, trust.whole(), self._clock())
        return {commit.id: "" if isinstance(found, signatures.SignatureRefusal) else found.who}

    def _identify(
        self, commit: commit_log.Commit, known: access.Access, now: float
    ) -> authority.Signed:
        """Return the identity of a commit at ``now``."""
        found = self._verifier.verify(commit, known, now)
        if isinstance(found, signatures.SignatureRefusal):
            return found
        who = found.email
        if found.acts == "submitter":
            named = commit.trailer(SUBMITTER)
            if len(named) != 1:
                return signatures.SignatureRefusal(
                    "no-submitter",
                    f"it is signed with the key of {who} and has {len(named)} lines {SUBMITTER}; "
                    "one is expected",
                )
            who = named[0]
        elif found.acts == "author":
            who = commit.author
        if who not in known.identities:
            return signatures.SignatureRefusal(
                "unknown-person", f"{who} is not an identity in Access"
            )
        return authority.Signer(who, found.acts)
