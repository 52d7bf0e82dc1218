"""What makes every past decision replayable: the loop's inputs, written down as they are given.

``Recorder`` stands beside the loop. It turns each call of ``reconcile`` into an ``Input``: what
nodes said and people asked for, the time, and what changed of the desired state since the call
before. Every so many calls it makes a whole ``JournalSnapshot``. ``Replay`` goes the other way:
from a snapshot and the inputs behind it to each ``JournalledCycle`` as it was. Bytes go out and
come in here; the store keeps them.
"""

import itertools
import operator
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from reconciler.core import observed_state, reconcile
from reconciler.model import desired
from reconciler.model.state import instance_records, outcome, records

#: A snapshot is due after so many calls of ``reconcile``, or when they took so long together, or
#: after so many bytes of their inputs: no replay has more to do than this. It is due after a time,
#: too, since what begins with a snapshot is kept or pruned as a whole.
SNAPSHOT_CALLS = 1000
SNAPSHOT_DECIDE_S = 20.0
SNAPSHOT_INPUT_BYTES = 64 * 2**20
SNAPSHOT_EVERY_S = 6 * 3600.0
#: A larger snapshot is not kept.
SNAPSHOT_BYTES_MAX = 64 * 2**20
#: What is said of it, with its bytes and how many may be kept.
TOO_LARGE = (
    "the journal's snapshot has %d bytes and is not kept, at most %d are: what is decided from "
    "here on can't be replayed"
)
#: Inputs that led to nothing worth a commit are written after so many reports of nodes.
WAITING_REPORTS_MAX = 10_000
#: Fast: most of the bytes are gone at the first level.
_LEVEL = 1

Value = TypeVar("Value")


class DesiredDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a desired state differs from the one of the call before.

    ``structure``, ``status`` and ``aside`` None: as before. Of ``jobs`` and ``refused`` those
    that are new or other; ``*_gone`` are names. ``*_order`` is given where names do not stand as
    they stood, those that are new behind them: new runs are numbered in this order.
    """

    generation: int
    structure: desired.Structure | None = None
    status: desired.SyncStatus | None = None
    jobs: dict[str, desired.Job] = {}
    jobs_gone: tuple[str, ...] = ()
    jobs_order: tuple[str, ...] | None = None
    refused: dict[str, str] = {}
    refused_gone: tuple[str, ...] = ()
    refused_order: tuple[str, ...] | None = None
    aside: dict[str, str] | None = None


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one call of ``reconcile`` was given besides the memory, and what came of it.

    ``wanted`` None: as before. ``adopted`` are runs that somebody declared done just before.
    ``checks`` are the checksums of the outcome, in the order of ``PARTS``.
    """

    now: float
    leader_since: float
    reports: tuple[records.NodeReport, ...] = ()
    answered: dict[str, float] = {}
    wanted: DesiredDelta | None = None
    asked: tuple[records.OverrideRequest, ...] = ()
    adopted: tuple[str, ...] = ()
    provisioned: tuple[instance_records.OrderResult, ...] = ()
    unheard: tuple[str, ...] = ()
    checks: tuple[int, ...] = ()


class JournalRecord(msgspec.Struct, frozen=True):
    """What outcomes tell of queues and expected starts only where it is new, as last told."""

    queues: tuple[outcome.QueueUsage, ...] = ()
    expected: Mapping[str, outcome.ExpectedStart] = {}

    def after(self, result: outcome.Outcome) -> "JournalRecord":
        """The same after one more outcome."""
        if result.queues is None and result.expected is None:
            return self
        return JournalRecord(
            self.queues if result.queues is None else result.queues,
            self.expected if result.expected is None else result.expected,
        )


class JournalSnapshot(msgspec.Struct, frozen=True):
    """Everything that ``reconcile`` was given, but for reports: where a replay begins.

    ``wanted`` is without its jobs: ``names`` lists them in order, and ``specs`` holds those that
    are other than the spec in their record, which is most of the bytes saved. ``muster`` is the
    version that decided.
    """

    muster: str
    wanted: desired.Desired
    names: tuple[str, ...]
    specs: dict[str, desired.Job]
    observed: records.Observed
    told: JournalRecord = JournalRecord()


