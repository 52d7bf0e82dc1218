"""Simulations: the source is read, replayed under each policy, and results are returned."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from reconciler.desired.documents import schema_errors, yaml_reader
from reconciler.model import desired
from reconciler.model.values import found_values, suggestions
from reconciler.operations import scratch_repository
from reconciler.operations.validate import folder_check
from reconciler.simulation.baselines import gpu_pool
from reconciler.simulation.engine.event_queue import SimulationError
from reconciler.simulation.scenarios import policy_settings, schema
from reconciler.simulation.traces import trace_replay, trace_results, workloads

#: The policy that is the project's own controller.
OWN = "muster"
POLICIES = (OWN, *gpu_pool.POLICIES)
#: Options of the controller and the nodes that are simulated.
ReplayOptions = trace_replay.Options
#: The begin of virtual time, in seconds since the epoch.
BEGIN = trace_replay.BEGIN

#: The most malformed rows to show of a trace without any valid job.
_REFUSED_TOLD = 3
#: Seconds after which an event is too late for any simulation.
SPAN_S_MAX = 10 * 366 * 86_400.0


class SimulateError(Exception):
    """Error: a simulation can't be run as requested; the message says why.

    ``is_usage`` is True if the request is wrong whatever files there are.
    """

    def __init__(self, message: str, *, is_usage: bool = False) -> None:
        super().__init__(message)
        self.is_usage = is_usage


class SimulationRequest(msgspec.Struct, frozen=True):
    """A request for a simulation.

    Attributes:
        source: folder of a desired state, a trace, or None for generated jobs.
        form: ``philly`` or ``swf``; None: by the file's name.
        nodes, per_node: the cluster, for a source without one.
        jobs: number of generated jobs, or of a trace's first jobs; None: all.
        load: of generated jobs, as a share of the cluster.
        speed_up: factor by which jobs arrive faster.
        over_estimate: sigma of the log-normal over-estimates of time limits.
        default_run_s: replaces the time limit of desired jobs without one.
        scheduling: changes to the scheduler's settings.
    """

    source: Path | None = None
    form: str | None = None
    policies: tuple[str, ...] = (OWN,)
    nodes: int = 16
    per_node: int = 8
    jobs: int | None = None
    load: float = 0.9
    speed_up: float = 1.0
    seed: int = 1
    over_estimate: float = 1.0
    default_run_s: float = 3600.0
    options: ReplayOptions = ReplayOptions()
    scheduling: Mapping[str, Any] = {}


class Prepared(msgspec.Struct):
    """A simulation that can begin: a workload and its structure, or a desired state.

    ``total`` is the number of jobs. ``never`` are things at a date that virtual time does not
    reach. ``is_limited`` is True if every job of a trace has its own time limit, so that none is
    random.
    """

    request: SimulationRequest
    title: str
    total: int
    structure: desired.Structure
    workload: workloads.Workload | None = None
    wanted: desired.Desired | None = None
    never: tuple[str, ...] = ()
    is_limited: bool = False


Progress = Callable[[str, int], None]


def scheduling_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Return settings of the scheduler from texts of the form ``KEY=VALUE``.

    Raises:
        SimulateError: a text has another form, or a key is given twice.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise SimulateError(f"--scheduling {pair}: expected KEY=VALUE", is_usage=True)
        if key in found:
            raise SimulateError(f"--scheduling: {key} is given twice", is_usage=True)
        found[key] = yaml_reader.scalar(value)
    return found


def prepare(request: SimulationRequest) -> Prepared:
    """Read the source and make the cluster.

    Raises:
        SimulateError: the source can't be read, or what is asked excludes itself.
    """
    unknown = [policy for policy in request.policies if policy not in POLICIES]
    if unknown:
        message = (
            f"--policy: no policy {found_values.quote(unknown[0])}; there are {', '.join(POLICIES)}"
        )
        raise SimulateError(message, is_usage=True)
    settings = _settings(request.scheduling, desired.ClusterSettings())
    source = request.source
    if source is not None and not source.exists():
        raise SimulateError(f"{source}: no such file or folder")
    if source is not None and source.is_dir():
        return _of_state(request)
    if source is not None and not source.is_file():
        raise SimulateError(f"{source} is no regular file: write the trace to one")
    workload = _workload(request)
    if not workload.rows:
        raise SimulateError(f"{source} holds no job that could be read{_refused(workload)}")
    workload = workloads.first(workload, request.jobs)
    workload = workloads.speed_up(workload, request.speed_up)
    is_limited = all(row.limit_s is not None for row in workload.rows)
    workload = workloads.with_limits(workload, request.seed, request.over_estimate)
    units = request.nodes * request.per_node
    guaranteed = workloads.guarantees(workload, units)
    structure = trace_replay.make_structure(
        request.nodes, request.per_node, workload.unit, guaranteed, settings
    )
    name = _shown(source.name) if source else f"made-up jobs (seed {request.seed})"
    unit = "GPUs" if workload.unit == "gpu" else "CPUs"
    jobs = _counted(len(workload.rows), "job")
    title = f"{name}: {jobs} on {request.nodes} x {request.per_node} {unit}"
    return Prepared(
        request,
        title,
        len(workload.rows),
        structure,
        workload=workload,
        is_limited=is_limited,
    )


def _shown(path: Path | str) -> str:
    """Return a path as text; bytes that are not UTF-8 can't be printed everywhere."""
    return str(path).encode(errors="replace").decode()


