"""Takes over what nodes run and a store from the past does not know, under the same attempt ids.

After a restore, or with a new store, nodes run attempts that no record names. As long as
``Desired.recovery`` is set, those of desired runs become records again, as their nodes hold them:
at once where a proof says that they were assigned there, else when somebody believes the node
(``unproven_attempts``). Nothing that runs is ended by this. What somebody declared over ends here,
if nothing of it is alive.
"""

from collections.abc import Mapping

import msgspec

from reconciler.core import cycle_attempts, cycle_context, job_draft
from reconciler.core.cycle import attempt_losses, cycle_jobs, report_order
from reconciler.core.jobs import elastic_jobs, unproven_attempts, verdicts
from reconciler.model import desired
from reconciler.model.observed import task_reports
from reconciler.model.rules import usage_charges
from reconciler.model.state import identifiers, records
from reconciler.model.state.states import AttemptState, EndReason, JobState

#: The message of a job that `muster adopt` did not name.
DECLARED_OVER = "it counts as done: `muster adopt` did not name it"
#: The same of a job of which something runs all the same.
STILL_ALIVE = "it counts as done for what waits for it, and what runs of it goes on"
#: What no store from the past can know again.
LOST = (
    "what ended since, and its GPU time, is missing from budgets, fair shares, reports and "
    "history; `muster adopt` lists which jobs wait"
)
#: Why an attempt of a run that has not begun here is shown.
_EARLIER = "the store knows an earlier run of its job that is not over"
#: The parts of an attempt's id behind the job's name.
_PARTS_BEHIND_NAME = 6
#: The highest number that is skipped because a node says so, which it may make up.
_SKIPPED_MAX = 10_000
#: The most digits of a number in an id; no store holds larger ones.
_DIGITS_MAX = 9


def apply(context: cycle_context.CycleContext, desired_state: desired.Desired) -> None:
    """Take over what reports tell of, and end what was declared over."""
    recovery = desired_state.recovery
    is_new = desired_state.generation != context.observed.desired_generation
    observed = context.observed
    doubts = unproven_attempts.Doubts(
        desired_state.structure, context.attempts, context.nodes, observed.leader_since
    )
    taker = _Taker(context, doubts, desired_state.jobs)
    if recovery is not None and recovery.begun:
        context.events.add("StoreFromThePast", f"{recovery.begun}; {LOST}")
    for report in report_order.in_order(observed.reports, context.nodes.known):
        node = context.nodes.get(report.node)
        if node is None:
            continue
        if recovery is None:
            for one in report.attempts:
                taker.skip_number(node, one)
        elif report.held is None:
            unproven_attempts.follow(context, node, report)
        else:
            _lose_unlisted(context.attempts, context.losses, report, observed.leader_since)
            taker.hear(node, report, {one.id: one for one in report.held})
    if recovery is None:
        if is_new:
            _settle(context, taker, frozenset())
        return
    if is_new:
        if recovery.trusted is not None:
            _settle(context, taker, recovery.trusted)
        _end_declared(context.jobs, recovery)
        _restart_incomplete(context, recovery)


def _settle(context: cycle_context.CycleContext, taker: "_Taker", trusted: frozenset[str]) -> None:
    """Take over what trusted nodes report without a proof, and forget what all others do."""
    for name in context.nodes.names():
        node = context.nodes.get(name)
        if node is None or not node.unproven:
            continue
        if name in trusted:
            taker.believe(node)
        else:
            for one in node.unproven:
                taker.skip_number(node, one.report)
        unproven_attempts.forget_all(context, context.nodes.get(name) or node)


def _lose_unlisted(
    attempts: cycle_attempts.CycleAttempts,
    losses: attempt_losses.AttemptLosses,
    report: records.NodeReport,
    since: float,
) -> None:
    """End what the store assigned before this leader began and the node does not have.

    It is not on its way: it has been there, and has ended, however new it is to the store.
    """
    listed = {one.id for one in report.attempts}
    for attempt in attempts.of_node(report.node) if report.complete else ():
        if attempt.id not in listed and attempt.assigned_at < since:
            message = f"{report.node} no longer has it"
            losses.lose(attempt, EndReason.LOST, message, unseen=True)


