"""Sessions of nodes between two syncs: what to send to each, and which agent holds it.

One session a node: the agent that holds it is known by boot id and incarnation. Another agent is
refused while the holder is connected or was a short while ago, unless it follows the holder in the
same root, whose lock makes sure that the holder is gone. A secret of the root proves that it is the
same; who can't prove it also waits for the leases. `Session.is_sure` decides on lease renewals.
"""

import asyncio
import hmac
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from reconciler.model.observed import devices, task_reports, task_usage
from reconciler.model.protocol import agent_messages, loop_messages, session_messages
from reconciler.model.state import records

#: The most nodes that are remembered; a report of a further one is refused.
NODES_MAX = 50_000
#: The most acknowledgements and log requests that wait for one node.
ACKNOWLEDGED_MAX = 100_000
LOG_REQUESTS_MAX = 64
#: The most sessions of people that one node is asked for in one answer.
SESSION_REQUESTS_MAX = 256
#: Of how many tasks of a node, ended ones included, it is kept what they wrote of their work.
METRICS_TASKS_MAX = 1024
#: How many polls a holder may be silent before another agent takes its place.
SILENT_POLLS = 2
#: A contact that the loop surely knows of counts for one lease, and for this long at most where
#: leases are longer or there is none: after it the loop has to say how the node stands.
SURE_S_MAX = 120.0
#: A request that came in so soon after a contact that the loop knows of may renew leases though the
#: loop is not told of its answer: with the second by which it may hear late, that is the margin.
UNTOLD_S_MAX = 1.0


class Busy(msgspec.Struct, frozen=True):
    """The reason for which an agent is refused."""

    message: str
    retry_after_s: float


class TakenNews(NamedTuple):
    """News for a node that an answer tells beside its assignments."""

    acknowledged: tuple[str, ...] = ()
    log_requests: tuple[agent_messages.LogRequest, ...] = ()
    session_requests: tuple[session_messages.SessionRequest, ...] = ()


