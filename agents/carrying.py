"""From what the state machine decided to orders that the supervisor carries out.

It knows how this node holds its tasks: which cores are given out, which GPUs are whose, which of
the supervisor's offers are to be used. The shell calls it under its lock.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agents import cores, hosts, images, state, tasks, trash, views
from agents.settings import Settings
from reconciler.model.records import AttemptReport, Isolation
from reconciler.model.states import AttemptState, EndReason


class Carrier:
    """Makes orders for one node."""

    def __init__(self, settings: Settings, place: tasks.Place, spares: trash.Trash) -> None:
        self.place = place
        self._settings = settings
        self._spares = spares
        self._takes_spares = False
        self._cores: cores.Cores | None = None
        self.images = images.Images(settings.image_timeout_s)

    def supervised(self, hello: Mapping[str, Any]) -> Isolation:
        """A supervisor has said how it holds tasks, and what it has: take that over."""
        facts = hello.get("isolation", {})
        enforces = tuple(facts.get("enforces", ()))
        holding = views.Holding(
            kind=facts.get("kind", "process-group"),
            enforces=enforces,
            views=bool(facts.get("views")),
            pids_max=self._settings.task_pids_max,
            path=facts.get("path", ""),
        )
        self.place = msgspec.structs.replace(self.place, holding=holding)
        self._takes_spares = bool(hello.get("spares"))
        self._cores = None
        if self._settings.pin_cpus and "cpuset" in enforces:
            lists = [node.cpus for node in hosts.read().numa]
            self._cores = cores.of_machine(lists, os.sched_getaffinity(0))
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
        if self._cores is not None:
            for report in reports:
                if report.state is AttemptState.ENDED:
                    self._cores.give_back(report.id)

    def start_or_wait(
        self, step: state.Start, later: Callable[[dict[str, Any]], None]
    ) -> list[dict[str, Any]]:
        """The orders that start an attempt. Where its image has to be fetched there are none yet:
        ``later`` is called with one, from another thread."""
        order = self.start_order(step)
        wanted = order.pop("image", None)
        if wanted is None:
            return [order]
        name = step.assignment.attempt

        def told(problem: str) -> None:
            later(refusal(name, EndReason.START_FAILED, problem) if problem else order)

        self.images.want(name, wanted, told)
        return []

    def stop_order(self, step: state.Stop) -> dict[str, Any]:
        """The order to stop an attempt, or to record that it never will start."""
        if self.images.give_up(step.attempt):
            return refusal(step.attempt, step.reason, "stopped while its image was fetched")
        return {
            "op": "stop", "id": step.attempt, "reason": step.reason.value,
            "signal": step.signal, "grace_s": step.grace_s,
        }  # fmt: skip

    def start_order(self, step: state.Start) -> dict[str, Any]:
        """The order to start an attempt, or to record that it can't be started here."""
        assignment, template = step.assignment, step.template
        cpus = ""
        if self._cores is not None and template.cpu_milli:
            cpus = self._cores.take(assignment.attempt, template.cpu_milli, self._near(step))
        try:
            order = tasks.order_for(assignment, template, self.place, cpus)
        except tasks.UnfitError as problem:
            if self._cores is not None:
                self._cores.give_back(assignment.attempt)
            return refusal(assignment.attempt, EndReason.START_FAILED, str(problem))
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
