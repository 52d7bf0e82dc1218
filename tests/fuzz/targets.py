"""What is fuzzed: one function for each reader of input that nobody checked before it.

A function takes bytes. It raises nothing but ``AssertionError`` for a broken promise; an error that
the reader documents is its good answer. What it takes of the processor is measured by the caller.
"""

import posixpath
from collections.abc import Callable

import msgspec

from agents.job_data import metric_lines
from agents.state import ATTEMPT_PATTERN
from agents.tasks.node_context import NodeContext
from reconciler.desired.documents import document_reader
from reconciler.model.observed import task_reports
from reconciler.model.protocol import agent_messages
from reconciler.model.values import hostlists
from reconciler.server import agent_sync, errors

_NODE = "n1"
_ROOT = "/var/lib/muster-agent"
#: Larger lists are only expanded, so that what is slow is one expansion.
_FOLDED_MAX = 2_000
_encode = msgspec.msgpack.encode


def documents(data: bytes) -> None:
    """Read a file of the repository, explain its faults, and read what is sound again."""
    file = document_reader.read(data)
    document_reader.problems("fuzz.yaml", data, file)
    if file.error is not None:
        return
    for document in file.documents:
        assert document.index >= 0
        assert document.faults or document.kind, "neither a kind nor a fault"


def sync_requests(data: bytes) -> None:
    """Read a node's report, as MessagePack or as what it would be if its fields were random."""
    _sync(data)
    # a header that is right lets the rest get further than the first field
    head = {"node": _NODE, "protocol": agent_messages.PROTOCOL_VERSION}
    try:
        fields = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return
    if isinstance(fields, dict):
        _sync(_encode({**fields, **head}))


def _sync(body: bytes) -> None:
    try:
        request = agent_sync.parse(_NODE, body)
    except errors.Failure as failure:
        assert 400 <= failure.status < 500  # noqa: PT017 - no test, and no pytest here
        return
    assert request.node == _NODE
    _encode(request)


def metric_texts(data: bytes) -> None:
    """Read lines that a task wrote to its file of metrics."""
    reader = metric_lines.ParsedMetrics("a-1")
    for line in data.split(b"\n"):
        for metric in reader.take(line, 1e9):
            assert len(metric.name) <= task_reports.NAME_CHARACTERS_MAX
            assert metric.name.isprintable()
    assert len(reader.newest) <= task_reports.SERIES_MAX
    assert len(reader.problem) <= task_reports.PROBLEM_CHARACTERS_MAX
    saved = reader.checkpoint
    if saved is not None:
        below = posixpath.normpath(f"/checkpoints/{saved.path}")
        assert below.startswith("/checkpoints/"), saved.path


def attempt_paths(data: bytes) -> None:
    """Make the folder of an attempt from a name that a controller sent, as logs are looked for."""
    name = data.decode("utf-8", "surrogateescape")
    if not ATTEMPT_PATTERN.fullmatch(name):
        return
    folder = NodeContext(_NODE, _ROOT, "/shared").attempt_folder(name)
    assert posixpath.normpath(folder) == folder
    assert posixpath.dirname(folder) == f"{_ROOT}/attempts"
    assert name.isprintable()


def host_lists(data: bytes) -> None:
    """Expand a host list and fold it again."""
    try:
        names = hostlists.expand(data.decode("utf-8", "replace"))
    except hostlists.HostListError as error:
        assert len(str(error)) < 10_000  # noqa: PT017 - the same
        return
    assert names
    assert len(names) <= hostlists.HOSTS_MAX
    assert all(hostlists.is_name(name) for name in names)
    if len(names) <= _FOLDED_MAX:
        assert hostlists.expand(hostlists.fold_in_order(names)) == names


TARGETS: dict[str, Callable[[bytes], None]] = {
    "documents": documents,
    "sync_requests": sync_requests,
    "metric_texts": metric_texts,
    "attempt_paths": attempt_paths,
    "host_lists": host_lists,
}
