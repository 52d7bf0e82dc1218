"""A plan as one comment of a pull request, which the next plan replaces.

A hidden marker lets the poster find the previous comment. The verdict comes first, then findings,
removals and impact, then the rest, folded. A plan that is too long is cut in the middle and never
split over two comments, because half of a plan looks like a whole one.
"""

import re
from collections.abc import Iterator

from reconciler.operations.plan import change_text, plan_text, plan_types
from reconciler.operations.plan.plan_types import Plan

#: What a comment begins with; one repository may have several clusters, each with its ``name``.
MARKER = "<!-- muster-plan:{name} -->"
#: The most characters that a comment may have.
CHARACTERS_MAX = 65_536
#: Of one object, and of one field.
OBJECT_LINES_MAX = 200
#: Objects that change in each fold.
OBJECTS_MAX = 500
_SIGNS = {"refused": "❌", "held": "✋", "changes": "🟡", "none": "✅"}
#: The line that an object begins with; its fields stand further in.
_OBJECT = re.compile(r"[-+!] [^ ]|… and ")
_HEADING_CHARACTERS_MAX = 120
_CUT = (
    "\n\n… cut here: {count} characters are in the JSON of this plan (`muster plan -o json`) …\n\n"
)


def marker(name: str) -> str:
    """Return the hidden first line of the comments of one cluster."""
    return MARKER.format(name="".join(c for c in name if c.isalnum() or c in "-_") or "main")


