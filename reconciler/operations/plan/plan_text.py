"""A plan as text for a terminal: revisions, changes, impact, forecast, findings, verdict.

Each line has the name of a style; the printer chooses colours. Nothing is wider than ``WIDTH``
except long names and values. A plan is read to the end: of findings and jobs that are many, some
are shown and all are counted.
"""

from collections.abc import Callable, Iterable, Iterator

from reconciler.model.values import paragraphs
from reconciler.operations.plan import alike_findings, change_text, plan_types
from reconciler.operations.plan.change_text import WIDTH, PlanLine
from reconciler.operations.plan.plan_types import Plan

#: The most jobs to list; further ones are counted.
JOBS_MAX = 20
_COLOURS = {"refused": "red", "held": "magenta", "changes": "yellow", "none": "green"}
_PARTS = {"structure": "the structure", "removal": "the removal of jobs"}
_HOW = {
    "cancelled": "is cancelled",
    "replaced": "is replaced by another run",
    "held": "is held",
    "timed-out": "is over its new time limit",
    "evicted": "is evicted",
    "drained": "runs there until it ends; nothing new starts",
}


def lines(plan: Plan, moments: Callable[[str], str] = str) -> Iterator[PlanLine]:
    """Yield the whole plan; ``moments`` formats the times in a sentence for the reader."""
    yield from head(plan)
    told = [PlanLine(part, _COLOURS[plan.verdict]) for part in _wrap(verdict(plan))]
    if plan.verdict == "refused":  # first of all: what follows would read as if it applied
        yield from (PlanLine(""), *told)
    if plan.held:
        yield from (PlanLine(""), *held_lines(plan, moments))
    if plan.waiting:
        yield from (PlanLine(""), *waiting_lines(plan, moments))
    if plan.changes:
        yield PlanLine("")
        for change in plan.changes:
            yield from change_text.change_lines(change)
        yield from _section("Impact", impact_lines(plan))
        yield from _section(_forecast_title(plan), forecast_lines(plan, moments))
    if plan.findings:
        yield from _section("Findings", finding_lines(plan.findings))
    yield from (PlanLine(""), *(told if plan.verdict != "refused" else ()))
    yield PlanLine(f"digest {plan.digest[:23]}")


def _wrap(text: str) -> list[str]:
    return paragraphs.wrapped(text, WIDTH)


def _section(title: str, inner: Iterator[PlanLine]) -> Iterator[PlanLine]:
    yield from (PlanLine(""), PlanLine(title, "bold"), *inner)


def head(plan: Plan) -> Iterator[PlanLine]:
    """Return which revisions are compared, and with which cluster."""
    merged = ", as merged; as a force push it would be held" if plan.merged else ""
    onto = plan.head[:12] or "a commit on top"  # one that is yet to be made has no name
    yield PlanLine(f"{plan.base[:12]} -> {onto}{merged}")
    if plan.apart:
        yield from (PlanLine(part, "yellow") for part in _wrap(pushed(plan)))
    if plan.snapshot is not None:
        old = duration(plan.snapshot.age_s)
        where = f"where {in_force(plan.snapshot)} in force"
        yield from map(PlanLine, _wrap(f"against the cluster as of {old} ago, {where}"))


def pushed(plan: Plan) -> str:
    """Return what happens to a revision that does not follow the first, and is not merged
    with it.
    """
    if plan.apart == "unrelated":
        return (
            f"{plan.head[:12]} has no commit in common with {plan.base[:12]}, as far as this clone "
            "goes: it can't be merged, and as a force push it would be held"
        )
    return (
        f"{plan.head[:12]} is behind {plan.base[:12]}: as a force push it would be held; `muster "
        "rollback` makes a commit that goes back"
    )


def in_force(of: plan_types.SnapshotView) -> str:
    """Return what is in force, with its verb; if the newest is held or refused, which part."""
    jobs, structure = ((one or "none")[:12] for one in (of.revision, of.structure_revision))
    if jobs == structure:
        return f"{jobs} is"
    if of.structure_revision is None:
        return f"no structure, and the jobs of {jobs}, are"
    return f"the structure of {structure} and the jobs of {jobs} are"


