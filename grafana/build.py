"""Writes the dashboards as the JSON that Grafana provisions: ``python -m grafana.build``.

They are written in Python with ``grafana-foundation-sdk``; the JSON is committed, and a test holds
that the two agree. The same goes for the page of the documentation that lists their panels.
"""

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog import encoder

from grafana import cluster, control, queues, work
from reconciler import package_data

FOLDER = Path(__file__).parent / "dashboards"
BOARDS = (
    cluster.overview,
    control.gitops,
    queues.fairness,
    queues.waiting,
    work.jobs,
    cluster.nodes,
    control.control_plane,
    work.usage,
)


PAGE = package_data.checkout() / "docs" / "reference" / "dashboards.md"
_HEAD = """\
# Dashboards

Made from the code by `python -m grafana.build`; don't edit. What each dashboard answers, its panels
with what they say, and what they ask of Prometheus. `$queue` and the like are variables of the
dashboard. In the tests every expression is run on a Prometheus that scraped a busy cluster, and has
to return something.
"""


def reference() -> str:
    """The page that lists all panels."""
    parts = [_HEAD]
    for text in documents().values():
        document = json.loads(text)
        parts.append(f"\n## {document['title']}\n\n{document['description']}\n\n")
        parts.append("| panel | what it says | what it asks |\n| --- | --- | --- |\n")
        for panel in document["panels"]:
            if panel["type"] == "row":
                continue
            asked = "<br>".join(f"`{_cell(one['expr'])}`" for one in panel["targets"])
            parts.append(f"| {panel['title']} | {_cell(panel['description'])} | {asked} |\n")
    return "".join(parts)


def _cell(text: str) -> str:
    """Text within a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def documents() -> dict[str, str]:
    """File name to JSON of each dashboard."""
    found = {}
    for make in BOARDS:
        made = make()
        text = json.dumps(made, cls=encoder.JSONEncoder, indent=1, sort_keys=True)
        found[f"{str(made.uid).removeprefix('muster-')}.json"] = text + "\n"
    return found


def main() -> int:
    """Write them all."""
    for name, text in documents().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{FOLDER / name}\n")
    PAGE.write_text(reference(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
