"""Chooses what applies of a structure with errors: all but what is refused, and what needs that.

The written and the applied version of each object come in, with those that are refused by
themselves. A structure without errors goes out, in which every refused object is as it was, and
why further ones stay with them. Without such a structure the earlier one stays as a whole.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from reconciler.desired.apply import structure
from reconciler.desired.apply.structure import Placed
from reconciler.desired.checks import policies
from reconciler.desired.documents.faults import Fault
from reconciler.desired.normalise.job_defaults import JobDefaults
from reconciler.model import desired
from reconciler.model.documents import queue_spec
from reconciler.model.policy import queue_paths
from reconciler.model.values import found_values

#: The most structures that are tried; after that the earlier one stays.
TRIES_MAX = 40
#: The rule of an object that stays because another one would be wrong with it.
RULE = "held-back"
#: Kinds of which the objects together can be wrong, by the rule of the fault. Of other rules the
#: fault is of an object that changes, or says what is missing.
_TOGETHER: dict[str, tuple[str, ...]] = {
    "guarantees-exceed-pool": ("NodePool", "Queue"),
    "nobody-signs": ("Access",),
}
_OF_TREE = frozenset(
    {"guarantees-exceed-parent", "limit-below-guaranteed", "pools-exceed-cluster", "parent-cycle"}
)
_POLICY = "policy/"

Noted = tuple[Placed, Fault]
Versions = Mapping[str, Placed]


class PartialStructure(msgspec.Struct, frozen=True):
    """The part of a structure with errors that applies.

    Attributes:
        basis: the structure.
        documents: its documents, by label.
        notes: faults for which further objects stay, and warnings.
        held: messages about changed objects that stay because of a fault of another one, by label.
        until: when the first waiver ends that it needs, since the epoch.
    """

    basis: JobDefaults
    documents: dict[str, Placed]
    notes: tuple[Noted, ...]
    held: dict[str, str]
    until: float


class _Try(msgspec.Struct, frozen=True):
    """One structure that was tried; ``basis`` None: it has errors."""

    basis: JobDefaults | None
    faults: list[Noted]
    until: float

    @property
    def errors(self) -> list[Noted]:
        return [one for one in self.faults if one[1].severity == "error"]


def choose(
    written: Versions,
    in_force: Versions,
    refused: Collection[str],
    *,
    denied: Collection[str],
    now: float,
    slow_s: float = 0.0,
) -> PartialStructure | None:
    """Return what applies; None if nothing is known that goes together.

    Args:
        written: objects of the revision, by label.
        in_force: objects in force, by label.
        refused: labels of those that stay as they are in force for themselves.
        denied: those of them whose change nobody with the right has signed.
        now: seconds since the epoch, for waivers that end.
        slow_s: as of ``PolicyRules``: how long slow searches have taken already.
    """
    return _PartialSearch(written, in_force, denied, now, slow_s).run(refused)


class _PartialSearch:
    """The state of one search."""

    def __init__(
        self,
        written: Versions,
        in_force: Versions,
        denied: Collection[str],
        now: float,
        slow_s: float,
    ) -> None:
        self._written, self._in_force, self._denied = written, in_force, denied
        self._now, self._slow_s = now, slow_s
        self._tries = 0
        self._changed = {
            label
            for label in written.keys() | in_force.keys()
            if not _same(written.get(label), in_force.get(label))
        }
        self._notes: dict[str, list[Noted]] = {}
        self._held: dict[str, str] = {}

    def run(self, refused: Collection[str]) -> PartialStructure | None:
        """Return what applies, with as little as possible beside the refused objects held back."""
        first = frozenset(self._with_companions(refused))
        found = self._without_blamed(first)
        if found is None:
            return None
        staying, tried = self._with_fewer(first, *found)
        if tried.basis is None:
            return None
        return PartialStructure(
            tried.basis,
            self._chosen(staying),
            tuple(
                [one for label in sorted(staying - first) for one in self._notes.get(label, ())]
                + [one for one in tried.faults if one[1].severity == "warning"]
            ),
            {label: told for label, told in sorted(self._held.items()) if label in staying - first},
            tried.until,
        )

    def _without_blamed(self, first: frozenset[str]) -> tuple[frozenset[str], _Try] | None:
        """Hold back what errors are about until there are none."""
        staying = first
        while True:
            tried = self._try(staying)
            if tried is None or not tried.errors:
                return None if tried is None else (staying, tried)
            blamed: set[str] = set()
            for item, fault in tried.errors:
                label = item.document.label
                if label in self._changed - staying:
                    blamed.add(label)
                    told = (item, self._explained(item, fault, staying))
                    self._notes.setdefault(label, []).append(told)
            if not blamed:
                blamed = self._causes(tried.errors, staying)
            if not blamed - staying:
                return None
            staying = frozenset(self._with_companions(staying | blamed))

    def _causes(self, errors: list[Noted], staying: frozenset[str]) -> set[str]:
        """Return changed objects because of which objects are wrong that stay as they are."""
        movable = self._changed - staying
        found: set[str] = set()
        for item, fault in errors:
            causes = set(self._named(item, fault)) & movable
            for label in causes or movable:
                self._held.setdefault(
                    label,
                    f"stays as it was: with its change {item.document.label} would be wrong "
                    f"({fault.message})",
                )
            found |= causes or movable
        return found

    def _named(self, item: Placed, fault: Fault) -> Iterator[str]:
        """Return the objects that a fault is about besides the one that has it."""
        if fault.rule.startswith(_POLICY):
            yield f"Policy/{fault.rule.removeprefix(_POLICY)}"
        kind, name = structure.missing(item.document.kind, fault)
        kinds = _TOGETHER.get(fault.rule, ())
        for label in self._changed:
            of, _, own = label.partition("/")
            if of == kind and name in {"", found_values.quote(own)}:
                yield label
            if of in kinds or (fault.rule in _OF_TREE and self._is_below(label, item)):
                yield label

    def _is_below(self, label: str, item: Placed) -> bool:
        """Return True if a queue, as it is written, is below another one."""
        kind, _, name = label.partition("/")
        if kind != "Queue":
            return False
        parents = {
            placed.document.name: placed.document.part.spec.parent
            for placed in self._written.values()
            if isinstance(placed.document.part, queue_spec.QueueDocument)
        }
        return item.document.name in queue_paths.ancestors(name, parents.get)

    def _explained(self, item: Placed, fault: Fault, staying: frozenset[str]) -> Fault:
        """Return a fault with the refused object that it is only a consequence of."""
        kind, name = structure.missing(item.document.kind, fault)
        if not kind:
            return fault
        needed = [
            label
            for label in sorted(staying)
            if label.partition("/")[0] == kind
            and name in {"", found_values.quote(label.partition("/")[2])}
        ]
        if not needed:
            return fault
        message = f"{fault.message}; it needs {needed[0]}, whose change is refused"
        return msgspec.structs.replace(fault, message=message)

    def _with_fewer(
        self, first: frozenset[str], staying: frozenset[str], tried: _Try
    ) -> tuple[frozenset[str], _Try]:
        """Let apply what was held back without need."""
        going_on = len(staying - first) > 1
        while going_on:
            going_on = False
            for label in sorted(staying - first):
                fewer = frozenset(self._with_companions(staying - {label}))
                if label in fewer or label not in staying:
                    continue
                again = self._try(fewer)
                if again is None:
                    return staying, tried
                if not again.errors:
                    staying, tried, going_on = fewer, again, True
        return staying, tried

    def _with_companions(self, staying: Collection[str]) -> set[str]:
        """Return objects that stay, and those that stay with them whatever they say.

        There is one Cluster, whatever its name. If a new object is wrong, one that left its file
        may have been renamed to it: without both, a mistake would take away what is in force.
        """
        found = set(staying)
        kinds = {label.partition("/")[0] for label in found}
        if "Cluster" in kinds:
            found |= {label for label in self._changed if label.startswith("Cluster/")}
        new = {
            (label.partition("/")[0], self._written[label].path)
            for label in found
            if label in self._written and label not in self._in_force and label not in self._denied
        }
        for label in self._changed - self._written.keys():
            if (label.partition("/")[0], self._in_force[label].path) in new and label not in found:
                found.add(label)
                self._held.setdefault(
                    label, "stays as it was: a new object of its kind in its file is refused"
                )
        return found

    def _chosen(self, staying: Collection[str]) -> dict[str, Placed]:
        found = {label: item for label, item in self._written.items() if label not in staying}
        found |= {label: item for label, item in self._in_force.items() if label in staying}
        return found

    def _try(self, staying: frozenset[str]) -> _Try | None:
        """Build the structure with some objects as they are in force; None: too many were tried."""
        self._tries += 1
        if self._tries > TRIES_MAX:
            return None
        chosen = self._chosen(staying)
        ordered = sorted(chosen.values(), key=lambda item: (item.path, item.document.index))
        basis, faults = structure.attempt(ordered)
        if basis is None:  # of two objects that do not go together the changed one is wrong
            moving = self._changed - staying
            ordered.sort(key=lambda item: item.document.label in moving)
            _, faults = structure.attempt(ordered)
            return _Try(None, faults, 0.0)
        rules = policies.PolicyRules(basis.structure.policies, self._slow_s)
        faults = [*faults, *structure.violations(ordered, rules, self._now)]
        self._slow_s = rules.slow_s
        return _Try(basis, faults, rules.until)


def _same(one: Placed | None, other: Placed | None) -> bool:
    """Return True if two versions of an object are written alike, in the same file."""
    if one is None or other is None:
        return one is other
    return one.path == other.path and one.document.part == other.document.part


def problems(
    found: PartialStructure,
    problem: Callable[[Noted], desired.Problem],
    place: Callable[[str], str],
) -> Iterator[desired.Problem]:
    """Return why objects stay that are not refused for themselves.

    Args:
        found: what applies.
        problem: gives a fault its place.
        place: returns the file of an object, by its label.
    """
    for noted in found.notes:
        yield problem(noted)
    for label, told in found.held.items():
        yield desired.Problem(RULE, "error", place(label), told, object=label)
