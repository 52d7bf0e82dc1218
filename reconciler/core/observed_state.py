"""All known state between cycles: it absorbs outcomes and hands out ``Observed`` without copying.

It is the only mutable thing of the core. ``reconcile`` gets a frozen ``Observed`` with the mappings
that are held here; it reads them and changes none.
"""

import itertools
import operator
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Self

import msgspec
import numpy as np

from reconciler.core import cycle_cache
from reconciler.model import desired
from reconciler.model.state import instance_records, outcome, records
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.state.states import AttemptState
from reconciler.model.values import run_set

#: The most reports that wait for one cycle. More are dropped, because agents send them again.
REPORTS_MAX = 100_000
#: The most override requests in one cycle. Whoever gets no answer asks again.
ASKED_MAX = 1000

#: More new keys of runs than this are packed.
RECENT_RUNS_MAX = 100_000


class ObservedState:
    """Records as of the last outcome, and what has come in since."""

    def __init__(self, loaded: records.Observed, leader_since: float) -> None:
        self.jobs: dict[str, records.JobRecord] = dict(loaded.jobs)
        #: The jobs of git that ``share_specs`` looked at last.
        self._shared: Mapping[str, desired.Job] = {}
        self.active: set[str] = {name for name, job in self.jobs.items() if not job.finished}
        self.watched: set[str] = {name for name in self.active if self.jobs[name].is_watched}
        self.past_runs = loaded.past_runs.copy()
        self._pack_runs()
        self.attempts: dict[str, records.AttemptRecord] = dict(loaded.attempts)
        self.attempts_by_node: dict[str, dict[str, None]] = {}
        for attempt in self.attempts.values():
            self._index(attempt)
        self.nodes: dict[str, records.NodeRecord] = dict(loaded.nodes)
        self.reasons: dict[str, tuple[Reason, ...]] = dict(loaded.reasons)
        self.overrides = loaded.overrides
        self.drift = loaded.drift
        self.remedies = loaded.remedies
        self.provisions: dict[str, instance_records.Provision] = dict(loaded.provisions)
        self.provisioned: list[instance_records.OrderResult] = []
        self.nominations: Mapping[str, int] = dict(loaded.nominations)
        self.schedule_inputs = loaded.schedule_inputs
        self.forget_at = loaded.forget_at
        self.scheduler_state = loaded.scheduler_state
        self.desired_generation = -1
        self.next_order = loaded.next_order
        self.leader_since = leader_since
        self.reports: list[records.NodeReport] = []
        self.answered: dict[str, float] = {}
        self.asked: list[records.OverrideRequest] = []
        #: Records of quarantined jobs.
        self.quarantined: dict[str, records.JobRecord] = dict(loaded.quarantined)
        #: What cycles computed from these records.
        self.rebuild_cache()

    @classmethod
    def as_of(cls, observed: records.Observed) -> Self:
        """Return the state that hands out ``observed``, without what came in."""
        state = cls(observed, observed.leader_since)
        state.desired_generation = observed.desired_generation
        return state

    def add_report(self, report: records.NodeReport) -> None:
        """Keep a node's report for the next cycle."""
        if len(self.reports) < REPORTS_MAX:
            self.reports.append(report)

    def ask(self, request: records.OverrideRequest) -> None:
        """Keep an override request for the next cycle."""
        if len(self.asked) < ASKED_MAX:
            self.asked.append(request)

    def add_provisioned(self, result: instance_records.OrderResult) -> None:
        """Keep a provisioner's result for the next cycle.

        There are no more results than open orders.
        """
        self.provisioned.append(result)

    def take_provisioned(self) -> tuple[instance_records.OrderResult, ...]:
        """Return and drop the provisioner results since the last cycle."""
        answers, self.provisioned = tuple(self.provisioned), []
        return answers

    def take_asked(self) -> tuple[records.OverrideRequest, ...]:
        """Return and drop the override requests since the last cycle."""
        requests, self.asked = tuple(self.asked), []
        return requests

    def take_input(self) -> tuple[tuple[records.NodeReport, ...], Mapping[str, float]]:
        """Return and drop the reports and answer times since the last cycle."""
        reports, self.reports = tuple(self.reports), []
        answered, self.answered = self.answered, {}
        return reports, answered

    def observed(
        self,
        reports: tuple[records.NodeReport, ...],
        answered: Mapping[str, float],
        asked: tuple[records.OverrideRequest, ...] = (),
        provisioned: tuple[instance_records.OrderResult, ...] = (),
        unheard: tuple[str, ...] = (),
    ) -> records.Observed:
        """Return the input of ``reconcile``: the records, and what came in."""
        return records.Observed(
            desired_generation=self.desired_generation,
            jobs=self.jobs,
            active=self.active,
            watched=self.watched,
            past_runs=self.past_runs,
            attempts=self.attempts,
            nodes=self.nodes,
            reasons=self.reasons,
            reports=reports,
            answered=answered,
            asked=asked,
            overrides=self.overrides,
            provisions=self.provisions,
            provisioned=provisioned,
            drift=self.drift,
            remedies=self.remedies,
            nominations=self.nominations,
            schedule_inputs=self.schedule_inputs,
            forget_at=self.forget_at,
            scheduler_state=self.scheduler_state,
            leader_since=self.leader_since,
            next_order=self.next_order,
            quarantined=self.quarantined,
            unheard=unheard,
        )

    def leave_out(self, names: AbstractSet[str]) -> None:
        """Hide the records of these jobs, and of no others, from cycles. They stay as they are.

        Another set needs another generation of the desired state.
        """
        come = [name for name in self.quarantined if name not in names]
        go = names & self.jobs.keys()
        for name in come:
            self._put(self.quarantined.pop(name))
        for name in go:
            self.quarantined[name] = self.jobs.pop(name)
            self.active.discard(name)
            self.watched.discard(name)
        if come or go:
            self.rebuild_cache()

    def is_changed_by(self, result: outcome.Outcome) -> bool:
        """Return True if an outcome has more than times and usage of nodes."""
        return bool(
            result.jobs
            or result.attempts
            or result.events
            or result.new_runs
            or result.reasons
            or result.actions
            or result.provisions
            or result.left_jobs
            or result.left_nodes
            or result.drift != self.drift
            or result.remedies != self.remedies
            or result.overrides != self.overrides
            or result.desired_generation != self.desired_generation
        )

    def absorb(self, result: outcome.Outcome) -> None:
        """Take over an outcome after it was committed."""
        others = [job for job in result.jobs if self._put(job)]
        self.past_runs.update(result.new_runs)
        self._pack_runs()
        for attempt in result.attempts:
            if attempt.concluded:
                self.attempts.pop(attempt.id, None)
                self.attempts_by_node.get(attempt.node, {}).pop(attempt.id, None)
            else:
                self.attempts[attempt.id] = attempt
                self._index(attempt)
        for node in result.nodes:
            self.nodes[node.name] = node
        for key, reasons in result.reasons.items():
            if reasons:
                self.reasons[key] = reasons
            else:
                self.reasons.pop(key, None)
        self.drift = result.drift
        self.remedies = result.remedies
        self.overrides = result.overrides
        if result.provisions:
            renewed = {**self.provisions, **result.provisions}
            self.provisions = {name: one for name, one in renewed.items() if one is not None}
        self.nominations = result.nominations
        self.schedule_inputs = result.schedule_inputs
        self.forget_at = result.forget_at
        for name in result.left_jobs:
            self.jobs.pop(name, None)
        for name in result.left_nodes:
            self.nodes.pop(name, None)
            self.attempts_by_node.pop(name, None)
        self.cache.absorb(result, others)
        self.scheduler_state = result.scheduler_state
        self.desired_generation = result.desired_generation
        self.next_order = result.next_order

    def rebuild_cache(self) -> None:
        """Drop the cache, because a cycle raised."""
        self.cache = cycle_cache.CycleCache(self.jobs, self.active, self.attempts, self.nodes)

    def has_attempts(self, job: str) -> bool:
        """Return True if a job has a try that is not concluded."""
        return job in self.cache.by_job

    def share_specs(self, jobs: Mapping[str, desired.Job]) -> None:
        """Let records hold the specs of git themselves if they are equal.

        Most records have a document. Loaded from the store, they would each hold a copy of it.
        """
        # a commit changes few of them; the others were looked at before
        changed = map(operator.is_not, jobs.values(), map(self._shared.get, jobs))
        self._shared = jobs
        for name, spec in list(itertools.compress(jobs.items(), changed)):
            record = self.jobs.get(name)
            if record is not None and record.spec is not spec and record.spec == spec:
                self.jobs[name] = msgspec.structs.replace(record, spec=spec)
                self.cache.job_changed(self.jobs[name])

    def _put(self, job: records.JobRecord) -> bool:
        """Keep a record. Return True if more than its pending reason changed."""
        before = self.jobs.get(job.name)
        self.jobs[job.name] = job
        if before is not None and cycle_cache.is_alike(before, job):
            return False
        if job.finished:
            self.active.discard(job.name)
        else:
            self.active.add(job.name)
        if job.is_watched:
            self.watched.add(job.name)
        else:
            self.watched.discard(job.name)
        return True

    def _pack_runs(self) -> None:
        known = self.past_runs
        if len(known.recent) <= max(run_set.RECENT_MAX, min(len(known) // 8, RECENT_RUNS_MAX)):
            return
        packed = np.frombuffer(known.packed, dtype=np.int64)
        recent = np.fromiter(known.recent, dtype=np.int64, count=len(known.recent))
        known.packed = np.sort(np.concatenate((packed, recent)), kind="stable").tobytes()
        known.recent = set()

    def _index(self, attempt: records.AttemptRecord) -> None:
        if attempt.state is AttemptState.ENDED:
            self.attempts_by_node.get(attempt.node, {}).pop(attempt.id, None)
        else:
            self.attempts_by_node.setdefault(attempt.node, {})[attempt.id] = None
