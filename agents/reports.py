"""What a node says of itself: to its controller with each request, and to whoever scrapes it.

Both are made of the same values, held by the agent's state machine, its senses, its tasks' words
and its supervisor, so that a page at the node's own port shows what the controller hears. Called
under the agent's lock; nothing here waits.
"""

import threading
import time
from collections.abc import Callable

import msgspec

from agents import state
from agents.data import staging
from agents.host import operator_log
from agents.job_data import reported_data
from agents.link import sync
from agents.node import inventory, monitor, remediation
from agents.settings import AgentSettings, Listen
from reconciler.model.observed import devices, task_reports, task_usage
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState


class Life(msgspec.Struct, frozen=True):
    """Which agent it is that speaks: its node's boot, its incarnation, those that it follows."""

    boot_id: str
    incarnation: str
    follows: tuple[str, ...]


class GivenAttempt(msgspec.Struct, frozen=True):
    """One attempt that is on the node, with what it was given."""

    report: records.AttemptReport
    assignment: agent_messages.Assignment
    template: agent_messages.TaskTemplate


class Now(msgspec.Struct, frozen=True):
    """What is known of the node at one moment, for its page. ``pool`` is as its controller says.

    ``reported_at`` is when the controller last answered, by the wall clock; ``words`` are by
    attempt, ``uses`` too.
    """

    node: str
    pool: str
    boot_id: str
    reported_at: float
    inventory: records.Inventory
    usage: records.NodeUsage
    attempts: tuple[GivenAttempt, ...]
    gpu_usage: tuple[devices.GpuUsage, ...]
    words: dict[str, task_reports.TaskMetrics]
    uses: dict[str, task_usage.TaskUse]


class Reports:
    """Of one agent."""

    def __init__(
        self,
        settings: AgentSettings,
        life: Life,
        *,
        node: state.AgentState,
        senses: monitor.NodeMonitor,
        words: reported_data.JobData,
        remedies: remediation.Orders,
        stager: staging.Stager,
    ) -> None:
        self._settings = settings
        self._life = life
        self._node = node
        self._senses = senses
        self._words = words
        self._remedies = remedies
        self._stager = stager
        self._sampler = inventory.Sampler(settings.root)
        self._usage = records.NodeUsage()
        self._sequence = 0
        self._reported_at = 0.0
        #: What attempts were given that are on the node, also such as are wanted no more.
        self._given: dict[str, tuple[agent_messages.Assignment, agent_messages.TaskTemplate]] = {}

    def request(
        self,
        wait_s: float,
        *,
        complete: bool,
        stages: dict[str, tuple[AttemptState, str]],
        helpers: tuple[int, ...],
    ) -> agent_messages.SyncRequest:
        """What the node says now. ``stages`` are those of attempts that have not started, with what
        they wait for; ``helpers`` are processes of the agent's own."""
        usage = self._sampler.usage(helpers)
        if usage is not None:
            usage = self._usage = self._stager.with_usage(usage)
        self._node.stages = {name: stage for name, (stage, _) in stages.items()}
        self._node.notes = {name: note for name, (_, note) in stages.items()}
        reports, complete = self._node.reports(complete=complete)
        self._sequence += 1
        uses = self._senses.uses
        return agent_messages.SyncRequest(
            node=self._settings.name,
            boot_id=self._life.boot_id,
            incarnation=self._life.incarnation,
            have=self._node.have,
            wait_s=wait_s,
            complete=complete,
            sequence=self._sequence,
            attempts=tuple(
                sync.relative(one, str(self._settings.root))
                for one in self._words.with_saved(map(uses.with_use, reports))
            ),
            inventory=self._senses.inventory if self._node.want_inventory else None,
            usage=usage,
            gpu_usage=self._senses.gpu_usage(),
            remedies=self._remedies.reports(),
            task_metrics=self._words.news(),
            task_use=uses.news(),
            follows=self._life.follows,
            accepts_unrenewed=True,
        )

    def were_heard(self) -> None:
        """The controller has answered."""
        self._reported_at = time.time()

    def now(self) -> Now | None:
        """What the node's page is made of; None until a controller has said what it is to have,
        and so in which pool it is: under another name its series would be others."""
        if self._node.have == (0, 0):
            return None
        return Now(
            node=self._settings.name,
            pool=self._node.pool,
            boot_id=self._life.boot_id,
            reported_at=self._reported_at,
            inventory=self._senses.inventory,
            usage=self._usage,
            attempts=self._attempts(),
            gpu_usage=self._senses.gpus_seen(),
            words=self._words.newest(),
            uses=self._senses.uses.newest(),
        )

    def _attempts(self) -> tuple[GivenAttempt, ...]:
        """Attempts that have not ended, those that are wanted first, each in the order given.

        One that this agent never heard of, as one begun anew while the controller wants it no more,
        is left out.
        """
        node = self._node
        wanted = {
            name: (one, node.templates[one.template])
            for name, one in node.assignments.items()
            if one.template in node.templates and not node.has_ended(name)
        }
        left = {name: self._given.get(name) for name in node.running() if name not in wanted}
        self._given = wanted | {name: one for name, one in left.items() if one is not None}
        reports = self._words.with_saved(
            node.known.get(name)
            or records.AttemptReport(name, node.stages.get(name, AttemptState.STARTING))
            for name in self._given
        )
        return tuple(GivenAttempt(one, *self._given[one.id]) for one in reports)


def open_port(
    listen: Listen | None,
    now: Callable[[], Now | None],
    leaving: threading.Event,
    tells: operator_log.Console,
    notice: Callable[[str], None],
) -> tuple[Callable[[], None], ...]:
    """Open the node's own port, where one is asked for; what threads are to do for it.

    One that is taken is waited for: ``notice`` is then called by those threads with what the node
    is to report of it, and with nothing when it is over.

    Raises:
        OSError: by these options it can't be had at all.
        tasks.UnfitError: its token is not fit.
    """
    if listen is None:
        return ()
    from agents.exporter import metrics_page, metrics_server  # noqa: PLC0415 - most have no port

    page = metrics_page.NodePage(now, leaving)
    return page.turn, metrics_server.Door(listen, page, leaving, tells, notice).turn
