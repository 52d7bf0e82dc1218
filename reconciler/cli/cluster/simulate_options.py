"""Options of ``muster simulate`` that would change nothing of what is asked for: they are refused.

Else somebody compares two runs that are the same one, and takes them for two.
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

#: What says of what a cluster and its jobs are made that no folder describes.
_MADE_OF = ("form", "nodes", "per_node", "jobs", "load", "speed_up", "over_estimate")
#: What says how the project's own controller decides and what its nodes do.
_OWN = ("cycle_every", "checkpoint_every", "scheduling")


def given(at: typer.Context) -> dict[str, str]:
    """The options that somebody wrote, each as it is spelled, by its parameter's name."""
    found = {}
    for one in at.command.params:
        source = at.get_parameter_source(one.name or "")
        if source is not None and source.name == "COMMANDLINE":
            found[one.name or ""] = one.opts[0]
    return found


def refuse(given: Mapping[str, str], source: Path | None, policies: Sequence[str]) -> None:
    """Leave the command where an option says nothing of this source, or of these policies."""
    if source is not None and source.is_dir():
        for option in (given[name] for name in _MADE_OF if name in given):
            _fail(
                f"{option} is for traces and made-up jobs: a folder says itself what there is; "
                f"change that in {source}, or leave {option} out"
            )
    elif source is not None and "load" in given:
        _fail(
            f"--load is for made-up jobs: {source} is a trace, which says itself when its jobs "
            "come; leave --load out, or let them come faster with --speed-up"
        )
    elif source is None and "form" in given:
        _fail(
            "--form says how a trace is read, and none is named, so that jobs are made up: name "
            "the trace, or leave --form out"
        )
    if "over_estimate" in given and set(policies) == {"fifo"}:
        _fail(
            "--over-estimate says how long time limits are, and fifo looks at none: add another "
            "--policy, or leave --over-estimate out"
        )
    others = [policy for policy in policies if policy != trace_simulation.OWN]
    told = ", ".join(others)
    if len(others) == len(policies):
        for option in (given[name] for name in _OWN if name in given):
            _fail(
                f"{option} is for the policy {trace_simulation.OWN} alone, and asked for is {told}"
                f": add --policy {trace_simulation.OWN}, or leave {option} out"
            )
    if others and "until" in given:
        _fail(
            f"--until is for the policy {trace_simulation.OWN} alone: {told} would run to the end, "
            "and the figures be of different spans; leave --until out, or take fewer --jobs"
        )


def refuse_drawn(given: Mapping[str, str], prepared: trace_simulation.Prepared) -> None:
    """Leave the command where it says how to draw, and nothing is drawn."""
    source = prepared.request.source
    if source is None or prepared.workload is None:
        return
    if prepared.is_limited:
        why = f"every job of {source} has a time limit of its own"
    elif not prepared.request.over_estimate and "seed" in given:
        why = f"with --over-estimate 0 the time limits of {source} leave nothing to chance"
    else:
        return
    for option in (given[name] for name in ("over_estimate", "seed") if name in given):
        if option == "--seed" or prepared.is_limited:
            _fail(f"{option} is for what is drawn: {why}; leave {option} out")


def _fail(message: str) -> None:
    terminal.fail(message, terminal.USAGE)
