"""Turns that would come to nothing: they are told from what failed before, and cost next to none.

Of ten thousand lines that wait most ask for what nobody has room for. What a turn would find out is
then known: there is no room for the shape, because room only shrinks in a cycle; nothing comes free
for it, because nobody was told to leave since that was last looked at; and nobody could be evicted,
because the queue may take from nobody, or a search for no more has failed and is remembered. A line
of which all this holds when its turn comes has an *idle* turn: it is blocked, and nothing else
happens. It is never skipped ahead of its turn, because queues take turns by what their next claim
asks for. Turns of ``SchedulingCycle`` come in; whether they are idle, and which lines after them in
the same queue have idle turns before anybody else's, go out. Decisions are the same without all
this.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.cycle import cycle_state
from reconciler.scheduling.inputs import row_groups
from reconciler.scheduling.inputs.snapshots import Mask
from reconciler.scheduling.placement import request
from reconciler.scheduling.queues import job_order

#: Nothing is known yet of what comes free.
NEVER = -1
#: So many lines are looked at together: more would often be looked at in vain.
AHEAD_MAX = 1024
#: So few are looked at one by one: columns of them would cost more.
FEW = 3


class _Tail(NamedTuple):
    """What comes next in a queue and has idle turns, as things stand.

    Attributes:
        of: how things stand, as far as any of that follows from it.
        lines: in order. searched: whether victims were searched for them in vain.
    """

    of: object
    lines: NDArray[np.intp]
    searched: Mask


_NOTHING = _Tail(None, np.empty(0, dtype=np.intp), np.empty(0, dtype=np.bool_))


class UnschedulableCache:
    """What is known of turns to come.

    Attributes:
        full: (s,) shapes for which there is no room now, nor will be in this cycle.
    """

    def __init__(self, turns: cycle_state.CycleState) -> None:
        self.turns = turns
        situation, columns = turns.situation, turns.columns
        shapes = len(situation.shapes)
        self.full = np.zeros(shapes, dtype=np.bool_)
        #: When it was last seen that nothing comes free for a shape either, and for what length.
        self._none_coming = np.full(shapes, NEVER, dtype=np.int64)
        self._length_s = np.zeros(shapes)
        #: Lines that always have turns of their own.
        self._own: Mask = columns.special | ~columns.preemptible
        self._ways = turns.ways
        preempt, lowest = situation.policy.preempt, turns.prospects.lowest
        self._preempts: Mask = (
            lowest[columns.queue] < columns.priority
            if preempt
            else np.zeros(len(columns.queue), dtype=np.bool_)
        )
        #: (n, k) lines for which a search for victims is known to fail, as each of these shapes,
        #: and as of when in each queue.
        self._failed = np.zeros(self._ways.shape, dtype=np.bool_)
        self._failed_at: dict[int, object] = {}
        #: By queue; what is known of rooms only grows, so that idle turns stay idle.
        self._tails: dict[int, _Tail] = {}
        self._devices = np.array(
            [any(group.devices for group in shape.groups) for shape in situation.shapes],
            dtype=np.bool_,
        )

    # What turns found out

    def note(self, ask: request.PlacementRequest) -> None:
        """A turn found no room: none for its shape, nor for larger ones."""
        turns = self.turns
        if ask.missing or turns.now.needs_company(ask.shape) or ask.fits(turns.now):
            return
        if not self._may_come(ask.shape, ask.line.duration_s):
            return
        no_less = turns.now.no_less(ask.shape)
        self.full |= no_less
        # What comes free beside reservations is less the longer it is asked for.
        length_s = ask.line.duration_s if turns.calendar.reservations else 0.0
        at = self._changes()
        self._length_s[no_less & (self._none_coming != at)] = length_s
        self._length_s[no_less] = np.minimum(self._length_s[no_less], length_s)
        self._none_coming[no_less] = at

    def _changes(self) -> int:
        """Grows whenever something may come free that did not before."""
        return len(self.turns.evictions) + self.turns.calendar.given_up

    def _may_come(self, shape: int, duration_s: float) -> bool:
        """Return True if a shape may have room, now or once something comes free."""
        if not self.full[shape]:
            return True
        if self.turns.later is self.turns.now:
            return False
        known = self._none_coming[shape] == self._changes()
        return bool(not known or duration_s < self._length_s[shape])

    @functools.cached_property
    def _by_queue(self) -> row_groups.RowGroups:
        """Return the lines of each queue."""
        return row_groups.RowGroups.of(self.turns.columns.queue, len(self.turns.ledger.paths))

    def note_searched(self, ask: request.PlacementRequest) -> None:
        """No victims were found: none will be for lines of the queue that ask for no less."""
        turns, columns = self.turns, self.turns.columns
        evictor = turns.evictor
        queue = ask.queue
        members = self._by_queue.members(queue)
        if ask.missing or ask.firm or self._own[members].all():
            return
        if not evictor.may_find(ask) or not evictor.has_failed(ask):
            return
        standing = self._standing(queue)
        if self._failed_at.get(queue) != standing:
            self._failed_at[queue] = standing
            self._failed[members] = False
        alike = ~turns.blocked.mask[members] & (columns.claims[members] > 0)
        alike &= ~self._own[members] & (columns.priority[members] == ask.line.priority)
        lines = members[alike]
        fails = turns.now.no_less(ask.shape) & (self._devices == self._devices[ask.shape])
        rows, way = np.nonzero(fails[self._ways[lines]])
        same = self._measured_alike(ask, self._ways[lines[rows], way])
        lines, way = lines[rows[same]], way[same]
        earliest, latest = job_order.overdue_between(turns.situation, columns, lines)
        now = turns.situation.now
        as_forced = latest <= now if evictor.is_forced(ask) else earliest > now
        self._failed[lines[as_forced], way[as_forced]] = True

    def _measured_alike(self, ask: request.PlacementRequest, shapes: NDArray[np.int64]) -> Mask:
        """(n,) whether the same of what shapes ask for is measured by guarantees."""
        prospects = self.turns.prospects
        measured = prospects.rationed[prospects.paths[ask.queue]].any(axis=0)
        found: Mask = np.ones(len(shapes), dtype=np.bool_)
        for resource in np.flatnonzero(measured).tolist():
            least = prospects.least_columns[resource]
            found &= (least[shapes] > 0) == (least[ask.shape] > 0)
        return found

    def _standing(self, queue: int) -> object:
        """Changes when searches of a queue that failed might find somebody."""
        ledger = self.turns.ledger
        path = ledger.paths[queue]
        return (len(self.turns.evictions), *(tuple(ledger.charged[member]) for member in path))

    def forget(self) -> None:
        """Searches that failed are made again."""
        self._failed_at.clear()
        self._tails.clear()

    def turned(self, queue: int) -> None:
        """A queue has a turn that is not idle."""
        self._tails.pop(queue, None)

    # Whether turns are idle

    def is_idle(self, ask: request.PlacementRequest) -> bool:
        """Return True if a turn would find nothing but that there is no room."""
        turns, progress = self.turns, ask.progress
        tail = self._next(ask)
        if tail is not None:
            self._note_overdue(tail.lines[:1][tail.searched[:1]])
            return True
        if ask.missing or self._own[progress.line] or not self.full[ask.shape]:
            return False
        if progress.started or progress.promised or self._may_reserve(ask.queue):
            return False
        shapes = (ask.shape, *ask.line.others)
        if any(self._may_come(shape, ask.line.duration_s) for shape in shapes):
            return False
        if any(r.ask.job == ask.job for r in turns.calendar.reservations):
            return False
        return all(self._finds_nothing(one) for one in turns.tries(ask))

    def _finds_nothing(self, ask: request.PlacementRequest) -> bool:
        """Whether nobody moves or leaves for what has no room, and no limit stands in its way."""
        turns, policy = self.turns, self.turns.situation.policy
        if policy.consolidate and turns.mover.may_find(ask):
            return False
        if turns.gate(ask) is not None:
            return False
        return not (policy.reclaim or policy.preempt) or turns.evictor.has_failed(ask)

    def rest(self) -> list[tuple[int, NDArray[np.intp]]] | None:
        """All lines that are left, by queue, if each has an idle turn as things stand.

        An idle turn changes nothing that another one goes by. So if all are idle it makes no
        difference who goes first, and nobody has to ask whose turn it is. None: some may not be.
        """
        turns = self.turns
        if turns.calendar.reservations or turns.ledger.lends:
            return None
        found: list[tuple[int, NDArray[np.intp]]] = []
        searched: list[NDArray[np.intp]] = []
        begun: list[job_order.PendingJobProgress] = []
        for queue, line in enumerate(turns.queues):
            left = line.left_over()
            if left is None:
                return None
            lines = np.array([*left[0].tolist(), *[one.line for one in left[1]]], dtype=np.intp)
            if not lines.size:
                continue
            if turns.situation.queues.strict[queue] or self._may_reserve(queue):
                return None
            if self._hopeless(lines) < len(lines):
                return None
            gone, might = self._cannot_evict(queue, lines)
            if not gone.all():
                return None
            fresh = len(left[0])
            searched.append(left[0][might[:fresh]])
            # columns know of the first claim of a line alone
            begun += [one for one, asks in zip(left[1], might[fresh:], strict=True) if asks]
            found.append((queue, lines))
        if not self._are_idle(begun):
            return None
        for lines in searched:
            self._note_overdue(lines)
        return found

    def _are_idle(self, claims: list[job_order.PendingJobProgress]) -> bool:
        """Return True if the turns of all these are idle; where not, nothing was noted of any."""
        evictor = self.turns.evictor
        before = evictor.overdue_at
        for progress in claims:
            if not self.is_idle(self.turns.ask_of(progress)):
                evictor.overdue_at = before
                return False
        return True

    def _may_reserve(self, queue: int) -> bool:
        """Return True if a line of a queue may get a reservation."""
        turns = self.turns
        backfill = turns.situation.policy.backfill
        if backfill == "none" or not turns.calendar.has_moments():
            return False
        return backfill == "conservative" or queue not in turns.reserved_in

    def following(self, ask: request.PlacementRequest) -> NDArray[np.intp]:
        """Lines whose idle turns come next, right after one of the same queue."""
        if self.turns.ledger.lends or self._may_reserve(ask.queue):
            return np.empty(0, dtype=np.intp)
        tail, known = _NOTHING, self._next(ask)
        if known is not None:
            tail = _Tail(known.of, known.lines[1:], known.searched[1:])
        count = 0
        if self._goes_on(ask):
            tail = tail if tail.lines.size else self._tail(ask)
            count = self._staying(ask, tail.lines) if tail.lines.size else 0
        of, lines, searched = tail
        self._tails[ask.queue] = _Tail(of, lines[count:], searched[count:])
        self._note_overdue(lines[:count][searched[:count]])
        return lines[:count]

    def _goes_on(self, ask: request.PlacementRequest) -> bool:
        """Whether the next turn may be an idle one of the same queue; ``False`` is certain."""
        turns = self.turns
        line = turns.queues[ask.queue].upcoming()
        if line < 0 or not self.full[turns.columns.shape[line]]:
            return False
        asked = turns.least[turns.columns.shape[line]]
        return turns.tree.stays(ask.queue, ask.amounts, asked)

    def _next(self, ask: request.PlacementRequest) -> _Tail | None:
        """The tail of a queue that begins with the line of an ask, if it is known."""
        tail = self._tails.get(ask.queue)
        if tail is None or not tail.lines.size or tail.lines[0] != ask.progress.line:
            return None
        return tail if tail.of == self._of() else None

    def _of(self) -> object:
        """Return how things stand, in as much as idle turns follow from it."""
        turns = self.turns
        if turns.calendar.reservations:
            return object()  # what comes free beside them depends on how long it is asked for
        return (turns.ledger.version, self._changes(), turns.later is turns.now)

    def _tail(self, ask: request.PlacementRequest) -> _Tail:
        """Lines of which the turns that follow in a queue are idle."""
        lines = self.turns.queues[ask.queue].following(AHEAD_MAX)
        lines = lines[: self._hopeless(lines)]
        if not lines.size:
            return _NOTHING
        gone, searched = self._cannot_evict(ask.queue, lines)
        lines = lines[: _leading(gone)]
        lines = lines[: self._unchanged(ask.queue, lines)]
        return _Tail(self._of(), lines, searched[: len(lines)])

    def _hopeless(self, lines: NDArray[np.intp]) -> int:
        """Return how many of the first lines have no room, nor get any that comes free."""
        turns, full = self.turns, self.full
        if turns.later is not turns.now:
            full = full & (self._none_coming == self._changes())
        if turns.mover.may_move():
            full = full & turns.mover.failed
        none: Mask = full[self._ways[lines]].all(axis=1) & ~self._own[lines]
        return _leading(none)

    def _cannot_evict(self, queue: int, lines: NDArray[np.intp]) -> tuple[Mask, Mask]:
        """(n,) whether no limit stops lines of a queue, and they can evict nobody.

        And whether that was searched for: they may force others to give way once overdue.
        """
        turns, prospects = self.turns, self.turns.prospects
        reclaims = turns.situation.policy.reclaim
        known = self._failed_at.get(queue) == self._standing(queue)
        searched = self._preempts[lines]
        stopped: Mask = np.zeros(len(lines), dtype=np.bool_)
        for way in range(self._ways.shape[1]):
            asked = prospects.least[self._ways[lines, way]]
            might = self._preempts[lines]
            if reclaims:
                might = might | prospects.reclaiming(asked, queue)
            searched = searched | might
            stopped |= might & ~self._failed[lines, way] if known else might
            stopped |= prospects.gated(asked, queue)
        return ~stopped, searched

    def _unchanged(self, queue: int, lines: NDArray[np.intp]) -> int:
        """For how many of the first lines nothing was done yet, though something might be."""
        turns = self.turns
        stops = np.frombuffer(turns.queues[queue].begun, dtype=np.bool_)[lines]
        if turns.later is not turns.now and turns.calendar.reservations:
            length_s = self._length_s[self._ways[lines]].max(axis=1)
            # Columns know whole seconds only, rounded up.
            shorter = turns.columns.duration[lines] - 1 < length_s
            for at in np.flatnonzero(shorter).tolist():
                line = turns.situation.lines[int(lines[at])]
                stops[at] |= line.duration_s < length_s[at]
        return _leading(~stops)

    def _staying(self, ask: request.PlacementRequest, lines: NDArray[np.intp]) -> int:
        """During how many of the next turns their queue stays the one whose turn it is."""
        shapes, tree = self.turns.columns.shape[lines], self.turns.tree
        if len(lines) <= FEW:
            least = (self.turns.least[shape] for shape in shapes.tolist())
            stays = (tree.stays(ask.queue, ask.amounts, amounts) for amounts in least)
            return sum(1 for _ in itertools.takewhile(bool, stays))
        asked = np.take(self.turns.prospects.least_columns, shapes, axis=1)
        return _leading(tree.staying(ask.queue, ask.amounts, asked))

    def _note_overdue(self, lines: NDArray[np.intp]) -> None:
        """Ask after the line that is overdue first, as its turn would: the cycle wakes for it."""
        turns = self.turns
        situation, evictor = turns.situation, turns.evictor
        if not lines.size or not situation.policy.overdue:
            return
        due, latest = job_order.overdue_between(situation, turns.columns, lines)
        later = latest > situation.now
        lines, due = lines[later], due[later]
        for number in np.argsort(due, kind="stable").tolist():
            if due[number] >= evictor.overdue_at:
                return
            index = int(lines[number])
            progress = job_order.PendingJobProgress(index, situation.lines[index].claims[0])
            for ask in turns.tries(turns.ask_of(progress)):
                evictor.has_failed(ask)


def _leading(mask: Mask) -> int:
    """Return how many entries hold before the first that does not."""
    if not mask.size:
        return 0
    first = int(mask.argmin())
    return len(mask) if mask[first] else first
