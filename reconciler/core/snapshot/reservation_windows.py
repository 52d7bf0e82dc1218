"""The windows of reservations: when each holds, and on which nodes."""

import numpy as np

from reconciler.core.snapshot import node_columns
from reconciler.model import desired
from reconciler.model.rules import recurrence
from reconciler.scheduling.inputs import snapshots


def all_of(
    structure: desired.Structure, nodes: node_columns.NodeTable, at: float
) -> tuple[snapshots.Window, ...]:
    """Return the windows that hold now or soon, in order of name and time."""
    windows_by_name: dict[str, list[snapshots.Window]] = {}
    reservations = structure.reservations.values()
    # reservations of named nodes first, because those by amounts avoid their nodes
    for one in sorted(reservations, key=lambda one: one.amounts != desired.QuotaAmounts()):
        if not one.nodes:
            continue
        mask = np.zeros(len(nodes.names), dtype=np.bool_)
        mask[[nodes.row_of[name] for name in one.nodes if name in nodes.row_of]] = True
        mask.setflags(write=False)
        others = [window for windows in windows_by_name.values() for window in windows]
        spans = recurrence.of_reservation(one, at)
        windows_by_name[one.name] = [
            snapshots.Window(
                one.name,
                begin,
                end,
                _enough(one.amounts, mask, nodes, others, (begin, end)),
                one.maintenance,
                recurrence.NEVER if number < len(spans) else recurrence.following(one, begin),
            )
            for number, (begin, end) in enumerate(spans, start=1)
        ]
    return tuple(
        window for name in structure.reservations for window in windows_by_name.get(name, ())
    )


def _enough(
    amounts: desired.QuotaAmounts,
    mask: snapshots.Mask,
    nodes: node_columns.NodeTable,
    others: list[snapshots.Window],
    during: tuple[float, float],
) -> snapshots.Mask:
    """Return as many nodes as have some amounts together, in order of name; all without amounts.

    A node that takes no work now, or that another window has meanwhile, comes last, so that another
    takes its place for as long.
    """
    wanted = [(column, amount) for column, amount in enumerate(amounts.as_vector()) if amount]
    if amounts == desired.QuotaAmounts():
        return mask
    begin, end = during
    busy = ~nodes.columns.accepts
    for window in others:
        if window.starts_at < end and begin < window.ends_at:
            busy = busy | window.nodes
    found = np.zeros(len(mask), dtype=np.bool_)
    missing = dict(wanted)
    for row in sorted(np.flatnonzero(mask).tolist(), key=lambda row: (busy[row], nodes.names[row])):
        if all(amount <= 0 for amount in missing.values()):
            break
        found[row] = True
        for column in missing:
            missing[column] -= int(nodes.columns.capacity[row, column])
    found.setflags(write=False)
    return found


def usable_by(
    spec: desired.Job,
    structure: desired.Structure,
    windows: tuple[snapshots.Window, ...],
    ancestors: tuple[str, ...],
) -> tuple[int, ...]:
    """Return the indexes of the windows whose nodes a job may use.

    Args:
        spec: the job.
        structure: with the reservations.
        windows: made by ``all_of``.
        ancestors: the job's queue and those above it.
    """
    found = []
    for index, window in enumerate(windows):
        one = structure.reservations[window.name]
        if one.lets_in(spec.owner, spec.reservation, ancestors):
            found.append(index)
    return tuple(found)
