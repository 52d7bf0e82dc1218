"""Writes the dashboards as the JSON that Grafana provisions: ``python -m grafana.build``.

They are written in Python with ``grafana-foundation-sdk``; the JSON is committed, and a test holds
that the two agree.
"""

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog import encoder

from grafana import cluster, control, queues, work

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
    return 0


if __name__ == "__main__":
    sys.exit(main())
