"""A controller for one node that does what a test says: real HTTP and wire types, no scheduler."""

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from reconciler.model.desired import MigPlan
from reconciler.model.observed.health_checks import CheckPlan
from reconciler.model.observed.job_commands import JobCommands
from reconciler.model.observed.storage import WantedVolume
from reconciler.model.protocol.agent_messages import (
    Assignment,
    AssignmentSet,
    LogChunk,
    LogRequest,
    SyncRequest,
    SyncResponse,
    TaskTemplate,
)
from reconciler.model.state.records import AttemptReport, Inventory, StopOrder
from reconciler.model.state.states import AttemptState, EndReason

DEADLINE_S = 120.0
#: Requests come in threads: types are learnt before.
_DECODE_CHUNK = msgspec.msgpack.Decoder(LogChunk).decode
_DECODE_REQUEST = msgspec.msgpack.Decoder(SyncRequest).decode


class Controller:
    """Holds the assignments, remembers the reports; every change wakes the polls."""

    def __init__(self) -> None:
        self.news = threading.Condition()
        self.epoch, self.version = 1, 1
        self.templates: dict[str, TaskTemplate] = {}
        self.assignments: dict[str, Assignment] = {}
        self.volumes: tuple[WantedVolume, ...] = ()
        self.mig: MigPlan | None = None
        self.pool = ""
        self.checks: CheckPlan | None = None
        self.job_commands = JobCommands()
        #: By how much the dates of its answers are off.
        self.clock_ahead_s = 0.0
        self.seen: dict[str, AttemptReport] = {}
        #: By which life of the agent, and which of its requests, each was last told of.
        self.told: dict[str, tuple[int, int]] = {}
        self.lives: dict[str, int] = {}
        #: Ends that an older request, coming later, would have hidden.
        self.crossed: list[str] = []
        self.listed_by = (0, 0)
        self.listed: tuple[str, ...] = ()
        self.acknowledge = False
        self.acknowledged: list[str] = []
        self.log_requests: list[LogRequest] = []
        self.chunks: dict[str, list[LogChunk]] = {}
        self.gone: set[str] = set()
        self.inventory: Inventory | None = None
        self.want_inventory = False
        self.requests: list[SyncRequest] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.poll_s = 5.0
        self.renews = True
        #: Whether calls without a token are refused; of those only that of a root agent is sent.
        self.is_guarded = True
        controller = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = controller.answer(self.path, body, dict(self.headers))
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def date_time_string(self, timestamp: float | None = None) -> str:
                at = time.time() if timestamp is None else timestamp
                return super().date_time_string(at + controller.clock_ahead_s)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """An agent that was killed leaves broken connections."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        with self.news:
            self.status = 503
            self.news.notify_all()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    # What the agent sees ---------------------------------------------------------------------

    def answer(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """One request."""
        if "/logs/" in path:
            chunk = _DECODE_CHUNK(body)
            with self.news:
                name = path.rsplit("/", 1)[1]
                self.chunks.setdefault(name, []).append(chunk)
                self.news.notify_all()
                return (410 if name in self.gone else 200), b""
        if not body:  # a root agent looks if strangers are refused
            return (401 if self.is_guarded else 200), b""
        request = _DECODE_REQUEST(body)
        with self.news:
            self.headers.append(headers)
            self.take(request)
            until = time.monotonic() + min(request.wait_s, 30.0)
            while self.status == 200 and self.renews and not self.has_news(request):
                if not self.news.wait(until - time.monotonic()):
                    break
            if self.status != 200:
                return self.status, b"no"
            return 200, msgspec.msgpack.encode(self.response(request))

    def take(self, request: SyncRequest) -> None:
        """Remember what a request says.

        An agent tells by two connections: a request that was made earlier may come later, from an
        agent that has died as well. What it says of an attempt that was told of since is nothing.
        """
        self.requests.append(request)
        self.inventory = request.inventory or self.inventory
        order = self.lives.setdefault(request.incarnation, len(self.lives)), request.sequence
        for report in request.attempts:
            if order < self.told.get(report.id, (0, 0)):
                before = self.seen.get(report.id)
                if before is not None and before.state is AttemptState.ENDED is not report.state:
                    self.crossed.append(report.id)
                continue
            self.told[report.id] = order
            self.seen[report.id] = report
            if report.state is AttemptState.ENDED and self.acknowledge:
                self.acknowledged.append(report.id)
                if self.assignments.pop(report.id, None):
                    self.version += 1
        if request.complete and order >= self.listed_by:
            self.listed_by = order
            self.listed = tuple(report.id for report in request.attempts)
        self.news.notify_all()

    def has_news(self, request: SyncRequest) -> bool:
        """Whether a request is to be answered now."""
        held = request.have != (self.epoch, self.version)
        return bool(held or self.acknowledged or self.log_requests or self.want_inventory)

    def response(self, request: SyncRequest) -> SyncResponse:
        """The answer to a request."""
        if not self.renews:
            return SyncResponse(self.epoch, request.have[1], poll_s=self.poll_s, renews=False)
        chosen = AssignmentSet(
            dict(self.templates), tuple(self.assignments.values()),
            volumes=self.volumes, mig=self.mig, checks=self.checks, pool=self.pool,
            job_commands=self.job_commands,
        )  # fmt: skip
        made = SyncResponse(
            epoch=self.epoch,
            version=self.version,
            set=chosen if request.have != (self.epoch, self.version) else None,
            acknowledged=tuple(self.acknowledged),
            want_inventory=self.want_inventory,
            poll_s=self.poll_s,
            log_requests=tuple(self.log_requests),
        )
        self.acknowledged, self.log_requests, self.want_inventory = [], [], False
        return made

    # What a test says ------------------------------------------------------------------------

    def change(self) -> None:
        """Let the agent know that something is different."""
        with self.news:
            self.version += 1
            self.news.notify_all()

    def assign(self, attempt: str, *command: str, template: Any = None, **fields: Any) -> None:
        """Assign an attempt."""
        made = template or TaskTemplate(job="job", run=1, group="g", command=command, grace_s=20)
        made = msgspec.structs.replace(made, allow_root=fields.pop("allow_root", True))
        with self.news:
            boot = fields.pop("boot_id", None) or self.boot_id()
            self.templates[f"t-{attempt}"] = made
            self.assignments[attempt] = Assignment(attempt, f"t-{attempt}", boot, **fields)
        self.change()

    def boot_id(self) -> str:
        """The boot that the node says it is at."""
        self.wait(lambda: bool(self.requests), "a first request")
        return self.requests[-1].boot_id

    def stop(
        self, attempt: str, *, signal: str = "SIGTERM", grace_s: int = 20,
        reason: EndReason = EndReason.CANCELLED, to: str = "",
    ) -> None:  # fmt: skip
        """Order an attempt to stop."""
        with self.news:
            order = StopOrder(reason, signal, grace_s, at=time.time(), to=to)
            given = self.assignments[attempt]
            self.assignments[attempt] = msgspec.structs.replace(given, stop=order)
        self.change()

    def remove(self, attempt: str) -> None:
        """Want an attempt no more."""
        with self.news:
            del self.assignments[attempt]
        self.change()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that has to come."""
        with self.news:
            until = time.monotonic() + DEADLINE_S
            while not condition():
                # Some conditions are of files and processes: nobody notifies of them.
                self.news.wait(0.02)
                if time.monotonic() > until:
                    raise AssertionError(f"{what} did not come; seen: {self.seen}")

    def ended(self, attempt: str) -> AttemptReport:
        """The report of an attempt's end, when it has come."""
        return self.in_state(attempt, AttemptState.ENDED)

    def in_state(self, attempt: str, state: AttemptState) -> AttemptReport:
        """The report of an attempt's state, when it has come."""
        self.wait(
            lambda: attempt in self.seen and self.seen[attempt].state is state,
            f"{state} of {attempt}",
        )
        return self.seen[attempt]

    def running(self, attempt: str) -> AttemptReport:
        """The report that an attempt runs, when it has come."""
        return self.in_state(attempt, AttemptState.RUNNING)