def verdict(plan: Plan) -> str:
    """Return the verdict in one sentence."""
    counted = (
        f"{plan.count('add')} to add, {plan.count('change')} to change, "
        f"{plan.count('remove')} to remove"
    )
    if plan.verdict == "refused":
        what = "Jobs still apply" if plan.structure_refused else "Of the rest"
        return f"{refused(plan)} {what}: {_counts(plan) or 'no change'}."
    if plan.verdict == "none":
        return "No changes."
    if plan.verdict == "held":
        parts = " and ".join(_PARTS[part] for part in dict.fromkeys(h.part for h in plan.held))
        return f"Held after the merge: {parts}. Plan: {counted}."
    refused_before = old_refused(plan)
    return f"Plan: {counted}." + (f" {refused_before}" if refused_before else "")


def _counts(plan: Plan) -> str:
    """Return how many objects change in which way; empty if none does."""
    words = {"add": "to add", "change": "to change", "remove": "to remove"}
    return ", ".join(f"{many} {words[how]}" for how in words if (many := plan.count(how)))


def refused(plan: Plan) -> str:
    """Return a sentence on what of a revision does not apply."""
    errors = [one for one in plan.findings if one.severity == "error" and one.is_new]
    count = f"{len(errors)} error{'' if len(errors) == 1 else 's'}"
    if plan.structure_refused:
        if not errors:
            count = "its errors stood before"
        return f"The structure of this revision is refused ({count}): what is in force stays."
    jobs = sorted({one.object for one in errors if one.touched and one.object})
    names = ", ".join(jobs[:3]) + (" …" if len(jobs) > 3 else "")
    verb = "does not apply" if len(jobs) == 1 else "do not apply"
    return f"Refused: {names} {verb} ({count})." if names else f"Refused: {count}."


def old_refused(plan: Plan) -> str:
    """Return a sentence on objects that the change does not touch and that would be
    refused today.
    """
    labels = {
        one.object
        for one in plan.findings
        if one.severity == "error" and one.is_new and not one.touched
    }
    if not labels:
        return ""
    if len(labels) == 1:
        return f"{min(labels)} goes on as it is, and would be refused if it were written now."
    return f"{len(labels)} objects go on as they are, and would be refused if written now."


def held_lines(plan: Plan, moments: Callable[[str], str] = str) -> Iterator[PlanLine]:
    """Yield what will wait after the merge, by which limit, and what approves it."""
    for one in plan.held:
        yield from (
            PlanLine(part, _COLOURS["held"])
            for part in _reasons(f"HELD after the merge: {_PARTS[one.part]}", one, moments)
        )
        if one.until:
            yield PlanLine(f"  it is looked at again at {moments(one.until)}")
        if one.command:
            yield PlanLine("  exactly this change is approved, once it is merged, by")
            yield PlanLine(f"      {one.command}")
            yield PlanLine("  or by this line at the end of the message of the merge:")
            yield PlanLine(f"      Muster-Approve: {one.digest}")
            if plan.snapshot is None:
                known = "by who may not see it" if plan.not_allowed else "without a controller"
                yield from _paragraph(
                    f"{known} running work is not counted: if the merge is still held, "
                    "`muster status` names the digest that covers it"
                )
        else:
            yield PlanLine("  no approval lets it apply")


def waiting_lines(plan: Plan, moments: Callable[[str], str] = str) -> Iterator[PlanLine]:
    """Yield what waits already, unchanged by the revision."""
    for one in plan.waiting:
        start = f"Held before, and not by this change: {_PARTS[one.part]}"
        yield from (PlanLine(part) for part in _reasons(start, one, moments))
        if one.command:
            yield PlanLine(f"  it waits for {one.command}")


def _reasons(
    start: str, of: plan_types.HeldPartView, moments: Callable[[str], str]
) -> Iterator[str]:
    """Return why something is held: one reason in the same sentence, several on lines of
    their own.
    """
    if len(of.reasons) > 1:
        yield from _wrap(f"{start}, for {len(of.reasons)} reasons:")
        for reason in of.reasons:
            yield from paragraphs.wrapped(moments(reason), WIDTH, "  - ", "    ")
        return
    reason, _, _ = moments(of.message).partition("; `muster approve ")
    yield from _wrap(f"{start}: {reason}")


