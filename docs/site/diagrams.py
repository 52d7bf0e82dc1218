"""Draws the diagrams of the architecture: ``python docs/site/diagrams.py`` writes ``docs/images/``.

A diagram is boxes on a grid and arrows between them. Nothing but SVG comes out, so that the pages
show them without a script.
"""

from html import escape
from typing import NamedTuple

from reconciler import package_data

IMAGES = package_data.checkout() / "docs" / "images"
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 180, 64, 56, 46, 16
COLOURS = {
    "outside": ("#fff7ed", "#ea580c"),
    "code": ("#eff6ff", "#2563eb"),
    "core": ("#ecfdf5", "#059669"),
    "node": ("#faf5ff", "#9333ea"),
}


#: The head of an arrow, and the style of texts and lines.
HEAD = """\
<defs><marker id="m" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"
orient="auto"><path d="M0 0L10 5L0 10z" fill="#475569"/></marker></defs>
<style>text{font-family:system-ui,'DejaVu Sans',sans-serif;fill:#0f172a}
.t{font-size:15px;font-weight:600}.n,.l{font-size:12px;fill:#475569}
.a{fill:none;stroke:#475569;stroke-width:1.6;marker-end:url(#m)}</style>"""


class Box(NamedTuple):
    """A box: its place on the grid, its title, what stands below that, and its colour."""

    column: float
    row: float
    title: str
    note: str = ""
    colour: str = "code"

    @property
    def left(self) -> float:
        """Left edge."""
        return MARGIN + self.column * (WIDTH + GAP_X)

    @property
    def top(self) -> float:
        """Top edge."""
        return MARGIN + self.row * (HEIGHT + GAP_Y)


class Diagram(NamedTuple):
    """Boxes by a short name, arrows as "from to label", and a text for those who can't see it."""

    text: str
    boxes: dict[str, Box]
    arrows: tuple[str, ...]


DIAGRAMS = {
    "processes": Diagram(
        "People ask the server. Loop and server run on the controller's machine, joined by a socket"
        " and the store. On each node an agent orders a supervisor, which runs tasks.",
        {
            "git": Box(0, 0, "git", "desired state", "outside"),
            "people": Box(0, 1, "people, tools", "CLI, Grafana", "outside"),
            "loop": Box(1, 0, "loop", "git, cycle, decisions", "core"),
            "store": Box(2, 0, "store", "SQLite"),
            "server": Box(1, 1, "server", "API, agents, metrics"),
            "agent": Box(2, 1, "agent", "one a node", "node"),
            "supervisor": Box(3, 1, "supervisor", "one a node", "node"),
            "tasks": Box(3, 0, "tasks", "", "node"),
        },
        (
            "git loop", "people server", "loop store commit", "loop server loop.sock",
            "server agent sync", "agent supervisor orders", "supervisor tasks spawns",
        ),
    ),
    "desired": Diagram(
        "A commit is read from git, parsed, normalised, checked, and applied; authorize says which"
        " commits count.",
        {
            "git": Box(0, 0, "desired/git", "read objects", "outside"),
            "documents": Box(1, 0, "desired/documents", "parse, schema"),
            "normalise": Box(2, 0, "desired/normalise", "fill in defaults"),
            "checks": Box(3, 0, "desired/checks", "references, policies"),
            "authorize": Box(2, 1, "desired/authorize", "who signed"),
            "apply": Box(3, 1, "desired/apply", "what is in force", "core"),
        },
        ("git documents", "documents normalise", "normalise checks", "checks apply",
         "authorize apply"),
    ),
    "decision": Diagram(
        "Reports and desired jobs update records; a snapshot of columns goes to the scheduler; its"
        " decisions are applied to the records; drift is found; an outcome comes out.",
        {
            "nodes": Box(0, 0, "core/nodes", "reports, health"),
            "jobs": Box(1, 0, "core/jobs", "admission, lifecycle"),
            "snapshot": Box(2, 0, "core/snapshot", "records to columns"),
            "cycle": Box(2, 1, "scheduling/cycle", "attempts by queue", "core"),
            "quota": Box(1, 1, "quota, queues", "who may, who is next"),
            "placement": Box(3, 1, "placement", "preemption, backfill"),
            "reasons": Box(2, 2, "reasons, estimates", "why, until when"),
            "apply": Box(3, 0, "apply_schedule", "columns to records"),
            "drift": Box(4, 0, "core/drift", "differences, repairs"),
        },
        ("nodes jobs", "jobs snapshot", "snapshot cycle", "quota cycle", "placement cycle",
         "cycle reasons", "cycle apply", "apply drift"),
    ),
    "delivery": Diagram(
        "An outcome is committed; then the engine makes each node's set of assignments, which"
        " answers the node's poll.",
        {
            "commit": Box(0, 0, "cycle_commit", "make it durable", "core"),
            "store": Box(0, 1, "store", "records, journal"),
            "dispatch": Box(1, 0, "dispatcher", "which nodes"),
            "engine": Box(2, 0, "engines/agents_engine", "set of assignments"),
            "session": Box(3, 0, "server/nodes", "session of the node"),
            "agent": Box(4, 0, "agent", "long poll answered", "node"),
        },
        ("commit store", "commit dispatch then", "dispatch engine", "engine session",
         "session agent"),
    ),
    "node": Diagram(
        "The agent's link feeds a pure state machine; its steps start tasks by launcher and"
        " supervisor; exits are journaled and reported.",
        {
            "link": Box(0, 0, "link/sync", "long poll"),
            "state": Box(1, 0, "state", "pure: what to do", "core"),
            "launcher": Box(2, 0, "tasks/launcher", "image, data, checks"),
            "supervisor": Box(3, 0, "supervisor", "spawn, reap, stop"),
            "task": Box(4, 0, "task", "in its group", "node"),
            "journal": Box(3, 1, "supervisor/journal", "how it ended, synced"),
            "reports": Box(0, 1, "reports", "what is"),
        },
        ("link state", "state launcher", "launcher supervisor", "supervisor task",
         "supervisor journal", "journal reports", "reports link"),
    ),
}  # fmt: skip