class Session:
    """Session of one node."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.epoch = 0
        self.version = 0
        self.payload: bytes | None = None
        self.acknowledged: dict[str, None] = {}
        self.log_requests: dict[str, agent_messages.LogRequest] = {}
        #: Sessions of people that the holder is to serve, by name.
        self.session_requests: dict[str, session_messages.SessionRequest] = {}
        self.holder: tuple[str, str] | None = None
        #: The agent that last told what it holds, by boot and incarnation.
        self.held_told: tuple[str, str] | None = None
        #: What the holder proves its root by; empty: it is of a version that can't.
        self.proof = ""
        self.exchange = 0
        #: The first sync of the holder; earlier ones are another agent's.
        self.first = 0
        self.open = False
        self.closed = True
        self.heard_at = 0.0
        self.told: tuple[object, ...] = ()
        self.changed = asyncio.Event()
        self.released = False
        #: Last reported usage of the node, and the time of its last report by the wall clock.
        self.usage: records.NodeUsage | None = None
        self.reported_at = 0.0
        #: The shortest lease of the node's tasks, from the loop's last message.
        self.lease_s: float | None = None
        #: When the newest contact was that the loop surely knows of; None: it may know of none.
        self.known_at: float | None = None
        #: The question that was put last, when, and whether it is still open.
        self.question = 0
        self.asked_at = 0.0
        self.asking = False
        #: Last reported usage of the node's GPUs.
        self.gpu_usage: tuple[devices.GpuUsage, ...] = ()
        #: What its tasks last wrote of their work, by attempt, the newest last.
        self.task_metrics: dict[str, task_reports.TaskMetrics] = {}
        #: What those that run used when it was last sampled, by attempt.
        self.task_use: dict[str, task_usage.TaskUse] = {}

    def hear(self, told: tuple[task_reports.TaskMetrics, ...]) -> None:
        """Take over what tasks wrote of their work; those that wrote longest ago give way."""
        for one in told[: task_reports.TASKS_MAX]:
            self.task_metrics.pop(one.attempt, None)
            self.task_metrics[one.attempt] = task_reports.bounded(one)
        while len(self.task_metrics) > METRICS_TASKS_MAX:
            del self.task_metrics[next(iter(self.task_metrics))]

    def hear_use(self, told: tuple[task_usage.TaskUse, ...], now: float) -> None:
        """Take over what the tasks that run use: others run no more."""
        bounded = (task_usage.bounded(one, now) for one in told[: task_usage.TASKS_MAX])
        self.task_use = {one.attempt: one for one in bounded}

    def newest(self, record: records.NodeRecord) -> records.NodeRecord:
        """Return a node's record with times and usage reported since; those are stored late."""
        reported_at = max(self.reported_at, record.last_report_at)
        usage = record.usage
        if self.usage is not None and self.usage.at >= usage.at:
            usage = self.usage
        return msgspec.structs.replace(record, last_report_at=reported_at, usage=usage)

    def update(self, message: loop_messages.NodeUpdate) -> None:
        """Take over what the loop has to tell the node."""
        self.epoch, self.version = message.epoch, message.version
        self.lease_s = message.lease_s
        if message.doubts:
            self.doubt()
        if self.asking and message.confirms == self.question:
            self.asking = False
            self.known(self.asked_at)
        if message.payload is not None:
            self.payload = message.payload or None
        room = ACKNOWLEDGED_MAX - len(self.acknowledged)
        self.acknowledged |= dict.fromkeys(message.acknowledged[:room])
        self.changed.set()

    def forget_orders(self) -> None:
        """Forget the assignments: the loop, possibly another one, sends them again."""
        self.doubt()
        self.epoch, self.version, self.payload = 0, 0, None
        self.acknowledged.clear()

    def has_set_for(self, have: tuple[int, int]) -> bool:
        """Return True if the assignments differ from those the node has."""
        return self.payload is not None and have != (self.epoch, self.version)

    def has_news_for(self, have: tuple[int, int]) -> bool:
        """Return True if there is anything to send."""
        asked = self.acknowledged or self.log_requests or self.session_requests
        return bool(asked) or self.has_set_for(have)

    def ask_for(self, request: session_messages.SessionRequest) -> None:
        """Have the holder asked for a session of somebody, if there is room."""
        if len(self.session_requests) < SESSION_REQUESTS_MAX:
            self.session_requests[request.id] = request
            self.changed.set()

    def enter(
        self,
        who: tuple[str, str],
        poll_s: float,
        now: float,
        follows: tuple[str, ...] = (),
        proof: str = "",
    ) -> int | Busy:
        """Begin an exchange; returns its number, or why the agent is turned away.

        ``follows`` are incarnations that are known to be gone, if ``proof`` is the holder's.
        """
        if self.holder is not None and self._is_kept(who, poll_s, now, follows, proof):
            left_s = self._silent_s(poll_s, proof) - (0.0 if self.open else now - self.heard_at)
            return Busy(
                f"node {self.node}: another agent has this name. To fix: stop it, or give this one "
                "a name of its own. If there is no other, and this node lost its state folder, it "
                f"joins by itself within {math.ceil(max(left_s, 1.0))} s",
                max(poll_s, 1.0),
            )
        self.exchange += 1
        if self.holder != who:
            self.holder, self.first, self.proof = who, self.exchange, proof
            self.session_requests.clear()  # their tickets are for the agent before
        self.open, self.closed = True, False
        self.heard_at = now
        # an older exchange of the same agent that still waits has nothing more to wait for
        self.changed.set()
        return self.exchange

    def _is_kept(
        self,
        who: tuple[str, str],
        poll_s: float,
        now: float,
        follows: tuple[str, ...],
        proof: str,
    ) -> bool:
        """Return True if the session stays with its holder.

        Without the proof of a holder that has one, nobody speaks for its node while it may be
        there or its tasks may run: what such a report leaves out would count as lost.
        """
        is_silent = not self.open and now - self.heard_at >= self._silent_s(poll_s, proof)
        if self.proof and not self._is_proven(proof):
            return not is_silent
        if self.holder is None or self.holder == who or self.closed:
            return False
        if self._is_proven(proof) and self.holder[1] in follows:
            return False
        return not is_silent

    def _is_proven(self, proof: str) -> bool:
        return bool(self.proof) and hmac.compare_digest(self.proof, proof)

    def _silent_s(self, poll_s: float, proof: str) -> float:
        """Return how long the holder has to be silent before somebody else gets the session."""
        silent_s = SILENT_POLLS * poll_s
        if self.proof and not self._is_proven(proof):
            return max(silent_s, self.lease_s or 0.0)
        return silent_s

    def leave(self, exchange: int, now: float, *, closed: bool) -> None:
        """End an exchange; ``closed`` where its connection was cut."""
        if exchange == self.exchange:
            self.open, self.closed = False, closed
            self.heard_at = now
        elif closed and exchange >= self.first and not self.open:
            # an older request of the same agent, which will come again or is gone
            self.closed = True

    async def wait(self, exchange: int, have: tuple[int, int], wait_s: float) -> None:
        """Wait until there is news, the exchange is not the newest, or time is up."""
        try:
            async with asyncio.timeout(wait_s):
                while (
                    exchange == self.exchange and not self.released and not self.has_news_for(have)
                ):
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return

    def known(self, at: float) -> None:
        """Note that every cycle that begins from now on knows of a contact at ``at``."""
        self.known_at = at if self.known_at is None else max(self.known_at, at)

    def is_sure(self, now: float, poll_s: float, part: float = 1.0) -> bool:
        """Return True if no cycle can have given the node's work up.

        The loop gives work up no sooner than a lease, a grace and a margin after the last contact
        it knows of, and only if the node missed several polls. So the session keeps the time of the
        newest contact that any later cycle knows of: the last answer that the loop was told in
        time, or the time of a question that it has confirmed. While that is less than a lease or
        two polls ago, the node is answered at once; otherwise the loop is asked.

        With a ``part`` below 1, return True if that holds for the rest of that time as well.
        """
        if self.known_at is None:
            return False
        lease_s = SURE_S_MAX if self.lease_s is None else self.lease_s
        sure_s = min(max(lease_s, SILENT_POLLS * poll_s), SURE_S_MAX)
        return now - self.known_at < sure_s * part

    def doubt(self) -> None:
        """Let the loop say anew how the node stands, whatever it said before."""
        self.known_at, self.asking = None, False
        self.changed.set()

    def may_renew_untold(self, entered_at: float) -> bool:
        """Return True if a request renews so little that the loop need not know."""
        return self.known_at is not None and entered_at - self.known_at <= UNTOLD_S_MAX

    def ask(self, now: float) -> int:
        """Put the next question to the loop; its number."""
        self.question += 1
        self.asked_at, self.asking = now, True
        return self.question

    async def settle(self, wait_s: float, exchange: int | None) -> None:
        """Wait until the open question is confirmed or will not be, or time is up.

        An ``exchange`` waits only while it is the newest; None waits on.
        """
        question = self.question
        try:
            async with asyncio.timeout(wait_s):
                while (
                    self.asking
                    and self.question == question
                    and exchange in (None, self.exchange)
                    and not self.released
                ):
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return

    def take(self) -> "TakenNews":
        """Return acknowledgements and requests, and forget them."""
        taken = TakenNews(
            tuple(self.acknowledged),
            tuple(self.log_requests.values()),
            tuple(self.session_requests.values()),
        )
        self.acknowledged.clear()
        self.log_requests.clear()
        self.session_requests.clear()
        return taken


