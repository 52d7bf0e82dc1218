"""The authority of commits as written: mode, Access, and changes that nobody has authorized yet.

A walk along commits carries it from one to the next. It is kept over a restart, because neither the
head nor the state in force tells what was refused.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from reconciler.desired.authorize import access_documents
from reconciler.desired.documents import faults
from reconciler.model import desired
from reconciler.model.documents import access_spec, cluster_spec, fields
from reconciler.model.policy import access

Mode = Literal["off", "warn", "required"]
TRUSTED_KINDS = ("Access", "Cluster")


class Timed(msgspec.Struct, frozen=True):
    """A commit that is refused only because of the time, and the time before which it
    would count.
    """

    commit: str
    until: float


class Denial(msgspec.Struct, frozen=True):
    """A change that does not count until somebody with the right signs it or it is reverted.

    Attributes:
        problem: the message.
        before: blobs, by path, that hold the object as it is in force, of the files changed since;
            None: the file did not exist.
        after: the same files as they are written now.
        counted: the same files as of the last commit by somebody with the right.
        unanswered: those of them that are written differently now.
        timed: the one commit behind it, if only the controller's clock decided.
    """

    problem: desired.Problem
    before: dict[str, str | None] = {}
    after: dict[str, str | None] = {}
    unanswered: tuple[str, ...] = ()
    timed: Timed | None = None
    counted: dict[str, str | None] = {}

    @property
    def binds(self) -> bool:
        """True if the object stays as it is in force; otherwise it is only a warning."""
        return self.problem.severity == "error"


class Trust(msgspec.Struct, frozen=True):
    """The written authority as of the last revision; it outlives the controller.

    Attributes:
        mode: verification mode.
        documents: access rules of each ``Access`` document, by label.
        denied: objects, by label, that stay as they are in force.
    """

    mode: Mode = "off"
    documents: dict[str, access.Access] = {}
    denied: dict[str, Denial] = {}

    def whole(self) -> access.Access:
        """The access rules of all documents together."""
        found = access.Access()
        for one in self.documents.values():
            found = found.merged(one)
        return found

    def refused(self, labels: Iterable[str]) -> set[str]:
        """Return those of some objects that stay as they are in force."""
        found = {label: self.denied.get(label) for label in labels}
        return {label for label, one in found.items() if one and one.binds}

    def due(self, now: float) -> dict[str, tuple[str, Denial]]:
        """Return changes that only a clock ahead of ``now`` refused, with the commit, by label.

        Kinds that authorize others are left out: later commits were judged without them.
        """
        return {
            label: (one.timed.commit, one)
            for label, one in self.denied.items()
            if one.timed is not None
            and now < one.timed.until
            and self.mode == "required"
            and kind(label) not in TRUSTED_KINDS
        }

    def renewed(self, label: str, part: fields.DocumentPart | None) -> "Trust":
        """Return the trust with a document as somebody with the right left it. With ``part`` None
        it was deleted.
        """
        if isinstance(part, cluster_spec.ClusterDocument):
            return msgspec.structs.replace(self, mode=part.spec.verification.mode)
        if label.startswith("Cluster/"):
            return msgspec.structs.replace(self, mode="off") if part is None else self
        known = {name: one for name, one in self.documents.items() if name != label}
        if isinstance(part, access_spec.AccessDocument):
            known[label] = access_documents.access_of(part.spec, faults.FaultCollector())
        return msgspec.structs.replace(self, documents=known)


def kind(label: str) -> str:
    """Return the kind of an object, by its label."""
    return label.split("/", 1)[0]


def trusted(parts: Mapping[str, fields.DocumentPart]) -> Trust:
    """Return the trust of a revision that is taken as it is: the first one, or without
    verification.
    """
    found = Trust()
    for label, part in sorted(parts.items()):
        found = found.renewed(label, part)
    return found
