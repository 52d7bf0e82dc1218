"""The loop: observe, diff, schedule, record, act; one cycle at a time, on input or at ``wake_at``.

Reports come in from the server process over a local socket, revisions from the repository's
thread. A cycle calls the pure core, commits its outcome in one transaction, and only then tells
nodes of it. Killed at any moment it loses nothing that anybody was told.
"""

import logging
import selectors
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

import reconciler
from reconciler import crashpoints, inboxes, link_server, logs, metrics, paging
from reconciler.core import journal, reconcile
from reconciler.core import memory as core_memory
from reconciler.engines import agents as agents_engine
from reconciler.metrics import metering
from reconciler.model import desired, link, outcome, provisioning, records, wire
from reconciler.operations import views as shown
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
#: Old events and journal entries are pruned this often.
PRUNE_EVERY_S = 600.0
#: The next look while there is more to prune than one look takes.
PRUNE_AGAIN_S = 5.0
#: A step of the wall clock larger than this is not taken for time that has passed.
CLOCK_STEP_S_MAX = 1.0
#: What is in force while nobody has said which jobs are new; no loader gives this number.
ADOPTING_GENERATION = -2
#: The stored view that remembers over a restart that this is not said yet.
ADOPTION = "adoption"


class Loop:
    """The control loop over a store that it leads.

    Args:
        store: opened; ``epoch`` comes from ``store.lead``.
        socket_path: where the server process connects.
        inbox: from which revisions come.
        hint: called when somebody says that the repository may have changed.
        structure: what was in force before a restart, for as long as the repository can't be read.
        adopting: the store is empty and the repository was run before: its jobs wait for
            somebody to say which of them are new, and nodes are left alone.
        provision: given all open orders of pools whose nodes come and go, whenever they change;
            it returns at once, and puts what comes of them into ``inbox``.
        event_lines: where what happens is written, if anywhere.
        told: how many notices came to which end, by channel and result.
        happened: given each outcome once it is durable, with what was known before and what was
            desired; it returns at once.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        *,
        store: stores.Store,
        epoch: int,
        socket_path: Path,
        inbox: inboxes.Inbox,
        hint: Callable[[], None],
        structure: desired.Structure | None = None,
        adopting: bool = False,
        provision: Callable[[Iterable[provisioning.Order]], None] = lambda _: None,
        event_lines: logs.EventLines | None = None,
        told: Callable[[], Mapping[tuple[str, str], int]] = dict,
        happened: Callable[[outcome.Outcome, core_memory.Memory, desired.Desired], None] = (
            lambda *_: None
        ),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._inbox = inbox
        self._hint = hint
        self._provision = provision
        self._provisions: object = None
        self._event_lines = event_lines
        self._told = told
        self._happened = happened
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._selector.register(inbox.descriptor, selectors.EVENT_READ, "inbox")
        self._link = link_server.LinkServer(socket_path, self._selector)
        self._memory = core_memory.Memory(store.load(), leader_since=clock())
        self._engine = agents_engine.AgentsEngine(epoch)
        self._structure = structure or desired.Structure()
        self._adopting = adopting
        self._adopted_runs: tuple[str, ...] = ()
        self._desired: desired.Desired | None = None
        self._incumbents: bytes | None = None
        self._shown: desired.SyncStatus | None = None
        self._cycle = store.cycle
        self._wake_at: float | None = None
        self._journal = journal.Recorder(reconciler.__version__)
        self._unsaved_nodes: dict[str, records.NodeRecord] = {}
        self._committed_at = 0.0
        #: Which question about each node waits for the next decision.
        self._questions: dict[str, int] = {}
        self._told_generation: int | None = None
        self._counters = metrics.Counters(clock())
        self._meter = metering.Meter()
        self._page = paging.Page()
        self._state_folder = socket_path.parent
        self._cycled_at = 0.0
        self._cycle_s = 0.0
        self._stopping = False
        self._next_prune_at = clock() + PRUNE_EVERY_S
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
                elif self._page.wait_s() <= 0:
                    self._publish()
                self._prune()
        finally:
            self._link.close()
            self._selector.close()

    def _wait(self) -> bool:
        """Sleep until there is input or time itself changes something; whether a cycle is due."""
        now = self._clock()
        due_at = self._wake_at if self._wake_at is not None else now + SLEEP_S_MAX
        timeout_s = min(max(0.0, due_at - now), max(0.0, self._page.wait_s()), SLEEP_S_MAX)
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
                    self._questions.clear()  # who asked them has gone
                    self._tell_everything()
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
            self._desired = self._as_before(value.status)
            return True
        self._desired = value
        if incumbents is not None:
            self._incumbents = incumbents
        return True

    def _as_before(self, status: desired.SyncStatus) -> desired.Desired:
        """What goes on while the repository was never read: the last structure, the live runs."""
        return desired.Desired(
            generation=self._memory.desired_generation,
            structure=self._structure,
            jobs={name: self._memory.jobs[name].spec for name in self._memory.active},
            status=status,
        )

    def _take_message(self, message: link.ToLoop) -> bool:
        match message:
            case link.Reported(request=request, received_at=received_at, question=question):
                if question:
                    # whatever becomes of the report, who is confirmed counts as heard of
                    self._questions[request.node] = question
                    self._memory.answered[request.node] = received_at
                self._measure(message)
                self._memory.add_report(
                    records.NodeReport(
                        node=request.node,
                        boot_id=request.boot_id,
                        incarnation=request.incarnation,
                        received_at=received_at,
                        attempts=request.attempts,
                        complete=request.complete,
                        sequence=request.sequence,
                        inventory=request.inventory,
                        usage=request.usage,
                        remedies=request.remedies[: wire.REMEDIES_MAX],
                    )
                )
                return True
            case link.Answered(node=node, at=at):
                self._memory.answered[node] = at
                return False
            case link.Hint():
                self._hint()
                return False
            case link.Adopt():
                return self._adopt(message)
            case link.OverrideAsked(request=request):
                self._memory.ask(request)
                return True

    def _measure(self, message: link.Reported) -> None:
        """Take down how busy the GPUs of a node's attempts are."""
        node = message.request.node
        if message.gpu_ratios:
            attempts = self._memory.attempts
            ids = self._memory.attempts_by_node.get(node, ())
            self._meter.reported(
                node,
                dict(message.gpu_ratios),
                message.received_at,
                [attempts[one] for one in ids if one in attempts],
            )

    def _adopt(self, choice: link.Adopt) -> bool:
        """Somebody says which jobs are new: the others count as done."""
        if not self._adopting or self._desired is None:
            return False
        jobs = self._desired.jobs
        new = set(jobs) if choice.everything else set(choice.names)
        self._adopted_runs = tuple(spec.key for name, spec in jobs.items() if name not in new)
        self._memory.past_runs.update(self._adopted_runs)
        self._adopting = False
        log.info("adopted: %d jobs are new, %d are done", len(new), len(self._adopted_runs))
        return True

    def _in_force(self, wanted: desired.Desired) -> desired.Desired:
        """The desired state, without its jobs while it is not known which of them are new."""
        if not self._adopting:
            return wanted
        status = msgspec.structs.replace(
            wanted.status, sync="OutOfSync", message=desired.AWAITS_ADOPTION
        )
        waiting = dict.fromkeys(wanted.jobs, desired.AWAITS_ADOPTION)
        refused = {**wanted.refused, **waiting}
        return msgspec.structs.replace(
            wanted, generation=ADOPTING_GENERATION, jobs={}, refused=refused, status=status
        )

    def cycle(self) -> outcome.Outcome | None:
        """One cycle, if there is a desired state to go by, and what came of it."""
        if self._desired is None:
            return None
        started, phases = time.perf_counter(), self._counters.phases
        phases.begin()
        now = self._clock()
        self._mind_clock(now)
        wanted = self._in_force(self._desired)
        if wanted.generation != self._memory.desired_generation:
            self._memory.share_specs(wanted.jobs)
        self._journal.begin(wanted, self._memory.observed((), {}), now)
        observed = self._memory.observed(
            *self._memory.take_input(),
            self._memory.take_asked(),
            self._memory.take_provisioned(),
        )
        phases("journal")
        result = reconcile.reconcile(
            wanted, observed, now, recall=self._memory.recall, ended=phases
        )
        phases("outcome")
        decided = time.perf_counter()
        adopted, self._adopted_runs = self._adopted_runs, ()
        if adopted:
            result = msgspec.structs.replace(result, new_runs=result.new_runs + adopted)
        self._journal.add(wanted, observed, result, adopted=adopted, decide_s=decided - started)
        self._unsaved_nodes |= {node.name: node for node in result.nodes}
        for name in result.left_nodes:
            self._unsaved_nodes.pop(name, None)
        self._meter.cycle(result, self._memory)
        phases("journal")
        if self._must_commit(result):
            self._commit(result)
        committed = time.perf_counter()
        phases("commit")
        self._happened(result, self._memory, wanted)
        self._memory.absorb(result)
        self._wake_at = result.wake_at
        if result.actions:
            crashpoints.reach("committed-not-sent")
        self._tell(result)
        if self._event_lines is not None:
            revision = wanted.status.jobs_revision or ""
            self._event_lines.write(result.events, cycle=self._cycle, revision=revision)
        phases("act")
        self._counters.cycle(result, decide_s=decided - started, commit_s=committed - decided)
        self._publish()
        phases("publish")
        return result

    def _tell(self, result: outcome.Outcome) -> None:
        """Tell the nodes that an outcome touches, and those that wait to hear how they stand."""
        structure = self._desired.structure if self._desired else desired.Structure()
        updates = self._engine.apply(result.actions, structure, self._memory)
        waiting = set(self._questions)
        if result.desired_generation != self._told_generation:
            waiting.update(self._engine.behind(structure, self._memory))
            self._told_generation = result.desired_generation
        for node in sorted(waiting - {update.node for update in updates}):
            updates.append(self._engine.update(node, structure, self._memory))
        for update in updates:
            confirms = self._questions.get(update.node, 0)
            self._link.send(msgspec.structs.replace(update, confirms=confirms))
        self._questions.clear()
        if self._memory.provisions is not self._provisions:  # the first time, and when it changed
            self._provisions = self._memory.provisions
            self._provision(
                order
                for pool in self._memory.provisions.values()
                for order in provisioning.orders(pool)
            )
        for identity, refused in result.answers.items():
            self._link.send(link.OverrideAnswered(identity, refused))

    def _mind_clock(self, now: float) -> None:
        """Start all silence, and what is done now and then, anew when the wall clock was set.

        A step forward would look as if every node had been silent for as long, and their work
        would be started elsewhere while it runs.
        """
        offset_s = self._offset_s(now)
        if abs(offset_s - self._clock_offset_s) > CLOCK_STEP_S_MAX:
            log.warning("the clock was set by %.1f s", offset_s - self._clock_offset_s)
            self._memory.leader_since = now
            self._next_prune_at = min(self._next_prune_at, now + PRUNE_EVERY_S)
            self._committed_at = min(self._committed_at, now)
        self._clock_offset_s = offset_s

    def _must_commit(self, result: outcome.Outcome) -> bool:
        """Whether the outcome has more in it than times and usage of nodes."""
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
            or result.drift != self._memory.drift
            or result.remedies != self._memory.remedies
            or result.overrides != self._memory.overrides
            or result.desired_generation != self._memory.desired_generation
            or self._incumbents is not None
            or (self._desired and self._in_force(self._desired).status != self._shown)
            or self._journal.full
            or (self._unsaved_nodes and result.now - self._committed_at >= NODES_COMMIT_EVERY_S)
        )

    def _commit(self, result: outcome.Outcome) -> None:
        self._cycle += 1
        written = self._journal.take()
        snapshot = written.snapshot
        if snapshot is not None and len(snapshot) > journal.SNAPSHOT_BYTES_MAX:
            log.warning(
                "the journal's snapshot has %d bytes and is not kept, at most %d are: what is "
                "decided from here on can't be replayed",
                len(snapshot),
                journal.SNAPSHOT_BYTES_MAX,
            )
            snapshot = None
        nodes = tuple(self._unsaved_nodes.values())
        self._store.commit(
            self._epoch,
            self._cycle,
            msgspec.structs.replace(result, nodes=nodes),
            journal=written.inputs,
            snapshot=snapshot,
            views=self._views(result),
            incumbents=self._incumbents,
            rollup=self._meter.take(),
        )
        self._unsaved_nodes = {}
        self._committed_at = result.now
        self._incumbents = None
        self._shown = self._in_force(self._desired).status if self._desired else None

    def _views(self, result: outcome.Outcome) -> dict[str, bytes]:
        wanted = self._in_force(self._desired or desired.Desired())
        views = shown.cycle_views(result)
        views[ADOPTION] = b"pending" if self._adopting else b""
        if result.desired_generation != self._memory.desired_generation:
            views |= shown.desired_views(wanted)
        elif wanted.status != self._shown:
            views[shown.SYNC] = self._encoder.encode(wanted.status)
        return views

    def _publish(self) -> None:
        """Tell the server how the loop stands, with its page when that is due."""
        if self._desired is None or not self._link.connected:
            self._page.forget()
            return
        for look in self._inbox.take_looks():
            self._counters.look(look)
        self._link.send(self._published(self._page.render_if_due(self._render)))

    def _render(self) -> bytes:
        return metrics.render_cluster(
            counters=self._counters,
            memory=self._memory,
            wanted=self._desired or desired.Desired(),
            epoch=self._epoch,
            now=self._clock(),
            disk=metrics.disk_of(self._state_folder, self._store.path),
            told=self._told(),
        )

    def _published(self, page: bytes | None) -> link.Published:
        settings = self._desired.structure.settings if self._desired else desired.Settings()
        leases = [settings.lease_s, settings.node_silence_s]
        return link.Published(
            epoch=self._epoch,
            cycle=self._cycle,
            at=self._clock(),
            ready=self._desired is not None,
            poll_s=max(0.5, min(30.0, min(leases) / 3)),
            metrics=page,
            revision=self._desired.status.jobs_revision if self._desired else None,
            events=self._store.last_event_sequence,
            adopting=self._adopting,
        )

    def _tell_everything(self) -> None:
        """A server has connected: every node's set, then the page."""
        structure = self._desired.structure if self._desired else desired.Structure()
        for node in self._memory.nodes:
            self._link.send(self._engine.update(node, structure, self._memory))
        self._page.forget()  # this server has seen none yet
        self._publish()
        if self._desired is None:
            self._link.send(self._published(b""))

    def _prune(self) -> None:
        now = self._clock()
        if now < self._next_prune_at or self._desired is None:
            return
        settings = self._desired.structure.settings
        pruned = self._store.prune(
            self._epoch,
            now,
            events_before=now - settings.retain_events_s,
            journal_before=now - settings.retain_journal_s,
            history_before=now - settings.retain_history_s,
        )
        self._next_prune_at = now + (PRUNE_AGAIN_S if pruned else PRUNE_EVERY_S)
