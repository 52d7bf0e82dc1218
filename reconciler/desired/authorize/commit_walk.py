"""What a walk along commits begins from, and what comes of it (``provenance`` walks)."""

from collections.abc import Mapping

import msgspec

from reconciler.desired.authorize import authority, trust_state
from reconciler.model import desired


class WalkStart(msgspec.Struct, frozen=True):
    """What is in force where a walk begins.

    Attributes:
        parents: the parent of each queue.
        jobs: the jobs in force, by name: whose they are, where their documents can't be read.
        places: by label, in which files, with their blobs, the trusted kinds are written.
        measure: what commits are measured by beside what is written; None: nothing is in force.
        waits: whether something is held, which an approval may bring into force.
        origins: by label, in which file a structural object that is in force was written.
    """

    parents: Mapping[str, str | None] = {}
    jobs: Mapping[str, desired.Job] = {}
    places: Mapping[str, Mapping[str, str]] = {}
    measure: authority.Authority | None = None
    waits: bool = False
    origins: Mapping[str, str] = {}

    def by_path(self) -> dict[str, list[str]]:
        """The labels of what is in force from each file."""
        found: dict[str, list[str]] = {}
        for job in self.jobs.values():
            found.setdefault(job.path, []).append(f"Job/{job.name}")
        for label, path in self.origins.items():
            found.setdefault(path, []).append(label)
        return found


class RequiredStop(msgspec.Struct, frozen=True):
    """A revision on the way that is to be in force before what comes behind it is refused."""

    revision: str
    trust: trust_state.Trust


class CommitWalk(msgspec.Struct, frozen=True):
    """What came of a walk: what holds after it, digests that were approved, and who signed.

    ``signers``: as whom each commit counts whose signature was looked at; empty: as nobody.
    ``stops``: what of an object counted, and was then changed by somebody who may not, stays as of
    there: how many commits are fetched at once makes no difference.
    ``until``: the commit that changes what those behind it are measured by, or before which no more
    stops are left, which has to be taken up before them; empty: all of the line was walked.
    ``as_written``: what the revision says of people and keys is taken as it is.
    """

    trust: trust_state.Trust
    approvals: tuple[str, ...] = ()
    signers: dict[str, str] = {}
    stops: tuple[RequiredStop, ...] = ()
    until: str = ""
    as_written: bool = False
