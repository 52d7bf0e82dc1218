"""The loop: observe, diff, schedule, record, act; one cycle at a time, on input or at ``wake_at``.

Reports come in from the server process over a local socket, revisions from the repository's
thread. A cycle calls the pure core, commits its outcome in one transaction, and only then tells
nodes of it. Killed at any moment it loses nothing that anybody was told.
"""

import logging
import selectors
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec

from reconciler import log_format, metrics
from reconciler.controller import (
    adoption,
    cycle_commit,
    dispatcher,
    failpoints,
    loop_inbox,
    publisher,
    retention,
    server_link,
    wall_clock,
)
from reconciler.controller.quarantine import (
    defects,
    isolate_failures,
    job_bisection,
    revision_bisection,
)
from reconciler.core import observed_state, reconcile
from reconciler.core.jobs import quarantined_jobs
from reconciler.engines import agents
from reconciler.metrics import usage_accounting
from reconciler.model import desired
from reconciler.model.protocol import loop_messages
from reconciler.model.state import instance_records, outcome
from reconciler.store import errors, sql_store

log = logging.getLogger("muster.loop")

#: Input that arrives within this time of the first is decided in one cycle.
GATHER_S = 0.004
#: Where cycles are dearer than that, input is gathered for as long as the last one took, so that
#: each decides about more, but never for longer than this.
GATHER_S_MAX = 0.02
#: After so long without a cycle the first input is decided at once: a burst would have come before.
QUIET_S = 0.05
#: The longest time without a look at the clock, whatever ``wake_at`` says.
SLEEP_S_MAX = 30.0
_NOTHING = desired.Desired()


