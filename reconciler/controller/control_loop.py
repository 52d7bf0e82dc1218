"""The control loop: observe, diff, schedule, commit, act, one cycle at a time.

Reports arrive from the server process over a local socket, revisions from the git watcher. A cycle
calls the pure core, commits the outcome in one transaction, and only then dispatches it: killed at
any moment, the loop loses nothing that anybody was told.
"""

import itertools
import logging
import selectors
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from agents.host import failpoints
from reconciler import log_format, metrics
from reconciler.controller import (
    adoption,
    cycle_commit,
    cycle_decider,
    dispatcher,
    loop_inbox,
    publisher,
    retention,
    server_link,
)
from reconciler.controller.host import wall_clock
from reconciler.controller.quarantine import (
    containment,
    cycle_input,
    cycle_rescue,
    desired_in_force,
    desired_track,
    internal_errors,
    job_bisection,
)
from reconciler.core import observed_state
from reconciler.engines import agents_engine, assignment_proofs
from reconciler.metrics import usage_accounting
from reconciler.model import desired
from reconciler.model.protocol import loop_messages
from reconciler.model.state import adoption_state, instance_records, outcome
from reconciler.store import errors, sql_store

log = logging.getLogger("muster.loop")

#: Input that arrives within this time of the first is decided in one cycle.
GATHER_S = 0.004
#: If cycles take longer than that, input is gathered for as long as the last one took, so that each
#: cycle processes more, but never for longer than this.
GATHER_S_MAX = 0.02
#: After so long without a cycle the first input is processed at once, because it begins no burst.
QUIET_S = 0.05
#: The longest sleep, whatever ``wake_at`` says.
SLEEP_S_MAX = 30.0
_NOTHING = desired.Desired()


class LoopStart(NamedTuple):
    """The state with which the loop starts.

    Attributes:
        before: what was in force before a restart. Its jobs are those of the store.
        accepted: what was remembered with it.
        adoption: of what the store may not know.
        proofs: of what was assigned to nodes; None: by a key that ends with the loop.
    """

    before: desired.Desired = _NOTHING
    accepted: bytes = b""
    adoption: adoption_state.AdoptionState = adoption_state.AdoptionState()
    proofs: assignment_proofs.AssignmentProofs | None = None


class LoopOutputs(NamedTuple):
    """Where results of the loop go, besides the store and the server process.

    Attributes:
        provision: given all open orders of provisioned pools whenever they change. It returns at
            once and puts results into the inbox.
        event_lines: where events are written, if anywhere.
        notice_counts: counts notices to people, and those that can't be sent.
        on_outcome: given each outcome once it is durable, with the state before it and the desired
            state. It returns at once.
        refuse: given each desired state that was not applied as a whole.
        on_hint: called if the repository may have changed.
    """

    provision: Callable[[Iterable[instance_records.Order]], None] = lambda _: None
    event_lines: log_format.EventLines | None = None
    notice_counts: publisher.NoticeCounts = publisher.NoNotices()
    on_outcome: Callable[[outcome.Outcome, observed_state.ObservedState, desired.Desired], None] = (
        lambda *_: None
    )
    refuse: Callable[[cycle_rescue.RevisionRefusal], None] = lambda _: None
    on_hint: Callable[[], None] = lambda: None


_START = LoopStart()
_OUTPUTS = LoopOutputs()
_CORE = cycle_decider.CoreOptions()