def render(plan: Plan, name: str = "main", limit: int = CHARACTERS_MAX) -> str:
    """Return the comment, of at most ``limit`` characters."""
    # every held removal has its own entry
    head = cut("\n".join(_head(plan, name)), limit // 2) + "\n"
    body = "\n".join(_body(plan))
    tail = "\n" + "\n".join(_tail(plan)) + "\n"
    return head + cut(body, limit - len(head) - len(tail)) + tail


def cut(text: str, most: int) -> str:
    """``text`` in at most so many characters: whole lines of its middle left out.

    Fences and folds that are open where it is cut are closed and opened again.
    """
    if len(text) <= most:
        return text
    note = _CUT.format(count=len(text))
    room = most - len(note) - 300  # for what has to be closed and opened again
    if room <= 0:
        return ""
    lines = text.split("\n")
    front: list[str] = []
    used = 0
    for line in lines:
        if used + len(line) + 1 > room // 2:
            break
        front.append(line)
        used += len(line) + 1
    back: list[str] = []
    for line in reversed(lines[len(front) :]):
        if used + len(line) + 1 > room:
            break
        back.append(line)
        used += len(line) + 1
    back.reverse()
    gone = sum(len(line) + 1 for line in lines[len(front) : len(lines) - len(back)])
    before, after = _open(front), _open(lines[: len(lines) - len(back)])
    closing = (["```"] if before[1] else []) + ["</details>"] * before[0]
    opening = ["<details open><summary>…</summary>", ""] * after[0]
    if after[1]:
        opening += ["```diff", *_heading(lines[: len(lines) - len(back)], back)]
    if back and not after[1]:
        opening += _table(lines[: len(lines) - len(back)], back[0])
    return "\n".join([*front, *closing]) + _CUT.format(count=gone) + "\n".join([*opening, *back])


def _heading(before: list[str], back: list[str]) -> list[str]:
    """Return the object that the first lines of a fence are about, if they begin in its middle."""
    if not back or _OBJECT.match(back[0]):
        return []
    for line in reversed(before):
        if line.startswith("```"):
            break
        if _OBJECT.match(line):
            return [f"{line} (goes on)"] if len(line) <= _HEADING_CHARACTERS_MAX else []
    return []


def _table(before: list[str], line: str) -> list[str]:
    """Return the heading of the table that a line is a row of."""
    if not line.startswith("|"):
        return []
    rules = [at for at, one in enumerate(before) if one.startswith("| ---")]
    return before[rules[-1] - 1 : rules[-1] + 1] if rules else []


def _open(lines: list[str]) -> tuple[int, bool]:
    """Return how many folds are open after these lines, and True if a fence is."""
    folds, fenced = 0, False
    for line in lines:
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            folds += line.count("<details") - line.count("</details>")
    return folds, fenced


def _head(plan: Plan, name: str) -> Iterator[str]:
    yield marker(name)
    yield f"{_SIGNS[plan.verdict]} **{_plain(plan_text.verdict(plan))}**"
    yield ""
    yield from _held(plan)
    merged = ", as merged" if plan.merged else ""
    where = f"`{plan.base[:12]}` → `{plan.head[:12]}`{merged}"
    if plan.snapshot is not None:
        old = plan_text.duration(plan.snapshot.age_s)
        in_force = plan_text.in_force(plan.snapshot)
        where += f", against the cluster as of {old} before, where {in_force} in force"
    yield where
    if plan.apart:
        yield ""
        yield _plain(plan_text.pushed(plan))
    yield ""


def _held(plan: Plan) -> Iterator[str]:
    """Return what waits, first of all, with the command that approves it in a block to copy."""
    if plan.held:
        yield from _fenced(line.text for line in plan_text.held_lines(plan))
    if plan.waiting:
        yield from _fenced(line.text for line in plan_text.waiting_lines(plan))


def _body(plan: Plan) -> Iterator[str]:
    yield from _findings(plan)
    if not plan.changes:
        return
    removed = [change for change in plan.changes if change.operation == "remove"]
    if removed:
        yield "**Removed**"
        yield ""
        yield from _diff(removed)
    yield "**Impact**"
    yield ""
    yield from _fenced(line.text.removeprefix("  ") for line in plan_text.impact_lines(plan))
    yield from _forecast(plan)
    for operation, title in (("change", "changed"), ("add", "added")):
        some = [change for change in plan.changes if change.operation == operation]
        if some:
            yield from _folded(f"{len(some)} {title}", _diff(some))


def _findings(plan: Plan) -> Iterator[str]:
    new = [one for one in plan.findings if one.is_new]
    old = [one for one in plan.findings if not one.is_new]
    if new:
        yield "| | rule | where | what |"
        yield "| --- | --- | --- | --- |"
        yield from (_row(one) for one in new)
        yield ""
    if old:
        rows = ["| | rule | where | what |", "| --- | --- | --- | --- |", *map(_row, old), ""]
        yield from _folded(f"{len(old)} finding{'s' if len(old) > 1 else ''} as before", iter(rows))


def _row(one: plan_types.FindingView) -> str:
    sign = "❌" if one.severity == "error" else "⚠️"
    where = f"{one.path}:{one.line}" if one.line else one.path
    text = f"{one.object}: {one.message}" if one.object else one.message
    if one.waiver:
        text += f" — {one.waiver}"
    return f"| {sign} | `{_cell(one.rule)}` | `{_cell(where)}` | {_plain(text)} |"


def _cell(text: str) -> str:
    return text.replace("`", "'").replace("|", "\\|").replace("\n", " ")


def _plain(text: str) -> str:
    """Text of somebody's document that must not become markup, a link or a mention."""
    for character in "\\`*_[]<>#|~":
        text = text.replace(character, "\\" + character)
    return text.replace("@", "@\u200b").replace("\n", " ")


def _forecast(plan: Plan) -> Iterator[str]:
    lines = [line.text.removeprefix("  ") for line in plan_text.forecast_lines(plan)]
    if plan.forecast is None:
        yield "**Forecast** " + _plain(" ".join(lines))
        yield ""
        return
    ahead = plan_text.duration(plan.forecast.horizon_s)
    yield f"**Forecast** for {ahead}, if nothing else is submitted"
    yield ""
    yield from _fenced(iter(lines))


def _tail(plan: Plan) -> Iterator[str]:
    yield f"<sub>plan `{plan.digest}`; merging applies it</sub>"


def _folded(title: str, inner: Iterator[str]) -> Iterator[str]:
    yield f"<details><summary>{title}</summary>"
    yield ""
    yield from inner
    yield "</details>"
    yield ""


def _fenced(inner: Iterator[str], language: str = "text") -> Iterator[str]:
    yield f"```{language}"
    for line in inner:
        # a fence inside a text would end this one
        yield line.replace("```", "'''")
    yield "```"
    yield ""


def _diff(changes: list[plan_types.ChangeView]) -> Iterator[str]:
    def lines() -> Iterator[str]:
        for change in changes[:OBJECTS_MAX]:
            yield from diff_lines(change)
        if len(changes) > OBJECTS_MAX:
            yield f"… and {len(changes) - OBJECTS_MAX} more"

    return _fenced(lines(), "diff")


def diff_lines(change: plan_types.ChangeView) -> Iterator[str]:
    """Yield one object as lines of a difference: the sign is the first character, for its colour.

    GitHub colours ``!`` as changed, and does nothing with ``~``.
    """
    sign = {"remove": "-", "add": "+", "change": "!"}[change.operation]
    label = f"{change.kind}/{change.name}" if change.name else change.kind
    summary = f": {change.summary}" if change.summary else ""
    yield f"{sign} {label}{summary}"
    if change.note:
        yield f"  {change.note}"
    count = 0
    for path, (before, after) in change.fields.items():
        if "\n" in (before or "") or "\n" in (after or ""):
            found = [f"  {path}:", *change_text.text_difference(before or "", after or "")]
        else:
            found = [f"-   {path}: {before}"] if before is not None else []
            found += [f"+   {path}: {after}"] if after is not None else []
        for line in found:
            count += 1
            if count > OBJECT_LINES_MAX:
                yield "  …"
                return
            yield line
