"""The structure in force: all kinds but Job, accepted or refused as a whole.

The structural files of a revision come in; the basis that jobs are judged by goes out. If anything
is wrong, the structure before stays in force.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from reconciler.desired.apply import file_index, structure
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
        revision: of this structure; None: none was ever accepted.
        origins: file of each object, by label.
    """

    basis: job_defaults.JobDefaults = job_defaults.EMPTY
    revision: str | None = None
    origins: dict[str, str] = {}


class StructureInForce:
    """The structure that applies, and the problems of the written one.

    Args:
        files: index of the revision.
        firsts: owners of labels that several files use.
        start: the last good state.

    Attributes:
        version: the structure in force.
        refused: True if the written structure is not in force.
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

    def apply(self, revision: str, denied: Iterable[desired.Problem], now: float) -> None:
        """Put the written structure in force, or refuse it.

        Args:
            revision: where it is written.
            denied: errors about objects whose change nobody with the right has signed.
            now: seconds since the epoch, for waivers that end.
        """
        filed, origins = self._filed, self.version.origins
        placed = [
            Placed(path, document)
            for path in sorted(filed.structural)
            for document in document_reader.structural(filed.entries[path].file)
        ]
        opaque = any(filed.entries[path].file.opaque for path in filed.structural)
        basis, noted = structure.build(placed, origins | self._counting(placed), opaque=opaque)
        # What is wrong with a document by itself is among the problems of its file already.
        found = [filed.problem(one) for one in noted if one[0].document.part is not None]
        found += filed.unreadable(origins, {item.document.label for item in placed})
        if basis is not None:
            rules = policies.PolicyRules(basis.structure.policies)
            found += [filed.problem(item) for item in structure.violations(placed, rules, now)]
            self.waived_until = rules.until
        found += denied
        self.refused = basis is None or any(problem.severity == "error" for problem in found)
        if basis is not None and not self.refused:
            same = basis == self.version.basis
            self.version = StructureVersion(
                self.version.basis if same else basis,
                revision,
                {item.document.label: item.path for item in placed},
            )
        self.problems = tuple(found)

    def accept(self, version: StructureVersion, problems: tuple[desired.Problem, ...]) -> None:
        """Put a version in force that is the written one, with its problems."""
        self.version, self.refused, self.problems = version, False, problems

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