def _refused(workload: workloads.Workload) -> str:
    """Return which of the first rows of a trace are malformed, and why."""
    named = [f"line {row.line}: {row.why}" for row in workload.malformed[:_REFUSED_TOLD]]
    more = workload.malformed_count - len(named)
    message = "; ".join(named) + (f"; and {more:,} more" if more else "")
    return f": {message}" if named else ""


def _settings(changes: Mapping[str, Any], base: desired.ClusterSettings) -> desired.ClusterSettings:
    """Return the settings with the requested changes."""
    missing: dict[str, None] = {}
    try:
        settings = policy_settings.settings_of(dict(changes), missing, base)
    except schema.ScenarioError as error:
        message = _wrong_value(changes) or str(error)
        raise SimulateError(f"--scheduling: {message}", is_usage=True) from error
    if missing:
        names = [
            name
            for top, parts in policy_settings.SCHEDULING.items()
            for name in (top, *(f"{top}.{part}" for part in parts))
        ]
        wrong = next(iter(missing)).removeprefix("policy ")
        raise SimulateError(
            f"--scheduling: there is no setting {wrong}{suggestions.hint(wrong, names)}; there are "
            f"{', '.join(names)}",
            is_usage=True,
        )
    return settings


def _wrong_value(changes: Mapping[str, Any]) -> str:
    """Return the first value that a Cluster document could not have, and what is expected.

    Return an empty string if all values are possible or one of a few words.
    """
    scheduling: dict[str, Any] = {}
    for key, value in changes.items():
        name, _, part = key.partition(".")
        if part and isinstance(scheduling.setdefault(name, {}), dict):
            scheduling[name][part] = value
        elif not part:
            scheduling[name] = value
    document = {
        "apiVersion": "muster/v1",
        "kind": "Cluster",
        "metadata": {"name": "main"},
        "spec": {"scheduling": scheduling},
    }
    for fault in schema_errors.faults("Cluster", document, ""):
        place = fault.path[2:]
        if place and fault.found and not fault.expected.startswith("one of"):
            where = ".".join(map(str, place))
            return f"{where}: found {fault.found}, expected {fault.expected}"
    return ""


def _of_state(request: SimulationRequest) -> Prepared:
    others = [policy for policy in request.policies if policy != OWN]
    if others:
        message = (
            f"policy {others[0]} knows traces and made-up jobs only: {request.source} is a folder"
        )
        raise SimulateError(message, is_usage=True)
    assert request.source is not None  # noqa: S101 - for the type checker
    try:
        wanted = folder_check.read_folder(request.source)
    except scratch_repository.RevisionError as error:
        raise SimulateError(str(error)) from error
    errors = [p.text() for p in wanted.status.problems if p.severity == "error"]
    if errors:
        raise SimulateError(f"{request.source} has errors: {errors[0]}")
    if not wanted.jobs:
        raise SimulateError(f"{request.source} holds no job")
    structure = wanted.structure
    settings = _settings(request.scheduling, structure.settings)
    pools = {
        name: msgspec.structs.replace(pool, runs_unmapped=True, observe_only=False)
        for name, pool in structure.pools.items()
    }
    structure = msgspec.structs.replace(structure, settings=settings, pools=pools)
    wanted = msgspec.structs.replace(wanted, structure=structure)
    nodes = sum(len(pool.nodes) for pool in pools.values())
    total = len(wanted.jobs)
    elements = sum(len(job.run_elements) for job in wanted.jobs.values())
    of_elements = f" ({_counted(elements, 'element')})" if elements != total else ""
    name = _shown(request.source)
    title = f"{name}: {_counted(total, 'job')}{of_elements} on {_counted(nodes, 'node')}"
    return Prepared(request, title, total, structure, wanted=wanted, never=_never(wanted))


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def _never(wanted: desired.Desired) -> tuple[str, ...]:
    """Return deadlines and single windows that are too far after the begin of virtual time."""
    latest = trace_replay.BEGIN + SPAN_S_MAX
    late = [name for name, job in wanted.jobs.items() if (job.deadline or 0.0) > latest]
    windows = wanted.structure.reservations.items()
    once = [name for name, one in windows if not one.schedule and one.starts_at > latest]
    return (
        *(f"the deadline of Job/{name}" for name in sorted(late)),
        *(f"the window of Reservation/{name}" for name in sorted(once)),
    )


