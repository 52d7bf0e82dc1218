"""Parts of changes that wait for approval or for their time, from one revision to the next.

The gate's judgements come in; jobs that stay in force although their document was removed go out,
with messages. Removals that came together are judged together, each group by itself, so that what
somebody removes later does not wait.
"""

from collections.abc import Iterable

import msgspec

from reconciler.model import desired
from reconciler.model.rules import review_findings

_NOTHING_APPROVES = "; nothing approves it until a newer revision is taken: it is judged anew then"


class Holds:
    """The held parts.

    Args:
        jobs: names of jobs that stay, with the change that removed them, from before a restart.
    """

    def __init__(self, jobs: dict[str, str]) -> None:
        self.jobs = jobs
        self.shown: tuple[desired.HeldPart, ...] = ()
        self.until: float | None = None
        self._removals: list[desired.Problem] = []
        self.structure_problems: tuple[desired.Problem, ...] = ()
        #: Approvals that let something apply.
        self.used: tuple[review_findings.Used, ...] = ()

    @property
    def problems(self) -> Iterable[desired.Problem]:
        """Return why jobs stay."""
        return self._removals

    def clear(self) -> None:
        """Drop all holds."""
        self.jobs = {}
        self.shown = ()
        self.until = None
        self._removals = []
        self.structure_problems = ()
        self.used = ()

    def judge(
        self,
        gate: review_findings.ChangeGate,
        *,
        before: desired.Desired,
        after: desired.Desired,
        removed: list[str],
        approvals: frozenset[str],
    ) -> review_findings.Judgement:
        """Judge a change, and judge again what was held before.

        Args:
            gate: the judge.
            before: state in force.
            after: state after the change, without its removals.
            removed: names of jobs removed by it, or by an earlier change that is held.
            approvals: approved digests.

        Returns:
            The judgement of the new change's structure.
        """
        groups: dict[str, list[str]] = {}
        fresh = []
        for name in removed:
            group = self.jobs.get(name)
            if group is None:
                fresh.append(name)
            else:
                groups.setdefault(group, []).append(name)
        self.clear()
        for group, names in groups.items():
            wanted = _without(before, names)
            again = gate.judge(before, wanted, approvals)
            self.used += again.used
            self._note(again, names, group)
        stay = {name: before.jobs[name] for names in groups.values() for name in names}
        whole = msgspec.structs.replace(after, jobs={**after.jobs, **stay}) if stay else after
        found = gate.judge(before, whole, approvals)
        self.used += found.used
        held = [part for part in ("structure", "removal") if found.holds(part)]
        judged = {"structure": _with(whole, before, fresh), "removal": _without(before, fresh)}
        if not fresh or not held or (len(held) == len(judged) and found.command):
            self._note(found, fresh, found.digest)
            return found
        # One part applies, or can't be approved: each is judged, and named by its digest, alone.
        each = [gate.judge(before, judged[part], approvals) for part in held]
        for one in each:
            self._note(one, fresh, one.digest)
        return each[0]

    def look_again(self, now: float) -> None:
        """Judge held removals once more after the rules in force have changed.

        Otherwise the old rules would hold them until the next revision, or a restart.
        """
        if self.jobs:
            self.until = now if self.until is None else min(self.until, now)

    def _note(self, found: review_findings.Judgement, names: list[str], group: str) -> None:
        """Record a judgement: the held parts and their messages."""
        if found.until is not None and found.findings:
            self.until = found.until if self.until is None else min(self.until, found.until)
        for part in ("structure", "removal"):
            findings = [one for one in found.findings if one.part == part]
            if not findings:
                continue
            jobs = tuple(names) if part == "removal" else ()
            command = [found.command] if found.command else []
            message = "held: " + "; ".join([one.message for one in findings] + command)
            self.shown += (
                desired.HeldPart(
                    part=findings[0].part,
                    message=message,
                    digest=found.digest if found.command else "",
                    jobs=jobs,
                    until=found.until,
                    reasons=tuple(one.message for one in findings),
                ),
            )
            problems = tuple(_problem(one, jobs, found.command) for one in findings)
            if part == "structure":
                self.structure_problems = problems
            else:
                self._removals += problems
                self.jobs.update(dict.fromkeys(names, group))


def beyond_approval(
    held: tuple[desired.HeldPart, ...], problems: tuple[desired.Problem, ...]
) -> tuple[tuple[desired.HeldPart, ...], tuple[desired.Problem, ...]]:
    """Return held parts without the command: the commit that approves them would be refused."""
    commands = [f"; {review_findings.approval(one.digest)}" for one in held if one.digest]

    def told(message: str) -> str:
        for command in commands:
            if message.endswith(command):
                return message.removesuffix(command) + _NOTHING_APPROVES
        return message

    replace = msgspec.structs.replace
    return (
        tuple(replace(one, message=told(one.message), digest="") for one in held),
        tuple(replace(one, message=told(one.message)) for one in problems),
    )


def _with(state: desired.Desired, before: desired.Desired, names: list[str]) -> desired.Desired:
    """Return the state with jobs as they were before."""
    back = {name: before.jobs[name] for name in names}
    return msgspec.structs.replace(state, jobs={**state.jobs, **back})


def _without(state: desired.Desired, names: list[str]) -> desired.Desired:
    gone = set(names)
    remaining = {name: job for name, job in state.jobs.items() if name not in gone}
    return msgspec.structs.replace(state, jobs=remaining)


def _problem(
    finding: review_findings.Finding, jobs: tuple[str, ...], command: str
) -> desired.Problem:
    label = f"Job/{jobs[0]}" if len(jobs) == 1 else ""
    return desired.Problem(
        rule=finding.rule,
        severity="error",
        path="",
        message=f"held: {finding.message}" + (f"; {command}" if command else ""),
        object=label,
    )