# --- impact ---------------------------------------------------------------------------------


def impact_lines(plan: Plan) -> Iterator[PlanLine]:
    """GPUs, guarantees and limits, running work."""
    impact = plan.impact
    has_effect = False
    if impact.gpus_leaving or impact.gpus_entering or impact.gpus_before != impact.gpus_after:
        has_effect = True
        yield _pair("GPUs in service", f"{impact.gpus_before} -> {impact.gpus_after}")
        if impact.nodes_leaving:
            yield _pair("leaving", f"{gpus(impact.gpus_leaving)}: {impact.nodes_leaving}")
        if impact.nodes_entering:
            yield _pair("entering", f"{gpus(impact.gpus_entering)}: {impact.nodes_entering}")
    for exits in impact.exits[:JOBS_MAX]:
        has_effect = True
        yield from _wrapped(
            f"out of {exits.pool}", f"{gpus(exits.gpus)} on {exits.nodes}: {exits.why}"
        )
    yield from _more(len(impact.exits))
    for risk in impact.risks:
        has_effect = True
        yield from _wrapped(f"at risk in {risk.pool}", risk_text(risk))
    for amount in impact.amounts:
        has_effect = True
        old, new = amount.before or "none", amount.after or "none"
        yield _pair(amount.object, f"{amount.field} {old} -> {new}")
    for above in impact.above:
        has_effect = True
        yield from _wrapped(f"Queue/{above.queue}", above_text(above))
    for job in impact.jobs[:JOBS_MAX]:
        has_effect = True
        yield from _wrapped(job.job, ended_text(job))
    yield from _more(len(impact.jobs))
    for eviction in plan.forecast.evictions[:JOBS_MAX] if plan.forecast else ():
        if eviction.reason not in {"Cancelled", "Suspended"}:
            has_effect = True
            yield from _wrapped(job_name(eviction), eviction_text(eviction))
    if plan.forecast is not None:
        yield from _more(len(plan.forecast.evictions))
    if plan.snapshot is None:
        why = "without a controller"
        if plan.not_allowed:
            why = f"here: {plan.not_allowed}"
        yield from _paragraph(f"the effect on running work is unknown {why}")
    elif plan.forecast is None:
        start = "" if has_effect else "no GPU, guarantee or limit is touched, and no job ended; "
        yield from _paragraph(f"{start}without a forecast it is unknown which jobs are preempted")
    elif not has_effect:
        yield PlanLine("  none: no GPU, guarantee, limit or running job is touched")


def risk_text(of: plan_types.CheckRiskView) -> str:
    """Return how much may leave service by checks of which no result is known."""
    nodes = "1 node" if of.nodes == 1 else f"{of.nodes} nodes"
    which = "check" if len(of.checks) == 1 else "checks"
    return (
        f"at most {gpus(of.gpus)} on {nodes} leave service if {which} {', '.join(of.checks)} "
        f"{'fails' if len(of.checks) == 1 else 'fail'}: new or stricter, "
        f"{'tried there first' if of.trial else 'so no result is known'}"
    )


def above_text(of: plan_types.AboveView) -> str:
    """Return a sentence on a queue in which more runs than its new limit allows."""
    jobs = "1 job holds" if of.jobs == 1 else f"{of.jobs} jobs hold"
    where = f" in pool {of.pool}" if of.pool else ""
    fate = "they keep running, nothing new starts until less is in use, and drift is reported"
    if of.remedied:
        fate = (
            "preemptible jobs are evicted, the newest first, until no more is in use "
            "(drift queue-over-limit: remediate)"
        )
    return f"{jobs} {of.used} {of.resource}{where}, above the new limit {of.limit}: {fate}"


