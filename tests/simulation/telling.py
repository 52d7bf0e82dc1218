"""Runs a story: the real ``reconcile`` with virtual nodes, and every checker after every cycle.

A plan comes in, statistics go out. The first broken invariant ends it with a ``BrokenError``. After
the storm all faults are repaired and git stays the same: first with endless work, then without.
"""

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import partial

import msgspec

from bench import moment, truth
from reconciler.core import cycle_cache, observed_state, reconcile
from reconciler.model import desired
from reconciler.model.state import outcome, records, states
from reconciler.model.state.states import EndReason
from reconciler.simulation.engine import (
    event_queue,
    faults,
    simulated_cluster,
    simulated_nodes,
    world,
)
from tests.simulation import invariants, plans, rights, views, work

#: One cycle in so many, drawn by the seed, is decided again from bytes; with nothing recalled that
#: takes longer than the cycle.
REPLAYED_EVERY = 20
#: After each so-many-th cycle that left anything else than the one before all reasons are tried
#: out, which takes longer than the cycle.
TRIED_EVERY = 5
HEARTBEAT_S = 10.0
START_S = 0.5
#: What messages, heartbeats that are lost, cycles that are late, and starts may take on top of
#: leases and graces.
SLACK_S = 12 * HEARTBEAT_S + 4 * (plans.DELAY_S_MAX + plans.PACE_S_MAX)
#: Looks at the cluster while it comes to rest, and how many of them in a row have to be alike:
#: together they are longer than any task that ends and than any wait before another try.
LOOK_S = 60.0
LOOKS_MAX = 90
QUIET_LOOKS = 4
#: Cycles of one story; with more of them it finds no rest in time.
CYCLES_MAX = 20_000
_INPUTS = msgspec.msgpack.Decoder(tuple[desired.Desired, records.Observed])


class BrokenError(Exception):
    """An error for a broken invariant; ``checker`` names it."""

    def __init__(self, checker: str, at: float, found: list[str]) -> None:
        self.checker = checker
        lines = "".join(f"\n  {line}" for line in found[:8])
        super().__init__(f"{checker}, {at - plans.BEGIN:.1f} s after the beginning:{lines}")


class CrashError(Exception):
    """An error that kills the controller. What it had not committed is lost."""


