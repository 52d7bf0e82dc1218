"""The structure in force: all kinds but Job.

The structural files of a revision come in; the basis that jobs are judged by goes out. What is
wrong stays as it was, with what needs it, and all else applies. Before any structure was accepted
as a whole, nothing applies of one with errors: the Cluster, or who may do what, could be missing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from reconciler.desired.apply import file_index, last_good, partial_structure, structure
from reconciler.desired.apply.last_good import LastGood
from reconciler.desired.apply.structure import Placed
from reconciler.desired.checks import policies
from reconciler.desired.documents import document_reader, name_owners
from reconciler.desired.normalise import job_defaults
from reconciler.model import desired


class StructureVersion(msgspec.Struct, frozen=True):
    """One version of the structure.

    Attributes:
        basis: what jobs are judged by.
        revision: the last one of which all was in force; None: none was ever accepted.
        origins: file of each object, by label.
        documents: the objects as they are in force, by label; None: unknown.
    """

    basis: job_defaults.JobDefaults = job_defaults.EMPTY
    revision: str | None = None
    origins: dict[str, str] = {}
    documents: Mapping[str, Placed] | None = None


class StructureVerdict(NamedTuple):
    """A version in force, the problems of the written one, and whether these refuse any of it."""

    version: StructureVersion
    problems: tuple[desired.Problem, ...]
    refused: bool


class StructureInForce:
    """The structure that applies, and the problems of the written one.

    Args:
        files: index of the revision.
        firsts: owners of labels that several files use.
        start: the last good state.

    Attributes:
        version: the structure in force.
        refused: True if the written structure is not in force as a whole.
        problems: of the written structure.
        waived_until: when the first waiver ends that the structure needs, since the epoch.
    """

    def __init__(
        self, files: file_index.FileIndex, firsts: name_owners.NameOwners, start: LastGood
    ) -> None:
        self._filed = files
        self._firsts = firsts
        self.version = StructureVersion(
            start.basis or job_defaults.EMPTY, start.structure_revision, dict(start.origins)
        )
        #: Objects in force that are written differently, or not at all, from before a restart.
        self._kept = start.documents
        policies.remember(self.version.basis.structure.policies.values())
        self.refused = False
        self.problems: tuple[desired.Problem, ...] = ()
        self.waived_until = math.inf

    def places(self, kinds: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the files, with their blobs, that objects of some kinds are written in, by label.

        Objects in force count too if they may be in a file that cannot be read.
        """
        found = self._filed.places(kinds)
        for label, path in self.version.origins.items():
            entry = self._filed.entries.get(path)
            if entry is not None and entry.file.opaque and label.split("/", 1)[0] in kinds:
                found.setdefault(label, {}).setdefault(path, entry.blob)
        return found

    def advance(self, revision: str) -> None:
        """Note that a revision has the structure that is in force already."""
        self.version = msgspec.structs.replace(self.version, revision=revision)

    def documents(self) -> dict[str, last_good.KeptDocument] | None:
        """Return the objects in force that are not written like this; None: unknown."""
        if self.version.documents is None:
            return self._kept
        if not self.refused:
            return {}
        written = self._written(self._placed())
        return {
            label: last_good.keep(item.path, item.document)
            for label, item in self.version.documents.items()
            if written.get(label) != item
        }

    def apply(self, revision: str, denied: Sequence[desired.Problem], now: float) -> None:
        """Put the written structure in force, as far as it is right.

        Args:
            revision: where it is written.
            denied: errors about objects that stay as they are in force, whatever is written: their
                change is signed by nobody with the right, or takes away what others use.
            now: seconds since the epoch, for waivers that end.
        """
        filed, origins = self._filed, self.version.origins
        placed = self._placed()
        opaque = any(filed.entries[path].file.opaque for path in filed.structural)
        # What nobody with the right wrote is not even tried: a schema may take long.
        stays = {problem.object for problem in denied}
        tried = [item for item in placed if item.document.label not in stays]
        basis, noted = structure.build(tried, origins | self._counting(placed), opaque=opaque)
        unreadable = filed.unreadable(origins, {item.document.label for item in placed})
        found = [*unreadable, *denied]
        until, slow_s = math.inf, 0.0
        if basis is not None:
            rules = policies.PolicyRules(basis.structure.policies)
            noted = [*noted, *structure.violations(tried, rules, now)]
            until, slow_s = rules.until, rules.slow_s
        # What is wrong with a document by itself is among the problems of its file already.
        noted = [one for one in noted if one[0].document.part is not None]
        self.refused = basis is None or bool(found) or any(map(_is_error, noted))
        if basis is not None and not self.refused:
            self._put(basis, revision, {item.document.label: item for item in placed}, until)
        elif self._put_partly(placed, noted, [*denied, *unreadable], denied, now, slow_s=slow_s):
            return
        else:
            self.waived_until = until
        self.problems = (*map(filed.problem, noted), *found)

    def _put_partly(
        self,
        placed: Sequence[Placed],
        noted: Sequence[file_index.Noted],
        staying: Sequence[desired.Problem],
        denied: Sequence[desired.Problem],
        now: float,
        *,
        slow_s: float,
    ) -> bool:
        """Put in force what is right; return False if nobody can tell what that is.

        Args:
            placed: the written objects.
            noted: faults of all of them together.
            staying: errors about objects that stay as they are in force.
            denied: those of them about changes, and not about files.
            now: seconds since the epoch.
            slow_s: how long slow searches of policies have taken already.
        """
        in_force = self._in_force(placed)
        if in_force is None or self.version.revision is None:
            return False
        written = self._written(placed)
        twice = [one for one in noted if one[1].rule == "duplicate-name"]
        refused = {problem.object for problem in staying}
        refused |= {item.document.label for item in placed if item.document.part is None}
        refused |= {item.document.label for item, _ in twice}
        found = partial_structure.choose(
            written,
            in_force,
            refused,
            denied={one.object for one in denied},
            now=now,
            slow_s=slow_s,
        )
        if found is None:
            return False
        self._put(found.basis, self.version.revision, found.documents, found.until)
        told = partial_structure.problems(
            found, self._problem, lambda label: (written.get(label) or in_force[label]).path
        )
        self.problems = (*map(self._filed.problem, twice), *told, *staying)
        return True

    def _put(
        self,
        basis: job_defaults.JobDefaults,
        revision: str,
        documents: Mapping[str, Placed],
        until: float,
    ) -> None:
        """Put a structure in force."""
        same = basis == self.version.basis
        self.version = StructureVersion(
            self.version.basis if same else basis,
            revision,
            {label: item.path for label, item in documents.items()},
            documents,
        )
        self.waived_until = until

    def _placed(self) -> list[Placed]:
        """Return the written objects, in order of place."""
        filed = self._filed
        return [
            Placed(path, document)
            for path in sorted(filed.structural)
            for document in document_reader.structural(filed.entries[path].file)
        ]

    @staticmethod
    def _written(placed: Sequence[Placed]) -> dict[str, Placed]:
        """Return the written objects by label, as far as they have a name."""
        return {item.document.label: item for item in placed if item.document.name}

    def _in_force(self, placed: Sequence[Placed]) -> Mapping[str, Placed] | None:
        """Return the objects in force, by label; None if one is unknown."""
        if self.version.documents is not None or self._kept is None:
            return self.version.documents
        found = {label: Placed(one.path, last_good.read(one)) for label, one in self._kept.items()}
        for item in placed:
            label = item.document.label
            if item.path == self.version.origins.get(label):
                found.setdefault(label, item)
        if found.keys() != self.version.origins.keys():
            return None
        return None if any(one.document.part is None for one in found.values()) else found

    def _problem(self, noted: file_index.Noted) -> desired.Problem:
        """Return a fault with its place, without a line if it is of an object not written so."""
        item, fault = noted
        entry = self._filed.entries.get(item.path)
        if entry is not None and any(item.document is one for one in entry.file.documents):
            return self._filed.problem(noted)
        return desired.Problem(
            *(fault.rule, fault.severity, item.path, fault.message),
            object=item.document.label,
            found=fault.found,
            expected=fault.expected,
        )

    def verdict(self) -> StructureVerdict:
        """Return what ``accept`` brings back."""
        return StructureVerdict(self.version, self.problems, self.refused)

    def accept(self, verdict: StructureVerdict) -> None:
        """Put a version in force again, with its problems."""
        self.version, self.problems, self.refused = verdict

    def refuse(self, version: StructureVersion, problems: Sequence[desired.Problem]) -> None:
        """Return to a version from before the written one, which has these problems."""
        self.version, self.refused, self.problems = version, True, tuple(problems)

    def _counting(self, placed: Sequence[Placed]) -> dict[str, str]:
        """Return the file that counts, by label, of objects that are written more than once."""
        found: dict[str, list[str]] = {}
        for item in placed:
            found.setdefault(item.document.label, []).append(item.path)
        twice = {label: paths for label, paths in found.items() if len(paths) > 1}
        self._firsts.keep(twice)
        return {
            label: self._firsts.of(label, label, paths, self.version.origins.get(label))
            for label, paths in twice.items()
        }


def _is_error(noted: file_index.Noted) -> bool:
    return noted[1].severity == "error"
