"""The adoption of what a store from the past does not know: a restored, lost or second store.

What nodes run is taken over (``core.jobs.takeover``). Of the jobs that git had when this began,
nothing starts that may have run: somebody chooses. Jobs that come later are new, and run.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import msgspec

from reconciler.controller.lead_claim import LeadVerdict
from reconciler.core import observed_state
from reconciler.core.cycle import stop_orders
from reconciler.core.jobs import elastic_jobs
from reconciler.core.nodes import health
from reconciler.model import desired
from reconciler.model.protocol import loop_messages
from reconciler.model.state import adoption_state, identifiers, records
from reconciler.model.state.states import ELEMENT_CODE, AttemptState, JobState

log = logging.getLogger("muster.loop")

#: Element, group and index.
_Task = tuple[int, str, int]
_LIVE = frozenset({ELEMENT_CODE[JobState.STARTING], ELEMENT_CODE[JobState.RUNNING]})


class Adoption:
    """The choice of the jobs that are to start.

    Args:
        kept: as it was stored, or as the start found it.
        observed: what is known of runs and nodes.
        generations: numbers that no other desired state has.
    """

    def __init__(
        self,
        kept: adoption_state.AdoptionState,
        observed: observed_state.ObservedState,
        generations: Iterator[int],
    ) -> None:
        self.state = kept
        #: Stored once with the state: the store's identity, and that it is a copy no more.
        self.identity = ""
        #: Stored with the state: the key by which nodes prove what was assigned to them.
        self.proof_key = b""
        self._observed = observed
        self._generations = generations
        self._new_files: frozenset[str] = frozenset()
        self._last: tuple[desired.Desired, desired.Recovery, desired.Desired] | None = None

    @property
    def pending(self) -> bool:
        """True until somebody has chosen, or nothing is left to choose."""
        return self.state.pending

    @property
    def view(self) -> dict[str, bytes]:
        """The choice as it is stored."""
        views = {adoption_state.VIEW: msgspec.msgpack.encode(self.state)}
        if self.proof_key:
            views[adoption_state.PROOF_KEY] = self.proof_key
        if self.identity:
            views[adoption_state.IDENTITY] = self.identity.encode()
            views[adoption_state.COPIED] = b""
        return views

    def judge(self, verdict: LeadVerdict) -> None:
        """Take what the record in git says of this store.

        While another controller leads it may start anything. So what may have run is noted when
        its lead is over, and everything that was known before counts no more.
        """
        self.identity = verdict.store
        before = self.state
        if before.blocked or verdict.blocked:
            self._new_files = frozenset()
        self._new_files |= verdict.new_files
        if verdict.past or verdict.blocked:
            why = verdict.past or before.why
            # a store can have been copied while it asked: another one led since, which it says
            goes_on = before.pending and why == before.why
            kept = before
            if before.blocked or verdict.blocked or not goes_on:
                kept = adoption_state.AdoptionState()
            noted = self._unknown(verdict.ephemeral) if verdict.past else kept.ephemeral
            self.state = msgspec.structs.replace(
                kept, pending=True, why=why, blocked=verdict.blocked, ephemeral=noted
            )
        elif before.pending:
            # a restored store says by itself that it is from the past, whatever the record says
            noted = () if before.known else self._unknown(verdict.ephemeral)
            self._change(blocked="", pending=bool(before.why), ephemeral=noted or before.ephemeral)
        if self.state.pending and self.state != before:
            log.warning(
                "nothing starts that may have run: %s", self.state.blocked or self.state.why
            )

    def begin(self, now: float) -> None:
        """Begin a cycle at ``now``: nodes are waited for from the first one that knows what waits.

        Before that nobody can have been heard, so that no task counts as lost.
        """
        if self.pending and not self.state.known:
            self._observed.leader_since = now

    def why_not(self, now: float) -> str:
        """Return why nobody may choose now; empty: somebody may."""
        return adoption_state.why_not(self.state, now)

    def choose(
        self, choice: loop_messages.Adopt, desired_state: desired.Desired | None, now: float
    ) -> bool:
        """Take the choice of jobs to start; all others count as done.

        Return False if it comes too early or late, or does not say which nodes to believe.
        """
        if desired_state is None or self.why_not(now):
            return False
        try:
            trusted = adoption_state.trusted_nodes(self.state, choice.trust)
        except adoption_state.DistrustError as error:
            log.warning("%s", error)
            return False
        waiting = self.state.awaiting
        start = set(waiting) if choice.everything else set(choice.names)
        known = [self._observed.nodes[one] for one in trusted if one in self._observed.nodes]
        confirmed, _ = self._confirmed()
        over = [
            name
            for name in waiting
            if name not in start
            and not _is_held_whole(self._observed.jobs.get(name), known, confirmed.get(name, ()))
        ]
        ended = [self._key(name, desired_state) for name in over]
        self._change(
            pending=False,
            awaiting={},
            ended=tuple(filter(None, ended)),
            started=tuple(name for name in waiting if name in start),
            unproven=(),
            trusted=tuple(sorted(trusted)),
        )
        log.info("adopted: %d jobs are to start, %d count as done", len(start), len(ended))
        return True

    def note_stored(self) -> None:
        """Note that the runs which were declared over, and the event of the begin, are stored."""
        if not self.state.pending:
            # of the others there are records now
            over = tuple(one for one in self.state.ephemeral if one.job is None)
            self._change(ended=(), started=(), trusted=None, ephemeral=over)
        elif self.state.known and not self.state.told:
            self._change(told=True)

    def in_force(self, desired_state: desired.Desired) -> desired.Desired:
        """Return the desired state, with the jobs of which nothing starts."""
        state = self.state
        last = self._last
        merged = desired_state
        noted = {} if not self.pending else self._noted(desired_state)
        if noted:
            jobs = {**desired_state.jobs, **noted}
            merged = msgspec.structs.replace(desired_state, jobs=jobs)
        if self.pending and not (state.known or state.blocked) and desired_state.generation > 0:
            self._note_waiting(merged)
        if not (self.pending or self.state.ended or self.state.trusted is not None):
            return desired_state
        # what may have run is not known before git is read, and while another controller leads
        names = self.state.awaiting if self.state.known or not self.pending else merged.jobs
        trusted = self.state.trusted
        recovery = desired.Recovery(
            frozenset(names),
            frozenset(self.state.ended),
            None if trusted is None else frozenset(trusted),
            frozenset(self.state.started),
            "" if self.state.told or not self.state.known else self.state.why,
            not self.state.blocked,
            frozenset(noted),
        )
        if last is not None and last[0] is desired_state and last[1] == recovery:
            return last[2]
        status = desired_state.status
        if self.pending:
            message = self.state.blocked or desired.AWAITS_ADOPTION
            status = msgspec.structs.replace(status, sync="OutOfSync", message=message)
        made = msgspec.structs.replace(
            merged, generation=next(self._generations), recovery=recovery, status=status
        )
        self._last = (desired_state, recovery, made)
        return made

    def look(self, desired_state: desired.Desired, now: float) -> float | None:
        """Note what a cycle has found out, and return when another cycle is due; None: never.

        Args:
            desired_state: in force.
            now: seconds since the epoch.
        """
        if not self.pending or not self.state.known:
            return None
        observed, state = self._observed, self.state
        unheard = self._unheard(desired_state)
        confirmed, lost = self._confirmed()
        waits = bool(unheard) and now < state.ready_at
        unproven = self._unproven()
        doubted = {identifiers.run_key_of(one.attempt) for one in unproven}
        left, alive = dict(state.awaiting), list(state.alive)
        for name in state.awaiting:
            record = observed.jobs.get(name)
            if record is None:
                continue  # it is set aside for a while
            if record.finished:
                del left[name]
            elif (
                name in confirmed
                and name not in lost
                and record.key not in doubted
                and _is_known_whole(record, confirmed[name])
            ):
                del left[name]
                alive.append(name)
        over = not (left or unproven or waits or state.blocked)
        if over:
            log.info("all that was run is known again: %d jobs were taken over", len(alive))
        self._change(
            pending=not over,
            awaiting=left,
            alive=tuple(alive),
            unheard=unheard,
            unproven=unproven,
        )
        if self.state != state:
            return now  # the next cycle stores it, so that people see it
        return state.ready_at if waits else None

    def _confirmed(self) -> tuple[dict[str, set[_Task]], set[str]]:
        """Return the tasks of each job that are known by their nodes, and jobs that lost some."""
        confirmed: dict[str, set[_Task]] = {}
        lost: set[str] = set()
        for attempt in self._observed.attempts.values():
            if attempt.end_reason in elastic_jobs.LOSSES:
                lost.add(attempt.job)  # it may have ended in any way
            elif attempt.state is not AttemptState.UNKNOWN and self._is_heard(attempt.node):
                task = (attempt.element, attempt.group, attempt.index)
                confirmed.setdefault(attempt.job, set()).add(task)
        return confirmed, lost

    def _unproven(self) -> tuple[adoption_state.ShownUnproven, ...]:
        """Return what nodes report without a proof, by node."""
        return tuple(
            adoption_state.ShownUnproven(one.report.id, name, one.report.state.value, one.doubt)
            for name, node in sorted(self._observed.nodes.items())
            if node.unproven
            for one in node.unproven
        )

    def _unheard(self, desired_state: desired.Desired) -> tuple[str, ...]:
        """Return the nodes of pools that were not heard since the leader began."""
        names = {name for pool in desired_state.structure.pools.values() for name in pool.nodes}
        names |= {name for name, node in self._observed.nodes.items() if node.pool}
        return tuple(sorted(name for name in names if not self._is_heard(name)))

    def _is_heard(self, node: str) -> bool:
        record = self._observed.nodes.get(node)
        return record is not None and record.last_report_at >= self._observed.leader_since

    def _note_waiting(self, desired_state: desired.Desired) -> None:
        """Note which jobs of the first revision may have run."""
        observed, new_files = self._observed, self._new_files
        waiting = {}
        for name, spec in desired_state.jobs.items():
            record = observed.jobs.get(name)
            if record is None and spec.key in observed.past_runs:
                continue
            if record is not None and record.finished and record.key == spec.key:
                continue
            waiting[name] = (
                adoption_state.NEW if spec.path in new_files else adoption_state.MAY_HAVE_RUN
            )
        for name, record in observed.jobs.items():
            if record.ephemeral and not record.finished and name not in desired_state.jobs:
                waiting[name] = adoption_state.MAY_HAVE_RUN
        structure, jobs = desired_state.structure, desired_state.jobs.values()
        leases = [structure.settings.lease_s, *(one.lease_s or 0 for one in jobs)]
        grace_s = stop_orders.longest_to_save_s(structure, jobs)
        wait_s = max(leases) + grace_s + health.LEASE_MARGIN_S
        self._change(
            known=True,
            alive=(),
            unheard=self._unheard(desired_state),
            awaiting=waiting,
            ready_at=observed.leader_since + wait_s,
        )

    def _unknown(
        self, noted: tuple[adoption_state.EphemeralRun, ...]
    ) -> tuple[adoption_state.EphemeralRun, ...]:
        """Return the runs that a note in git has and the store does not."""
        known = self._observed.past_runs
        return tuple(one for one in noted if one.key not in known)

    def _noted(self, desired_state: desired.Desired) -> dict[str, desired.Job]:
        """Return the jobs without a file that had not ended by the note in git, by name."""
        return {
            one.name: one.job
            for one in self.state.ephemeral
            if one.job is not None
            and one.name not in desired_state.jobs
            and one.name not in desired_state.refused
        }

    def _key(self, name: str, desired_state: desired.Desired) -> str:
        """Return the key of the run of a job that waits."""
        record = self._observed.jobs.get(name)
        if record is not None:
            return record.key
        spec = desired_state.jobs.get(name)
        return spec.key if spec is not None else ""

    def _change(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)


def _is_known_whole(record: records.JobRecord, confirmed: Collection[_Task]) -> bool:
    """Return True if all tasks of a job that may run are known, so that none is to start.

    Any other task of a gang or an array may run on a node that was not heard yet. Or it may have
    ended well: a node forgets an end once a controller has taken it.
    """
    return set(record.elements) <= _LIVE and _are_all(record, confirmed)


def _is_held_whole(
    record: records.JobRecord | None,
    trusted: Iterable[records.NodeRecord],
    confirmed: Iterable[_Task],
) -> bool:
    """Return True if trusted nodes have all tasks of a job without a proof, but for ``confirmed``.

    It is then taken over like a job that could be proven.
    """
    if record is None:
        return False
    found = set(confirmed)
    for one in (one.report for node in trusted for one in node.unproven):
        is_lost = one.state is AttemptState.UNKNOWN or one.end_reason in elastic_jobs.LOSSES
        if identifiers.run_key_of(one.id) == record.key and not is_lost:
            element, group, index = one.id.rsplit(".", 4)[1:4]
            found.add((int(element), group, int(index)))
    return _are_all(record, found)


def _are_all(record: records.JobRecord, tasks: Iterable[_Task]) -> bool:
    counts = Counter((element, group) for element, group, _ in tasks)
    return all(
        counts[element, group.name] >= group.count
        for element in range(len(record.elements))
        for group in record.spec.groups
    )