class Written(msgspec.Struct, frozen=True):
    """What to commit with a cycle: the inputs that led to it, and the snapshot before them."""

    inputs: bytes
    snapshot: bytes | None


_encode = msgspec.msgpack.Encoder().encode
_decode_inputs = msgspec.msgpack.Decoder(tuple[Input, ...]).decode
_decode_snapshot = msgspec.msgpack.Decoder(JournalSnapshot).decode


#: Of a commit whose inputs can't be written down.
NOTHING = Written(zlib.compress(_encode(()), _LEVEL), None)


def _node_states(nodes: Iterable[records.NodeRecord]) -> list[tuple[str, str, str]]:
    # times and usage of nodes change with every report, and decide nothing by themselves
    return [(node.name, node.state.value, node.boot_id) for node in nodes]


def _without_notes(jobs: Iterable[records.JobRecord]) -> list[records.JobRecord]:
    # ten thousand elements may have a note each; states of elements are in the record
    return [msgspec.structs.replace(job, notes={}) if job.notes else job for job in jobs]


#: The parts of an outcome that are compared, by name.
PARTS = (
    "jobs",
    "attempts",
    "nodes",
    "runs",
    "reasons",
    "actions",
    "events",
    "drift",
    "remedies",
    "provisions",
    "overrides",
    "queues",
    "times",
)


def checksums(of: outcome.Outcome) -> tuple[int, ...]:
    """A checksum of each of ``PARTS`` of an outcome; 0 where there is nothing of it."""
    parts: tuple[object, ...] = (
        _without_notes(of.jobs),
        of.attempts,
        (*_node_states(of.nodes), *of.left_nodes),
        (of.new_runs, of.left_jobs) if of.new_runs or of.left_jobs else (),
        of.reasons,
        of.actions,
        of.events,
        of.drift,
        of.remedies,
        of.provisions,
        (of.overrides, of.answers) if of.overrides or of.answers else (),
        (of.queues, of.expected) if of.queues or of.expected else (),
        (
            *(of.now, of.desired_generation, of.promised, of.standing, of.next_order),
            *(of.wake_at, of.look_at, of.recollection),
        ),
    )
    return tuple(zlib.crc32(_encode(part)) if part else 0 for part in parts)


def _changes(
    before: Mapping[str, Value], after: Mapping[str, Value]
) -> tuple[dict[str, Value], tuple[str, ...], tuple[str, ...] | None]:
    """What is new or other in ``after``, what is gone, and the order where it is not as before."""
    if before is after:
        return {}, (), None
    count = len(before)
    if list(before) == list(itertools.islice(after, count)):
        # mostly a copy with some values replaced and some keys added at its end: no step of
        # Python for each of many thousand names
        others = map(operator.is_not, after.values(), before.values())
        changed = itertools.chain(
            itertools.compress(after.items(), others), itertools.islice(after.items(), count, None)
        )
        return {n: v for n, v in changed if n not in before or before[n] != v}, (), None
    put = {
        name: value
        for name, value in after.items()
        if (known := before.get(name)) is not value and known != value
    }
    kept = [name for name in before if name in after]
    gone = tuple(name for name in before if name not in after) if len(kept) < len(before) else ()
    order = kept + [name for name in put if name not in before]
    names = list(after)
    return put, gone, None if order == names else tuple(names)


def _changed(
    before: Mapping[str, Value],
    put: Mapping[str, Value],
    gone: Iterable[str],
    order: tuple[str, ...] | None,
) -> dict[str, Value]:
    """The mapping after changes that ``_changes`` found."""
    after = {**before, **put}
    for name in gone:
        after.pop(name, None)
    return after if order is None else {name: after[name] for name in order}


