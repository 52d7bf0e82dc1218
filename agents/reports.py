"""Reports of a node: to its controller with each request, and on its metrics page.

Both are made of the same values, so the page shows what the controller gets. Called under the
agent's lock; nothing here waits.
"""

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from agents import state
from agents.data import staging
from agents.job_data import reported_data
from agents.link import sync
from agents.node import inventory, monitor, remediation
from agents.settings import AgentSettings
from reconciler.model.observed import devices, task_reports, task_usage
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState


class AgentLife(msgspec.Struct, frozen=True):
    """Identity of an agent: its node's boot, its incarnation, and those that it follows.

    ``folder_proof`` is known to the agents of its root alone.
    """

    boot_id: str
    incarnation: str
    follows: tuple[str, ...]
    folder_proof: str


class AssignedAttempt(msgspec.Struct, frozen=True):
    """An attempt on the node, with its assignment."""

    report: records.AttemptReport
    assignment: agent_messages.Assignment
    template: agent_messages.TaskTemplate


class NodeSnapshot(msgspec.Struct, frozen=True):
    """The state of the node at one moment, for its metrics page.

    Attributes:
        pool: as the controller says.
        reported_at: when the controller last answered, by the wall clock.
        words: metrics by attempt.
        uses: usage by attempt.
    """

    node: str
    pool: str
    boot_id: str
    reported_at: float
    inventory: records.Inventory
    usage: records.NodeUsage
    attempts: tuple[AssignedAttempt, ...]
    gpu_usage: tuple[devices.GpuUsage, ...]
    words: dict[str, task_reports.TaskMetrics]
    uses: dict[str, task_usage.TaskUse]


class ReportSources(NamedTuple):
    """Where a report's values come from.

    Attributes:
        stages: returns state and note of attempts that have not started, by attempt.
        helpers: returns the process ids of the agent's helpers; 0 for one that does not run.
    """

    state: state.AgentState
    monitor: monitor.NodeMonitor
    job_data: reported_data.JobData
    remediation: remediation.RemediationQueue
    stager: staging.Stager
    stages: Callable[[], dict[str, tuple[AttemptState, str]]]
    helpers: Callable[[], tuple[int, ...]]


def held_attempts(node: state.AgentState) -> tuple[records.HeldAttempt, ...]:
    """Return what a node holds for each attempt that is alive."""
    return tuple(_held(node, name, given) for name, given in node.holders().items())[
        : state.REPORTS_MAX
    ]


def _held(
    node: state.AgentState, name: str, given: agent_messages.Assignment | None
) -> records.HeldAttempt:
    template = node.templates.get(given.template) if given else None
    if given is None or template is None:
        return records.HeldAttempt(name, assigned=False)
    return records.HeldAttempt(
        name,
        boot_id=given.boot_id,
        devices=given.devices,
        rank=given.rank,
        mig_profile=given.mig_profile,
        instances=given.instances,
        lease_s=template.lease_s,
        grace_s=template.grace_s,
        saves_every_s=given.saves_every_s,
        stop=given.stop,
    )


def _proofs(node: state.AgentState) -> dict[str, str]:
    """Return the proofs of what is on a node, ended attempts included."""
    here = (name for name in node.proofs if name in node.known or name in node.assignments)
    return {name: node.proofs[name] for name in itertools.islice(here, state.REPORTS_MAX)}


class Reports:
    """The reports of one agent."""

    def __init__(self, settings: AgentSettings, life: AgentLife, sources: ReportSources) -> None:
        self._settings = settings
        self._life = life
        self._sources = sources
        self._sampler = inventory.NodeUsageSampler(settings.root)
        self._usage = records.NodeUsage()
        self._sequence = 0
        self._reported_at = 0.0
        #: Assignments of attempts that are on the node, those included that are not desired now.
        self._given: dict[str, tuple[agent_messages.Assignment, agent_messages.TaskTemplate]] = {}

    def request(self, wait_s: float, *, complete: bool) -> agent_messages.SyncRequest:
        """Return the node's report.

        Args:
            wait_s: how long the controller may wait before it answers.
            complete: report all attempts, not only those that have changed.
        """
        sources, node = self._sources, self._sources.state
        stages = sources.stages()
        usage = self._sampler.usage(sources.helpers())
        if usage is not None:
            usage = self._usage = sources.stager.with_usage(usage)
        node.stages = {name: stage for name, (stage, _) in stages.items()}
        node.notes = {name: note for name, (_, note) in stages.items()}
        # a controller that asks for the inventory may know nothing of what is here
        reports, complete = node.reports(complete=complete or node.want_inventory)
        self._sequence += 1
        uses = sources.monitor.uses
        return agent_messages.SyncRequest(
            node=self._settings.name,
            boot_id=self._life.boot_id,
            incarnation=self._life.incarnation,
            have=node.have,
            wait_s=wait_s,
            complete=complete,
            sequence=self._sequence,
            attempts=tuple(
                sync.relative(report, str(self._settings.root))
                for report in sources.job_data.with_saved(map(uses.with_use, reports))
            ),
            inventory=sources.monitor.inventory if node.want_inventory else None,
            usage=usage,
            gpu_usage=sources.monitor.gpu_usage(),
            remedies=sources.remediation.reports(),
            task_metrics=sources.job_data.news(),
            task_use=uses.news(),
            follows=self._life.follows,
            accepts_unrenewed=True,
            folder_proof=self._life.folder_proof,
            held=held_attempts(node) if node.want_inventory else None,
            proofs=_proofs(node) if node.want_inventory else {},
        )

    def answered(
        self, request: agent_messages.SyncRequest, response: agent_messages.SyncResponse
    ) -> None:
        """Note what the controller has received, and what it wants to hear again."""
        sources = self._sources
        self._reported_at = time.time()
        if request.inventory is sources.monitor.inventory and response.renews:
            sources.state.want_inventory = False
        if response.want_inventory:
            sources.job_data.again()  # this controller knows nothing of the node yet

    def undelivered(self, request: agent_messages.SyncRequest) -> None:
        """Report the task metrics of a request again that did not arrive."""
        self._sources.job_data.again(request.task_metrics or ())

    def snapshot(self) -> NodeSnapshot | None:
        """Return the values of the metrics page; None until a controller has sent assignments.

        Before that the pool is unknown, and the series would have another name.
        """
        if self._sources.state.have == (0, 0):
            return None
        return NodeSnapshot(
            node=self._settings.name,
            pool=self._sources.state.pool,
            boot_id=self._life.boot_id,
            reported_at=self._reported_at,
            inventory=self._sources.monitor.inventory,
            usage=self._usage,
            attempts=self._attempts(),
            gpu_usage=self._sources.monitor.gpus_seen(),
            words=self._sources.job_data.newest(),
            uses=self._sources.monitor.uses.newest(),
        )

    def _attempts(self) -> tuple[AssignedAttempt, ...]:
        """Return attempts that have not ended, desired ones first, each in the order given.

        Attempts whose assignment this agent never got are left out: it was restarted after the
        controller had dropped them.
        """
        node = self._sources.state
        wanted = {
            name: (assignment, node.templates[assignment.template])
            for name, assignment in node.assignments.items()
            if assignment.template in node.templates and not node.has_ended(name)
        }
        left = {name: self._given.get(name) for name in node.running() if name not in wanted}
        self._given = wanted | {name: one for name, one in left.items() if one is not None}
        reports = self._sources.job_data.with_saved(
            node.known.get(name)
            or records.AttemptReport(name, node.stages.get(name, AttemptState.STARTING))
            for name in self._given
        )
        return tuple(AssignedAttempt(report, *self._given[report.id]) for report in reports)
