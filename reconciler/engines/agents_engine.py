"""The native engine: one assignment set per node, rebuilt when a decision touches the node.

Actions of a committed outcome name the nodes to update. Each gets its whole set of attempts, never
a difference, and the ended attempts that it may forget. Sets are encoded here once; the server
passes the bytes on.
"""

import hmac
import secrets
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from reconciler.engines import assignment_proofs
from reconciler.model import desired
from reconciler.model.observed import health_checks, job_commands, storage
from reconciler.model.policy import drift_kinds
from reconciler.model.protocol import agent_messages, loop_messages
from reconciler.model.state import identifiers, outcome, records
from reconciler.model.state.states import AttemptState
from reconciler.model.values import hostlists

#: Frameworks whose tasks prove to each other that they are of one gang.
_SECRETIVE = frozenset({"mpi", "ray"})


class _Watched(msgspec.Struct, frozen=True):
    """The plan of a node besides its tasks: checks, volumes, MIG layout, pool and commands."""

    checks: health_checks.CheckPlan | None
    volumes: tuple[storage.WantedVolume, ...]
    mig: desired.MigPlan | None
    pool: str
    job_commands: job_commands.JobCommands


class EngineState(Protocol):
    """The part of ``ObservedState`` that the engine reads."""

    @property
    def jobs(self) -> Mapping[str, records.JobRecord]:
        """The newest runs, by name."""

    @property
    def quarantined(self) -> Mapping[str, records.JobRecord]:
        """Quarantined jobs, whose tasks go on."""

    @property
    def attempts(self) -> Mapping[str, records.AttemptRecord]:
        """Attempts of tries that are not concluded, by id."""

    @property
    def attempts_by_node(self) -> Mapping[str, Mapping[str, None]]:
        """Ids of attempts that have not ended, by node."""

    @property
    def nodes(self) -> Mapping[str, records.NodeRecord]:
        """Nodes by name."""

    @property
    def remedies(self) -> tuple[drift_kinds.DriftRemedy, ...]:
        """Remediations of the last day."""


