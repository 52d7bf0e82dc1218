"""The journal: it records the loop's inputs, so that every past decision can be replayed.

``Recorder`` turns each call of ``reconcile`` into an ``Input``: reports and requests, the time, and
what changed of the desired state. Once in a while it makes a ``JournalSnapshot``. ``Replay`` makes
each ``JournalledCycle`` again from a snapshot and the inputs after it. The store keeps the bytes.
"""

import itertools
import operator
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from reconciler.core import observed_state, outcome_checksums, reconcile
from reconciler.model import desired
from reconciler.model.state import instance_records, outcome, records

#: A snapshot is due after so many calls of ``reconcile``, or seconds that they took together, or
#: bytes of their inputs, which bounds a replay. It is also due after a time, because the inputs
#: after a snapshot are kept or pruned together with it.
SNAPSHOT_CALLS = 1000
SNAPSHOT_DECIDE_S = 20.0
SNAPSHOT_INPUT_BYTES = 64 * 2**20
SNAPSHOT_EVERY_S = 6 * 3600.0
#: The largest snapshot that is kept.
SNAPSHOT_BYTES_MAX = 64 * 2**20
#: Log message, with its bytes and the maximum.
TOO_LARGE = (
    "the journal's snapshot has %d bytes, more than the maximum of %d, and is not kept: later "
    "decisions can't be replayed"
)
#: Inputs of cycles that needed no commit are written after so many reports.
WAITING_REPORTS_MAX = 10_000
#: The fastest level removes most of the bytes.
_LEVEL = 1

Value = TypeVar("Value")


class DesiredDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The difference between a desired state and that of the previous call.

    ``structure``, ``status`` and ``quarantined`` None: as before. ``jobs``, ``refused`` and
    ``removals`` have what is new or changed; ``*_gone`` are names. ``*_order`` is given if names
    are not in the order of before with the new ones after them: new runs are numbered in this
    order. ``recovery`` is always that of after.
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
    quarantined: dict[str, str] | None = msgspec.field(default=None, name="aside")
    recovery: desired.Recovery | None = None
    removals: dict[str, desired.Removal] = {}
    removals_gone: tuple[str, ...] = ()


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """The arguments of one call of ``reconcile`` besides the records, and checksums of the outcome.

    Attributes:
        wanted: the change of the desired state; None: as before.
        adopted: runs that somebody declared done just before.
        checks: checksums of the outcome, in the order of ``outcome_checksums.PARTS``.
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
    """The last use of queues and expected starts, which outcomes have only if they are new."""

    queues: tuple[outcome.QueueUsage, ...] = ()
    expected: Mapping[str, outcome.ExpectedStart] = {}

    def after(self, result: outcome.Outcome) -> "JournalRecord":
        """Return the record after one more outcome."""
        if result.queues is None and result.expected is None:
            return self
        return JournalRecord(
            self.queues if result.queues is None else result.queues,
            self.expected if result.expected is None else result.expected,
        )


class JournalSnapshot(msgspec.Struct, frozen=True):
    """All arguments of a call of ``reconcile`` except reports. A replay begins from it.

    Attributes:
        wanted: the desired state without its jobs.
        names: of its jobs, in order.
        specs: of jobs whose record has another one. Leaving out the others saves most of the bytes.
        muster: the version that decided.
    """

    muster: str
    wanted: desired.Desired
    names: tuple[str, ...]
    specs: dict[str, desired.Job]
    observed: records.Observed
    told: JournalRecord = JournalRecord()


class Written(msgspec.Struct, frozen=True):
    """The journal entries to commit with a cycle: its inputs, and the snapshot before them."""

    inputs: bytes
    snapshot: bytes | None


_encode = msgspec.msgpack.Encoder().encode
_decode_inputs = msgspec.msgpack.Decoder(tuple[Input, ...]).decode
_decode_snapshot = msgspec.msgpack.Decoder(JournalSnapshot).decode


#: For a commit whose inputs can't be recorded.
NOTHING = Written(zlib.compress(_encode(()), _LEVEL), None)


def _changes(
    before: Mapping[str, Value], after: Mapping[str, Value]
) -> tuple[dict[str, Value], tuple[str, ...], tuple[str, ...] | None]:
    """Return what is new or changed in ``after``, what is gone, and the order if it changed."""
    if before is after:
        return {}, (), None
    count = len(before)
    if list(before) == list(itertools.islice(after, count)):
        # mostly a copy with some values replaced and some keys added at the end, which needs no
        # Python step for each of thousands of names
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
    remaining = [name for name in before if name in after]
    gone = (
        tuple(name for name in before if name not in after) if len(remaining) < len(before) else ()
    )
    order = remaining + [name for name in put if name not in before]
    names = list(after)
    return put, gone, None if order == names else tuple(names)


def _changed(
    before: Mapping[str, Value],
    put: Mapping[str, Value],
    gone: Iterable[str],
    order: tuple[str, ...] | None,
) -> dict[str, Value]:
    """Apply changes of ``_changes`` to a mapping."""
    after = {**before, **put}
    for name in gone:
        after.pop(name, None)
    return after if order is None else {name: after[name] for name in order}


def difference(before: desired.Desired, after: desired.Desired) -> DesiredDelta | None:
    """Return the difference from ``before`` to ``after``; None if there is none."""
    if before is after:
        return None
    jobs, jobs_gone, jobs_order = _changes(before.jobs, after.jobs)
    refused, refused_gone, refused_order = _changes(before.refused, after.refused)
    removals, removals_gone, _ = _changes(before.removals, after.removals)
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
        quarantined=None if before.quarantined == after.quarantined else dict(after.quarantined),
        recovery=after.recovery,
        removals=removals,
        removals_gone=removals_gone,
    )
    same = DesiredDelta(before.generation, recovery=before.recovery)
    return None if delta == same else delta


def changed(before: desired.Desired, by: DesiredDelta) -> desired.Desired:
    """Apply a difference to a desired state."""
    return desired.Desired(
        generation=by.generation,
        structure=before.structure if by.structure is None else by.structure,
        jobs=_changed(before.jobs, by.jobs, by.jobs_gone, by.jobs_order),
        refused=_changed(before.refused, by.refused, by.refused_gone, by.refused_order),
        status=before.status if by.status is None else by.status,
        quarantined=before.quarantined if by.quarantined is None else by.quarantined,
        recovery=by.recovery,
        removals=_changed(before.removals, by.removals, by.removals_gone, None),
    )


def pack_snapshot(
    muster: str,
    wanted: desired.Desired,
    observed: records.Observed,
    last: JournalRecord,
) -> bytes:
    """Return a compressed snapshot."""
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
        told=last,
    )
    return zlib.compress(_encode(snapshot), _LEVEL)


class Recorder:
    """A recorder of the loop's inputs from one commit to the next.

    Args:
        muster: the version that decides.
    """

    def __init__(self, muster: str) -> None:
        self._muster = muster
        self._waiting: list[Input] = []
        self._reports = 0
        # a leader begins with less than its predecessor knew, so it begins its own journal
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
        """True if the waiting inputs have to be committed even if nothing else does."""
        return len(self._waiting) >= SNAPSHOT_CALLS or self._reports >= WAITING_REPORTS_MAX

    def begin(self, wanted: desired.Desired, observed: records.Observed, now: float) -> None:
        """Make a snapshot before a call of ``reconcile``, if one is due.

        ``observed`` has no reports.
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
        """Record a call of ``reconcile`` with its outcome, before that is absorbed.

        Nothing is recorded if no snapshot could be made, because it could not be replayed.
        ``decide_s`` is how long the call took.
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
                checks=outcome_checksums.checksums(result),
            )
        )
        self._wanted = wanted
        self._reports += len(observed.reports)
        self._calls += 1
        self._decide_s += decide_s

    def note_durable(self, result: outcome.Outcome) -> None:
        """Note that an outcome is durable, recorded or not. Nobody saw it before."""
        self._told = self._told.after(result)

    def restart(self) -> None:
        """Restart with a snapshot, because a call raised.

        The waiting inputs would have to be replayed through that call.
        """
        self._due = True
        self._waiting = []
        self._reports = 0
        self._snapshot = None

    def take(self) -> Written:
        """Return what waits for a commit. A commit that fails ends the leader and its journal."""
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
    """One call of ``reconcile`` as it was recorded, and its outcome as it is replayed.

    Attributes:
        observed: its mappings belong to the replay, and are valid until the next call is requested.
        told: use of queues and expected starts after the call, also if the outcome has nothing new.
        disagreements: parts of the outcome that differ from the recorded ones.
    """

    wanted: desired.Desired
    observed: records.Observed
    now: float
    adopted: tuple[str, ...]
    result: outcome.Outcome
    told: JournalRecord
    disagreements: tuple[str, ...]


class Replay:
    """A repetition of recorded calls of ``reconcile``, beginning with a snapshot.

    Args:
        snapshot: bytes made by ``Recorder``.

    Raises:
        msgspec.DecodeError: the bytes are damaged, or their types have changed since.
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
        """Yield each call. Its outcome is absorbed when the next one is requested."""
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
        state.leave_out(self._wanted.quarantined.keys())
        observed = state.observed(
            one.reports, one.answered, one.asked, one.provisioned, one.unheard
        )
        result = reconcile.reconcile(self._wanted, observed, one.now)
        if one.adopted:
            result = msgspec.structs.replace(result, new_runs=result.new_runs + one.adopted)
        self._told = self._told.after(result)
        found = outcome_checksums.checksums(result)
        return JournalledCycle(
            wanted=self._wanted,
            observed=observed,
            now=one.now,
            adopted=one.adopted,
            result=result,
            told=self._told,
            disagreements=tuple(
                part
                for part, then, now in zip(outcome_checksums.PARTS, one.checks, found, strict=True)
                if then != now
            ),
        )


def unpack_inputs(body: bytes) -> tuple[Input, ...]:
    """Return the inputs of a commit.

    Raises:
        msgspec.DecodeError: ``body`` was not made by ``Recorder``.
    """
    return _decode_inputs(unpacked(body))


def unpacked(body: bytes) -> bytes:
    """Return decompressed bytes.

    Raises:
        msgspec.DecodeError: ``body`` is damaged.
    """
    try:
        return zlib.decompress(body)
    except zlib.error as error:
        raise msgspec.DecodeError(str(error)) from None
