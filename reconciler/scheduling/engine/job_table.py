"""The pending jobs as columns, in the order in which each queue tries them.

Pending groups with their columns come in. Rows go out: one for each job, those of a queue together,
the first to try first. No object is made for a job.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.queues import arrival_batches, job_order


@dataclass(frozen=True, slots=True)
class JobTable:
    """Rows by queue, and in each queue by priority, then overdue jobs, then age.

    Attributes:
        begins: (q + 1,) first row of each queue.
        line: (r,) index of the pending group.
        position: (r,) of the job in its group.
        order: (r,) of arrival, as people see it.
        elements: (r,) elements that may start in this cycle.
    """

    begins: NDArray[np.int64]
    line: NDArray[np.int64]
    position: NDArray[np.int64]
    order: NDArray[np.int64]
    elements: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        situation: snapshots.Snapshot,
        columns: snapshots.PendingColumns,
        ranks: Mapping[arrival_batches.Entry, int],
    ) -> "JobTable":
        """Put the pending jobs of a snapshot in order.

        Args:
            situation: the snapshot.
            columns: its pending groups as columns.
            ranks: what stands for the age of jobs that came together, by group and position.
        """
        lines, count = situation.lines, columns.claims
        line = np.repeat(np.arange(len(lines)), count)
        first = np.cumsum(count) - count
        position = np.arange(len(line)) - first[line]
        ages = np.frombuffer(b"".join([one.ages for one in lines]), dtype=snapshots.AGE)
        arrival = np.array(ages["order"])
        for (index, at), rank in ranks.items():
            arrival[first[index] + at] = rank
        queue, priority = columns.queue[line], columns.priority[line]
        overdue = _overdue(situation, line, ages["moment"])
        ranked = np.lexsort((position, line, arrival, overdue, -priority, queue))
        queues = len(situation.queues.names)
        return cls(
            np.searchsorted(queue[ranked], np.arange(queues + 1)),
            line[ranked],
            position[ranked],
            ages["order"][ranked],
            _elements(situation, columns, line, first)[ranked],
        )

    def row(self, line: int, position: int) -> int:
        """Return the row of a job, by its pending group and its place in it."""
        return int(np.flatnonzero((self.line == line) & (self.position == position))[0])


def _overdue(
    situation: snapshots.Snapshot, line: NDArray[np.intp], since: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(r,) how long each job is overdue by its own measure, negated; 0: it is not.

    The measure is ``job_order.pressing_of``.
    """
    policy, found = situation.policy, np.zeros(len(line))
    if not policy.overdue:
        return found
    length_s = np.array([one.duration_s for one in situation.lines])
    waited_s = np.where(since > 0, situation.now - since, 0.0)
    ratio = (
        np.minimum(waited_s, job_order.WAIT_MAX_S)
        / np.maximum(length_s, job_order.SHORTEST_S)[line]
    )
    some = (since != 0) & (ratio >= policy.overdue)
    found[some] = -ratio[some]
    longest = (since != 0) & (waited_s >= job_order.WAIT_MAX_S)
    found[longest] = -waited_s[longest]
    return found


def _elements(
    situation: snapshots.Snapshot,
    columns: snapshots.PendingColumns,
    line: NDArray[np.intp],
    first: NDArray[np.int64],
) -> NDArray[np.int64]:
    """(r,) elements of each job that may start, in the order of the groups."""
    found = np.ones(len(line), dtype=np.int64)
    plain = (columns.elements == columns.claims) & (columns.startable == columns.claims)
    for index in np.flatnonzero(~plain & (columns.claims > 0)).tolist():
        claims = situation.lines[index].claims
        begin = int(first[index])
        found[begin : begin + len(claims)] = [
            max(0, min(claim.startable, len(claim.elements))) for claim in claims
        ]
    return found