def difference(before: desired.Desired, after: desired.Desired) -> DesiredDelta | None:
    """How ``after`` differs from ``before``; None where it does not."""
    if before is after:
        return None
    jobs, jobs_gone, jobs_order = _changes(before.jobs, after.jobs)
    refused, refused_gone, refused_order = _changes(before.refused, after.refused)
    delta = DesiredDelta(
        generation=after.generation,
        structure=None if before.structure == after.structure else after.structure,
        status=None if before.status == after.status else after.status,
        jobs=jobs,
        jobs_gone=jobs_gone,
        jobs_order=jobs_order,
        refused=refused,
        refused_gone=refused_gone,
        refused_order=refused_order,
        aside=None if before.aside == after.aside else dict(after.aside),
    )
    return None if delta == DesiredDelta(before.generation) else delta


def changed(before: desired.Desired, by: DesiredDelta) -> desired.Desired:
    """The desired state that differs from ``before`` as ``by`` says."""
    return desired.Desired(
        generation=by.generation,
        structure=before.structure if by.structure is None else by.structure,
        jobs=_changed(before.jobs, by.jobs, by.jobs_gone, by.jobs_order),
        refused=_changed(before.refused, by.refused, by.refused_gone, by.refused_order),
        status=before.status if by.status is None else by.status,
        aside=before.aside if by.aside is None else by.aside,
    )


def pack_snapshot(
    muster: str,
    wanted: desired.Desired,
    observed: records.Observed,
    told: JournalRecord,
) -> bytes:
    """A snapshot in few bytes."""
    known = observed.jobs
    specs = {
        name: spec
        for name, spec in wanted.jobs.items()
        if name not in known or (known[name].spec is not spec and known[name].spec != spec)
    }
    snapshot = JournalSnapshot(
        muster=muster,
        wanted=msgspec.structs.replace(wanted, jobs={}),
        names=tuple(wanted.jobs),
        specs=specs,
        observed=observed,
        told=told,
    )
    return zlib.compress(_encode(snapshot), _LEVEL)


class Recorder:
    """Writes down what the loop decides by, from one commit to the next.

    Args:
        muster: the version that decides.
    """

    def __init__(self, muster: str) -> None:
        self._muster = muster
        self._waiting: list[Input] = []
        self._reports = 0
        # a leader begins with less than the one before remembered: it starts a journal of its own
        self._due = True
        self._calls = 0
        self._bytes = 0
        self._decide_s = 0.0
        self._since = 0.0
        self._snapshot: bytes | None = None
        self._wanted = desired.Desired()
        self._told = JournalRecord()

    @property
    def full(self) -> bool:
        """Whether what waits has to be committed, even if nothing else does."""
        return len(self._waiting) >= SNAPSHOT_CALLS or self._reports >= WAITING_REPORTS_MAX

    def begin(self, wanted: desired.Desired, observed: records.Observed, now: float) -> None:
        """Before a call of ``reconcile``, without reports: time for a snapshot, where one is due.

        ``observed`` is only read where it is.
        """
        due = self._due or abs(now - self._since) >= SNAPSHOT_EVERY_S
        if not due or self._waiting:
            return
        self._snapshot = pack_snapshot(self._muster, wanted, observed, self._told)
        self._wanted = wanted
        self._due = False
        self._since = now
        self._calls = self._bytes = 0
        self._decide_s = 0.0

    def add(
        self,
        wanted: desired.Desired,
        observed: records.Observed,
        result: outcome.Outcome,
        *,
        adopted: tuple[str, ...] = (),
        decide_s: float = 0.0,
    ) -> None:
        """A call of ``reconcile`` with what came of it, before the outcome is absorbed.

        ``decide_s`` is how long it took. Where no snapshot could be made to begin with, nothing
        could be replayed and nothing is written down.
        """
        if self._due:
            return
        self._waiting.append(
            Input(
                now=result.now,
                leader_since=observed.leader_since,
                reports=observed.reports,
                answered=dict(observed.answered),
                wanted=difference(self._wanted, wanted),
                asked=observed.asked,
                adopted=adopted,
                provisioned=observed.provisioned,
                unheard=observed.unheard,
                checks=checksums(result),
            )
        )
        self._wanted = wanted
        self._reports += len(observed.reports)
        self._calls += 1
        self._decide_s += decide_s

    def told(self, result: outcome.Outcome) -> None:
        """An outcome is durable, written down or not: only now anybody was told of it."""
        self._told = self._told.after(result)

    def anew(self) -> None:
        """Begin anew, with a snapshot: a call did not come to its end.

        What waits would have to be replayed through that call; what was told stays told.
        """
        self._due = True
        self._waiting = []
        self._reports = 0
        self._snapshot = None

    def take(self) -> Written:
        """What waits, for a commit; a commit that fails ends the leader and the journal with it."""
        inputs = zlib.compress(_encode(self._waiting), _LEVEL)
        snapshot, self._snapshot = self._snapshot, None
        self._waiting = []
        self._reports = 0
        self._bytes += len(inputs)
        self._due = (
            self._calls >= SNAPSHOT_CALLS
            or self._decide_s >= SNAPSHOT_DECIDE_S
            or self._bytes >= SNAPSHOT_INPUT_BYTES
        )
        return Written(inputs, snapshot)


