"""Notes in a cycle of the present scheduler what the engine starts and reserves."""

from reconciler.scheduling.backfill import node_reservation
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Action, Placement, TaskPlacement
from reconciler.scheduling.engine import job_table, node_resources, shape_table
from reconciler.scheduling.engine.calendar import reservations
from reconciler.scheduling.engine.turns import turn_state
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.placement import diagnosis, gang
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.queues import job_order


class Starts:
    """The starts of one run of the engine, as far as they were noted."""

    def __init__(
        self,
        cycle: scheduling_cycle.SchedulingCycle,
        jobs: job_table.JobTable,
        shapes: list[shape_table.JobShape],
    ) -> None:
        self._cycle, self._shapes = cycle, shapes
        self._line: list[int] = jobs.line.tolist()
        self._position: list[int] = jobs.position.tolist()
        self._whys: dict[tuple[int, int], str] = {}
        self._noted = 0
        #: Starts that could be evicted as soon as they ran, and are not known for that yet.
        self._fresh: list[tuple[int, snapshots.Charge, tuple[TaskPlacement, ...]]] = []

    def note(self, starts: list[turn_state.ElementStart]) -> None:
        """Make placements of starts that are new, and charge their queues."""
        cycle, new = self._cycle, starts[self._noted :]
        self._noted = len(starts)
        charged: dict[tuple[int, bool], list[int]] = {}
        for row, number, places, backfill in new:
            index = self._line[row]
            line = cycle.situation.lines[index]
            progress = progress_of(cycle, index, self._position[row])
            claim = progress.claim
            tasks = self.tasks(number, places)
            element = claim.elements[progress.started]
            progress.started += 1
            action: Action = "backfill" if backfill else "allocate"
            why = self._why(number, places)
            cycle.placements.append(Placement(claim.job, element, tasks, action, why))
            cycle.takers.append((claim.job, tuple([task.node for task in tasks])))
            amounts = self._shapes[number].charged
            self._fresh.append((index, amounts, tasks))
            cycle.evictor.unmeasured.change(line.queue, amounts, tasks)
            total = charged.setdefault((line.queue, not line.preemptible), [0] * len(amounts))
            for resource, amount in enumerate(amounts):
                total[resource] += amount
        for (queue, firm), total in charged.items():
            cycle.ledger.charge(queue, tuple(total), firm=firm)

    def note_begun(self) -> None:
        """Note who could be evicted as soon as it ran."""
        for index, amounts, tasks in self._fresh:
            self._cycle.may_leave_again(self._cycle.situation.lines[index], amounts, tasks)
        self._fresh.clear()

    def _why(self, number: int, places: node_resources.ElementPlaces) -> str:
        """Return in words how the nodes of an element were chosen."""
        key = (number, len(places))
        if key not in self._whys:
            parts = [gang.GangPart(0, 0, len(devices), node) for node, devices in places]
            plan = gang.GangPlacement(tuple(parts))
            self._whys[key] = diagnosis.why(self._cycle.situation, number, plan)
        return self._whys[key]

    def tasks(self, number: int, places: node_resources.ElementPlaces) -> tuple[TaskPlacement, ...]:
        """Return the tasks of an element of a shape, by index."""
        shape = self._shapes[number]
        amounts = (shape.cpu, shape.memory, shape.devices * shape.share)
        each = [(node, devices) for node, some in places for devices in some]
        return tuple(
            [
                TaskPlacement(0, index, node, amounts, devices, shape.share)
                for index, (node, devices) in enumerate(each)
            ]
        )

    def reservation(
        self, one: reservations.EngineReservation, room: Capacity
    ) -> node_reservation.NodeReservation:
        """Return a reservation as the calendar of the cycle has it."""
        cycle, row, number = self._cycle, one.job.row, one.job.shape
        progress = progress_of(cycle, self._line[row], self._position[row])
        ask = next(ask for ask in cycle.tries(cycle.ask_of(progress)) if ask.shape == number)
        tasks = self.tasks(number, one.places)
        return node_reservation.NodeReservation(
            ask, one.starts_at, one.ends_at, tasks, room, one.grace_s
        )

    def progress(self, row: int) -> job_order.PendingJobProgress:
        """Return how far the job of a row has come, from now on kept in the cycle."""
        return progress_of(self._cycle, self._line[row], self._position[row])

    def groups(self, rows: list[int]) -> list[int]:
        """Return the pending groups of rows."""
        return [self._line[row] for row in rows]


def progress_of(
    cycle: scheduling_cycle.SchedulingCycle, index: int, position: int
) -> job_order.PendingJobProgress:
    """Return how far a job has come in the cycle, from now on kept there."""
    line = cycle.situation.lines[index]
    queue = cycle.queues[line.queue]
    found = queue.progress.get((index, position))
    if found is None:
        claim = line.claims[position]
        found = queue.begin(job_order.PendingJobProgress(index, claim), position)
    return found
