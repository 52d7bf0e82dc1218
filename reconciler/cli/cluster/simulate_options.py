"""Checks of options of `muster simulate` that have no effect on the request: they are refused.

Otherwise somebody compares two equal runs and takes them for different ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from reconciler.cli import lazy_import, terminal

if TYPE_CHECKING:
    from reconciler.operations.simulate import trace_simulation
else:
    trace_simulation = lazy_import.module("reconciler.operations.simulate.trace_simulation")

#: Options of a cluster and jobs that come from no folder.
_MADE_OF = ("form", "nodes", "per_node", "jobs", "load", "speed_up", "over_estimate")
#: Options of Muster's own controller and its nodes.
_OWN = ("cycle_every", "checkpoint_every", "scheduling")


def given(at: typer.Context) -> dict[str, str]:
    """Return the options that were given, as spelled, by the parameter's name."""
    found = {}
    for one in at.command.params:
        source = at.get_parameter_source(one.name or "")
        if source is not None and source.name == "COMMANDLINE":
            found[one.name or ""] = one.opts[0]
    return found


def refuse(given: Mapping[str, str], source: Path | None, policies: Sequence[str]) -> None:
    """Exit if an option does not apply to this source or these policies."""
    if source is not None and source.is_dir():
        for option in (given[name] for name in _MADE_OF if name in given):
            _fail(
                f"{option} is for traces and generated jobs; a folder defines its own cluster and "
                f"jobs. To fix: edit {source}, or leave out {option}"
            )
    elif source is not None and "load" in given:
        _fail(
            f"--load is for generated jobs; {source} is a trace with its own arrival times. "
            "To fix: leave out --load, or use --speed-up"
        )
    elif source is None and "form" in given:
        _fail(
            "--form is the format of a trace, but no trace is named. To fix: name the trace, or "
            "leave out --form"
        )
    if "over_estimate" in given and set(policies) == {"fifo"}:
        _fail(
            "--over-estimate sets time limits, which fifo ignores. To fix: add another --policy, "
            "or leave out --over-estimate"
        )
    others = [policy for policy in policies if policy != trace_simulation.OWN]
    options = ", ".join(others)
    if len(others) == len(policies):
        for option in (given[name] for name in _OWN if name in given):
            _fail(
                f"{option} applies only to the policy {trace_simulation.OWN}, not to {options}. "
                f"To fix: add --policy {trace_simulation.OWN}, or leave out {option}"
            )
    if others and "until" in given:
        _fail(
            f"--until applies only to the policy {trace_simulation.OWN}; {options} would run to "
            "the end, so that figures could not be compared. To fix: leave out --until, or use "
            "fewer --jobs"
        )


def refuse_drawn(given: Mapping[str, str], prepared: trace_simulation.Prepared) -> None:
    """Exit if an option of random values is given and nothing is random."""
    source = prepared.request.source
    if source is None or prepared.workload is None:
        return
    if prepared.is_limited:
        why = f"every job of {source} has its own time limit"
    elif not prepared.request.over_estimate and "seed" in given:
        why = f"with --over-estimate 0 the time limits of {source} are not random"
    else:
        return
    for option in (given[name] for name in ("over_estimate", "seed") if name in given):
        if option == "--seed" or prepared.is_limited:
            _fail(f"{option} has no effect: {why}. To fix: leave out {option}")


def _fail(message: str) -> None:
    terminal.fail(message, terminal.USAGE)