class AgentsEngine:
    """The assignment sets of all nodes, by epoch and version.

    The engine does not place tasks. It can preempt and signal, and streams logs through the agents'
    own connection.

    Args:
        epoch: of the leader.
        proofs: makes those of assignments; None: by a key that ends with the engine.
    """

    places_tasks = False
    can_preempt = True
    can_signal = True
    can_stream_logs = True

    def __init__(
        self, epoch: int, proofs: assignment_proofs.AssignmentProofs | None = None
    ) -> None:
        self.epoch = epoch
        #: Makes and judges the proofs of assignments.
        self.proofs = proofs or assignment_proofs.AssignmentProofs()
        self._versions: dict[str, int] = {}
        #: The last plan of each node.
        self._plans: dict[str, _Watched] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._key = secrets.token_bytes(32)
        #: Gangs that wait for images, by job, element and try; cleared by each outcome.
        self._holding: dict[tuple[str, int, int], bool] = {}

    def apply(
        self,
        actions: Iterable[outcome.Action],
        structure: desired.Structure,
        state: EngineState,
    ) -> list[loop_messages.NodeUpdate]:
        """Return the updates that follow from the actions of a committed outcome, one per node."""
        return [
            self.update(node, structure, state, acknowledged)
            for node, acknowledged in self.touched(actions).items()
        ]

    def touched(self, actions: Iterable[outcome.Action]) -> dict[str, tuple[str, ...]]:
        """Return the nodes to update, with the ended attempts they may forget.

        Call ``update`` for each, or use ``apply``.
        """
        self._holding.clear()
        changed: dict[str, None] = {}
        acknowledged: dict[str, list[str]] = {}
        for action in actions:
            if isinstance(action, outcome.RunProvisioner):
                continue  # no node hears of it
            if isinstance(action, outcome.Acknowledge):
                acknowledged.setdefault(action.node, []).append(action.attempt)
            changed.setdefault(action.node)
        return {node: tuple(acknowledged.get(node, ())) for node in changed}

    def planned(self, state: EngineState) -> list[str]:
        """Return the nodes that have a plan."""
        return [node for node in self._plans if node in state.nodes]

    def is_behind(self, node: str, structure: desired.Structure, state: EngineState) -> bool:
        """Return True if a node's plan differs from what its pool asks for now."""
        return self._plans.get(node) != _watched(node, structure, state)

    def update(
        self,
        node: str,
        structure: desired.Structure,
        state: EngineState,
        acknowledged: tuple[str, ...] = (),
    ) -> loop_messages.NodeUpdate:
        """Return the node's whole set under a new version.

        It is empty as long as somebody has to say if what the node reports is true: what runs there
        goes on, and its leases are renewed.
        """
        version = self._versions.get(node, 0) + 1
        self._versions[node] = version
        wanted, record = self._set(node, structure, state), state.nodes.get(node)
        leases = [
            template.lease_s
            for template in wanted.templates.values()
            if template.lease_s is not None
        ]
        return loop_messages.NodeUpdate(
            node=node,
            epoch=self.epoch,
            version=version,
            payload=b"" if record and record.unproven else self._encoder.encode(wanted),
            acknowledged=acknowledged,
            lease_s=min(leases, default=None),
        )

    def _set(
        self, node: str, structure: desired.Structure, state: EngineState
    ) -> agent_messages.AssignmentSet:
        templates: dict[str, agent_messages.TaskTemplate] = {}
        assignments = []
        for attempt_id in state.attempts_by_node.get(node, ()):
            attempt = state.attempts[attempt_id]
            job = state.jobs.get(attempt.job) or state.quarantined.get(attempt.job)
            if job is None or attempt.state is AttemptState.ENDED:
                continue
            alike = identifiers.template_id(job.spec, attempt.group)
            template = f"{alike}.{attempt.lease_s}.{attempt.grace_s}"
            if template not in templates:
                record = state.nodes.get(node)
                templates[template] = self._template(job.spec, attempt, structure, record)
            assignments.append(
                agent_messages.Assignment(
                    attempt=attempt.id,
                    template=template,
                    boot_id=attempt.boot_id,
                    element=attempt.element,
                    index=attempt.index,
                    try_number=attempt.try_number,
                    array_count=_array_size(job.spec),
                    array_bounds=_array_bounds(job.spec),
                    devices=attempt.devices,
                    rank=attempt.rank,
                    stop=attempt.stop,
                    share_milli=attempt.share_milli or 1000,
                    mig_profile=attempt.mig_profile,
                    instances=attempt.instances,
                    addresses=_addresses(attempt, state),
                    secret=self._secret(attempt) if job.spec.framework in _SECRETIVE else "",
                    saved=_saved(job, attempt.element),
                    hold=self._holds(job.spec, attempt, state),
                    saves_every_s=attempt.saves_every_s,
                    proof=self.proofs.of(attempt.id, node),
                )
            )
        remedies = tuple(remedy for remedy in state.remedies if remedy.open and remedy.node == node)
        watched = self._plans[node] = _watched(node, structure, state)
        return agent_messages.AssignmentSet(
            templates=templates,
            assignments=tuple(assignments),
            remedies=remedies,
            checks=watched.checks,
            volumes=watched.volumes,
            mig=watched.mig,
            pool=watched.pool,
            job_commands=watched.job_commands,
        )

    def _holds(self, spec: desired.Job, attempt: records.AttemptRecord, state: EngineState) -> bool:
        """Return True if a task has to wait for an image of its gang."""
        if not spec.waits_for_images:
            return False
        gang = (attempt.job_key, attempt.element, attempt.try_number)
        if gang not in self._holding:
            names = (
                identifiers.attempt_id(spec, attempt.element, group.name, index, gang[2])
                for group in spec.groups
                for index in range(group.count)
            )
            found = filter(None, map(state.attempts.get, names))
            self._holding[gang] = any(one.lacks_image for one in found)
        return self._holding[gang]

    def _secret(self, attempt: records.AttemptRecord) -> str:
        """Return the secret that the tasks of a try share.

        It changes with the leader: a gang that is started half by one leader and half by the next
        does not come together, and is tried again.
        """
        what = f"{attempt.job_key} {attempt.element} {attempt.try_number}".encode()
        return hmac.digest(self._key, what, "sha256").hex()

    def _template(
        self,
        spec: desired.Job,
        attempt: records.AttemptRecord,
        structure: desired.Structure,
        node: records.NodeRecord | None,
    ) -> agent_messages.TaskTemplate:
        group = next(group for group in spec.groups if group.name == attempt.group)
        pool = structure.pools.get(node.pool) if node else None
        checkpoint = spec.checkpoint
        user = structure.unix_users.get(spec.owner)
        return agent_messages.TaskTemplate(
            job=spec.name,
            run=spec.run,
            group=group.name,
            command=group.command,
            script=group.script,
            environment=group.environment,
            working_directory=spec.working_directory,
            checkpoint_path=checkpoint.path if checkpoint else None,
            checkpoint_signal=checkpoint.signal if checkpoint else "SIGTERM",
            saves=checkpoint.rule if checkpoint else None,
            image_timeout_s=spec.image_timeout_s,
            mps=pool is not None and pool.sharing == "mps",
            grace_s=attempt.grace_s,
            lease_s=attempt.lease_s,
            user=user,
            allow_root=pool is not None
            and (pool.runs_unmapped if user is None else pool.allow_root),
            framework=spec.framework,
            told=_told(spec, group, structure),
            cpu_milli=group.resources.cpu_milli,
            memory_bytes=group.resources.memory_bytes,
            runtime=spec.runtime,
            image=spec.image,
            secrets=spec.secrets,
            mounts=_mounts(spec, structure),
            volumes=tuple(
                name for name in spec.storage if _mounted(structure.volumes.get(name)) is not None
            ),
            stage=_stage(spec, structure),
            privileges="restricted" if pool is None else pool.privileges,
            scratch_bytes=(pool.scratch_limit_bytes or 0) if pool is not None else 0,
            owner=spec.owner,
            checkpoint_to=checkpoint.to if checkpoint else "",
            submitted=spec.submitted,
            modules=spec.modules,
            arguments=group.arguments,
            files=spec.files,
            code=spec.code,
        )


