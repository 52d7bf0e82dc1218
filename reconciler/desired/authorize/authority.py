"""The authority that one commit is judged by: what is written before it, and what is in force.

These differ while a change of Access or Cluster is held or refused. Then both must allow the
commit, so that nobody uses a right, or missing verification, that is not in force. If nobody could
repair it under both, the written one is ignored. An approval is judged by what is in force alone.
"""

from collections.abc import Mapping

import msgspec

from reconciler.desired.authorize import signatures, trust_state
from reconciler.desired.git import commit_log
from reconciler.model import desired
from reconciler.model.policy import access

_ORDER: tuple[trust_state.Mode, ...] = ("off", "warn", "required")


class Authority(msgspec.Struct, frozen=True):
    """The verification mode, and who may do what."""

    mode: trust_state.Mode = "off"
    known: access.Access = access.Access()


class Signer(msgspec.Struct, frozen=True):
    """The identity that a commit counts as, and the kind of its key."""

    who: str
    acts: access.Acts


Signed = Signer | signatures.SignatureRefusal


class AuthorityQuery(msgspec.Struct, frozen=True):
    """The identity of a commit under one authority, and under the other if they differ.

    Attributes:
        signer: the identity.
        mode: action on refused changes, under either authority.
        known: access rules.
        parents: parent of each queue before the commit.
        early: identity it would have if the clock agreed with the commit, if only that refuses it.
        also: the same under the other authority, which must allow it as well.
    """

    signer: Signed
    mode: trust_state.Mode
    known: access.Access
    parents: Mapping[str, str | None]
    early: Signed | None = None
    also: "AuthorityQuery | None" = None

    @property
    def who(self) -> str:
        """Return the identity under all authorities, or an empty string if it is nobody's."""
        if isinstance(self.signer, signatures.SignatureRefusal):
            return ""
        return self.signer.who if self.also is None or self.also.who else ""


def stricter(one: trust_state.Mode, other: trust_state.Mode) -> trust_state.Mode:
    """Return the stricter of two modes."""
    return max(one, other, key=_ORDER.index)


def of_trust(trust: trust_state.Trust) -> Authority:
    """Return the authority as written."""
    return Authority(trust.mode, trust.whole())


def of_all(written: Authority, in_force: Authority | None) -> list[Authority]:
    """Return the authorities that a commit is judged by; none if nothing is required.

    ``in_force`` None: nothing is in force, or nobody can tell yet what will be.
    """
    found = [written]
    if in_force is not None and not _alike(written, in_force):
        found = [written, in_force] if _can_be_mended(written, in_force) else [in_force]
    return [one for one in found if one.mode != "off"]


def _can_be_mended(written: Authority, in_force: Authority) -> bool:
    """Return True if anybody could sign a change of Access or the Cluster that counts
    under both.
    """
    if written.mode == "off":
        return True
    one = written.known
    other = one if in_force.mode == "off" else in_force.known
    vouched = "author" in {key for _, key in _keys(one) & _keys(other)}
    signing = {email for email, _ in _keys(one) & _keys(other)}
    return any(
        (vouched or email in signing) and access.keeps(one, email) and access.keeps(other, email)
        for email in one.identities.keys() & other.identities.keys()
    )


def _keys(known: access.Access) -> set[tuple[str, str]]:
    """Return the owner of each key that signs for its owner. A forge's key has ``author``."""
    return {
        (email, "author" if one.acts == "author" else key.text)
        for email, one in known.identities.items()
        for key in one.keys
        if one.acts != "submitter"
    }


def _alike(one: Authority, other: Authority) -> bool:
    """Return True if they are equal, whatever the order of the documents."""
    return (
        one.mode == other.mode
        and one.known.identities == other.known.identities
        and _roles(one) == _roles(other)
    )


def _roles(of: Authority) -> list[bytes]:
    return sorted(map(msgspec.json.encode, of.known.roles))


def problem(
    mode: trust_state.Mode,
    commit: commit_log.Commit,
    label: str,
    path: str,
    why: signatures.SignatureRefusal | None,
) -> desired.Problem:
    """Return the problem of a changed object that nobody with the right signed."""
    return desired.Problem(
        rule=why.rule if why else "",
        severity="error" if mode == "required" else "warning",
        path=path,
        message=desired.unanswered(commit.id, why.message) if why else "",
        object=label,
    )