class Told(msgspec.Struct):
    """Statistics of a story."""

    steps: int = 0
    cycles: int = 0
    starts: int = 0
    evictions: int = 0
    crashes: int = 0
    cuts: int = 0
    replays: int = 0
    tried: int = 0
    quick: int = 0

    def add(self, other: "Told") -> None:
        """Add the statistics of another story."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class _Weather(faults.Weather):
    """A network that is bad until it is repaired."""

    over = False

    def carry(self) -> tuple[float, ...]:
        return (0.0,) if self.over else super().carry()


class Teller:
    """A story while it runs."""

    def __init__(self, plan: plans.Plan) -> None:
        self.plan = plan
        self.told = Told()
        self.changes = plans.Changes()
        self.weather = _Weather(
            random.Random(f"{plan.seed} weather"),
            lose=plan.lose,
            duplicate=plan.duplicate,
            delay=plan.delay,
            delay_s_max=plans.DELAY_S_MAX,
        )
        self.hardware = {
            name: pool.node_resources
            for pool in plan.structure.pools.values()
            for name in pool.nodes
        }
        self.images = {
            step.job.name for step in plan.steps if step.job and step.job.runtime != "process"
        }
        self.armed: list[plans.What] = []
        self.up: set[str] = set()
        self.jobs = invariants.Jobs()
        self.partly = invariants.PartlyRunning(plans.SILENCE_S, SLACK_S)
        self.wanted = desired.Desired()
        self.seen: views.View | None = None
        self.changed = 0
        self.again = random.Random(f"{plan.seed} again")
        self.started_now: frozenset[str] = frozenset()
        self.ended_now: tuple[records.JobRecord, ...] = ()
        self.cluster = simulated_cluster.SimulatedCluster(
            plan.structure,
            now=plans.BEGIN,
            surroundings=world.World(
                fates=self._fate,
                timing=world.Timing(
                    start_s=START_S, heartbeat_s=HEARTBEAT_S, cycle_every_s=plan.pace_s
                ),
                weather=self.weather,
            ),
            watcher=self,
            decide=self._decide,
        )

    # -- the whole story

    def tell(self) -> Told:
        """Run the story from the beginning to the end.

        Raises:
            BrokenError: an invariant is broken, or the core raised.
        """
        try:
            for step in self.plan.steps:
                self.cluster.at(plans.BEGIN + step.at, partial(self._do, step))
            self._run(plans.BEGIN + plans.STORM_S + 1)
            self._mend()
            self._rest_with_hogs()
            self.cluster.commit(remove=[n for n in self.cluster.jobs if work.endless(n)])
            self._settle()
            self._hold("ended", invariants.ended(self._view()))
        except BrokenError:
            raise
        except Exception as error:
            kind = type(error).__name__
            raise BrokenError(kind, self.cluster.now, [str(error)]) from error
        return self.told

    def _run(self, until: float) -> None:
        while True:
            try:
                self.cluster.run(until)
            except CrashError:
                self.told.crashes += 1
                self._lead_anew()
            else:
                return

    def _lead_anew(self) -> None:
        self.cluster.change_leader()
        self.partly.restart(self.cluster.now)

    def _mend(self) -> None:
        """End all faults and changes."""
        self.armed.clear()
        self.weather.over = True
        self.changes = plans.Changes()
        self.cluster.change_structure(self.plan.structure)
        for name in self.cluster.nodes:
            for kind in ("boot", "connect"):
                self.cluster.suffer(faults.InjectedFault(self.cluster.now, kind, name))

    def _rest_with_hogs(self) -> None:
        """Let owners request their guarantees, in every other story of a full cluster."""
        self._run(self.cluster.now + LOOK_S)
        if self.plan.seed % 2:  # it takes a third of the time of a story more
            self.cluster.commit(work.filling(self.plan.structure))
            self._run(self.cluster.now + LOOK_S)
        self.cluster.commit(work.owed(self.plan.seed))
        self._settle()
        before = self._view()
        self._hold("guarantees", rights.guarantees(before))
        self._run(self.cluster.now + 3 * LOOK_S)
        self._hold("moves", invariants.moves(before, self._view()))

    def _settle(self) -> None:
        """Run until nothing has changed for some cycles."""
        quiet, found = 0, ["nothing was looked at"]
        before = self._view()
        for _ in range(LOOKS_MAX):
            self._run(self.cluster.now + LOOK_S)
            after = self._view()
            found = invariants.moves(before, after)
            before = after
            quiet = 0 if found else quiet + 1
            if quiet >= QUIET_LOOKS:
                return
        self._hold("rest", ["it never comes to rest", *found])

    # -- what happens

    def _do(self, step: plans.Step) -> None:
        self.told.steps += 1
        cluster = self.cluster
        if step.what in ("submit", "cancel", "change", "structure"):
            self._commit(step)
            cluster.hurry()  # else checkers would see only what several of them have led to
        elif step.what == "pause":
            cluster.pause(plans.PAUSE_S)
        elif step.what == "repair":
            cluster.suffer(faults.InjectedFault(cluster.now, "boot", step.subject))
            cluster.suffer(faults.InjectedFault(cluster.now, "connect", step.subject))
        elif step.what in ("crash-before-commit", "crash-after-commit"):
            self.armed.append(step.what)
        elif step.fault is not None:
            self._suffer(step.fault)

    def _commit(self, step: plans.Step) -> None:
        cluster = self.cluster
        if step.what == "submit" and step.job is not None:
            cluster.commit([step.job])
        elif step.what == "cancel":
            cluster.commit(remove=[step.subject])
        elif step.what == "change" and step.subject in cluster.jobs:
            spec = cluster.jobs[step.subject]
            cluster.commit([msgspec.structs.replace(spec, **dict(step.fields))])
        elif step.what == "structure":
            self.changes = msgspec.structs.replace(self.changes, **dict(step.fields))
            if self.changes.gone:  # who says so has looked: it is off, and stays off
                for kind in ("power-off", "cut"):
                    cluster.suffer(faults.InjectedFault(cluster.now, kind, self.changes.gone))
            cluster.change_structure(plans.structure_with(self.plan.structure, self.changes))

    def _suffer(self, fault: faults.InjectedFault) -> None:
        if fault.node and fault.node == self.changes.gone:
            return
        self.told.cuts += fault.kind == "cut"
        if fault.kind == "change-leader":
            self.told.crashes += 1
            self._lead_anew()
        else:
            self.cluster.suffer(fault)

    def _fate(self, attempt: records.AttemptRecord) -> simulated_nodes.TaskOutcome:
        """Return the same end for all tasks of a try, except that sometimes one fails."""
        gang = f"{self.plan.seed} {attempt.job} {attempt.element} {attempt.try_number}"
        chance = random.Random(gang)
        runs_s = chance.uniform(1, plans.RUNS_S_MAX)
        own = random.Random(f"{gang} {attempt.index}")
        fails = own.random() < (0.7 if work.is_flaky(attempt.job) else 0.12)
        image = random.Random(f"{gang} {attempt.index} image")
        return simulated_nodes.TaskOutcome(
            runs_s=float("inf") if work.endless(attempt.job) else runs_s * (1 - fails / 2),
            exit_code=3 if fails else 0,
            leaves_s=own.choice([0.0, 1.0, 5.0, 60.0]),
            fetch_s=image.choice(plans.FETCHES_S) if attempt.job in self.images else 0.0,
            fetches_again=image.random() < 0.5,
            looks_s=image.choice([0.0, 1.0]),
        )

    # -- watching

    def started(self, attempt: records.AttemptRecord, at: float) -> None:
        """Note that a task has started."""
        self.up.add(attempt.id)

    def ended(
        self, attempt: records.AttemptRecord, at: float, why: EndReason, ran_s: float
    ) -> None:
        """Note that a task has ended."""
        self.up.discard(attempt.id)
        if why is EndReason.EXITED and self._fate(attempt).exit_code == 0:
            self.partly.has_succeeded(attempt)

    def _decide(
        self,
        wanted: desired.Desired,
        observed: records.Observed,
        now: float,
        *,
        cache: cycle_cache.CycleCache | None,
    ) -> outcome.Outcome:
        self.wanted = wanted
        self.told.cycles += 1
        if self.told.cycles > CYCLES_MAX:
            raise event_queue.SimulationError(f"more than {CYCLES_MAX} cycles in one story")
        again = self.again.random() < 1 / REPLAYED_EVERY
        packed = msgspec.msgpack.encode((wanted, observed)) if again else b""
        pace = self.plan.pace
        result = reconcile.reconcile(wanted, observed, now, cache=cache, pace=pace)
        if again:
            wanted_again, observed_again = _INPUTS.decode(packed)
            second = reconcile.reconcile(wanted_again, observed_again, now, pace=pace)
            self.told.replays += 1
            self._hold("same", invariants.same(result, second))
        if "crash-before-commit" in self.armed:
            self.armed.remove("crash-before-commit")
            raise CrashError
        return result

    def decided(self, result: outcome.Outcome) -> None:
        """Check all invariants after a cycle."""
        # what was given to its node before, and only goes now, is no new start
        new = {attempt.id for attempt in result.attempts if attempt.assigned_at == result.now}
        told = [a.attempt for a in result.actions if isinstance(a, outcome.StartAttempt)]
        starts = [name for name in told if name in new]
        self.told.starts += len(starts)
        inputs = result.schedule_inputs
        self.told.quick += inputs is not None and inputs.quick
        stopped = {a.attempt for a in result.actions if isinstance(a, outcome.StopAttempt)}
        self.told.evictions += sum(
            attempt.stop is not None and attempt.stop.reason is EndReason.PREEMPTED
            for attempt in result.attempts
            if attempt.id in stopped
        )
        self.started_now = frozenset(starts)
        self.ended_now = tuple(record for record in result.jobs if record.finished)
        view = self._view()
        self._look(view)
        if "crash-after-commit" in self.armed:
            self.armed.remove("crash-after-commit")
            raise CrashError

    def _look(self, view: views.View) -> None:
        """Run every checker that could find something new since the last cycle."""
        before, self.seen = self.seen, view
        checkers = [self.partly.check, invariants.true_reasons]
        if before is None or not view.is_as(before):
            self.changed += 1
            checkers += [
                invariants.capacity,
                invariants.whole_gangs,
                rights.limits,
                self.jobs.check,
                invariants.once,
            ]
            if self.changed % TRIED_EVERY == 0:
                self._try_out(view)
        for checker in checkers:
            self._hold(getattr(checker, "__qualname__", ""), checker(view))

    def _try_out(self, view: views.View) -> None:
        """Check reasons by trying them out."""
        seen = moment.Seen(
            now=view.now,
            structure=view.structure,
            job_records=view.job_records,
            attempts=view.attempts,
            nodes=view.nodes,
            why=view.why,
            promised=dict(self.memory.nominations),
        )
        found = []
        for finding in truth.Checker(seen).findings():
            self.told.tried += 1
            if finding.verdict is truth.Verdict.FALSE:
                reason = finding.reason
                found.append(
                    f"{finding.job} waits for {reason.code}: {reason.message}; {finding.because}"
                )
        self._hold("tried_reasons", found)

    def _hold(self, checker: str, found: list[str]) -> None:
        if found:
            raise BrokenError(checker, self.cluster.now, found)

    @property
    def memory(self) -> observed_state.ObservedState:
        """What the controller knows that decided last."""
        return self.cluster.memory

    def _view(self) -> views.View:
        memory, now = self.memory, self.cluster.now
        running = tuple(
            views.Running(
                node=name,
                attempt=task.attempt,
                up=task.attempt.id in self.up and task.starts_at <= now,
                told=task.told,
                reachable=node.reachable,
            )
            for name, node in self.cluster.nodes.items()
            for task in node.tasks.values()
        )
        return views.View(
            now=now,
            structure=self.wanted.structure,
            generation=self.wanted.generation,
            jobs=self.wanted.jobs,
            job_records=dict(memory.jobs),
            attempts=dict(memory.attempts),
            nodes=dict(memory.nodes),
            why=dict(memory.reasons),
            hardware=self.hardware,
            running=running,
            started=self.started_now,
            ended=self.ended_now,
        )


#: The literal tables by name, each with its kind of state. Transitions are told apart by kind:
#: states of two tables with one word are equal as strings.
TABLES: dict[str, frozenset[str]] = {
    name: frozenset(f"{before}→{after}" for before, after in table)
    for name, table in (
        ("jobs and elements", states.JOB_TRANSITIONS),
        ("attempts", states.ATTEMPT_TRANSITIONS),
        ("nodes", states.NODE_TRANSITIONS),
    )
}
_TABLE_OF: dict[type[StrEnum], str] = {
    states.JobState: "jobs and elements",
    states.AttemptState: "attempts",
    states.NodeState: "nodes",
}
#: (table, ``Before→After``).
Transition = tuple[str, str]


@contextlib.contextmanager
def transitions() -> Iterator[Counter[Transition]]:
    """Count the transitions of state tables that are taken in the block.

    It listens to the core's own check, because one cycle may take several steps and records show
    only the last.
    """
    taken: Counter[Transition] = Counter()
    original = states.check

    def listening(
        subject: str, before: StrEnum, after: StrEnum, story: tuple[str, ...] = ()
    ) -> None:
        original(subject, before, after, story)
        if before is not after:
            taken[_TABLE_OF[type(before)], f"{before}→{after}"] += 1

    states.check = listening
    try:
        yield taken
    finally:
        states.check = original


def by_table(taken: Counter[Transition]) -> dict[str, dict[str, int]]:
    """Return how often each transition was taken, by table."""
    found: dict[str, dict[str, int]] = {name: {} for name in TABLES}
    for (name, transition), count in sorted(taken.items()):
        found[name][transition] = count
    return found


def missing(table: str, counts: Mapping[str, int]) -> list[str]:
    """Return the transitions of a table that were not taken."""
    return sorted(one for one in TABLES[table] if not counts.get(one))


def tell(plan: plans.Plan) -> Told:
    """Run a whole story."""
    return Teller(plan).tell()
