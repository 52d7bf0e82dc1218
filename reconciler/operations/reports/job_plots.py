"""Past metrics of a task as curves: read from what its node keeps, drawn for a terminal.

Rows are JSON lines, one for each point in time with its series; headings of attempts are between
them. A curve goes over all attempts: if one restarts from a checkpoint, its steps are drawn over
the lost ones.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence

import msgspec

#: Points of one curve that are kept; of more each second one is let go.
POINTS_MAX = 20_000
#: Series that are kept, the first that come.
SERIES_MAX = 64
#: Tries of one series that are marked, the first that come.
TRIES_MAX = 100
#: The controller's heading of a try: its number, and how it ended.
_HEADING = re.compile(
    r"(?:.*, )?try (?P<number>\d{1,9}) on [^ ,]+"
    r"(?:, [^,]*Z(?:, [^,]*)?)?(?:, (?P<end>[A-Za-z0-9 ]+))?"
)
#: Dots of a braille character, by column and row from the top.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLANK = 0x2800


class TryStart(msgspec.Struct, frozen=True):
    """The first point of a try after the first one.

    Attributes:
        number: of the try.
        after: how the try before ended, such as ``Preempted``; empty if unknown.
    """

    number: int
    step: float | None
    time: float
    after: str = ""

    def text(self) -> str:
        """Return `try 2 from step 400, after Preempted`."""
        where = "" if self.step is None else f" from step {number(self.step)}"
        return f"try {self.number}{where}" + (f", after {self.after}" if self.after else "")


class Curve(msgspec.Struct, frozen=True):
    """A series. ``points`` are (step or None, time, value), as they were written; ``tries`` where
    later tries begin; ``element`` is of an array whose elements are compared.
    """

    name: str
    points: tuple[tuple[float | None, float, float], ...]
    tries: tuple[TryStart, ...] = ()
    element: int | None = None

    @property
    def has_steps(self) -> bool:
        """True if all of its points have a step."""
        return all(step is not None for step, _, _ in self.points)

    def along(self, axis: str) -> list[tuple[float, float]]:
        """Points (x, y), both finite, x being the step or the seconds since the first."""
        began = self.points[0][1] if self.points else 0.0
        found = [
            ((step if step is not None else at - began) if axis == "step" else at - began, value)
            for step, at, value in self.points
        ]
        return [(x, y) for x, y in found if math.isfinite(x) and math.isfinite(y)]

    def try_starts(self, axis: str) -> list[float]:
        """Return where later tries begin, as the x of ``along``."""
        began = self.points[0][1] if self.points else 0.0
        return [
            one.step if axis == "step" and one.step is not None else one.time - began
            for one in self.tries
        ]

    def document(self) -> dict[str, object]:
        """Return the curve with a name for each value."""
        points = [{"step": step, "time": at, "value": value} for step, at, value in self.points]
        tries = [
            {"try": one.number, "step": one.step, "time": one.time, "after": one.after}
            for one in self.tries
        ]
        of = {} if self.element is None else {"element": self.element}
        return {"name": self.name, **of, "points": points, "tries": tries}


class Past(msgspec.Struct, frozen=True):
    """Metrics that were read: curves by name, headings of attempts, and lines that could not be
    read.

    ``is_cut``: there were more series than are kept.
    """

    curves: tuple[Curve, ...] = ()
    remarks: tuple[str, ...] = ()
    is_cut: bool = False


def read(lines: Iterable[bytes]) -> Past:
    """Rows of ``/v1/jobs/NAME/logs?stream=metrics``; what is no row is a remark."""
    points: dict[str, list[tuple[float | None, float, float]]] = {}
    tries: dict[str, list[TryStart]] = {}
    remarks: list[str] = []
    newest, ended, before, is_cut = 0, "", "", False
    for line in lines:
        text = line.decode("utf-8", "replace").strip()
        if text.startswith("muster:"):
            remarks.append(text.removeprefix("muster:").strip())
            if heading := _HEADING.fullmatch(remarks[-1]):
                newest, ended, before = int(heading["number"]), before, heading["end"] or ""
            continue
        try:
            row = json.loads(text)
            at, step = float(row.pop("time")), row.pop("step", None)
            step = None if step is None else float(step)
            values = {name: float(value) for name, value in row.items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue  # the rest of a line that was cut
        if not math.isfinite(at):
            continue
        if step is not None and not math.isfinite(step):
            step = None
        for name, value in values.items():
            if name in points or len(points) < SERIES_MAX:
                found = points.setdefault(name, [])
                of_name = tries.setdefault(name, [])
                if newest > (of_name[-1].number if of_name else 1) and len(of_name) < TRIES_MAX:
                    of_name.append(TryStart(newest, step, at, ended))
                found.append((step, at, value))
                if len(found) > POINTS_MAX:
                    del found[1::2]
            else:
                is_cut = True
    curves = tuple(Curve(one, tuple(points[one]), tuple(tries[one])) for one in sorted(points))
    return Past(curves, tuple(remarks), is_cut)


def number(value: float) -> str:
    """Return a value in few characters."""
    return f"{value:.4g}"


def draw(
    points: Sequence[tuple[float, float]],
    *,
    width: int,
    height: int,
    marks: Sequence[float] = (),
) -> list[str]:
    """Points as lines of braille characters with a scale to the left and one below.

    Args:
        points: (x, y), finite, at least one.
        width: characters of a line in all.
        height: lines of the picture, without the scale below.
        marks: x at which an upright line is drawn, behind the points.
    """
    lowest, highest = min(y for _, y in points), max(y for _, y in points)
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    labels = {0: number(highest), height - 1: number(lowest)}
    if height > 2:
        labels[height // 2] = number(_between(lowest, highest, 1 - (height // 2) / (height - 1)))
    margin = max(len(label) for label in labels.values())
    columns = max(8, width - margin - 2)
    cells = [[0] * columns for _ in range(height)]
    for x, y in points:
        across = round(_part(x, left, right) * (2 * columns - 1))
        down = round((1 - _part(y, lowest, highest)) * (4 * height - 1))
        cells[down // 4][across // 2] |= _DOTS[across % 2][down % 4]
    lines = []
    marked = {round(_part(x, left, right) * (2 * columns - 1)) // 2 for x in marks}
    blank = ["┊" if column in marked else " " for column in range(columns)]
    for row, cell in enumerate(cells):
        text = "".join(
            chr(_BLANK + dots) if dots else blank[column] for column, dots in enumerate(cell)
        )
        lines.append(f"{labels.get(row, ''):>{margin}} ┤{text}".rstrip())
    ends = f"{number(left)}{number(right):>{max(1, columns - len(number(left)))}}"
    return [*lines, f"{'':>{margin}} └{'─' * columns}", f"{'':>{margin}}  {ends}"]


def _part(value: float, least: float, most: float) -> float:
    """Return how far a value is between two others; by halves, because their difference may
    overflow.
    """
    if most <= least:
        return 0.5
    part = (value / 2 - least / 2) / (most / 2 - least / 2) if most / 2 > least / 2 else 0.5
    return min(1.0, max(0.0, part))


def _between(least: float, most: float, part: float) -> float:
    return least * (1 - part) + most * part
