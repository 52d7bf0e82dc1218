"""The reference pages, made from what they describe: schemas of kinds, parsers of commands.

``python -m tools.reference`` writes ``docs/reference/``; a test holds that what
is committed is what it writes.
"""

import argparse
import enum
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from agents import settings
from reconciler import metrics, package_data
from reconciler.cli import main
from reconciler.controller import controller_options
from reconciler.desired.documents import schema
from reconciler.model.documents import kinds
from reconciler.operations import kind_fields

FOLDER = package_data.checkout() / "docs" / "reference"
GRAFANA = package_data.checkout() / "grafana"

HEAD = "<!-- Written by `python -m tools.reference`; do not edit. -->\n"

KINDS_INTRODUCTION = """\
# Kinds

Every document is a mapping with `apiVersion: muster/v1`, `kind`, `metadata` and `spec`; a file may
hold several, parted by `---`. Names are unique per kind, folders are free. The same contract for
editors and other programs is in [`schemas/`](../../schemas/), one JSON Schema a kind:

    # yaml-language-server: $schema=PATH/TO/schemas/job.json

A field that is not listed is refused, and one that is listed is honoured. What the design has and
this build has not is refused with its reason, which stands here as *not built yet*.

How amounts are written:

| kind of value | examples |
| --- | --- |
| number of CPUs | `4`, `0.5`, `500m` (thousandths) |
| amount of memory | `1073741824` (bytes), `512Mi`, `4Gi`, `1.5Gi`, `2G` |
| duration | `30s`, `15m`, `1h30m`, `2d`, `1w`, `90` (seconds), `12:00:00` (hours first), \
`1-12` (days-hours) |
| host list | `gpu001`, `gpu[001-128,130]`, `a1,b[2-3]` |
"""

CLI_INTRODUCTION = """\
# Commands

`muster COMMAND --help` says the same for one command. Data goes to stdout, words for people to
stderr. Exit codes are [a page of their own](exit-codes.md). Where `--server` and
`--token-file` are left out, the commands use `MUSTER_SERVER` and `MUSTER_TOKEN_FILE`, then what
`muster up` wrote into `.muster/` of this folder or one above it, then what `muster login` has kept.
"""


def kinds_page() -> str:
    """The text of ``kinds.md``."""
    metadata = schema.of_kind("Job")["$defs"]["Metadata"]
    parts = [HEAD, KINDS_INTRODUCTION]
    parts.append("Every kind has:\n\n" + _table(kind_fields.rows(metadata, metadata, "metadata.")))
    parts += [_kind(kind) for kind in kinds.KINDS if kind not in kinds.KINDS_NOT_BUILT]
    if not kinds.KINDS_NOT_BUILT:
        return "\n".join(parts)
    parts.append("## Kinds that are not built yet\n\nEvery document of them is refused.\n")
    parts.append(
        "\n".join(
            f"- `{kind}`: {schema.of_kind(kind)['$defs'][f'{kind}Spec']['description']}"
            for kind in kinds.KINDS_NOT_BUILT
        )
        + "\n"
    )
    return "\n".join(parts)


def _kind(kind: str) -> str:
    whole = schema.of_kind(kind)
    spec = kind_fields.below_of(whole, whole["properties"]["spec"])
    rows = list(kind_fields.rows(whole, spec, "spec.")) if spec is not None else []
    lines = [f"## {kind}\n", f"{whole['description']}\n"]
    lines.append(_table(row for row in rows if len(row) > 2))
    missing = [row for row in rows if len(row) == 2]
    if missing:
        lines.append("Not built yet:\n")
        lines += [f"- {field}: {reason}" for field, reason in missing]
        lines.append("")
    return "\n".join(lines)


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| field | value | default | means | example |", "| --- | --- | --- | --- | --- |"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


# --- commands -------------------------------------------------------------------------------


def cli_page() -> str:
    """The text of ``cli.md``."""
    group: Any = main.application()
    parts = [HEAD, CLI_INTRODUCTION]
    parsers: dict[str, Callable[[], argparse.ArgumentParser]] = {
        "controller": controller_options.parser,
        "agent": settings.parser,
    }
    for name, command in _commands(group):
        lines = [f"## muster {name}\n", f"{_help(command.help)}\n"]
        rows = (
            list(_parser_rows(parsers[name]()))
            if name in parsers
            else [_parameter_row(one) for one in command.params if not one.hidden]
        )
        if rows:
            lines += ["| argument or option | default | means |", "| --- | --- | --- |"]
            lines += ["| " + " | ".join(row) + " |" for row in rows]
            lines.append("")
        parts.append("\n".join(lines))
    return "\n".join(parts)


