"""Options of `submit` and `run` that set fields of the job, most of them as they stand in YAML."""

import re
from datetime import datetime
from typing import Annotated, NamedTuple

import typer

from reconciler.cli import completion, context, terminal
from reconciler.cli.changes import local_times
from reconciler.model.values import found_values, times

Array = Annotated[
    str | None,
    typer.Option(
        "--array",
        help="Run the command so many times, as an array: 10, the same as 0-9, or indexes such as "
        "1,3,5-9:2; %4 behind runs 4 at once. $MUSTER_ARRAY_INDEX is the index. Default: no array.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        "-J",
        help="Name of the job. Default: the program's, with a random ending.",
        callback=context.require_name,
    ),
]
Queue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        help="Queue in which the job waits. Default: default.",
        autocompletion=completion.queues,
        callback=context.require_name,
    ),
]
Cpus = Annotated[
    str | None, typer.Option("--cpus", "-c", help="CPUs per task: 2, 0.5 or 500m. Default: 1.")
]
Memory = Annotated[
    str | None, typer.Option("--memory", help="Memory per task: 4Gi, 512M. Default: 0.")
]
Gpus = Annotated[
    float | None,
    typer.Option("--gpus", "-g", help="GPUs per task; 0.5 is half a GPU. Default: 0."),
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        "-N",
        min=1,
        help="Run on exactly this many nodes, each with the same number of tasks. Default: any "
        "number.",
    ),
]
Tasks = Annotated[
    int | None,
    typer.Option(
        "--tasks",
        "-n",
        help="Tasks that start together. Default: 1, or what --nodes and --tasks-per-node say.",
    ),
]
TasksPerNode = Annotated[
    int | None,
    typer.Option(
        "--tasks-per-node",
        help="Tasks on each node, neither more nor less. Default: any number; 1 with --nodes.",
    ),
]
Least = Annotated[
    int | None,
    typer.Option(
        "--min",
        help="Start when this many tasks have room; the others join later. Needs --max or "
        "--tasks. Default: all tasks start together.",
    ),
]
Most = Annotated[
    int | None,
    typer.Option(
        "--max",
        help="The most tasks, instead of --tasks: the job grows when there is room. "
        "Default: --tasks.",
    ),
]
PriorityClass = Annotated[
    str | None,
    typer.Option(
        "--priority-class", help="Priority class, which must be in git. Default: none, priority 50."
    ),
]
Framework = Annotated[
    str | None,
    typer.Option(
        help="How tasks find each other: torchrun, mpi, jax, tensorflow, ray or slurm. "
        "Default: none."
    ),
]
Depends = Annotated[
    list[str] | None,
    typer.Option(
        "--depends",
        help="Job that must succeed first, or afterAny:JOB (any end) or afterNotOk:JOB; can be "
        "repeated. Default: none.",
    ),
]
Chdir = Annotated[
    str | None,
    typer.Option(
        "--chdir",
        help="Folder that it starts in, on the node; with --code, a relative one is in the code. "
        "Default: this one.",
    ),
]
Image = Annotated[
    str | None,
    typer.Option("--image", help="Image of a container to run in, by podman. Default: none."),
]
Retries = Annotated[
    int | None,
    typer.Option("--retries", help="Tries after the first one if it fails. Default: 0."),
]
Priority = Annotated[
    int | None,
    typer.Option("--priority", help="Priority as a number, instead of a class. Default: 50."),
]
Hold = Annotated[
    bool, typer.Option("--hold", help="Hold the job: it starts after `muster release`.")
]
Exclusive = Annotated[
    bool, typer.Option("--exclusive", help="Nothing else runs on the nodes that it takes.")
]
Pools = Annotated[
    list[str] | None,
    typer.Option("--pool", help="Pool that it may run in; can be repeated. Default: any."),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        help="Nodes that it may use: gpu001 or gpu[001-004]; can be repeated. Default: any.",
    ),
]
Excluded = Annotated[
    list[str] | None,
    typer.Option("--exclude", help="Nodes that it may not use, in the same form. Default: none."),
]
Begin = Annotated[
    str | None,
    typer.Option(
        "--begin",
        help="Earliest start: 2h (from now), 18:00, 2027-01-31, 2027-01-31T06:00, tomorrow, in "
        "local time. Default: at once.",
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", help="Latest end, in the same form. Default: none."),
]
OutputFile = Annotated[
    str | None,
    typer.Option(
        "--output-file",
        help="File that its output is copied to, in the folder that it starts in: %x is the name, "
        "%j the job's number, %a the index in an array, %t the rank. Default: only muster logs.",
    ),
]
ErrorFile = Annotated[
    str | None,
    typer.Option(
        "--error-file", help="The same for standard error. Default: that of --output-file."
    ),
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any other field of the job, as FIELD=VALUE in YAML: retries.backoff=1m, "
        "topology.required=rack; can be repeated. See: muster schema job.spec. Default: none.",
    ),
]
_CONDITIONS = {"afterok": "afterOk", "afterany": "afterAny", "afternotok": "afterNotOk"}
_PATH = re.compile(r"[a-z][A-Za-z]*(\.[A-Za-z0-9_-]+)*")


class GivenCounts(NamedTuple):
    """Numbers of nodes and tasks as they were said; ``most`` is that of an elastic job."""

    nodes: int | None
    tasks: int | None
    per_node: int | None
    most: int | None = None


class TaskCounts(NamedTuple):
    """Numbers of tasks: all that start together, and those on each node. None: not said."""

    tasks: int | None
    per_node: int | None