def _arrow(start: Box, end: Box, label: str) -> str:
    """Return the arrow between two boxes, straight along the grid or as a curve."""
    middle = (start.left + WIDTH / 2, start.top + HEIGHT / 2)
    goal = (end.left + WIDTH / 2, end.top + HEIGHT / 2)
    if start.column == end.column:
        down = 1 if end.row > start.row else -1
        x, y1, y2 = middle[0], middle[1] + down * HEIGHT / 2, goal[1] - down * (HEIGHT / 2 + 4)
        path, spot, anchor = f"M{x} {y1} V{y2}", (x + 8, (y1 + y2) / 2 + 4), "start"
    elif start.row == end.row:
        right = 1 if end.column > start.column else -1
        y, x1, x2 = middle[1], middle[0] + right * WIDTH / 2, goal[0] - right * (WIDTH / 2 + 4)
        path, spot, anchor = f"M{x1} {y} H{x2}", ((x1 + x2) / 2, y - 7), "middle"
    else:
        right = 1 if end.column > start.column else -1
        x1, x2 = middle[0] + right * WIDTH / 2, goal[0] - right * (WIDTH / 2 + 4)
        half = (x1 + x2) / 2
        path = f"M{x1} {middle[1]} C{half} {middle[1]} {half} {goal[1]} {x2} {goal[1]}"
        spot, anchor = (half + 8, (middle[1] + goal[1]) / 2 + 4), "start"
    place = f'x="{spot[0]}" y="{spot[1]}" text-anchor="{anchor}" class="l"'
    shown = f"<text {place}>{escape(label)}</text>" if label else ""
    return f'<path d="{path}" class="a"/>{shown}'


def draw(diagram: Diagram) -> str:
    """Return a diagram as SVG."""
    width = max(box.left for box in diagram.boxes.values()) + WIDTH + MARGIN
    height = max(box.top for box in diagram.boxes.values()) + HEIGHT + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{escape(diagram.text)}</title>",
        HEAD,
        f'<rect width="{width:g}" height="{height:g}" rx="10" fill="#fff"/>',
    ]
    for arrow in diagram.arrows:
        start, end, *label = arrow.split(" ", 2)
        lines.append(_arrow(diagram.boxes[start], diagram.boxes[end], "".join(label)))
    for box in diagram.boxes.values():
        fill, stroke = COLOURS[box.colour]
        x, y = box.left + WIDTH / 2, box.top + HEIGHT / 2
        lines.append(
            f'<rect x="{box.left:g}" y="{box.top:g}" width="{WIDTH}" height="{HEIGHT}" rx="8"'
            f' fill="{fill}" stroke="{stroke}" stroke-width="1.5"/>'
            f'<text x="{x:g}" y="{y + (-4 if box.note else 5):g}" text-anchor="middle"'
            f' class="t">{escape(box.title)}</text>'
            f'<text x="{x:g}" y="{y + 16:g}" text-anchor="middle" class="n">'
            f"{escape(box.note)}</text>"
        )
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Write every diagram."""
    for name, diagram in DIAGRAMS.items():
        (IMAGES / f"{name}.svg").write_text(draw(diagram), encoding="utf-8")


if __name__ == "__main__":
    main()