class Loop:
    """The control loop over a store that it leads.

    Args:
        led: the store.
        socket_path: where the server process connects.
        inbox: from which revisions come.
        start: what is known at the start.
        outputs: where results go.
        clock: seconds since the epoch.
        core: decides.
    """

    def __init__(
        self,
        *,
        led: sql_store.LedStore,
        socket_path: Path,
        inbox: loop_inbox.Inbox,
        start: LoopStart = _START,
        outputs: LoopOutputs = _OUTPUTS,
        clock: Callable[[], float] = time.time,
        core: cycle_decider.CoreOptions = _CORE,
    ) -> None:
        self._led = led
        self._inbox = inbox
        self._outputs = outputs
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._selector.register(inbox.descriptor, selectors.EVENT_READ, "inbox")
        self._link = server_link.LinkServer(socket_path, self._selector)
        self._engine = agents_engine.AgentsEngine(led.epoch, start.proofs)
        self._state = state = observed_state.ObservedState(led.store.load(), leader_since=clock())
        generations = itertools.count(desired_in_force.GENERATION, -1)
        self._adoption = adopting = adoption.Adoption(start.adoption, state, generations)
        adopting.proof_key = self._engine.proofs.key
        self._search = job_bisection.JobBisection(time.monotonic)
        self._in_force = desired_in_force.DesiredInForce(adopting, self._search, state, generations)
        self._track = desired_track.DesiredTrack(start.before, start.accepted, adopting, state)
        self._counters = counters = metrics.Counters(clock())
        self._meter = usage_accounting.Meter(counters)
        caught = internal_errors.InternalErrors(counters.defects, contained=core.contained)
        self._internal_errors = caught
        self._dispatcher = dispatcher.Dispatcher(
            self._link, self._engine, outputs.provision, caught
        )
        self._commits = cycle_commit.Committer(
            led, state=state, meter=self._meter, internal_errors=caught, suppress=self._suppress
        )
        self._decider = cycle_decider.CycleDecider(
            core.decide,
            state=state,
            adoption=adopting,
            commits=self._commits,
            counters=counters,
            internal_errors=caught,
        )
        self._containment = containment.Containment(
            self._in_force,
            self._search,
            state,
            internal_errors=caught,
            trials=containment.Trials(self._attempt, self._decider.would_pass),
            generations=generations,
        )
        sources = publisher.PublishedSources(counters, led, outputs.notice_counts, clock)
        page = publisher.MetricsPage(sources, caught, socket_path.parent)
        self._publisher = publisher.Publisher(sources, self._link, inbox, page)
        self._pruner = retention.Pruner(led, clock())
        self._steps = wall_clock.ClockSteps(clock())
        self._wake_at: float | None = None
        self._cycled_at = self._cycle_s = 0.0
        self._stopping = False

    def stop(self) -> None:
        """End the loop after the current cycle."""
        self._stopping = True
        self._inbox.wake()

    def run(self) -> None:
        """Run cycles until ``stop`` is called."""
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
        """Sleep until input arrives or ``wake_at`` is reached. Return True if a cycle is due."""
        now = self._clock()
        due_at = self._wake_at if self._wake_at is not None else now + SLEEP_S_MAX
        timeout_s = min(max(0.0, due_at - now), max(0.0, self._publisher.wait_s()), SLEEP_S_MAX)
        due = self._take(self._selector.select(timeout_s))
        now = self._clock()
        if self._steps.of(now):
            return True  # ``wake_at`` was computed by the old clock
        return due or (self._wake_at is not None and now >= self._wake_at)

    def _gather(self) -> None:
        """Wait a moment for more input for the next cycle, unless the loop was idle."""
        if time.monotonic() - self._cycled_at > QUIET_S:
            return
        ends_at = time.monotonic() + min(GATHER_S_MAX, max(GATHER_S, self._cycle_s))
        while (left_s := ends_at - time.monotonic()) > 0:
            self._take(self._selector.select(left_s))

    def _take(self, ready: list[tuple[selectors.SelectorKey, int]]) -> bool:
        """Read what has arrived. Return True if it needs a cycle."""
        due = False
        for key, events in ready:
            if key.data == "inbox":
                self._inbox.drain()
                for verdict in self._inbox.take_verdicts():
                    self._engine.epoch = self._led.lead_above(verdict.above, self._clock())
                    self._adoption.judge(verdict)
                    due = True
                due = self._take_desired() or due
                for answer in self._inbox.take_provisioned():
                    self._state.add_provisioned(answer)
                    due = True
            elif key.data == "listener":
                if self._link.accept():
                    structure = self._track.current.structure
                    self._dispatcher.dispatch_all(structure, self._state)
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
            self._track.keep_status(value.status)
            return True
        self._track.take(value, incumbents)
        self._search.renew(value)
        return True

    def _take_message(self, message: loop_messages.ToLoop) -> bool:
        match message:
            case loop_messages.Reported():
                node = message.request.node
                if message.question and not self._internal_errors.is_unheard(node):
                    # the node counts as heard even if its report can't be processed
                    self._dispatcher.questions[node] = message.question
                    self._state.answered[node] = message.received_at
                if self._internal_errors.is_ignored(node, self._clock()):  # only a cycle answers
                    return node in self._dispatcher.questions
                with self._internal_errors.suppress("usage"):
                    loop_inbox.measure(message, self._meter, self._state)
                self._state.add_report(loop_inbox.report_of(message, self._engine.proofs))
                return True
            case loop_messages.Answered(node=node, at=at):
                self._state.answered[node] = at
                return False
            case loop_messages.Hint():
                self._outputs.on_hint()
                return False
            case loop_messages.Adopt():
                return self._adoption.choose(message, self._track.desired, self._clock())
            case loop_messages.OverrideAsked(request=request):
                self._state.ask(request)
                return True

    def cycle(self) -> outcome.Outcome | None:
        """Run one cycle and return its outcome, or None if there is no desired state yet."""
        if self._track.desired is None:
            return None
        now = self._clock()
        self._check_clock(now)
        self._adoption.begin(now)
        requests, scripts = self._state.take_asked(), self._state.take_provisioned()
        unheard = frozenset(self._internal_errors.unheard(cycle_input.CycleInput()))
        received = cycle_input.CycleInput(*self._state.take_input(), requests, scripts, unheard)
        got = self._attempt(self._track.basis, received, now)
        result = self._rescue(got, received, now) if isinstance(got, Exception) else got
        if not self._search.is_open:
            return result
        searched = self._containment.search_jobs(self._track.basis, result, now)
        if searched.refused is not None:
            self._outputs.refuse(self._track.refusal(searched.refused))
        if self._search.is_open:
            self._wake_at = now
        return searched.result

    def _rescue(
        self, error: Exception, received: cycle_input.CycleInput, now: float
    ) -> outcome.Outcome:
        """Decide a cycle that raised with less than it had, or raise the error if that fails."""
        newest, track = self._track.basis, self._track
        last_good = track.refuse(internal_errors.revision_problem(error)) if track.is_new else None
        found = self._containment.rescue(error, newest, last_good, received, now)
        if found.revision is not None:
            track.go_by(found.revision.basis)
            if found.revision.refused is None:
                self._inbox.adopt(newest.desired_state.generation)
            else:
                self._outputs.refuse(track.refusal(found.revision.refused))
        if found.failed:
            nodes = self._internal_errors.unheard(cycle_input.CycleInput())
            structure = found.basis.desired_state.structure
            self._dispatcher.stop_renewing(nodes, structure, self._state)
        if found.failed or not found.waiting.is_bare:
            cycle_input.put_back(found.waiting, self._state)
            self._wake_at = now
        return found.result

    def _attempt(
        self, basis: cycle_rescue.CycleBasis, received: cycle_input.CycleInput, now: float
    ) -> outcome.Outcome | Exception:
        """Decide one cycle and carry it out. Return the error instead if nothing was changed."""
        self._track.go_by(basis)
        desired_state = self._in_force.of(basis.desired_state)
        in_force = basis._replace(desired_state=desired_state)
        try:
            result, decide_s, commit_s = self._decider.decide(in_force, received, now)
            self._inbox.adopt(self._track.note_passed())
        except Exception as error:
            if not self._internal_errors.contained or errors.is_of_store(error):
                raise
            self._commits.undo()
            return error
        self._internal_errors.heard(received)
        self._act(result, desired_state)
        with self._internal_errors.suppress("metrics"):
            self._counters.cycle(result, decide_s=decide_s, commit_s=commit_s)
        self._publish()
        self._counters.phases("publish")
        return result

    def _act(self, result: outcome.Outcome, desired_state: desired.Desired) -> None:
        """Absorb an outcome that is durable, and dispatch it."""
        with self._internal_errors.suppress("notices"):
            self._outputs.on_outcome(result, self._state, desired_state)
        self._state.absorb(result)
        self._commits.journal.note_durable(result)
        ready_at = self._adoption.look(desired_state, result.now)
        moments = [at for at in (result.wake_at, ready_at) if at is not None]
        self._wake_at = min(moments, default=None)
        if result.actions:
            failpoints.reach("committed-not-sent")
        self._dispatcher.dispatch(result, desired_state.structure, self._state)
        event_lines = self._outputs.event_lines
        if event_lines is not None:
            revision = desired_state.status.jobs_revision or ""
            with self._internal_errors.suppress("lines"):
                event_lines.write(result.events, cycle=self._commits.cycle, revision=revision)
        self._counters.phases("act")

    def _suppress(self, part: str) -> AbstractContextManager[None]:
        """Return a block that suppresses errors if there is no new desired state to refuse."""
        return nullcontext() if self._track.is_new else self._internal_errors.suppress(part)

    def _check_clock(self, now: float) -> None:
        """Restart all waits for silent nodes and housekeeping if the wall clock was set.

        After a step forward all nodes would seem silent, and their work would start elsewhere.
        """
        if step_s := self._steps.take(now):
            log.warning("the clock was set by %.1f s", step_s)
            self._state.leader_since = now
            self._pruner.clock_set(now)
            self._commits.clock_set(now)
        elif self._track.passed is None:  # at a start the earlier clock is unknown
            self._state.leader_since = now

    def _publish(self, *, anew: bool = False) -> None:
        """Send the server the state of the loop."""
        cycle, adopting = self._commits.cycle, self._adoption.state
        self._publisher.publish(
            self._track.desired, self._state, cycle=cycle, adopting=adopting, anew=anew
        )

    def _prune(self) -> None:
        desired_state = self._track.desired
        self._pruner.prune(
            desired_state.structure.settings if desired_state else None, self._clock()
        )
