"""From what the state machine decided to orders that the supervisor carries out.

It knows how this node holds its tasks: which cores are given out, which GPUs are whose, which of
the supervisor's offers are to be used. The shell calls it under its lock.
"""

import functools
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agents import state
from agents.data import data_cache, secret_store, staging
from agents.gpus import mig_manager, mps
from agents.health import volume_checks
from agents.host import host_info, trash, unix_users
from agents.isolation import cpu_pinning, task_limits
from agents.settings import AgentSettings
from agents.supervisor import client
from agents.tasks import container_runtimes, gates, images, start_orders
from reconciler.model.state.records import AttemptReport, Isolation
from reconciler.model.state.states import AttemptState, EndReason

#: How long a start waits for who its user is, and then for the folder of its checkpoints, and looks
#: for that which go on together.
LOOK_S = 60.0
LOOKS_MAX = 1000
DEFECT = "this attempt can't be started here by a defect of the agent, whose log says more"


class _Needs(msgspec.Struct, frozen=True):
    """What one start waits for, and where its order goes then."""

    name: str
    order: dict[str, Any]
    later: Callable[[dict[str, Any]], None]
    image: Any
    secrets: dict[str, Any] | None
    sharing: mps.MpsShare | None
    stage: staging.StagingRequest | None
    volumes: tuple[str, ...]

    @property
    def copies_in(self) -> bool:
        """Whether data is copied before it starts."""
        return self.stage is not None and bool(self.stage.plan.ins)

    @property
    def only_image(self) -> bool:
        """Whether it waits for nothing, or for its image alone."""
        waits = (self.secrets, self.sharing, self.stage)
        return all(one is None for one in waits) and not self.volumes

    def refuse(self, reason: EndReason, problem: str) -> None:
        """It will not start."""
        self.later(refusal(self.name, reason, problem))