class Sessions:
    """Sessions of all nodes, by name."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._by_node: dict[str, Session] = {}
        self.clock = clock

    def get(self, node: str) -> Session | None:
        """Return the session of a node that has reported, or that the loop has something for."""
        return self._by_node.get(node)

    def counts(self) -> tuple[int, int]:
        """Return how many nodes have an open request, and how many others have reported."""
        held = [one.open for one in self._by_node.values() if one.holder is not None]
        return sum(held), len(held) - sum(held)

    def gpu_usage(self, node: str) -> tuple[devices.GpuUsage, ...]:
        """Return the last reported usage of a node's GPUs; empty if there is none."""
        session = self._by_node.get(node)
        return () if session is None else session.gpu_usage

    def task_metrics(self, node: str, attempt: str) -> task_reports.TaskMetrics | None:
        """Return the last metrics of a task on a node, if they are still known."""
        session = self._by_node.get(node)
        return None if session is None else session.task_metrics.get(attempt)

    def task_use(self, node: str, attempt: str) -> task_usage.TaskUse | None:
        """Return the last sampled usage of a task on a node, if known."""
        session = self._by_node.get(node)
        return None if session is None else session.task_use.get(attempt)

    def of(self, node: str) -> Session | None:
        """Return the session of a node, created if there is room; None otherwise."""
        session = self._by_node.get(node)
        if session is None and len(self._by_node) < NODES_MAX:
            session = self._by_node[node] = Session(node)
        return session

    def forget(self, node: str) -> None:
        """Forget a node. If it comes again, it gets a new session."""
        self._by_node.pop(node, None)

    def update(self, message: loop_messages.NodeUpdate) -> None:
        """Take over what the loop has to tell a node."""
        session = self.of(message.node)
        if session is not None:
            session.update(message)

    def forget_orders(self) -> None:
        """Forget the assignments of every node: the loop sends them again."""
        for session in self._by_node.values():
            session.forget_orders()

    def release(self) -> None:
        """Let everybody who waits go: the server stops."""
        for session in self._by_node.values():
            session.released = True
            session.changed.set()