def _addresses(attempt: records.AttemptRecord, state: EngineState) -> dict[str, str]:
    """Return the addresses of a gang's nodes."""
    if not attempt.rank.hosts:
        return {}
    nodes = {name: state.nodes.get(name) for name in hostlists.expand(attempt.rank.hosts)}
    return {name: node.inventory.address for name, node in nodes.items() if node is not None}


def _saved(job: records.JobRecord, element: int) -> str:
    """Return the newest checkpoint of an element's earlier tries."""
    note = job.notes.get(element)
    return note.saved.path if note is not None and note.saved is not None else ""


def _mounts(spec: desired.Job, structure: desired.Structure) -> tuple[tuple[str, bool], ...]:
    """Return the folders of a job's volumes, as containers see them."""
    found = (structure.volumes.get(name) for name in spec.volumes)
    return tuple(
        (volume.mount_path, bool(volume.read_only)) for volume in filter(None, map(_mounted, found))
    )


def _mounted(volume: desired.Volume | None) -> desired.Volume | None:
    """Return a volume if it exists and nodes mount it."""
    return volume if volume is not None and volume.objects is None else None


def _stage(spec: desired.Job, structure: desired.Structure) -> storage.StagingPlan:
    """Return what each task copies from and to existing volumes."""
    if not (spec.stage.ins or spec.stage.outs):
        return storage.StagingPlan()
    known = structure.volumes
    return storage.StagingPlan(
        tuple(
            storage.In(
                item.name, known[item.volume].store(), item.path, item.sha256, item.checksums
            )
            for item in spec.stage.ins
            if item.volume in known
        ),
        tuple(
            storage.Out(item.path, known[item.volume].store(), item.to, item.when)
            for item in spec.stage.outs
            if item.volume in known
        ),
        float(spec.stage.timeout_s),
    )


def _watched(node: str, structure: desired.Structure, state: EngineState) -> _Watched:
    """Return what the pool of a node asks for, and the volumes that the node mounts."""
    record = state.nodes.get(node)
    pool = record.pool if record else ""
    volumes = tuple(
        storage.WantedVolume(
            volume.name,
            volume.mount_path,
            volume.file_system,
            volume.source,
            volume.read_only is False,
        )
        for volume in structure.volumes.values()
        if pool and volume.objects is None and (not volume.pools or pool in volume.pools)
    )
    declared = structure.pools.get(pool)
    commands = declared.job_commands if declared is not None else job_commands.JobCommands()
    return _Watched(plan_of(node, structure, state), volumes, _cut(declared), pool, commands)


def _cut(pool: desired.Pool | None) -> desired.MigPlan | None:
    """Return the MIG layout of a pool's devices; None if they are left alone."""
    if pool is None or pool.observe_only or not pool.node_resources.gpu_milli:
        return None
    return desired.MigPlan(pool.mig, pool.mig_take_over)


def plan_of(
    node: str, structure: desired.Structure, state: EngineState
) -> health_checks.CheckPlan | None:
    """Return the checks that a node was given: those of its pool, or that its disk is not full."""
    record = state.nodes.get(node)
    pool = structure.pools.get(record.pool) if record else None
    if pool is not None and record is not None and record.given is not None:
        return msgspec.structs.replace(record.given.plan, trial=bool(record.given.trial))
    return (pool.checks or health_checks.FULL_DISK) if pool else None


def _told(
    spec: desired.Job, group: desired.TaskGroup, structure: desired.Structure
) -> dict[str, str]:
    """Return environment variables of a group's tasks that the node itself can't know."""
    told = {"MUSTER_RUN_ID": identifiers.run_folder(spec.run, spec.owner, spec.hash)}
    if spec.is_elastic:
        told["MUSTER_TASKS_MIN"] = str(group.least)
        told["MUSTER_TASKS_MAX"] = str(group.count)
    for name in spec.volumes:
        volume = _mounted(structure.volumes.get(name))
        if volume is not None:
            told[f"MUSTER_VOLUME_{name.upper().replace('-', '_')}"] = volume.mount_path
    return told


def _array_size(spec: desired.Job) -> int | None:
    """Return the number of elements of an array, whichever this run has; None: it is none."""
    return None if spec.array_count is None else len(spec.array_indexes_all)


def _array_bounds(spec: desired.Job) -> tuple[int, int] | None:
    """Return the lowest and highest index of an array that leaves some out; None: it does not."""
    if not spec.array_indexes:
        return None
    return spec.array_indexes_all[0], spec.array_indexes_all[-1]
