"""What commits are measured by: the mode, the Access, and what nobody has answered for yet.

A walk along commits takes it from one to the next; what comes out is kept over a restart, since of
what was refused neither the head nor what is in force tells.
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
    """The commit that is refused for the time alone, and before when it would not have been."""

    commit: str
    until: float


class Denial(msgspec.Struct, frozen=True):
    """A change that does not count, until somebody who may answers for it or it is taken back.

    Attributes:
        problem: what is said of it.
        before: by path, the blobs that hold the object as it is in force, of the files that have
            changed since; None: the file was not there.
        after: the same files as they are written now.
        counted: the same files as the last commit left them that somebody answers for who may.
        unanswered: those of them that are written otherwise now.
        timed: the one commit behind it, where the controller's clock alone decided; None else.
    """

    problem: desired.Problem
    before: dict[str, str | None] = {}
    after: dict[str, str | None] = {}
    unanswered: tuple[str, ...] = ()
    timed: Timed | None = None
    counted: dict[str, str | None] = {}

    @property
    def binds(self) -> bool:
        """Whether the object stays as it is in force; else it was only told of."""
        return self.problem.severity == "error"


class Trust(msgspec.Struct, frozen=True):
    """What commits are measured by, as of the last revision; it outlives the controller.

    Attributes:
        mode: whether what is not signed by somebody who may is refused.
        documents: what each document of ``Access`` says, by label.
        denied: by label, the objects that stay as they are in force.
    """

    mode: Mode = "off"
    documents: dict[str, access.Access] = {}
    denied: dict[str, Denial] = {}

    def whole(self) -> access.Access:
        """The access of all documents together."""
        found = access.Access()
        for one in self.documents.values():
            found = found.merged(one)
        return found

    def refused(self, labels: Iterable[str]) -> set[str]:
        """Those of some objects that stay as they are in force."""
        found = {label: self.denied.get(label) for label in labels}
        return {label for label, one in found.items() if one and one.binds}

    def due(self, now: float) -> dict[str, tuple[str, Denial]]:
        """What a clock alone refused that was ahead of ``now``, with the commit, by label.

        Not of the kinds that others are measured by: what came after them was judged without.
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
        """With a document as somebody who may has left it; ``part`` None: it is gone."""
        if isinstance(part, cluster_spec.ClusterDocument):
            return msgspec.structs.replace(self, mode=part.spec.verification.mode)
        if label.startswith("Cluster/"):
            return msgspec.structs.replace(self, mode="off") if part is None else self
        known = {name: one for name, one in self.documents.items() if name != label}
        if isinstance(part, access_spec.AccessDocument):
            known[label] = access_documents.access_of(part.spec, faults.FaultCollector())
        return msgspec.structs.replace(self, documents=known)


def kind(label: str) -> str:
    """The kind of an object, by its label."""
    return label.split("/", 1)[0]


def trusted(parts: Mapping[str, fields.DocumentPart]) -> Trust:
    """What a revision says that is taken as it is: the first one, or without verification."""
    found = Trust()
    for label, part in sorted(parts.items()):
        found = found.renewed(label, part)
    return found
