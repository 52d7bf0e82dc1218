"""Overrides: people cancel jobs, drain nodes, or suspend queues or the cluster while git is down.

An override has an end, is drift while it lasts, and ends by itself once git says the same. A
cancelled run stays cancelled. A drain or suspension ends with its override; while one lasts, the
rest of the cycle uses a structure that contains it. A submission that waits for git is kept among
them, and puts nothing into force (``submission_queue``).
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from reconciler.core import cycle_cache, cycle_context
from reconciler.core.cycle import (
    cycle_events,
    cycle_jobs,
    cycle_nodes,
    ephemeral_jobs,
    submission_queue,
)
from reconciler.model import desired
from reconciler.model.state import ephemeral_requests, records
from reconciler.model.values import times


class _Suspended(cycle_cache.CachePart):
    """The structure with all suspensions, kept as one object while they stay the same.

    Many results are cached per structure object, among them reasons, which say who suspended what,
    until when and why.
    """

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self._of: tuple[desired.Structure, tuple[records.Override, ...]] | None = None

    def of(
        self, structure: desired.Structure, suspending: tuple[records.Override, ...]
    ) -> desired.Structure:
        """Return the structure in which all subjects are suspended."""
        if self._of is None or self._of[0] is not structure or self._of[1] != suspending:
            self._of = (structure, suspending)
            subjects = frozenset(override.subject for override in suspending)
            self._made = _with_suspended(structure, subjects)
        return self._made


def apply(context: cycle_context.CycleContext, desired_state: desired.Desired) -> desired.Desired:
    """Add requested overrides, end those that are over, and enforce the others.

    Returns:
        The desired state in force: the same, or with what overrides suspend.
    """
    if not context.observed.overrides and not context.observed.asked:
        return desired_state
    table = _OverrideTable(
        context.observed.overrides,
        desired_state,
        jobs=context.jobs,
        nodes=context.nodes,
        events=context.events,
        now=context.now,
    )
    for request in context.observed.asked:
        context.answers[request.id] = table.answer(request)
    table.forget_oldest()
    for override in table.end_over():
        context.alarm.wake(override.expires_at)
        _enforce(context.jobs, context.override_drains, override)
    context.overrides = table.all()
    suspending = suspensions(context.overrides)
    if not suspending:
        return desired_state
    suspended = context.cache.part(_Suspended).of(desired_state.structure, suspending)
    return msgspec.structs.replace(desired_state, structure=suspended)


def suspensions(overrides: Iterable[records.Override]) -> tuple[records.Override, ...]:
    """Return the overrides that suspend something."""
    return tuple([override for override in overrides if override.verb == "suspend"])


def suspension(overrides: Iterable[records.Override], subject: str) -> records.Override | None:
    """Return the override that suspends something, if any."""
    for override in overrides:
        if override.verb == "suspend" and override.subject == subject:
            return override
    return None


def _with_suspended(structure: desired.Structure, subjects: frozenset[str]) -> desired.Structure:
    queues = {
        name: msgspec.structs.replace(queue, suspend=True)
        if records.SUSPENDED_QUEUE + name in subjects
        else queue
        for name, queue in structure.queues.items()
    }
    settings = structure.settings
    if records.SUSPENDED_CLUSTER in subjects:
        settings = msgspec.structs.replace(settings, suspend=True)
    return msgspec.structs.replace(structure, settings=settings, queues=queues)


def describe(override: records.Override) -> str:
    """Return who made an override, until when, and why, without durations that would change."""
    until = times.format_time(override.expires_at)
    return f"by override of {override.owner} until {until}: {override.reason}"


def commit_command(override: records.Override, *, signed: bool = False) -> str:
    """Return the command that makes git say the same; empty for a submission, which no command
    commits.

    ``signed``: from a clone, as people have to sign.
    """
    if override.verb == "submit":
        return ""
    reason = override.reason.replace("'", "'\\''")
    clone = " --clone ." if signed else ""
    return f"muster {override.verb} {override.subject}{clone} --reason '{reason}'"


def settled_by(override: records.Override, *, signed: bool) -> str:
    """Return what has to happen in git so that it says the same."""
    if override.submission:
        return submission_queue.settled_by(override.submission)
    if override.commit:
        commit = override.commit[:12]
        return f"committed in {commit}, which is not in force (`muster status` shows why)"
    return f"to commit it: {commit_command(override, signed=signed)}"


def _is_suspended(structure: desired.Structure, subject: str) -> bool | None:
    """Return True if git itself suspends something; None if that does not exist."""
    if subject == records.SUSPENDED_CLUSTER:
        return structure.settings.suspend
    queue = structure.queues.get(subject.removeprefix(records.SUSPENDED_QUEUE))
    return (
        None if queue is None or not subject.startswith(records.SUSPENDED_QUEUE) else queue.suspend
    )


def _enforce(
    jobs: cycle_jobs.CycleJobs, drains: dict[str, desired.NodeDrain], override: records.Override
) -> None:
    """Enforce an override."""
    if override.verb == "drain":
        drains[override.subject] = desired.NodeDrain(
            override.reason, override.owner, override.expires_at
        )
        return
    if override.verb == "suspend":
        return  # the rest of the cycle uses a structure that contains it
    if override.verb == "submit":
        return  # it starts nothing before git has it
    record = jobs.before(override.subject)
    if record is None or record.finished or record.key != override.run_key:
        return
    draft = jobs.draft(override.subject)
    if draft is not None and not draft.removed:
        draft.removed = True
        draft.message = f"cancelled {describe(override)}"


class _OverrideTable:
    """The overrides in force, by verb and subject.

    Args:
        before: those in force when the cycle began.
        desired_state: what git asks for.
        jobs: of this cycle.
        nodes: of this cycle.
        events: of this cycle.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        before: Iterable[records.Override],
        desired_state: desired.Desired,
        *,
        jobs: cycle_jobs.CycleJobs,
        nodes: cycle_nodes.CycleNodes,
        events: cycle_events.CycleEvents,
        now: float,
    ) -> None:
        self._in_force = {override.key: override for override in before}
        self._desired = desired_state
        self._jobs = jobs
        self._nodes = nodes
        self._events = events
        self._now = now
        structure = desired_state.structure
        self._pools = {
            node: structure.pools[name] for node, name in structure.pool_of_node().items()
        }
        self._cancels = Counter(
            override.owner for override in self._in_force.values() if self._still_cancels(override)
        )

    def all(self) -> tuple[records.Override, ...]:
        """Return the overrides in force."""
        return tuple(self._in_force.values())

    def answer(self, request: records.OverrideRequest) -> str:
        """Grant a request. Return why that is refused; empty if it is not."""
        if isinstance(request, records.ClearOverride):
            return self._clear(request)
        if isinstance(request, records.QueueSubmissions):
            return submission_queue.put(request.items, self._in_force, self._desired, self._events)
        if isinstance(request, records.SettleSubmission):
            return submission_queue.settle(request, self._in_force, self._events, self._now)
        if isinstance(request, ephemeral_requests.BeginEphemeral):
            return ephemeral_jobs.begin(request, self._jobs, self._desired, self._waiting_names())
        if isinstance(request, ephemeral_requests.ChangeEphemeral):
            return ephemeral_jobs.change(
                request, self._jobs, self._events, self._desired, self._waiting_names()
            )
        requested = request.override
        why = self._put(requested)
        self._cancels[requested.owner] += requested.verb == "cancel" and not why
        return why

    def _waiting_names(self) -> set[str]:
        """Return the names of submissions that wait for git."""
        return {one.subject for one in self._in_force.values() if one.waiting is not None}

    def end_over(self) -> Iterator[records.Override]:
        """End the overrides that are over. Yield each of the others, in order."""
        for override in list(self._in_force.values()):
            ended = self._ended(override)
            if ended is None:
                yield override
                continue
            kind, message = ended
            del self._in_force[override.key]
            if kind:
                self._event(kind, override, message)

    def _put(
        self,
        requested: records.Override,
    ) -> str:
        """Put an override into force. Return why that is refused; empty if it is not."""
        cancels = self._cancels[requested.owner]
        known = self._in_force.get(requested.key)
        if requested.expires_at <= self._now:
            return "it would end before it begins"
        if requested.verb == "cancel" and known is None and cancels >= records.OVERRIDES_MAX:
            return (
                f"{requested.owner} has {records.OVERRIDES_MAX} overrides that cancel runs which "
                "are not over yet, the most possible. To fix: wait for some to end, commit some of "
                "them to git, or end some with `muster overrides clear`"
            )
        if requested.verb == "cancel":
            record = self._jobs.before(requested.subject)
            if record is None:
                if requested.subject in self._waiting_names():
                    return (
                        f"there is no Job/{requested.subject} yet: it waits for git. To withdraw "
                        "it: cancel it without an override"
                    )
                return f"there is no Job/{requested.subject}"
            requested = msgspec.structs.replace(requested, run_key=record.key)
            if known is None or known.run_key != requested.run_key:
                if record.finished:
                    return f"run {record.spec.run} of it is {record.state.value} already"
                draft = self._jobs.drafts.get(requested.subject)
                if (draft or record).removed:
                    return f"run {record.spec.run} of it is being cancelled already"
            self._bar_changed(record)
        elif requested.verb == "drain":
            why_not = self._not_drainable(requested.subject, self._pools.get(requested.subject))
            if why_not:
                return why_not
        else:
            suspended = _is_suspended(self._desired.structure, requested.subject)
            if suspended is None:
                name = requested.subject.removeprefix(records.SUSPENDED_QUEUE)
                return f"there is no Queue/{name} in the structure in force"
            if suspended:
                return "git suspends it already"
        self._in_force[requested.key] = requested
        self._event("OverrideMade", requested, f"{requested.verb} {describe(requested)}")
        return ""

    def _clear(self, requested: records.ClearOverride) -> str:
        """End an override. Return why that is refused; empty if it is not."""
        known = self._in_force.pop((requested.verb, requested.subject), None)
        if known is None:
            return f"there is no override that would {requested.verb} {requested.subject}"
        if known.verb == "submit":
            submission_queue.withdrawn(known, requested.owner, self._events)
            return ""
        self._event(
            "OverrideCleared", known, f"{requested.owner} ended it; it was {describe(known)}"
        )
        return ""

    def forget_oldest(self) -> None:
        """Drop the oldest of each owner's cancels of runs that are over."""
        over: dict[str, list[records.Override]] = {}
        for override in self._in_force.values():
            if override.verb == "cancel" and not self._still_cancels(override):
                over.setdefault(override.owner, []).append(override)
        for owner, all_of_them in over.items():
            all_of_them.sort(
                key=lambda override: (override.made_at, override.subject), reverse=True
            )
            for override in all_of_them[records.OVERRIDES_MAX :]:
                del self._in_force[override.key]
                reason = (
                    f"its run is over, and {owner} has made {records.OVERRIDES_MAX} others since"
                )
                self._event("OverrideExpired", override, f"{reason}; it was {describe(override)}")

    def _ended(self, override: records.Override) -> tuple[str, str] | None:
        """Return the event kind and message with which an override ends now, if it does."""
        if override.verb == "submit":
            return submission_queue.ended(override, self._now)
        pool = self._pools.get(override.subject)
        if override.expires_at <= self._now:
            return "OverrideExpired", f"{override.verb} {describe(override)}"
        if override.verb == "drain":
            if pool is not None and override.subject in pool.drains:
                return "OverrideCommitted", f"NodePool {pool.name} drains it in git"
            return None
        if override.verb == "suspend":
            if _is_suspended(self._desired.structure, override.subject):
                return "OverrideCommitted", f"git suspends {override.subject}"
            return None
        if self._desired.status.sync == "Unknown":
            return None  # an unreadable repository does not mean that something was removed
        spec = self._desired.jobs.get(override.subject)
        if spec is None:
            if override.subject in self._desired.refused:
                return None
            record = self._jobs.before(override.subject)
            if record is not None and record.ephemeral:  # there is no document to be removed
                return None if self._still_cancels(override) else ("OverrideExpired", "it is over")
            return "OverrideCommitted", self._desired.why_removed(override.subject)
        record = self._jobs.before(override.subject)
        if record is not None and (record.key != override.run_key or record.spec.run != spec.run):
            return "OverrideCommitted", f"git asks for run {spec.run} instead"
        return None

    def _still_cancels(self, override: records.Override) -> bool:
        """Return True if the override is about a run that is not over."""
        record = self._jobs.before(override.subject) if override.verb == "cancel" else None
        return record is not None and not record.finished and record.key == override.run_key

    def _bar_changed(self, record: records.JobRecord) -> None:
        """Prevent the run that git now asks for too, if the cancelled one was changed there."""
        spec = self._desired.jobs.get(record.name)
        if spec is not None and spec.run == record.spec.run and spec.key != record.key:
            self._jobs.bar_run(spec.key)

    def _not_drainable(self, node: str, pool: desired.Pool | None) -> str:
        """Return why a node can't be drained by an override; empty if it can."""
        if pool is None and self._nodes.get(node) is None:
            return f"there is no Node/{node}"
        if pool is not None and node in pool.drains:
            return f"NodePool {pool.name} drains it in git already: {pool.drains[node].reason}"
        return ""

    def _event(self, kind: str, override: records.Override, message: str) -> None:
        if override.verb in {"cancel", "submit"}:
            self._events.add(kind, message, job=override.subject)
        elif override.verb == "drain":
            self._events.add(kind, message, node=override.subject)
        else:
            self._events.add(kind, f"{override.subject}: {message}")