def ended_text(job: plan_types.EndedView) -> str:
    """Return what happens to running work."""
    lost = f", losing {hours(job.gpu_hours_lost)}" if job.gpu_hours_lost else ""
    how = _HOW.get(job.how, job.how)
    if job.how == "drained" and job.leaves_in_s is not None:
        how = f"may run there for {duration(job.leaves_in_s)}, then starts elsewhere"
    elif job.how == "timed-out" and job.leaves_in_s is not None:
        how = f"is ended by its new time limit in {duration(job.leaves_in_s)}"
    elif job.how == "evicted":
        how = "is evicted and starts elsewhere"
    return f"{how}: {gpus(job.gpus)} on {job.nodes}{lost}"


def eviction_text(of: plan_types.EvictionView) -> str:
    """Return which job is evicted, for which job, and until when."""
    what = "is preempted" if of.reason == "Preempted" else f"is evicted ({of.reason})"
    whom = f" for {of.by.partition('[')[0]}" if of.by else ""
    when = " at once" if of.in_s < 2 else f" in {duration(of.in_s)}"
    lost = "; loses nothing, because it saves when it is stopped" if of.checkpoints else ""
    if of.gpu_hours_lost and of.checkpoints:
        lost = f"; loses at most {hours(of.gpu_hours_lost)}, since its newest checkpoint"
    elif of.gpu_hours_lost:
        lost = f"; loses {hours(of.gpu_hours_lost)}"
    back = "; not back within the forecast"
    if of.back_in_s is not None:
        back = f"; back {duration(max(0.0, of.back_in_s - of.in_s))} later"
    return f"{what}{whom}{when}{lost}{back}"


def job_name(of: plan_types.EvictionView) -> str:
    """``sweep[3]``; the plain name outside arrays."""
    return of.job if of.element is None else f"{of.job}[{of.element}]"


# --- forecast -------------------------------------------------------------------------------


def _forecast_title(plan: Plan) -> str:
    if plan.forecast is None:
        return "Forecast"
    return f"Forecast for {duration(plan.forecast.horizon_s)}, if nothing else is submitted"


def forecast_lines(plan: Plan, moments: Callable[[str], str] = str) -> Iterator[PlanLine]:
    """Yield which jobs start when, and the effect on queues."""
    found = plan.forecast
    if found is None:
        yield from _paragraph(f"none: {plan.no_forecast}")
        return
    new = [shift for shift in found.shifts if shift.is_new]
    others = [shift for shift in found.shifts if not shift.is_new]
    for shift in new[:JOBS_MAX]:
        yield from _wrapped(shift.job, moments(new_text(shift, found.decided_s)))
    yield from _more(len(new))
    for shift in others[:JOBS_MAX]:
        yield from _wrapped(shift.job, moments(shift_text(shift, found.decided_s)))
    yield from _more(len(others))
    for queue in found.queues:
        yield from _wrapped(f"queue {queue.queue}", queue_text(queue))
    if not found.shifts and not found.queues:
        yield PlanLine("  nothing starts sooner or later, and nobody is preempted")
    for text in caveats(found):
        yield from _paragraph(text)


def new_text(shift: plan_types.ShiftView, decided_s: float) -> str:
    """Return when a new job starts."""
    if shift.after_s is None:
        return f"new: does not start ({shift.reason or 'within ' + duration(decided_s)})"
    about = "about " if shift.estimated else ""
    return (
        "new: starts at once"
        if shift.after_s < 2
        else (f"new: starts in {about}{duration(shift.after_s)}")
    )


def shift_text(shift: plan_types.ShiftView, decided_s: float) -> str:
    """Return how much sooner or later a job starts."""
    about = "about " if shift.estimated else ""
    if shift.after_s is None:
        why = f" ({shift.reason})" if shift.reason else ""
        return (
            f"no longer starts in {duration(shift.before_s or 0.0)}, nor within "
            f"{duration(decided_s)}{why}"
        )
    if shift.before_s is None or shift.later_s is None:
        return f"starts in {about}{duration(shift.after_s)}, and would not otherwise"
    word = "later" if shift.later_s > 0 else "sooner"
    return (
        f"starts {about}{duration(abs(shift.later_s))} {word}: "
        f"in {duration(shift.before_s)} -> in {duration(shift.after_s)}"
    )