def sizes(given: GivenCounts) -> TaskCounts:
    """Return the numbers of tasks. Exit if they contradict each other."""
    nodes, tasks, per_node, most = given
    said = next((f"--{name}" for name, one in (("tasks", tasks), ("nodes", nodes)) if one), None)
    if said and most is not None:
        terminal.fail(
            f"{said} and --max both set the number of tasks; use one of them",
            terminal.USAGE,
        )
    if most is not None:
        return TaskCounts(None, per_node)
    found = shared_out(nodes, tasks, per_node)
    if isinstance(found, str):
        terminal.fail(found, terminal.USAGE)
    return found


def shared_out(nodes: int | None, tasks: int | None, per_node: int | None) -> TaskCounts | str:
    """Return the numbers of tasks, or why nodes can't share them out evenly.

    Numbers below 1 are left for the document to refuse.
    """
    if min(tasks or 1, per_node or 1) < 1 or 0 in {tasks, per_node}:
        return TaskCounts(tasks, per_node)
    if nodes is None and (per_node is None or tasks is None):
        return TaskCounts(per_node if tasks is None else tasks, per_node)
    if nodes is None:
        nodes, left = divmod(tasks or 1, per_node or 1)
        if left:
            return (
                f"--tasks {tasks} can't be put on nodes with {per_node} each; expected a multiple "
                f"of {per_node}"
            )
    count = nodes * (per_node or 1) if tasks is None else tasks
    if count < nodes:
        return f"--tasks {tasks} is less than --nodes {nodes}; expected at least a task per node"
    each, left = divmod(count, nodes)
    if left:
        return (
            f"--tasks {tasks} can't be shared evenly by --nodes {nodes}; expected a multiple of "
            f"{nodes}, such as {each * nodes} or {(each + 1) * nodes}"
        )
    if per_node not in {None, each}:
        return (
            f"--nodes {nodes} with --tasks-per-node {per_node} are {nodes * (per_node or 1)} "
            f"tasks, not --tasks {tasks}; leave one of the three out"
        )
    return TaskCounts(count, each)


class GivenFields(NamedTuple):
    """The options of this module as they were given, but for `--set`."""

    depends: list[str] | None
    chdir: str | None
    image: str | None
    retries: int | None
    priority: int | None
    pools: list[str] | None
    hold: bool
    exclusive: bool
    output: str | None
    error: str | None
    hosts: list[str] | None
    excluded: list[str] | None
    begin: str | None
    deadline: str | None


def fields_of(given: GivenFields, problems: list[str]) -> dict[str, object]:
    """Return the fields of a job that options set, by path below `spec`.

    Args:
        given: the options.
        problems: receives what is wrong with any.
    """
    depends = [_dependency(word, problems) for word in given.depends or ()]
    found: dict[str, object] = {
        "dependsOn": [one for one in depends if one is not None],
        "workingDirectory": given.chdir,
        "image": given.image,
        "runtime": "podman" if given.image else None,
        "retries.limit": given.retries,
        "priority": given.priority,
        "suspend": given.hold or None,
        "exclusive": given.exclusive or None,
        "pools": list(given.pools or ()),
        "output": given.output,
        "error": given.error,
        "hosts": ",".join(given.hosts) if given.hosts else None,
        "excludeHosts": ",".join(given.excluded) if given.excluded else None,
        "notBefore": _moment_or_none("--begin", given.begin, problems),
        "deadline": _moment_or_none("--deadline", given.deadline, problems),
    }
    return {path: value for path, value in found.items() if value not in (None, [])}


def moment(option: str, written: str) -> str:
    """Return a moment of local time as documents have it. Exit if it is none."""
    problems: list[str] = []
    found = _moment_or_none(option, written, problems)
    if found is None:
        terminal.fail(problems[0], terminal.USAGE)
    return found


def _moment_or_none(option: str, written: str | None, problems: list[str]) -> str | None:
    """Return the same; None if nothing is written, or if it is none, which ``problems`` gets."""
    try:
        at = None if written is None else local_times.parse(written, datetime.now().astimezone())
    except ValueError as error:
        problems.append(f"{option}: {error}")
        return None
    return None if at is None else times.format_time(at)


def written_fields(words: list[str] | None, problems: list[str]) -> dict[str, str]:
    """Return the fields that `--set` names, with their values as text in YAML.

    Args:
        words: values of the option.
        problems: receives each that is no field and value.
    """
    found: dict[str, str] = {}
    for word in words or ():
        path, sign, value = word.partition("=")
        path = path.removeprefix("spec.")
        if not sign or not _PATH.fullmatch(path):
            shown = found_values.quote(word)
            problems.append(
                f"--set: found {shown}, expected FIELD=VALUE such as retries.limit=3; the fields: "
                "muster schema job.spec"
            )
        elif path.split(".")[0] == "environment":  # which looks at names of secrets
            problems.append("--set: variables have an option: --env NAME=VALUE")
        else:
            found[path] = value
    return found


def _dependency(word: str, problems: list[str]) -> dict[str, str] | None:
    """Return a dependency as YAML has it, of `JOB` or of `afterAny:JOB`; None if it is none, which
    ``problems`` gets.
    """
    condition, sign, job = word.rpartition(":")
    if not sign:
        return {"job": word}
    known = _CONDITIONS.get(condition.lower())
    if known is None:
        also = "; no job can wait for the start of another" if condition.lower() == "after" else ""
        problems.append(
            f"--depends {word}: unknown condition {condition!a}{also}. Expected afterok, afterany "
            f"or afternotok: --depends afterany:{job}"
        )
        return None
    return {"job": job, "condition": known}
