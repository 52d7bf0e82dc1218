"""``python -m bench NAME [--json FILE]``: run one benchmark, print its table, write its figures.

Exits with 0 also where a goal is missed, with 1 where it could not measure (BENCHMARKS).
"""

import argparse
import importlib
import json
import os
import platform
import signal
import sys

from bench import options

NAMES = (
    "throughput",
    "spawning",
    "latency",
    "agent_cost",
    "idle",
    "answers",
    "api",
    "submissions",
    "sync",
    "cycle",
    "fragmentation",
    "philly",
    "estimates",
    "fill",
    "reclaim",
    "consolidate",
    "unschedulable",
    "topology",
    "queues",
    "scale",
    "live",
    "plan",
    "plan_live",
    "scraping",
    "reports",
    "sessions",
)


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "python": platform.python_version(),
    }


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument(
        "--json", type=options.new_file, metavar="FILE", help="where to write the figures"
    )
    arguments, rest = parser.parse_known_args()
    # told to leave, it ends what it started
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    module = importlib.import_module(f"bench.{arguments.name}")
    try:
        rows = module.run(rest)
    except (OSError, RuntimeError) as error:
        print(f"bench {arguments.name}: could not measure: {error}", file=sys.stderr)
        return 1
    not_measured = [str(row["not_measured"]) for row in rows if row.get("not_measured")]
    rows = [row for row in rows if not row.get("not_measured")]
    columns = ("name", "value", "unit", "peer", "peer_value", "ratio", "goal", "met")
    lines = [columns, *(tuple(_cell(row.get(column)) for column in columns) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(columns))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())
    for text in not_measured:
        print(f"not measured: {text}")
    if arguments.json is not None:
        report = {
            "bench": arguments.name,
            "machine": machine(),
            "rows": rows,
            "not_measured": not_measured,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