class JournalledCycle(msgspec.Struct, frozen=True):
    """One call of ``reconcile`` as it was, and as it comes out again.

    ``observed`` holds the mappings of the replay itself: they are those of this call until the
    next one is asked for. ``told`` is what was told of queues and expected starts after the call,
    also where the outcome says nothing new of it. ``disagreements`` are the parts of the outcome
    that came out otherwise than they were recorded.
    """

    wanted: desired.Desired
    observed: records.Observed
    now: float
    adopted: tuple[str, ...]
    result: outcome.Outcome
    told: JournalRecord
    disagreements: tuple[str, ...]


class Replay:
    """Calls ``reconcile`` again as it was called, from a snapshot on.

    Args:
        snapshot: the bytes that ``Recorder`` made.

    Raises:
        msgspec.DecodeError: they are not such bytes, or of types that have changed since.
    """

    def __init__(self, snapshot: bytes) -> None:
        start = _decode_snapshot(unpacked(snapshot))
        known = start.observed.jobs
        jobs = {
            name: start.specs[name] if name in start.specs else known[name].spec
            for name in start.names
        }
        self.muster = start.muster
        self._wanted = msgspec.structs.replace(start.wanted, jobs=jobs)
        self._state = observed_state.ObservedState.as_of(start.observed)
        self._told = start.told

    def through(self, inputs: Iterable[Input]) -> Iterator[JournalledCycle]:
        """Each call in turn; its outcome is absorbed when the next one is asked for."""
        for one in inputs:
            cycle = self._call(one)
            yield cycle
            self._state.absorb(cycle.result)

    def _call(self, one: Input) -> JournalledCycle:
        state = self._state
        if one.wanted is not None:
            self._wanted = changed(self._wanted, one.wanted)
        state.past_runs.update(one.adopted)
        state.leader_since = one.leader_since
        state.leave_out(self._wanted.aside.keys())
        observed = state.observed(
            one.reports, one.answered, one.asked, one.provisioned, one.unheard
        )
        result = reconcile.reconcile(self._wanted, observed, one.now)
        if one.adopted:
            result = msgspec.structs.replace(result, new_runs=result.new_runs + one.adopted)
        self._told = self._told.after(result)
        found = checksums(result)
        return JournalledCycle(
            wanted=self._wanted,
            observed=observed,
            now=one.now,
            adopted=one.adopted,
            result=result,
            told=self._told,
            disagreements=tuple(
                part
                for part, then, now in zip(PARTS, one.checks, found, strict=True)
                if then != now
            ),
        )


def unpack_inputs(body: bytes) -> tuple[Input, ...]:
    """The inputs of a commit.

    Raises:
        msgspec.DecodeError: ``body`` is not what ``Recorder`` made.
    """
    return _decode_inputs(unpacked(body))


def unpacked(body: bytes) -> bytes:
    """The bytes behind compressed ones.

    Raises:
        msgspec.DecodeError: ``body`` is damaged.
    """
    try:
        return zlib.decompress(body)
    except zlib.error as error:
        raise msgspec.DecodeError(str(error)) from None