class Loop:
    """The control loop over a store that it leads.

    Args:
        store: opened; ``epoch`` comes from ``store.lead``.
        socket_path: where the server process connects.
        inbox: from which revisions come.
        hint: called when somebody says that the repository may have changed.
        before: what was in force before a restart, for as long as nothing newer is: its jobs are
            those that the store knows. accepted: what was remembered with it.
        adopting: the store is empty and the repository was run before: its jobs wait for
            somebody to say which of them are new, and nodes are left alone.
        provision: given all open orders of pools whose nodes come and go, whenever they change;
            it returns at once, and puts what comes of them into ``inbox``.
        event_lines: where what happens is written, if anywhere.
        told: who is told of the cluster, and who can't be.
        happened: given each outcome once it is durable, with what was known before and what was
            desired; it returns at once.
        clock: seconds since the epoch.
        decide: the core. refuse: told of each desired state that no cycle passed with.
        contained: whether to go on where the core raises (see ``containing``), which is for those
            who serve people; else whoever drives the loop gets what it raised.
    """

    def __init__(
        self,
        *,
        store: sql_store.Store,
        epoch: int,
        socket_path: Path,
        inbox: loop_inbox.Inbox,
        hint: Callable[[], None],
        before: desired.Desired = _NOTHING,
        accepted: bytes = b"",
        adopting: bool = False,
        provision: Callable[[Iterable[instance_records.Order]], None] = lambda _: None,
        event_lines: log_format.EventLines | None = None,
        told: publisher.Told | None = None,
        happened: Callable[
            [outcome.Outcome, observed_state.ObservedState, desired.Desired], None
        ] = (lambda *_: None),
        clock: Callable[[], float] = time.time,
        decide: Callable[..., outcome.Outcome] = reconcile.reconcile,
        refuse: Callable[[isolate_failures.RevisionRefusal], None] = lambda _: None,
        contained: bool = False,
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._inbox = inbox
        self._hint = hint
        self._event_lines = event_lines
        self._happened = happened
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._selector.register(inbox.descriptor, selectors.EVENT_READ, "inbox")
        self._link = server_link.LinkServer(socket_path, self._selector)
        self._state = observed_state.ObservedState(store.load(), leader_since=clock())
        self._engine = agents.AgentsEngine(epoch)
        self._before = before
        self._decide_by = decide
        self._refuse = refuse
        self._passed: isolate_failures.Passed | None = None
        self._kept: desired.Desired | None = None  # instead of what no cycle passed with
        self._search = job_bisection.JobBisection(time.monotonic)
        self._passed_incumbents = accepted
        self._adoption = adoption.Adoption(pending=adopting)
        self._in_force = job_bisection.CycleDesired(self._adoption, self._search, self._state)
        self._desired: desired.Desired | None = None
        self._wake_at: float | None = None
        self._counters = metrics.Counters(clock())
        self._defects = defects.Defects(self._counters.defects, contained=contained)
        self._teller = dispatcher.Dispatcher(self._link, self._engine, provision, self._defects)
        self._meter = usage_accounting.Meter(self._counters)
        self._commits = cycle_commit.Committer(
            store,
            epoch,
            state=self._state,
            meter=self._meter,
            defects=self._defects,
            spare=self._spare,
        )
        self._publisher = publisher.Publisher(
            server=self._link,
            inbox=inbox,
            counters=self._counters,
            defects=self._defects,
            store=store,
            epoch=epoch,
            state_folder=socket_path.parent,
            told=told or publisher.Nobody(),
            clock=clock,
        )
        self._cycled_at = 0.0
        self._cycle_s = 0.0
        self._stopping = False
        self._pruner = retention.Pruner(store, epoch, clock())
        self._steps = wall_clock.ClockSteps(clock())

    def stop(self) -> None:
        """Leave after the cycle under way."""
        self._stopping = True
        self._inbox.wake()

    def run(self) -> None:
        """Go round until ``stop``."""
        try:
            while not self._stopping:
                if self._wait():
                    self._gather()
                    began = time.monotonic()
                    self.cycle()
                    self._cycled_at = time.monotonic()
                    self._cycle_s = self._cycled_at - began
                elif self._publisher.wait_s() <= 0:
                    self._publish()
                self._prune()
        finally:
            self._link.close()
            self._selector.close()

    def _wait(self) -> bool:
        """Sleep until there is input or time itself changes something; whether a cycle is due."""
        now = self._clock()
        due_at = self._wake_at if self._wake_at is not None else now + SLEEP_S_MAX
        timeout_s = min(max(0.0, due_at - now), max(0.0, self._publisher.wait_s()), SLEEP_S_MAX)
        due = self._take(self._selector.select(timeout_s))
        now = self._clock()
        if self._steps.of(now):
            return True  # ``wake_at`` is by the clock as it was
        return due or (self._wake_at is not None and now >= self._wake_at)

    def _gather(self) -> None:
        """Let input that comes together be decided together, unless there has been none."""
        if time.monotonic() - self._cycled_at > QUIET_S:
            return
        ends_at = time.monotonic() + min(GATHER_S_MAX, max(GATHER_S, self._cycle_s))
        while (left_s := ends_at - time.monotonic()) > 0:
            self._take(self._selector.select(left_s))

    def _take(self, ready: list[tuple[selectors.SelectorKey, int]]) -> bool:
        """Take over what has arrived; whether any of it asks for a cycle."""
        due = False
        for key, events in ready:
            if key.data == "inbox":
                self._inbox.drain()
                due = self._take_desired() or due
                for answer in self._inbox.take_provisioned():
                    self._state.add_provisioned(answer)
                    due = True
            elif key.data == "listener":
                if self._link.accept():
                    structure = (self._desired or _NOTHING).structure
                    self._teller.everything(structure, self._state)
                    self._publish(anew=True)
            else:
                if events & selectors.EVENT_WRITE:
                    self._link.flush()
                if events & selectors.EVENT_READ:
                    for message in self._link.receive():
                        due = self._take_message(message) or due
        return due

    def _take_desired(self) -> bool:
        value, incumbents = self._inbox.take_desired()
        if value is None:
            return False
        if value.generation == 0:
            self._desired = msgspec.structs.replace(self._as_before(), status=value.status)
            return True
        self._desired = value
        self._search.renew(value)
        if incumbents is not None:
            self._commits.incumbents = incumbents
        return True

    def _as_before(self) -> desired.Desired:
        """What goes on where nothing newer can: what a cycle passed with last."""
        if self._passed is None:
            return isolate_failures.after_restart(self._before, self._state)
        return self._passed.taken if self._adoption.pending else self._passed.desired_state

    def _take_message(self, message: loop_messages.ToLoop) -> bool:
        match message:
            case loop_messages.Reported():
                node = message.request.node
                if message.question and not self._defects.is_unheard(node):
                    # whatever becomes of the report, who is confirmed counts as heard of
                    self._teller.questions[node] = message.question
                    self._state.answered[node] = message.received_at
                if self._defects.is_aside(node, self._clock()):  # no cycle would answer otherwise
                    return node in self._teller.questions
                with self._defects.spare("usage"):
                    loop_inbox.measure(message, self._meter, self._state)
                self._state.add_report(loop_inbox.report_of(message))
                return True
            case loop_messages.Answered(node=node, at=at):
                self._state.answered[node] = at
                return False
            case loop_messages.Hint():
                self._hint()
                return False
            case loop_messages.Adopt():
                return self._adoption.choose(message, self._desired, self._state)
            case loop_messages.OverrideAsked(request=request):
                self._state.ask(request)
                return True

    def cycle(self) -> outcome.Outcome | None:
        """One cycle, if there is a desired state to go by, and what came of it."""
        if self._desired is None:
            return None
        now = self._clock()
        self._mind_clock(now)
        asked, scripts = self._state.take_asked(), self._state.take_provisioned()
        unheard = frozenset(self._defects.unheard(isolate_failures.CycleInput()))
        came = isolate_failures.CycleInput(*self._state.take_input(), asked, scripts, unheard)
        got = self._attempt(came, now)
        result = self._contain(got, came, now) if isinstance(got, Exception) else got
        return self._find_jobs(result, now) if self._search.is_open else result

    def _attempt(
        self, came: isolate_failures.CycleInput, now: float
    ) -> outcome.Outcome | Exception:
        """Decide by what is desired and carry it out, or leave everything as it was."""
        started = time.perf_counter()
        desired_state = self._in_force.of(self._desired or _NOTHING)
        try:
            result, decide_s = self._decide(desired_state, came, now)
        except Exception as defect:
            if not self._defects.contained or errors.is_of_store(defect):
                raise
            self._commits.undo()
            return defect
        commit_s = time.perf_counter() - started - decide_s
        self._defects.heard(came)
        self._act(result, desired_state)
        with self._defects.spare("metrics"):
            self._counters.cycle(result, decide_s=decide_s, commit_s=commit_s)
        self._publish()
        self._counters.phases("publish")
        return result

    def _decide(
        self, desired_state: desired.Desired, came: isolate_failures.CycleInput, now: float
    ) -> tuple[outcome.Outcome, float]:
        """Decide, and make it durable; how long deciding took. What raises here has done nothing
        that ``_undo`` does not undo."""
        started, phases = time.perf_counter(), self._counters.phases
        phases.begin()
        if desired_state.generation != self._state.desired_generation:
            self._state.share_specs(desired_state.jobs)
        self._state.leave_out(desired_state.aside.keys())
        with self._commits.writing():
            self._commits.journal.begin(desired_state, self._state.observed((), {}), now)
        observed = self._state.observed(
            came.reports,
            came.answered,
            came.asked,
            came.provisioned,
            self._defects.unheard(came),
        )
        phases("journal")
        result = self._decide_by(
            desired_state, observed, now, recall=self._state.recall, ended=phases
        )
        phases("outcome")
        decide_s = time.perf_counter() - started
        adopted = self._adoption.runs
        if adopted:
            result = msgspec.structs.replace(result, new_runs=result.new_runs + adopted)
        with self._commits.writing():
            self._commits.journal.add(
                desired_state, observed, result, adopted=adopted, decide_s=decide_s
            )
        phases("journal")
        incumbents = self._commits.incumbents
        self._commits.take(result, desired_state, self._adoption.view)
        phases("commit")
        self._adoption.runs = ()
        taken = self._desired or desired_state
        in_force = self._adoption.in_force(taken)
        self._passed = isolate_failures.Passed(taken, in_force, self._adoption.pending)
        self._inbox.adopt(self._passed.taken.generation)
        if incumbents is not None:
            self._passed_incumbents = incumbents
        return result, decide_s

    def _act(self, result: outcome.Outcome, desired_state: desired.Desired) -> None:
        """Take an outcome over, now that it is durable, and tell everybody of it."""
        with self._defects.spare("notices"):
            self._happened(result, self._state, desired_state)
        self._state.absorb(result)
        self._commits.journal.told(result)
        self._wake_at = result.wake_at
        if result.actions:
            failpoints.reach("committed-not-sent")
        self._teller.tell(result, desired_state.structure, self._state)
        if self._event_lines is not None:
            revision = desired_state.status.jobs_revision or ""
            with self._defects.spare("lines"):
                self._event_lines.write(result.events, cycle=self._commits.cycle, revision=revision)
        self._counters.phases("act")

    def _is_new(self) -> bool:
        """Whether no cycle has passed with what is desired, and there is something before it."""
        known, pending = self._passed, self._adoption.pending
        passed = known is not None and known.adopting == pending and known.taken is self._desired
        return not passed and self._desired is not self._kept

    def _spare(self, part: str) -> AbstractContextManager[None]:
        """Go on whatever the block raises, unless there is a desired state to refuse for it."""
        return nullcontext() if self._is_new() else self._defects.spare(part)

    def _contain(
        self, defect: Exception, came: isolate_failures.CycleInput, now: float
    ) -> outcome.Outcome:
        """Decide a cycle that raised with less than it had; raises it where that does not help."""
        newer = self._desired or _NOTHING
        bases = [isolate_failures.CycleBasis(newer, self._commits.incumbents)]
        problem = isolate_failures.problem_of(defect)
        if self._is_new():
            self._kept = isolate_failures.refused(newer.status, self._as_before(), problem)
            bases.append(isolate_failures.CycleBasis(self._kept, None))

        def attempt(
            basis: isolate_failures.CycleBasis, part: isolate_failures.CycleInput
        ) -> isolate_failures.Got:
            self._desired, self._commits.incumbents = basis
            return self._attempt(part, now)

        def without_jobs(
            basis: isolate_failures.CycleBasis, part: isolate_failures.CycleInput, *, started: bool
        ) -> isolate_failures.Got | None:
            self._desired, self._commits.incumbents = basis
            return self._without_jobs(part, now, started=started)

        found = isolate_failures.rescue(attempt, bases, came, without_jobs)
        sifted = None
        if found and found.basis is not bases[0]:
            sifted = self._sift(attempt, bases[0], is_whole=self._search.is_open)
        self._defects.explain(found, newer, defect, now, sifted)
        if found is None:
            raise defect
        if sifted is not None and sifted.is_whole:
            self._inbox.adopt(newer.generation)
        elif sifted is not None:
            self._refuse(
                isolate_failures.RevisionRefusal(
                    newer.generation, problem, self._passed_incumbents, sifted.apart
                )
            )
        if found.left_out:
            nodes = self._defects.unheard(isolate_failures.CycleInput())
            self._teller.doubt(nodes, found.basis.desired_state.structure, self._state)
        if found.left_out or not found.waiting.is_bare:
            isolate_failures.put_back(found.waiting, self._state)
            self._wake_at = now
        return found.result

    def _without_jobs(
        self, came: isolate_failures.CycleInput, now: float, *, started: bool
    ) -> isolate_failures.Got | None:
        """Decide without the jobs that wait, or with ``started`` without all; None: nobody does.

        What came in is decided so; which of them it takes to leave out is found afterwards.
        """
        desired_state = self._adoption.in_force(self._desired or _NOTHING)
        self._state.leave_out(desired_state.aside.keys())
        names = (quarantined_jobs.unfinished if started else quarantined_jobs.waiting)(
            desired_state, self._state
        )
        names = [
            one for one in names if one not in desired_state.aside and one not in self._search.found
        ]
        if not names:
            return None
        if not (started or came.is_bare):
            is_doubted, clock = self._defects.is_doubted(now), time.monotonic

            def probe(out: Mapping[str, str], *, whole: bool) -> bool:
                tried = self._in_force.without(desired_state, {**self._search.aside, **out})
                return self._would_pass(tried, came if whole else came.bare(), now)

            if job_bisection.blames_input(probe, names, is_doubted=is_doubted, clock=clock):
                return None
        self._search.begin(names)
        got = self._attempt(came, now)
        if isinstance(got, Exception):
            self._search.drop()
        return got

    def _would_pass(
        self, tried: desired.Desired, came: isolate_failures.CycleInput, now: float
    ) -> bool:
        """Whether a cycle can be decided; nothing comes of it."""
        self._state.leave_out(tried.aside.keys())
        said = (came.reports, came.answered, came.asked, came.provisioned)
        try:
            self._decide_by(tried, self._state.observed(*said, self._defects.unheard(came)), now)
        except Exception:
            return False
        return True

    def _find_jobs(self, result: outcome.Outcome, now: float) -> outcome.Outcome:
        """Find which of the jobs that were left out have to stay so, for as long as a turn may."""
        desired_state = self._desired or _NOTHING
        got = self._search.go_on(
            lambda: self._attempt(isolate_failures.CycleInput(), now), desired_state
        )
        if self._search.is_open:
            self._wake_at = now
            return got if got is not None else result
        found = tuple(self._search.found.values())
        self._defects.explain_jobs_aside(found, self._search.defects)
        self._search.stop()
        if not found:
            return got if got is not None else result
        self._desired = job_bisection.told(desired_state, found, next(self._in_force.numbers))
        last = self._attempt(isolate_failures.CycleInput(), now)
        problem = found[0].problem("")
        self._refuse(
            isolate_failures.RevisionRefusal(
                desired_state.generation, problem, self._passed_incumbents, found
            )
        )
        return result if isinstance(last, Exception) else last

    def _sift(
        self,
        attempt: isolate_failures.Attempt,
        newest: isolate_failures.CycleBasis,
        *,
        is_whole: bool,
    ) -> isolate_failures.Sifted:
        """Go on by what is refused but for its jobs that can't be decided, or without it."""
        found = isolate_failures.Sifted(self._kept or newest.desired_state)
        if not (self._adoption.pending or is_whole):
            found = revision_bisection.sift(
                lambda desired_state: attempt(
                    isolate_failures.CycleBasis(desired_state, None), isolate_failures.CycleInput()
                ),
                *(newest.desired_state, found.desired_state, self._in_force.numbers),
                clock=time.monotonic,
            )
        self._desired = found.desired_state
        self._commits.incumbents = newest.incumbents if found.is_whole else None
        return found

    def _mind_clock(self, now: float) -> None:
        """Start all silence, and what is done now and then, anew when the wall clock was set.

        A step forward would look as if all nodes had been silent, and start their work elsewhere.
        """
        if step_s := self._steps.take(now):
            log.warning("the clock was set by %.1f s", step_s)
            self._state.leader_since = now
            self._pruner.clock_set(now)
            self._commits.committed_at = min(self._commits.committed_at, now)
        elif self._passed is None:  # who begins can't tell what the clock was before
            self._state.leader_since = now

    def _publish(self, *, anew: bool = False) -> None:
        """Tell the server how the loop stands."""
        cycle, pending = self._commits.cycle, self._adoption.pending
        self._publisher.publish(
            self._desired, self._state, cycle=cycle, adopting=pending, anew=anew
        )

    def _prune(self) -> None:
        desired_state = self._desired
        self._pruner.prune(
            desired_state.structure.settings if desired_state else None, self._clock()
        )
