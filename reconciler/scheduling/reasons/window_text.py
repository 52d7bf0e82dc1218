"""Reasons about windows (reservations, maintenance) that keep nodes from work.

A shape without these nodes comes in; the windows, their times and what would help go out. Groups of
any time limit share a shape, so the text must be true for each.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from reconciler.model.state import pending_reasons
from reconciler.model.values import quantities, times
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.reasons import reason_text


def of_groups(
    situation: snapshots.Snapshot,
    shape: snapshots.Shape,
    groups: Sequence[snapshots.TaskGroupShape],
) -> list[snapshots.Window]:
    """Return the windows on nodes that could hold a task of some group of a shape."""
    if shape.unreserved is None:
        return []
    capacity = situation.nodes.capacity
    able = np.any([(capacity >= group.amounts).all(axis=1) for group in groups], axis=0)
    able &= situation.shapes[shape.unreserved].eligible
    windows = [situation.windows[index] for index in shape.barred]
    return [window for window in windows if (window.nodes & able).any()]


def reason(
    situation: snapshots.Snapshot,
    shape: snapshots.Shape,
    funnel: tuple[pending_reasons.FunnelStep, ...],
    fits: Callable[[snapshots.Mask], bool],
) -> pending_reasons.Reason:
    """Return the reason of a shape that fits except for windows that begin before it could end."""
    spans, waits, changes = describe(situation, of_groups(situation, shape, shape.groups), fits)
    return pending_reasons.Reason(
        pending_reasons.ReasonCode.RESERVED,
        f"{reason_text.shape_text(situation, shape)} asked; it could still run when nodes that it "
        f"needs are reserved for others: {spans}",
        funnel,
        reason_text.advice_text(waits, changes),
    )


def describe(
    situation: snapshots.Snapshot,
    windows: Sequence[snapshots.Window],
    fits: Callable[[snapshots.Mask], bool],
) -> tuple[str, list[str], list[str]]:
    """Return the times of windows, each reservation once, and the advice for barred work.

    The advice is events to wait for, and changes in the imperative.

    Args:
        situation: the snapshot.
        windows: windows that bar it.
        fits: returns True if it would fit on (n,) nodes, were they idle.
    """
    first: dict[str, snapshots.Window] = {}
    times_of = Counter(window.name for window in windows)
    for window in sorted(windows, key=lambda window: (window.starts_at, window.name)):
        first.setdefault(window.name, window)
    spans = tuple(
        f"{name} from {times.format_time(window.starts_at)} to {times.format_time(window.ends_at)}"
        f"{' and again' if times_of[name] > 1 else ''}"
        for name, window in first.items()
    )
    several = len(first) > 1
    begun = [window for window in first.values() if window.starts_at <= situation.now]
    ahead = tuple(name for name, window in first.items() if window.starts_at > situation.now)
    waits, changes = _over(situation, tuple(first))
    if not begun:
        begin = "they begin" if several else "it begins"
        changes.append(f"set a timeLimit by which it ends before {begin}")
    elif ahead and fits(~np.any([window.nodes for window in begun], axis=0)):
        verb = "begin" if len(ahead) > 1 else "begins"
        names = pending_reasons.names_text(ahead)
        changes.append(f"set a timeLimit by which it ends before {names} {verb}")
    return pending_reasons.names_text(spans), waits, changes


def advice(
    situation: snapshots.Snapshot,
    windows: Sequence[snapshots.Window],
    fits: Callable[[snapshots.Mask], bool],
) -> tuple[list[str], list[str]]:
    """Return events to wait for and changes that help if windows keep nodes from work.

    The first of them has the times of the windows.
    """
    if not windows:
        return [], []
    spans, waits, changes = describe(situation, windows, fits)
    first = waits or changes
    first[0] = f"{first[0]} ({spans})"
    return waits, changes


def _over(situation: snapshots.Snapshot, names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the event that reservations end, or the change that recurring ones need.

    Of recurring ones, the event has the longest work that fits between their times.
    """
    gaps = {name: gap for name in names if (gap := _between(situation, name)) is not None}
    without = tuple(name for name, gap in gaps.items() if gap <= 0)
    if without:
        whose = pending_reasons.names_text(without)
        return [], [f"leave time between two times of {whose}"]
    over = "those reservations are over" if len(names) > 1 else "that reservation is over"
    if not gaps:
        return [over], []
    between = " and ".join(
        f"between two {'of its times' if len(names) == 1 else f'times of {name}'} "
        f"(at most {quantities.format_duration(math.ceil(gap))})"
        for name, gap in list(gaps.items())[: pending_reasons.NAMES_MAX]
    )
    return [f"{over}, with a timeLimit that fits {between}"], []


def _between(situation: snapshots.Snapshot, name: str) -> float | None:
    """Return the most seconds between two times of a reservation; None: it has no second time."""
    held = sorted((w for w in situation.windows if w.name == name), key=lambda w: w.starts_at)
    gaps = [after.starts_at - before.ends_at for before, after in itertools.pairwise(held)]
    gaps += [window.again_at - window.ends_at for window in held if window.again_at < math.inf]
    return max(gaps, default=None)
