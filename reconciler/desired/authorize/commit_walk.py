"""Start and result of a walk along commits (``provenance`` walks)."""

from collections.abc import Mapping

import msgspec

from reconciler.desired.authorize import authority, trust_state
from reconciler.model import desired


class WalkStart(msgspec.Struct, frozen=True):
    """The state in force at the start of a walk.

    Attributes:
        parents: parent of each queue.
        jobs: jobs in force, by name: their owners, if their documents cannot be read.
        places: files, with their blobs, that trusted kinds are written in, by label.
        measure: authority in force in addition to the written one; None: nothing is in force.
        waits: something is held that an approval may bring into force.
        origins: file of each structural object in force, by label.
        limits: of the size of one commit's change; None: no limit.
    """

    parents: Mapping[str, str | None] = {}
    jobs: Mapping[str, desired.Job] = {}
    places: Mapping[str, Mapping[str, str]] = {}
    measure: authority.Authority | None = None
    waits: bool = False
    origins: Mapping[str, str] = {}
    limits: desired.RevisionLimits | None = None

    def by_path(self) -> dict[str, list[str]]:
        """Labels of objects in force, by file."""
        found: dict[str, list[str]] = {}
        for job in self.jobs.values():
            found.setdefault(job.path, []).append(f"Job/{job.name}")
        for label, path in self.origins.items():
            found.setdefault(path, []).append(label)
        return found


class RequiredStop(msgspec.Struct, frozen=True):
    """A revision on the way that must be in force before later changes are refused."""

    revision: str
    trust: trust_state.Trust


class CommitWalk(msgspec.Struct, frozen=True):
    """Result of a walk: the trust after it, approved digests, and signers.

    ``signers``: identity of each commit whose signature was checked; empty: nobody. ``stops``: an
    object whose valid change was followed by one without the right stays as of the stop, however
    many commits are fetched at once. ``until``: the commit that changes the authority for those
    behind it, or before which no more stops are left; it must be applied before them; empty: the
    whole line was walked. ``as_written``: the revision's people and keys are taken as they are.
    """

    trust: trust_state.Trust
    approvals: tuple[str, ...] = ()
    signers: dict[str, str] = {}
    stops: tuple[RequiredStop, ...] = ()
    until: str = ""
    as_written: bool = False