class Launcher:
    """Makes orders for one node."""

    def __init__(
        self,
        settings: AgentSettings,
        place: start_orders.NodeFolders,
        spares: trash.Trash,
        lock: threading.RLock,
    ) -> None:
        self.place = place
        self._lock = lock
        #: Attempts whose checkpoints are looked for, by what tells the looks apart.
        self._looking: dict[str, object] = {}
        self._looks = 0
        self._inquiries = unix_users.Inquiries(lock, LOOK_S, unix_users.SYSTEM)
        self._settings = settings
        self._spares = spares
        self._takes_spares = False
        self._cores: cpu_pinning.Cores | None = None
        self.images = images.Images(settings.image_timeout_s, place.root)
        self._vault = secret_store.SecretStore(settings.secrets, settings.secret_command)
        cache = data_cache.Cache(settings.root, settings.cache_bytes_max)
        self.stager = staging.Stager(place.root, cache, self._vault)
        #: Looks at volumes before tasks start; None: nobody does.
        self.volumes: volume_checks.Volumes | None = None
        #: Gives out MIG instances; None: nobody does.
        self.cutter: mig_manager.MigManager | None = None
        self._fetching: set[str] = set()
        self._daemons = mps.Daemons(Path(place.root))
        self._ready: dict[str, dict[str, Any]] = {}
        self._released: set[str] = set()
        #: Where tasks wait for checks of the node; None: nobody makes any.
        self.gate: gates.StartGate | None = None

    def supervised(self, hello: Mapping[str, Any]) -> Isolation:
        """A supervisor has said how it holds tasks, and what it has: take that over."""
        facts = hello.get("isolation", {})
        enforces = tuple(facts.get("enforces", ()))
        holding = task_limits.IsolationCapabilities(
            kind=facts.get("kind", "process-group"),
            enforces=enforces,
            views=bool(facts.get("views")),
            pids_max=self._settings.task_pids_max,
            path=facts.get("path", ""),
        )
        self.place = msgspec.structs.replace(self.place, holding=holding)
        alive = {
            one["id"] for one in hello.get("records", ()) if one["state"] != AttemptState.ENDED
        }
        self._daemons.keep(alive)
        self.stager.cache.keep({one["id"] for one in hello.get("records", ())})
        if self.cutter is not None:
            self.cutter.keep(alive)
        self._takes_spares = bool(hello.get("spares"))
        self._cores = None
        if self._settings.pin_cpus and "cpuset" in enforces:
            lists = [node.cpus for node in host_info.read().numa]
            self._cores = cpu_pinning.of_machine(lists, os.sched_getaffinity(0))
            for record in hello.get("records", ()):
                if record["state"] != AttemptState.ENDED:
                    self._cores.restore(record["id"], record.get("cpus", ""))
        return Isolation(
            kind=holding.kind,
            enforces=enforces,
            views=holding.views,
            problems=tuple(facts.get("problems", ())),
        )

    def heard(self, reports: list[AttemptReport]) -> None:
        """What has ended holds no cores any more."""
        for report in reports:
            if report.state is not AttemptState.ENDED:
                continue
            if self._cores is not None:
                self._cores.give_back(report.id)
            self._daemons.leave(report.id)
            if self.cutter is not None:
                self.cutter.leave(report.id)
            if self.gate is not None and report.started_at is not None:
                self.gate.leave()

    def start_or_wait(
        self, step: state.Start, later: Callable[[dict[str, Any]], None]
    ) -> list[dict[str, Any]]:
        """The orders that start an attempt. Where the node has to be checked before, or its image
        fetched, there are none yet: ``later`` is called with one, from another thread."""
        name = step.assignment.attempt
        # before anything is waited for: a gang that is released in the meantime stays so
        self._ready.pop(name, None)
        self._released.discard(name)

        def decided(problem: str) -> None:
            if problem:
                later(refusal(name, EndReason.CHECK_FAILED, problem))
                return
            for order in self._start_or_ask(step, later):
                later(order)

        if self.gate is not None and self.gate.enter(name, decided):
            return []
        return self._start_or_ask(step, later)

    def _start_or_ask(
        self, step: state.Start, later: Callable[[dict[str, Any]], None]
    ) -> list[dict[str, Any]]:
        """Start, once it is known who it runs as."""
        name = step.assignment.attempt
        user = start_orders.asked_for(step.template, self.place)

        def told(problem: str) -> None:
            if problem:
                later(refusal(name, EndReason.START_FAILED, problem))
                return
            try:
                orders = self._start_or_look(step, later)
            except Exception as defect:  # its end has to be told, whatever it is
                orders = [refusal(name, EndReason.START_FAILED, f"{DEFECT}: {defect!a}")]
            for order in orders:
                later(order)

        if user is not None and self._inquiries.wait(name, user, told):
            return []
        return self._start_or_look(step, later)

    def _start_or_look(
        self, step: state.Start, later: Callable[[dict[str, Any]], None]
    ) -> list[dict[str, Any]]:
        """Start, once it is known what there is to go on from. That is looked for on storage that
        may hang, in a thread and for so long; only this start waits for it."""
        assignment, template = step.assignment, step.template
        if template.checkpoint_path is None:
            return self._start_or_fetch(step, later, {})
        name, mark = assignment.attempt, object()
        if self._looks >= LOOKS_MAX:
            said = f"{LOOKS_MAX} looks for checkpoints go on: the shared folder of this node hangs"
            return [refusal(name, EndReason.START_FAILED, said)]
        self._looks += 1
        self._looking[name] = mark

        def go_on(kept: dict[str, str], problem: str) -> None:
            with self._lock:
                if self._looking.get(name) is not mark:
                    return  # it was stopped, or this took too long
                del self._looking[name]
                try:
                    if problem:
                        orders = [refusal(name, EndReason.START_FAILED, problem)]
                    else:
                        orders = self._start_or_fetch(step, later, kept)
                except Exception as defect:  # its end has to be told, whatever it is
                    orders = [refusal(name, EndReason.START_FAILED, f"{DEFECT}: {defect!a}")]
                for order in orders:
                    later(order)

        def look() -> None:
            try:
                kept, problem = start_orders.checkpoints_of(assignment, template, self.place), ""
            except start_orders.UnstartableError as unfit:
                kept, problem = {}, str(unfit)
            except Exception as defect:  # said as the reason of its end
                kept, problem = {}, f"{DEFECT}: {defect!a}"
            limit.cancel()
            with self._lock:
                self._looks -= 1
            go_on(kept, problem)

        late = (
            f"checkpoint folder {template.checkpoint_path} below {self.place.shared} did not "
            f"answer in {LOOK_S:g} s; see whether the shared folder of this node hangs"
        )
        limit = threading.Timer(LOOK_S, go_on, ({}, late))
        limit.daemon = True
        limit.start()
        threading.Thread(target=look, daemon=True).start()
        return []

    def _start_or_fetch(
        self,
        step: state.Start,
        later: Callable[[dict[str, Any]], None],
        kept: dict[str, str],
    ) -> list[dict[str, Any]]:
        order = self.start_order(step, kept)
        needs = _Needs(
            name=step.assignment.attempt,
            order=order,
            later=later,
            image=order.pop("image", None),
            secrets=order.pop("wanted", None),
            sharing=order.pop("mps", None),
            stage=order.pop("stage", None),
            volumes=step.template.volumes if order["op"] == "start" else (),
        )
        if (needs.image is not None or needs.copies_in) and step.assignment.hold:
            order["hold"] = True
        if needs.only_image:
            if needs.image is None:
                return [order]
            self._go_on(needs)
        else:
            self._fetching.add(needs.name)
            threading.Thread(target=self._fetch, args=(needs,), daemon=True).start()
        return []

    def _fetch(self, needs: _Needs) -> None:
        """Get what a start needs, in a thread of its own. What goes wrong is its end."""
        try:
            refused = self._get(needs)
        except (secret_store.SecretUnavailableError, mps.MpsError) as problem:
            refused = EndReason.START_FAILED, str(problem)
        except OSError as problem:
            refused = EndReason.STAGE_FAILED, f"data: {problem}"
        except Exception as defect:
            refused = EndReason.START_FAILED, f"{DEFECT}: {defect!a}"
        with self._lock:  # a stop comes before or after, never between
            if needs.name not in self._fetching:
                self._daemons.leave(needs.name)
                return
            self._fetching.discard(needs.name)
            if refused is not None:
                needs.refuse(*refused)
            elif needs.stage is not None and needs.copies_in:
                self.stager.want(needs.name, needs.stage, functools.partial(self._staged, needs))
            else:
                self._go_on(needs)

    def _get(self, needs: _Needs) -> tuple[EndReason, str] | None:
        """Get what there is at once; why it can't be had."""
        if needs.volumes and self.volumes is not None:
            lacking = self.volumes.problem(needs.volumes)
            if lacking:
                return EndReason.CHECK_FAILED, lacking
        if needs.secrets is not None:
            add_secrets(needs.order, needs.secrets, self._vault)
        if needs.sharing is not None:
            self._daemons.want(needs.name, needs.sharing)
        if needs.stage is not None:
            self.stager.prepare(needs.name, needs.stage)
        return None

    def _staged(self, needs: _Needs, problem: str, found: dict[str, str]) -> None:
        """The data of a start is there, or can't be had."""
        if problem:
            needs.refuse(EndReason.STAGE_FAILED, problem)
            return
        add_staged(needs.order, found)
        self._go_on(needs)

    def _go_on(self, needs: _Needs) -> None:
        """All is there but for the image."""
        if needs.image is None:
            needs.later(needs.order)
            return

        def told(problem: str) -> None:
            if problem:
                needs.refuse(EndReason.START_FAILED, problem)
            else:
                needs.later(needs.order)

        self.images.want(needs.name, needs.image, told)

    def due(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """An order whose image and secrets are there: it is carried out now, or held until the
        images of its gang are."""
        if not order.pop("hold", False) or order["id"] in self._released:
            self._released.discard(order["id"])
            return [order]
        self._ready[order["id"]] = order
        return []

    def release(self, attempt: str) -> list[dict[str, Any]]:
        """The gang of an attempt is ready: it starts now, or as soon as it is."""
        order = self._ready.pop(attempt, None)
        if order is None:
            self._released.add(attempt)
            return []
        return [order]

    def stages(self) -> dict[str, tuple[AttemptState, str]]:
        """How far attempts are that have not started, with what they wait for."""
        found = {
            name: (AttemptState.FETCHING, f"fetching image {image}")
            for name, image in self.images.waiting().items()
        }
        # whatever is waited for before its image is: its gang is not to think that it is there
        early = {
            **(self.gate.waiting() if self.gate is not None else {}),
            **self._inquiries.waiting(),
            **dict.fromkeys(self._looking, "looking for its checkpoints"),
            **dict.fromkeys(self._fetching, "getting what it needs"),
        }
        early |= self.stager.waiting()
        found |= {name: (AttemptState.FETCHING, note) for name, note in early.items()}
        ready = (AttemptState.READY, "what it needs is there; it waits for the rest of its gang")
        return found | dict.fromkeys(self._ready, ready)

    def stop_order(self, step: state.EndAttempt) -> dict[str, Any]:
        """The order to stop an attempt, or to record that it never will start."""
        if self.gate is not None and self.gate.give_up(step.attempt):
            return refusal(step.attempt, step.reason, "stopped while its node was checked")
        self._released.discard(step.attempt)
        if self._inquiries.give_up(step.attempt):
            said = "stopped before it was known who its user is"
            return refusal(step.attempt, step.reason, said)
        if self._looking.pop(step.attempt, None) is not None:
            said = "stopped while its checkpoints were looked for"
            return refusal(step.attempt, step.reason, said)
        if self._ready.pop(step.attempt, None) is not None:
            return refusal(step.attempt, step.reason, "stopped while it waited for its gang")
        fetching = step.attempt in self._fetching
        self._fetching.discard(step.attempt)
        staged = self.stager.give_up(step.attempt)
        self.stager.stop(step.attempt, step.reason, step.grace_s)
        if self.images.give_up(step.attempt) or fetching or staged:
            return refusal(step.attempt, step.reason, "stopped while what it needs was fetched")
        return {
            "op": "stop", "id": step.attempt, "reason": step.reason.value,
            "signal": step.signal, "grace_s": step.grace_s,
        }  # fmt: skip

    def start_order(self, step: state.Start, kept: dict[str, str] | None = None) -> dict[str, Any]:
        """The order to start an attempt, or to record that it can't be started here."""
        assignment, template = step.assignment, step.template
        cpus = ""
        if self._cores is not None and template.cpu_milli:
            cpus = self._cores.take(assignment.attempt, template.cpu_milli, self._near(step))
        try:
            parts = self.cutter.allot(assignment) if self.cutter is not None else ()
            given = start_orders.AttemptResources(cpus, kept, parts)
            order = start_orders.order_for(assignment, template, self.place, given)
        except (start_orders.UnstartableError, mig_manager.NotReadyError) as problem:
            if self._cores is not None:
                self._cores.give_back(assignment.attempt)
            lacks = isinstance(problem, mig_manager.NotReadyError)
            reason = EndReason.CHECK_FAILED if lacks else EndReason.START_FAILED
            return refusal(assignment.attempt, reason, str(problem))
        if order["user"] is None and self._takes_spares:
            order["spare"] = self._spares.take()
        return order

    def _near(self, step: state.Start) -> set[int]:
        """NUMA nodes of the GPUs of an assignment."""
        given = set(step.assignment.devices)
        found = {gpu.numa_node for gpu in self.place.gpus if gpu.index in given}
        return {node for node in found if node is not None}


def refusal(attempt: str, reason: EndReason, message: str) -> dict[str, Any]:
    """The order to record an end of what never started."""
    return {"op": "refuse", "id": attempt, "reason": reason.value, "message": message}


def give(
    to: client.SupervisorClient, orders: list[dict[str, Any]], say: Callable[[str], None]
) -> None:
    """Give orders to the supervisor; one that can't be written down fails alone."""
    try:
        to.send(orders)
    except (UnicodeError, TypeError, ValueError):  # raised before anything of them was sent
        for order in orders:
            try:
                to.send([order])
            except (UnicodeError, TypeError, ValueError) as problem:
                say(f"order {order['op']} of {order.get('id')!a}: {problem}")
                if order["op"] == "start":
                    to.send([refusal(order["id"], EndReason.START_FAILED, DEFECT)])


def add_staged(order: dict[str, Any], found: dict[str, str]) -> None:
    """Tell a task where data is that was copied for it."""
    for name, path in found.items():
        variable = start_orders.staged_variable(name)
        for key in (variable, *(f"{prefix}{variable}" for prefix in container_runtimes.PREFIXES)):
            if key in order["env"]:
                order["env"][key] = path


def add_secrets(
    order: dict[str, Any], wanted: dict[str, Any], source: secret_store.SecretStore
) -> None:
    """Put what a task may know into its order: files, and the variables that it asked for."""
    names = [name for name, _ in wanted["names"]]
    values = source.fetch(wanted["user"], wanted["uid"], names)
    order["secrets"] = values
    for name, variable in wanted["names"]:
        for key in (variable, *(f"{prefix}{variable}" for prefix in container_runtimes.PREFIXES)):
            if variable and key in order["env"]:
                order["env"][key] = values[name]