def queue_text(of: plan_types.QueueShiftView) -> str:
    """Return a queue in one sentence."""
    parts = [
        f"{count} {word}"
        for count, word in (
            (of.later, "later"),
            (of.sooner, "sooner"),
            (of.stuck, "no longer start"),
            (of.freed, "start that would not"),
        )
        if count
    ]
    text = f"{of.waiting} wait"
    if parts:
        text += ": " + ", ".join(parts)
    if of.later or of.sooner:
        word = "longer" if of.later_s > 0 else "shorter"
        text += f"; {duration(abs(of.later_s))} {word} on average"
    if of.preempted:
        text += f"; {of.preempted} running preempted"
    return text


def caveats(found: plan_types.ForecastView) -> Iterator[str]:
    """Return what the forecast does not know."""
    if found.decided_s < found.horizon_s:
        yield (
            f"Decided cycle by cycle for {duration(found.decided_s)} ({found.cycles} cycles); "
            "what comes later is the scheduler's estimate."
        )
    if found.endless:
        one = found.endless == 1
        yield (
            f"{found.endless} running {'job has' if one else 'jobs have'} no time limit and no "
            f"earlier runs to go by: {'it is' if one else 'they are'} taken never to end."
        )


# --- findings -------------------------------------------------------------------------------


def finding_lines(findings: Iterable[plan_types.FindingView]) -> Iterator[PlanLine]:
    """Yield findings with their place; older ones are marked, and many that are alike counted."""
    for alike in alike_findings.groups(findings):
        for one in alike[: alike_findings.EXAMPLES_MAX]:
            yield from _finding_lines(one)
        left = len(alike) - alike_findings.EXAMPLES_MAX
        if left > 0:
            what = f"{alike[0].severity}{'s' if left > 1 else ''} {alike[0].rule}"
            yield PlanLine(f"  ... and {left} more {what} like these; -o json has all")


def _finding_lines(one: plan_types.FindingView) -> Iterator[PlanLine]:
    style = "" if not one.is_new else "red" if one.severity == "error" else "yellow"
    before = "" if one.is_new else " (as before)"
    place = f"{one.path}:{one.line}" if one.line else one.path
    yield PlanLine(f"  {one.severity} {one.rule}{before}: {place}", style)
    subject = ": ".join(part for part in (one.object, one.field) if part)
    yield from _paragraph(f"{subject}: {one.message}" if subject else one.message, 6)
    if one.waiver:
        yield from _paragraph(one.waiver, 6)


# --- helpers --------------------------------------------------------------------------------


def _pair(name: str, text: str) -> PlanLine:
    return PlanLine(f"  {name:<18} {text}")


def _wrapped(name: str, text: str) -> Iterator[PlanLine]:
    if len(name) > 18:
        yield PlanLine(f"  {name}")
        name = ""
    for number, part in enumerate(paragraphs.wrapped(text, WIDTH - 21) or [""]):
        yield _pair(name if not number else "", part)


def _paragraph(text: str, indent: int = 2) -> Iterator[PlanLine]:
    for part in paragraphs.wrapped(text, WIDTH - indent):
        yield PlanLine(" " * indent + part)


def _more(count: int) -> Iterator[PlanLine]:
    if count > JOBS_MAX:
        yield PlanLine(f"  ... and {count - JOBS_MAX} more; -o json has all")


def duration(span_s: float) -> str:
    """Return a span as people write it: ``0.4s``, ``59s``, ``4m10s``, ``3h02m``, ``2d4h``."""
    whole = round(span_s)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s" if whole % 60 else f"{whole // 60}m"
    if whole < 48 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m" if whole % 3600 else f"{whole // 3600}h"
    return f"{whole // 86_400}d{whole % 86_400 // 3600}h"


def gpus(count: float) -> str:
    """Return a number of GPUs in words."""
    return f"{count:g} GPU{'' if count == 1 else 's'}"


def hours(gpu_hours: float) -> str:
    """GPU-hours, with as many digits as tell something."""
    text = f"{gpu_hours:.2g}" if gpu_hours < 10 else f"{gpu_hours:,.0f}"
    return f"{text} GPU-hour{'' if text == '1' else 's'}"