def _commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its words, those of a group behind it."""
    for name, command in group.commands.items():
        yield above + name, command
        if hasattr(command, "commands"):
            yield from _commands(command, f"{above}{name} ")


def _help(text: str) -> str:
    """The words of a command, its examples as code."""
    lines = []
    for line in text.splitlines():
        words = line.strip()
        shown = words.removeprefix("Example: ")
        lines.append(f"    {shown}" if shown != words else words)
    return "\n".join(lines)


def _parameter_row(one: Any) -> tuple[str, str, str]:
    meaning = one.help or ""
    value = one.default
    default = "—"
    if one.required:
        default = "required"
    elif value not in (None, False, ""):
        default = f"`{value.value if isinstance(value, enum.Enum) else value}`"
    if isinstance(value, enum.Enum):
        meaning += " One of " + ", ".join(f"`{member.value}`" for member in type(value)) + "."
    if one.envvar:
        meaning += f" Also `{one.envvar}`."
    if one.param_type_name == "argument":
        return f"`{one.name.upper()}`", default, kind_fields.cell(meaning)
    spelled = ", ".join(f"`{option}`" for option in sorted(one.opts, key=len, reverse=True))
    return spelled, default, kind_fields.cell(meaning)


def _parser_rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, str]]:
    for action in parser._actions:  # noqa: SLF001 - argparse lists them nowhere else
        if "--help" in action.option_strings or action.help == argparse.SUPPRESS:
            continue
        default = "—"
        if action.required:
            default = "required"
        elif action.default not in (None, False, "", 0, []):
            default = f"`{action.default}`"
        spelled = ", ".join(f"`{option}`" for option in action.option_strings)
        yield spelled, default, kind_fields.cell(action.help or "")


METRICS_INTRODUCTION = """\
# Metrics

Every series that Muster exports, made from the one table in
`reconciler/model/metrics/metric_table.py`. How to scrape them is told in
[Watch the cluster](../guides/operator/watching.md).
The page `cluster` is `/metrics`, rendered by the loop
after each cycle; `server` stands behind it on the same page; `node` is `/metrics/nodes/NAME`, one
page a node, made when it reports, and `/metrics` at an agent's own port where one is open, there
without `muster_node_state`.
"""


def metrics_page() -> str:
    """The page of series, with the alerts and dashboards that go by each, and of labels."""
    sources = sorted(GRAFANA.glob("alerts/*.yaml")) + sorted(GRAFANA.glob("dashboards/*.json"))
    texts = {f"{one.parent.name}/{one.stem}": one.read_text("utf-8") for one in sources}
    lines = [HEAD + METRICS_INTRODUCTION]
    for page in ("cluster", "server", "node"):
        lines += [f"## Page `{page}`\n", "| series | type | labels | means | used in |"]
        lines.append("| --- | --- | --- | --- | --- |")
        for one in metrics.TABLE.values():
            if one.page != page:
                continue
            name = re.compile(rf"\b{one.name}(_bucket|_sum|_count)?\b")
            used = ", ".join(source for source, text in texts.items() if name.search(text))
            labels = ", ".join(f"`{label}`" for label in one.labels) or "—"
            row = (f"`{one.name}`", one.kind, labels, kind_fields.cell(one.help), used or "—")
            lines.append("| " + " | ".join(row) + " |")
        lines.append("")
    lines += ["## Labels\n", "At most so many values in one series of a page.\n"]
    lines += ["| label | means | at most |", "| --- | --- | --- |"]
    for label in metrics.LABELS.values():
        most = label.most if isinstance(label.most, int) else f"the {label.most}"
        lines.append(f"| `{label.name}` | {kind_fields.cell(label.help)} | {most} |")
    return "\n".join(lines) + "\n"


PAGES = {"kinds.md": kinds_page, "cli.md": cli_page, "metrics.md": metrics_page}


def write(folder: Path) -> list[Path]:
    """Write all pages and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, page in PAGES.items():
        path = folder / name
        path.write_text(page(), encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Write the reference pages.")
    arguments.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    for written_path in write(arguments.parse_args().folder):
        sys.stdout.write(f"{written_path}\n")