def _end_declared(
    jobs: cycle_jobs.CycleJobs,
    recovery: desired.Recovery,
) -> None:
    """End runs that somebody declared over. Those with tasks go on until these have ended."""
    for name in jobs.active_names() if recovery.ended else ():
        draft = jobs.draft(name)
        if draft is None or draft.spec.key not in recovery.ended or draft.removed:
            continue
        for element, code in enumerate(draft.elements):
            if code == job_draft.PENDING:
                draft.set_element(element, JobState.CANCELLED)
                draft.set_note(element, None)
        is_alive = any(draft.elements.count(code) for code in job_draft.LIVE_CODES)
        draft.message = STILL_ALIVE if is_alive else DECLARED_OVER
        draft.declared_over = True


def _restart_incomplete(context: cycle_context.CycleContext, recovery: desired.Recovery) -> None:
    """Try gangs again that somebody wants to start, and of which only a part is known to run."""
    for name in sorted(recovery.started):
        draft = context.jobs.draft(name)
        for element in context.attempts.elements(name) if draft is not None else ():
            present = context.attempts.of_element(name, element)
            if draft is not None and not elastic_jobs.is_whole(draft.spec, present):
                verdicts.give_verdict(context.stops, draft, element, EndReason.NODE_LOST)


class _Taker:
    """A maker of records of attempts that only nodes know.

    Args:
        context: of this cycle.
        doubts: judges what has no proof.
        wanted: jobs as git has them.
    """

    def __init__(
        self,
        context: cycle_context.CycleContext,
        doubts: unproven_attempts.Doubts,
        wanted: Mapping[str, desired.Job],
    ) -> None:
        self._wanted = wanted
        self._context = context
        self._jobs = context.jobs
        self._attempts = context.attempts
        self._nodes = context.nodes
        self._now = context.now
        self._doubts = doubts

    def hear(
        self,
        node: records.NodeRecord,
        report: records.NodeReport,
        held: dict[str, records.HeldAttempt],
    ) -> None:
        """Take over what a node proves of what it reports, and note what else it reports."""
        proven = frozenset(report.proven)
        unproven: dict[tuple[str, int, str, int], records.UnprovenAttempt] = {}
        newest: dict[tuple[str, int, str, int], int] = {}
        for one in report.attempts:
            attempt = self.attempt_of(node, one, held.get(one.id))
            if attempt is None:
                early = self._of_next_run(one, held.get(one.id))
                if early is None and one.id not in proven and self._is_of_nobody(one):
                    early = records.UnprovenAttempt(
                        one, held.get(one.id), unproven_attempts.OF_NOBODY
                    )
                if early is not None:
                    unproven[early.report.id, 0, "", 0] = early
                continue
            if one.id in proven and not self._rival(attempt):
                self.take(attempt)
                continue
            task = (attempt.job, attempt.element, attempt.group, attempt.index)
            if attempt.try_number > newest.get(task, 0):  # its earlier tries are over
                newest[task] = attempt.try_number
                doubt = self._doubt(attempt, is_proven=one.id in proven)
                unproven[task] = records.UnprovenAttempt(one, held.get(one.id), doubt)
        now = self._nodes.get(node.name) or node
        unproven_attempts.note(self._context, now, list(unproven.values()))

    def _of_next_run(
        self, reported: records.AttemptReport, held: records.HeldAttempt | None
    ) -> records.UnprovenAttempt | None:
        """Return an attempt of a run that is desired, and begins here once an earlier one is over.

        It is neither taken over nor ended before somebody has said so.
        """
        parts = reported.id.rsplit(".", _PARTS_BEHIND_NAME)
        spec, draft = self._wanted.get(parts[0]), self._jobs.draft(parts[0])
        if spec is None or draft is None or spec.key == draft.spec.key:
            return None
        if draft.finished or identifiers.run_key_of(reported.id) != spec.key:
            return None
        return records.UnprovenAttempt(reported, held, _EARLIER)

    def _is_of_nobody(self, reported: records.AttemptReport) -> bool:
        """Return True if a live attempt is of a job that neither the store nor git knows."""
        name = identifiers.job_of(reported.id)
        is_known = name in self._wanted or self._jobs.record_of(name) is not None
        return reported.state is not AttemptState.ENDED and not is_known

    def believe(self, node: records.NodeRecord) -> None:
        """Take over what a node could not prove, as far as nothing newer is known of it."""
        for one in node.unproven:
            attempt = self.attempt_of(node, one.report, one.held)
            if attempt is not None:
                self.take(attempt)

    def skip_number(self, node: records.NodeRecord, reported: records.AttemptReport) -> None:
        """Give the number of a try that a node has, and nobody took over, to no later try.

        Both would have one id: the node would go on with the task that it has, or never start it
        again, because it has ended there.
        """
        attempt = self.attempt_of(node, reported, None)
        draft = self._jobs.draft(attempt.job) if attempt is not None else None
        if attempt is None or draft is None or attempt.try_number > _SKIPPED_MAX:
            return
        if attempt.try_number > self._known_tries(draft, attempt.element):
            note = draft.note(attempt.element)
            draft.set_note(attempt.element, msgspec.structs.replace(note, tries=attempt.try_number))

    def _doubt(self, attempt: records.AttemptRecord, *, is_proven: bool) -> str:
        draft = self._jobs.draft(attempt.job)
        if is_proven or draft is None:
            return self._rival(attempt)
        return self._doubts.of(attempt, draft.spec, self._known_tries(draft, attempt.element))

    def _rival(self, attempt: records.AttemptRecord) -> str:
        draft = self._jobs.draft(attempt.job)
        return self._doubts.rival(attempt, draft.spec) if draft is not None else ""

    def attempt_of(
        self,
        node: records.NodeRecord,
        reported: records.AttemptReport,
        held: records.HeldAttempt | None,
    ) -> records.AttemptRecord | None:
        """Return the record of an attempt that is to be taken over, or None if it is not.

        Only a try that is newer than all that are known is one of a desired run's future.
        """
        if self._attempts.get(reported.id) is not None:
            return None
        parts = reported.id.rsplit(".", _PARTS_BEHIND_NAME)
        if len(parts) <= _PARTS_BEHIND_NAME or not all(
            parts[at].isdecimal() and len(parts[at]) <= _DIGITS_MAX for at in (3, 5, 6)
        ):
            return None
        draft = self._jobs.draft(parts[0])
        group = self._group(draft, parts)
        if draft is None or group is None:
            return None
        if (
            draft.finished
            or identifiers.attempt_id(
                draft.spec, int(parts[3]), group.name, int(parts[5]), int(parts[6])
            )
            != reported.id
        ):
            return None  # another run of the job
        element, number = int(parts[3]), int(parts[6])
        if draft.elements[element] not in (job_draft.PENDING, *job_draft.LIVE_CODES):
            return None
        if number < self._lowest_try(draft, element, group.name, int(parts[5])):
            return None
        if held is None or not held.assigned:
            # of which nobody knows the GPUs: nothing starts on its node until it has ended
            held = records.HeldAttempt(
                reported.id, boot_id=node.boot_id, lease_s=draft.spec.lease_s
            )
        return self._record(node, reported, held, draft.spec, group)

    @staticmethod
    def _group(draft: job_draft.JobDraft | None, parts: list[str]) -> desired.TaskGroup | None:
        """Return the group of the task that an id names; None if the job has no such task."""
        if draft is None or int(parts[3]) >= len(draft.elements):
            return None
        for group in draft.spec.groups:
            if group.name == parts[4] and int(parts[5]) < group.count:
                return group
        return None

    def _record(
        self,
        node: records.NodeRecord,
        reported: records.AttemptReport,
        held: records.HeldAttempt,
        spec: desired.Job,
        group: desired.TaskGroup,
    ) -> records.AttemptRecord:
        """Return a record as it would be if this store had known all along."""
        ended = reported.state is AttemptState.ENDED
        started_at = self._moment(reported.started_at)
        ended_at = self._moment(reported.ended_at) or self._now
        begun_at = started_at or (ended_at if ended else self._now)
        resources = group.resources
        if resources.gpu_milli and held.devices and resources.gpu_milli % len(held.devices):
            resources = msgspec.structs.replace(resources, gpu_milli=1000 * len(held.devices))
        element, index, number = (int(reported.id.rsplit(".", 6)[at]) for at in (3, 5, 6))
        return records.AttemptRecord(
            id=reported.id,
            job=spec.name,
            run=spec.run,
            job_key=spec.key,
            element=element,
            group=group.name,
            index=index,
            try_number=number,
            node=node.name,
            boot_id=held.boot_id or node.boot_id,
            resources=resources,
            state=reported.state,
            assigned_at=begun_at,
            devices=held.devices,
            rank=held.rank,
            started_at=started_at,
            ended_at=max(begun_at, ended_at) if ended else None,
            exit_code=task_reports.exit_code(reported.exit_code) if ended else None,
            signal=task_reports.signal_number(reported.signal) if ended else None,
            end_reason=(reported.end_reason or EndReason.EXITED) if ended else None,
            stop=held.stop,
            lease_s=None if held.lease_s is None else int(held.lease_s),
            grace_s=held.grace_s,
            mig_profile=held.mig_profile,
            instances=held.instances,
            saved=reported.checkpoint,
            saves_every_s=held.saves_every_s,
            pool=node.pool,
        )

    def _moment(self, told: float | None) -> float | None:
        """Return a time of a node's clock, not later than now.

        None: it is not told, or by a clock that was wrong, such as one that begins with 1970: the
        task would have run for longer than any that is charged.
        """
        oldest = max(0.0, self._now - usage_charges.SPAN_S_MAX)
        return min(self._now, told) if told is not None and told >= oldest else None  # no NaN

    def take(self, attempt: records.AttemptRecord) -> None:
        """Add an attempt to its element. Older tries of the element are over."""
        draft = self._jobs.draft(attempt.job)
        node = self._nodes.get(attempt.node)
        if draft is None or node is None:
            return
        for before in self._attempts.of_element(attempt.job, attempt.element):
            if unproven_attempts.follows(attempt, before, draft.spec) and not before.concluded:
                self._supersede(before, attempt.try_number)
        self._attempts.add(attempt)
        if draft.elements[attempt.element] == job_draft.PENDING:
            draft.set_element(attempt.element, JobState.STARTING)
        if draft.state is JobState.HELD:
            self._jobs.set_state(draft, JobState.PENDING)
        if draft.state is JobState.PENDING:
            self._jobs.set_state(draft, JobState.STARTING)
        unwanted = tuple(name for name in node.unwanted if name != attempt.id)
        self._nodes.renew(node, unwanted=unwanted)
        self._context.events.add(
            "AttemptTakenOver",
            f"{node.name} has it, and the store did not know",
            job=attempt.job,
            node=node.name,
            attempt=attempt.id,
        )

    def _supersede(self, before: records.AttemptRecord, number: int) -> None:
        """Conclude an attempt of an earlier try, which a newer one has followed."""
        if before.state is AttemptState.ENDED:
            self._attempts.renew(before, concluded=True)
            return
        self._attempts.lose(
            before,
            ended_at=self._now,
            end_reason=EndReason.LOST,
            message=f"try {number} has followed it",
            concluded=True,
        )

    def _known_tries(self, draft: job_draft.JobDraft, element: int) -> int:
        present = self._attempts.of_element(draft.spec.name, element)
        return cycle_attempts.try_number_of(present, draft.note(element))

    def _lowest_try(self, draft: job_draft.JobDraft, element: int, group: str, index: int) -> int:
        """Return the lowest number of a try that can be newer than what is known of a task.

        Tasks of a try that is under way may have others beside them. Those of an elastic gang
        joined it one after another, each by a try of its own.
        """
        present = self._attempts.of_element(draft.spec.name, element)
        if not any(not attempt.concluded for attempt in present):
            return self._known_tries(draft, element) + 1
        if draft.spec.is_elastic:
            present = [one for one in present if (one.group, one.index) == (group, index)]
            return max([one.try_number for one in present], default=0)
        return self._known_tries(draft, element)
