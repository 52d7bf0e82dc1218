"""What is said of a change before it applies: the words that safety and the loader share."""

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
    """Why a part of a change does not apply by itself.

    ``rule`` is a stable kebab-case id; ``message`` a sentence with figure and limit.
    """

    part: Part
    rule: str
    message: str


class Used(msgspec.Struct, frozen=True):
    """An approval that let a part of a change pass.

    ``rest``: what of it is of the other part; empty: nothing.
    """

    part: Part
    approval: str
    rest: str


class Judgement(msgspec.Struct, frozen=True):
    """Whether a change applies.

    Attributes:
        findings: why not; none: it applies.
        digest: what approves it; empty where approval changes nothing.
        until: when to ask again although nothing has changed; None: never.
        command: what approves it, as a clause; empty where nothing does.
        used: the approvals without which more would be held.
    """

    findings: tuple[Finding, ...] = ()
    digest: str = ""
    until: float | None = None
    command: str = ""
    used: tuple[Used, ...] = ()

    def holds(self, part: Part) -> bool:
        """Whether a part is held."""
        return any(finding.part == part for finding in self.findings)


class ChangeGate(Protocol):
    """Judges changes."""

    def judge(
        self, before: desired.Desired, after: desired.Desired, approvals: frozenset[str]
    ) -> Judgement:
        """Whether ``before``, which is in force, may become ``after``.

        Args:
            before: what is in force.
            after: what the change makes of it.
            approvals: digests that people approved.
        """
        ...


def by_policy(rules: Iterable[str]) -> bool:
    """Whether it is policies alone that say no, by the rules of all that is wrong."""
    found = list(rules)
    return bool(found) and all(rule.startswith(POLICY) for rule in found)


def unused(approvals: Iterable[str], used: Iterable[Used]) -> tuple[str, ...]:
    """What is left of some approvals once others, or parts of them, have let something apply."""
    rests: dict[str, set[str]] = {}
    for one in used:
        rests.setdefault(one.approval, set()).add(one.rest)
    found: list[str] = []
    for text in approvals:
        rest = rests.get(text, {text})
        found += rest if len(rest) == 1 else ()  # both parts of it were used
    return tuple(text for text in found if text)


def approval(digest: str) -> str:
    """What approves a change, as a clause; empty where nothing does."""
    return f"`muster approve {digest}` approves exactly this change" if digest else ""