def _workload(request: SimulationRequest) -> workloads.Workload:
    source = request.source
    if source is None:
        units = request.nodes * request.per_node
        return workloads.generate(request.seed, request.jobs or 1000, units, request.load)
    form = request.form
    if form is None:
        name = source.name.removesuffix(".gz")
        form = "swf" if name.endswith(".swf") else "philly" if name.endswith(".csv") else None
    if form is None:
        raise SimulateError(
            f"the name of {source} does not tell its form: add --form philly or --form swf"
        )
    read = {"philly": workloads.read_philly, "swf": workloads.read_swf}.get(form)
    if read is None:
        raise SimulateError(
            f"--form: no form {found_values.quote(form)}; there are philly and swf", is_usage=True
        )
    return read_file(source, read)


def read_file(
    path: Path, read: Callable[[Iterator[str]], workloads.Workload]
) -> workloads.Workload:
    """Return a workload from a file, unpacked if it is gzip.

    Raises:
        SimulateError: it can't be read, or has another format.
    """
    try:
        with _lines(path) as lines:
            return read(lines)
    except workloads.WorkloadError as error:
        raise SimulateError(f"{path}: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise SimulateError(f"{path} can't be read: {why}") from error


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        # a mark of the byte order at the beginning is no part of a name; what is no UTF-8 costs the
        # row that it stands in
        with io.TextIOWrapper(
            stream, encoding="utf-8-sig", errors="surrogateescape", newline=""
        ) as text:
            yield _bounded(text)


def _bounded(text: io.TextIOWrapper) -> Iterator[str]:
    """Yield the lines, if there are no more and no longer ones than in a trace.

    Raises:
        WorkloadError: there are.
    """
    for number in range(1, workloads.LINES_MAX + 2):
        line = text.readline(workloads.LINE_MAX + 1)
        if not line:
            return
        if len(line) > workloads.LINE_MAX:
            raise workloads.WorkloadError(
                f"line {number} has more than {workloads.LINE_MAX:,} characters: it is no trace"
            )
        yield line
    raise workloads.WorkloadError(f"it has more than {workloads.LINES_MAX:,} lines; cut it")


def run(prepared: Prepared, progress: Progress | None = None) -> Iterator[trace_results.Run]:
    """Yield the run of each policy over the same jobs, with the same time limits.

    Args:
        progress: called with the policy and the number of its jobs that have ended.

    Raises:
        SimulateError: the simulation met a limit.
    """
    for policy in prepared.request.policies:
        report = None if progress is None else _telling(progress, policy)
        try:
            yield _one(prepared, policy, report)
        except SimulationError as error:
            raise SimulateError(str(error)) from error


def _telling(progress: Progress, policy: str) -> Callable[[int], None]:
    return lambda ended: progress(policy, ended)


def _one(
    prepared: Prepared, policy: str, progress: Callable[[int], None] | None
) -> trace_results.Run:
    request = prepared.request
    if prepared.wanted is not None:
        runs_s = trace_replay.drawn_runs(prepared.wanted, request.seed, request.default_run_s)
        return trace_replay.replay_state(prepared.wanted, runs_s, request.options, progress)
    workload = prepared.workload or workloads.Workload(())
    if policy == OWN:
        return trace_replay.replay_rows(
            workload, prepared.structure, request.per_node, request.options, progress
        )
    units = request.nodes * request.per_node
    found = gpu_pool.run(policy, workload, units, progress)
    found.guaranteed = workloads.guarantees(workload, units)
    return found
