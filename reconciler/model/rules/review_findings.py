"""Findings about a change before it applies; safety and the loader share them."""

from collections.abc import Iterable
from typing import Literal, Protocol

import msgspec

from reconciler.model import desired

#: The parts of a change that can be held: all of its structure, or the removals of its jobs.
Part = Literal["structure", "removal"]
#: The rule by which all is held while nobody can tell what runs.
WORK_UNKNOWN = "work-unknown"
#: The rules of what is held; others tell mistakes.
RULES = frozenset(
    {
        "over-limit",
        "needs-approval",
        "prune-confirm",
        "prune-never",
        "outside-window",
        WORK_UNKNOWN,
    }
)
#: The rules by which a head is not taken at all, nor is what follows it: approvals wait as well.
WHOLE = frozenset({"not-a-fast-forward", "history-rewritten", "too-many-commits"})
#: The rule by which a head is not taken that leaves nothing of what is in force; nor is what
#: follows it, unless that brings something of it back.
EMPTIED = "became-empty"
#: The rule by which a revision, or one object of it, is not taken over which Muster fails.
UNDECIDED = "defect"
#: How the rules begin by which somebody's own policies say no.
POLICY = "policy/"


class Finding(msgspec.Struct, frozen=True):
    """A reason why a part of a change does not apply by itself.

    ``rule`` is a stable kebab-case id; ``message`` a sentence with figure and limit.
    """

    part: Part
    rule: str
    message: str


class Used(msgspec.Struct, frozen=True):
    """An approval that let a part of a change pass.

    ``rest``: the findings about the other part; empty: none.
    """

    part: Part
    approval: str
    rest: str


class Judgement(msgspec.Struct, frozen=True):
    """The result of a gate: the change applies, or the findings against it.

    Attributes:
        findings: reasons against it; none: it applies.
        digest: approves it; empty if approval changes nothing.
        until: time to ask again although nothing has changed; None: never.
        command: command that approves it, as a clause; empty if nothing does.
        used: approvals without which more would be held.
    """

    findings: tuple[Finding, ...] = ()
    digest: str = ""
    until: float | None = None
    command: str = ""
    used: tuple[Used, ...] = ()

    def holds(self, part: Part) -> bool:
        """Return True if a part is held."""
        return any(finding.part == part for finding in self.findings)


class ChangeGate(Protocol):
    """A judge of changes."""

    def judge(
        self, before: desired.Desired, after: desired.Desired, approvals: frozenset[str]
    ) -> Judgement:
        """Decide if ``before``, which is in force, may become ``after``.

        Args:
            before: state in force.
            after: state after the change.
            approvals: digests that people approved.
        """
        ...


def by_policy(rules: Iterable[str]) -> bool:
    """Return True if only policies refuse, by the rules of all problems."""
    found = list(rules)
    return bool(found) and all(rule.startswith(POLICY) for rule in found)


def unused(approvals: Iterable[str], used: Iterable[Used]) -> tuple[str, ...]:
    """Return what is left of approvals after others, or parts of them, let something apply."""
    rests: dict[str, set[str]] = {}
    for one in used:
        rests.setdefault(one.approval, set()).add(one.rest)
    found: list[str] = []
    for text in approvals:
        rest = rests.get(text, {text})
        found += rest if len(rest) == 1 else ()  # both parts of it were used
    return tuple(text for text in found if text)


def approval(digest: str) -> str:
    """Return how a change is approved, as a clause; empty if it cannot be."""
    return f"`muster approve {digest}` approves exactly this change" if digest else ""
