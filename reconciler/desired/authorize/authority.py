"""What one commit is measured by: what is written before it, and what is in force.

Mostly they are the same. Where a change of Access or Cluster waits for approval, or is refused for
what else is wrong, they differ: then both have to allow what a commit does, so that nobody uses a
right, or a lack of verification, that nobody has let come into force. Where nobody is left who by
both could mend it, what is written counts for nothing: a slip of the one who may locks nobody out.
An approval is measured by what is in force alone, as one through the API is.
"""

from collections.abc import Mapping

import msgspec

from reconciler.desired.authorize import signatures, trust_state
from reconciler.desired.git import source
from reconciler.model import desired
from reconciler.model.policy import access

_ORDER: tuple[trust_state.Mode, ...] = ("off", "warn", "required")


class Authority(msgspec.Struct, frozen=True):
    """Whether who is not known, or may not, is refused; and who may what."""

    mode: trust_state.Mode = "off"
    known: access.Access = access.Access()


class Signer(msgspec.Struct, frozen=True):
    """As whom a commit counts, and by what kind of key."""

    who: str
    acts: access.Acts


Signed = Signer | signatures.SignatureRefusal


class AuthorityQuery(msgspec.Struct, frozen=True):
    """As whom a commit counts by one measure, and by the other where that differs.

    Attributes:
        signer: as whom it counts.
        mode: what becomes of what is refused, by either measure.
        known: who may what.
        parents: the parent of each queue before the commit.
        early: as whom it would count if the clock were as the commit says, where only that refuses
            it.
        also: the same by the other measure, which has to allow it as well.
    """

    signer: Signed
    mode: trust_state.Mode
    known: access.Access
    parents: Mapping[str, str | None]
    early: Signed | None = None
    also: "AuthorityQuery | None" = None

    @property
    def who(self) -> str:
        """As whom it counts by all measures; empty: as nobody."""
        if isinstance(self.signer, signatures.SignatureRefusal):
            return ""
        return self.signer.who if self.also is None or self.also.who else ""


def stricter(one: trust_state.Mode, other: trust_state.Mode) -> trust_state.Mode:
    """The mode that lets less pass."""
    return max(one, other, key=_ORDER.index)


def of_trust(trust: trust_state.Trust) -> Authority:
    """By what is written."""
    return Authority(trust.mode, trust.whole())


def of_all(written: Authority, in_force: Authority | None) -> list[Authority]:
    """What a commit is measured by: none where nothing is asked of it.

    ``in_force`` None: nothing is, or nobody can tell yet what will be.
    """
    found = [written]
    if in_force is not None and not _alike(written, in_force):
        found = [written, in_force] if _can_be_mended(written, in_force) else [in_force]
    return [one for one in found if one.mode != "off"]


def _can_be_mended(written: Authority, in_force: Authority) -> bool:
    """Whether anybody could sign a change of Access or the Cluster that counts by both."""
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
    """Whose each key is by which people sign for themselves; of a forge's key ``author``."""
    return {
        (email, "author" if one.acts == "author" else key.text)
        for email, one in known.identities.items()
        for key in one.keys
        if one.acts != "submitter"
    }


def _alike(one: Authority, other: Authority) -> bool:
    """Whether they come to the same; in which order documents were read makes no difference."""
    return (
        one.mode == other.mode
        and one.known.identities == other.known.identities
        and _roles(one) == _roles(other)
    )


def _roles(of: Authority) -> list[bytes]:
    return sorted(map(msgspec.json.encode, of.known.roles))


def problem(
    mode: trust_state.Mode,
    commit: source.Commit,
    label: str,
    path: str,
    why: signatures.SignatureRefusal | None,
) -> desired.Problem:
    """What is told of an object that a commit changes and nobody answers for."""
    return desired.Problem(
        rule=why.rule if why else "",
        severity="error" if mode == "required" else "warning",
        path=path,
        message=desired.unanswered(commit.id, why.message) if why else "",
        object=label,
    )
