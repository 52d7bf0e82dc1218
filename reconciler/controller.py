"""The loop: observe, diff, schedule, record, act; one cycle at a time, on input or at ``wake_at``.

Reports come in from the server process over a local socket, revisions from the repository's
thread. A cycle calls the pure core, commits its outcome in one transaction, and only then tells
nodes of it. Killed at any moment it loses nothing that anybody was told.
"""

import itertools
import logging
import selectors
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import msgspec

import reconciler
from reconciler import adopting as adopt
from reconciler import (
    containing,
    crashpoints,
    inboxes,
    intake,
    link_server,
    logs,
    metrics,
    pruning,
    publishing,
    sifting,
    telling,
)
from reconciler.core import journal, reconcile
from reconciler.core import memory as core_memory
from reconciler.engines import agents as agents_engine
from reconciler.metrics import metering
from reconciler.model import desired, link, outcome, provisioning, records
from reconciler.operations import views as shown
from reconciler.store import errors as store_errors
from reconciler.store import store as stores

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
#: Times and usage of nodes are committed this often, whatever else there is to commit.
NODES_COMMIT_EVERY_S = 60.0
#: A step of the wall clock larger than this is not taken for time that has passed.
CLOCK_STEP_S_MAX = 1.0
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
        told: how many notices came to which end, by channel and result.
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
        store: stores.Store,
        epoch: int,
        socket_path: Path,
        inbox: inboxes.Inbox,
        hint: Callable[[], None],
        before: desired.Desired = _NOTHING,
        accepted: bytes = b"",
        adopting: bool = False,
        provision: Callable[[Iterable[provisioning.Order]], None] = lambda _: None,
        event_lines: logs.EventLines | None = None,
        told: Callable[[], Mapping[tuple[str, str], int]] = dict,
        happened: Callable[[outcome.Outcome, core_memory.Memory, desired.Desired], None] = (
            lambda *_: None
        ),
        clock: Callable[[], float] = time.time,
        decide: Callable[..., outcome.Outcome] = reconcile.reconcile,
        refuse: Callable[[containing.Refusal], None] = lambda _: None,
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
        self._link = link_server.LinkServer(socket_path, self._selector)
        self._memory = core_memory.Memory(store.load(), leader_since=clock())
        self._engine = agents_engine.AgentsEngine(epoch)
        self._before = before
        self._decide_by = decide
        self._refuse = refuse
        self._passed: containing.Passed | None = None
        self._kept: desired.Desired | None = None  # instead of what no cycle passed with
        self._numbers = itertools.count(sifting.GENERATION, -1)
        self._passed_incumbents = accepted
        self._adoption = adopt.Adoption(pending=adopting)
        self._desired: desired.Desired | None = None
        self._incumbents: bytes | None = None
        self._shown: desired.SyncStatus | None = None
        self._cycle = store.cycle
        self._wake_at: float | None = None
        self._journal = journal.Recorder(reconciler.__version__)
        self._unsaved_nodes: dict[str, records.NodeRecord] = {}
        self._committed_at = 0.0
        self._counters = metrics.Counters(clock())
        self._defects = containing.Defects(self._counters.defects, contained=contained)
        self._teller = telling.Teller(self._link, self._engine, provision, self._defects)
        self._meter = metering.Meter(self._counters)
        self._publisher = publishing.Publisher(
            server=self._link,
            inbox=inbox,
            counters=self._counters,
            defects=self._defects,
            store=store,
            epoch=epoch,
            state_folder=socket_path.parent,
            told=told,
            clock=clock,
        )
        self._cycled_at = 0.0
        self._cycle_s = 0.0
        self._stopping = False
        self._pruner = pruning.Pruner(store, epoch, clock())
        self._clock_offset_s = self._offset_s(clock())
        self._encoder = msgspec.msgpack.Encoder()

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
        if abs(self._offset_s(now) - self._clock_offset_s) > CLOCK_STEP_S_MAX:
            return True  # ``wake_at`` is by the clock as it was
        return due or (self._wake_at is not None and now >= self._wake_at)

    @staticmethod
    def _offset_s(now: float) -> float:
        """How far the wall clock is from the one that nobody sets."""
        return now - time.clock_gettime(time.CLOCK_BOOTTIME)

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
                    self._memory.add_provisioned(answer)
                    due = True
            elif key.data == "listener":
                if self._link.accept():
                    structure = (self._desired or _NOTHING).structure
                    self._teller.everything(structure, self._memory)
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
        if incumbents is not None:
            self._incumbents = incumbents
        return True

    def _as_before(self) -> desired.Desired:
        """What goes on where nothing newer can: what a cycle passed with last."""
        if self._passed is None:
            return containing.after_restart(self._before, self._memory)
        return self._passed.taken if self._adoption.pending else self._passed.wanted

    def _take_message(self, message: link.ToLoop) -> bool:
        match message:
            case link.Reported():
                node = message.request.node
                if message.question:
                    # whatever becomes of the report, who is confirmed counts as heard of
                    self._teller.questions[node] = message.question
                    self._memory.answered[node] = message.received_at
                if self._defects.is_aside(node, self._clock()):
                    return bool(message.question)  # which no cycle would answer otherwise
                with self._defects.spare("usage"):
                    intake.measure(message, self._meter, self._memory)
                self._memory.add_report(intake.report_of(message))
                return True
            case link.Answered(node=node, at=at):
                self._memory.answered[node] = at
                return False
            case link.Hint():
                self._hint()
                return False
            case link.Adopt():
                return self._adoption.choose(message, self._desired, self._memory)
            case link.OverrideAsked(request=request):
                self._memory.ask(request)
                return True

    def cycle(self) -> outcome.Outcome | None:
        """One cycle, if there is a desired state to go by, and what came of it."""
        if self._desired is None:
            return None
        now = self._clock()
        self._mind_clock(now)
        asked, scripts = self._memory.take_asked(), self._memory.take_provisioned()
        came = containing.Inflow(*self._memory.take_input(), asked, scripts)
        got = self._attempt(came, now)
        return self._contain(got, came, now) if isinstance(got, Exception) else got

    def _attempt(self, came: containing.Inflow, now: float) -> outcome.Outcome | Exception:
        """Decide by what is desired and carry it out, or leave everything as it was."""
        started = time.perf_counter()
        wanted = self._adoption.in_force(self._desired or _NOTHING)
        try:
            result, decide_s = self._decide(wanted, came, now)
        except Exception as defect:
            if not self._defects.contained or store_errors.is_of_store(defect):
                raise
            self._undo()
            return defect
        commit_s = time.perf_counter() - started - decide_s
        self._act(result, wanted)
        with self._defects.spare("metrics"):
            self._counters.cycle(result, decide_s=decide_s, commit_s=commit_s)
        self._publish()
        self._counters.phases("publish")
        return result

    def _decide(
        self, wanted: desired.Desired, came: containing.Inflow, now: float
    ) -> tuple[outcome.Outcome, float]:
        """Decide, and make it durable; how long deciding took. What raises here has done nothing
        that ``_undo`` does not undo."""
        started, phases = time.perf_counter(), self._counters.phases
        phases.begin()
        if wanted.generation != self._memory.desired_generation:
            self._memory.share_specs(wanted.jobs)
        with self._writing():
            self._journal.begin(wanted, self._memory.observed((), {}), now)
        observed = self._memory.observed(came.reports, came.answered, came.asked, came.provisioned)
        phases("journal")
        result = self._decide_by(wanted, observed, now, recall=self._memory.recall, ended=phases)
        phases("outcome")
        decide_s = time.perf_counter() - started
        adopted = self._adoption.runs
        if adopted:
            result = msgspec.structs.replace(result, new_runs=result.new_runs + adopted)
        with self._writing():
            self._journal.add(wanted, observed, result, adopted=adopted, decide_s=decide_s)
        self._unsaved_nodes |= {node.name: node for node in result.nodes}
        for name in result.left_nodes:
            self._unsaved_nodes.pop(name, None)
        phases("journal")
        incumbents = self._incumbents
        if self._must_commit(result):
            self._commit(result)
        else:
            self._use(result)
        phases("commit")
        self._adoption.runs = ()
        self._passed = containing.Passed(self._desired or wanted, wanted, self._adoption.pending)
        self._inbox.adopt(self._passed.taken.generation)
        if incumbents is not None:
            self._passed_incumbents = incumbents
        return result, decide_s

    def _act(self, result: outcome.Outcome, wanted: desired.Desired) -> None:
        """Take an outcome over, now that it is durable, and tell everybody of it."""
        with self._defects.spare("notices"):
            self._happened(result, self._memory, wanted)
        self._memory.absorb(result)
        self._journal.told(result)
        self._wake_at = result.wake_at
        if result.actions:
            crashpoints.reach("committed-not-sent")
        self._teller.tell(result, wanted.structure, self._memory)
        if self._event_lines is not None:
            revision = wanted.status.jobs_revision or ""
            with self._defects.spare("lines"):
                self._event_lines.write(result.events, cycle=self._cycle, revision=revision)
        self._counters.phases("act")

    def _is_new(self) -> bool:
        """Whether no cycle has passed with what is desired, and there is something before it."""
        known, pending = self._passed, self._adoption.pending
        passed = known is not None and known.adopting == pending and known.taken is self._desired
        return not passed and self._desired is not self._kept

    def _spare(self, part: str) -> AbstractContextManager[None]:
        """Go on whatever the block raises, unless there is a desired state to refuse for it."""
        return nullcontext() if self._is_new() else self._defects.spare(part)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What can't be written down ends the journal; it begins anew with the next cycle."""
        with self._spare("journal"):
            try:
                yield
            except Exception:
                self._journal.anew()
                raise

    def _undo(self) -> None:
        """Forget what a cycle has left that was not decided to its end."""
        self._memory.recall_anew()
        self._journal.anew()
        nodes = self._memory.nodes
        self._unsaved_nodes = {name: nodes[name] for name in self._unsaved_nodes if name in nodes}

    def _contain(self, defect: Exception, came: containing.Inflow, now: float) -> outcome.Outcome:
        """Decide a cycle that raised with less than it had; raises it where that does not help."""
        newer = self._desired or _NOTHING
        bases = [containing.Basis(newer, self._incumbents)]
        problem = containing.problem_of(defect)
        if self._is_new():
            self._kept = containing.refused(newer.status, self._as_before(), problem)
            bases.append(containing.Basis(self._kept, None))

        def attempt(basis: containing.Basis, part: containing.Inflow) -> containing.Got:
            self._desired, self._incumbents = basis
            return self._attempt(part, now)

        found = containing.rescue(attempt, bases, came)
        sifted = self._sift(attempt, bases[0]) if found and found.basis is not bases[0] else None
        self._defects.explain(found, newer, defect, now, sifted)
        if found is None:
            raise defect
        if sifted is not None and sifted.is_whole:
            self._inbox.adopt(newer.generation)
        elif sifted is not None:
            self._refuse(
                containing.Refusal(newer.generation, problem, self._passed_incumbents, sifted.apart)
            )
        if not found.waiting.is_bare:
            containing.put_back(found.waiting, self._memory)
            self._wake_at = now
        return found.result

    def _sift(self, attempt: containing.Attempt, newest: containing.Basis) -> containing.Sifted:
        """Go on by what is refused but for its jobs that can't be decided, or without it."""
        found = containing.Sifted(self._kept or newest.wanted)
        if not self._adoption.pending:
            found = sifting.sift(
                lambda wanted: attempt(containing.Basis(wanted, None), containing.Inflow()),
                *(newest.wanted, found.wanted, self._numbers),
                clock=time.monotonic,
            )
        self._desired = found.wanted
        self._incumbents = newest.incumbents if found.is_whole else None
        return found

    def _mind_clock(self, now: float) -> None:
        """Start all silence, and what is done now and then, anew when the wall clock was set.

        A step forward would look as if all nodes had been silent, and start their work elsewhere.
        """
        offset_s = self._offset_s(now)
        if abs(offset_s - self._clock_offset_s) > CLOCK_STEP_S_MAX:
            log.warning("the clock was set by %.1f s", offset_s - self._clock_offset_s)
            self._memory.leader_since = now
            self._pruner.clock_set(now)
            self._committed_at = min(self._committed_at, now)
        elif self._passed is None:  # who begins can't tell what the clock was before
            self._memory.leader_since = now
        self._clock_offset_s = offset_s

    def _must_commit(self, result: outcome.Outcome) -> bool:
        """Whether the outcome has more in it than times and usage of nodes."""
        return bool(
            self._memory.is_changed_by(result)
            or self._incumbents is not None
            or (self._desired and self._adoption.in_force(self._desired).status != self._shown)
            or self._journal.full
            or (self._unsaved_nodes and result.now - self._committed_at >= NODES_COMMIT_EVERY_S)
        )

    def _commit(self, result: outcome.Outcome) -> None:
        views = self._adoption.view
        status = self._adoption.in_force(self._desired or _NOTHING).status
        if status != self._shown:
            views[shown.SYNC] = self._encoder.encode(status)
        with self._spare("views"):
            views |= self._views(result)
        written = journal.NOTHING
        with self._writing():
            written = self._journal.take()
        snapshot = written.snapshot
        if snapshot is not None and len(snapshot) > journal.SNAPSHOT_BYTES_MAX:
            log.warning(journal.TOO_LARGE, len(snapshot), journal.SNAPSHOT_BYTES_MAX)
            snapshot = None
        with self._meter.trying():
            self._use(result)
            self._store.commit(
                self._epoch,
                self._cycle + 1,
                msgspec.structs.replace(result, nodes=tuple(self._unsaved_nodes.values())),
                journal=written.inputs,
                snapshot=snapshot,
                views=views,
                incumbents=self._incumbents,
                rollup=self._meter.take(),
            )
        self._cycle += 1
        self._unsaved_nodes = {}
        self._committed_at = result.now
        self._incumbents = None
        self._shown = status if self._desired else None

    def _use(self, result: outcome.Outcome) -> None:
        with self._defects.spare("usage"):
            self._meter.cycle(result, self._memory)

    def _views(self, result: outcome.Outcome) -> dict[str, bytes]:
        views = shown.cycle_views(result)
        if result.desired_generation != self._memory.desired_generation:
            views |= shown.desired_views(self._adoption.in_force(self._desired or _NOTHING))
        return views

    def _publish(self, *, anew: bool = False) -> None:
        """Tell the server how the loop stands."""
        cycle, pending = self._cycle, self._adoption.pending
        self._publisher.publish(
            self._desired, self._memory, cycle=cycle, adopting=pending, anew=anew
        )

    def _prune(self) -> None:
        wanted = self._desired
        self._pruner.prune(wanted.structure.settings if wanted else None, self._clock())
