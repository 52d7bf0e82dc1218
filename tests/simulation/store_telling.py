"""Runs stories of stores that are lost, restored, or led beside another one.

The rules are those of the controller: adoption, claims in git, proofs. A person adopts as soon as
that is possible, and knows what runs on machines that nobody hears. Besides all other invariants:
nothing ends because a store does not know it, two controllers never both start work, what comes
later is new, and nobody has to wait for ever.
"""

import random
import re
from functools import partial
from typing import Any

import msgspec

from reconciler.core import observed_state
from reconciler.core.nodes import health
from reconciler.model.protocol import loop_messages
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState, EndReason
from tests.simulation import controllers, invariants, plans, telling, views

#: How often a person looks if something waits to be adopted.
LOOKS_EVERY_S = 15.0
#: Within this time after nobody else leads, and the last start, everything can be adopted: leases
#: and graces of what nobody hears, then what messages and cycles take.
ADOPTABLE_S = plans.LEASE_S + plans.GRACE_S + health.LEASE_MARGIN_S + plans.PAUSE_S + 60.0
#: Within this time after the other one is silent a controller leads: see ``lead_claim``.
SILENT_S = 300.0 + 60.0 + 10.0 + plans.PAUSE_S
TOTAL_S = 3600.0


#: What stands behind the name of a job.
_JOB = re.compile(r"[.\[]")


class StoreTeller(telling.Teller):
    """A story of stores while it runs."""

    def __init__(self, plan: plans.Plan) -> None:
        super().__init__(plan)
        for pool in plan.structure.pools.values():
            for name in pool.nodes:
                self.cluster.nodes[name].list_gpus(pool.gpu_memory_bytes or 0)
        self.git = controllers.Git()
        self.kept: dict[str, controllers.Store] = {}
        self.running: list[controllers.Controller] = []
        self.submitted: dict[str, float] = {}
        self.given_up: set[str] = set()
        self.declined: set[str] = set()
        #: Jobs that somebody chose to start although they may have run.
        self.begun_anew: set[str] = set()
        self.distrusted: set[str] = set()
        #: Controllers of which an event says that their store is from the past.
        self.said: set[controllers.Controller] = set()
        self.chance = random.Random(f"{plan.seed} person")
        #: Whether the controller asked when its last cycle began.
        self.asked = False
        #: When a controller was gone last.
        self.gone_at = 0.0
        self.taken_now: frozenset[str] = frozenset()
        self.acting = self.main = self._start(controllers.Store(), "a")
        self.cluster.controllers = [self.main.sim]

    # -- controllers

    def _start(self, store: controllers.Store, name: str) -> controllers.Controller:
        made = controllers.Controller(self.cluster, self.git, store, name=name, acts=self._acts)
        self.running.append(made)
        self.cluster.at(self.cluster.now + LOOKS_EVERY_S, partial(self._look_after, made))
        return made

    def _acts(self, controller: controllers.Controller) -> None:
        self.acting, self.asked = controller, controller.adoption.pending

    @property
    def memory(self) -> observed_state.ObservedState:
        """What the controller knows that decided last."""
        return self.acting.sim.memory

    def _lead_anew(self) -> None:
        self.acting.crash()
        self.partly.restart(self.cluster.now)

    def _stop(self, controller: controllers.Controller, *, cleanly: bool) -> None:
        controller.stop(cleanly=cleanly)
        self.gone_at = self.cluster.now
        self.running.remove(controller)
        self.cluster.controllers.remove(controller.sim)

    def _go_on_with(self, controller: controllers.Controller) -> None:
        """Let all nodes speak to a controller."""
        self.main = controller
        self.cluster.routes.clear()
        self.cluster.controllers.remove(controller.sim)
        self.cluster.controllers.insert(0, controller.sim)
        self._forget()

    def _forget(self) -> None:
        """Forget what checkers know of another store."""
        self.jobs = invariants.Jobs()
        self.partly.restart(self.cluster.now)
        self.seen = None

    # -- what happens

    def _do(self, step: plans.Step) -> None:
        fields = dict(step.fields)
        match step.what:
            case "keep-store":
                if self.main.sim in self.cluster.controllers:
                    self.kept[step.subject] = self.main.stored()
            case "restore-store" | "lose-store":
                self._replace(step.subject, fields)
            case "second-store":
                self._second(step.subject, fields)
            case "submit":
                self.submitted[step.subject] = self.cluster.now
                super()._do(step)
                return
            case "pause":
                self.acting.pause(plans.PAUSE_S)
            case _:
                super()._do(step)
                return
        self.told.steps += step.what != "pause"

    def _old(self, name: str, fields: dict[str, Any]) -> controllers.Store:
        """Return a copy of the store, or an empty one."""
        store = self.kept.get(name, controllers.Store()) if name else controllers.Store()
        key = self.main.proofs.key if fields.get("knows_key") else b""
        renewed = self.git.record
        is_seen = renewed is not None and renewed.cycle > store.cycle
        marked = bool(store.body) and (fields.get("is_marked", True) or not is_seen)
        return msgspec.structs.replace(store, key=key, copied=marked)

    def _replace(self, name: str, fields: dict[str, Any]) -> None:
        if len(self.running) > 1:
            return
        self.told.crashes += 1
        store = self._old(name, fields)
        first = self.main
        self._stop(first, cleanly=self.chance.random() < 0.5)
        made = self._start(store, first.name)
        self.cluster.controllers.append(made.sim)
        self._go_on_with(made)

    def _second(self, name: str, fields: dict[str, Any]) -> None:
        if len(self.running) > 1:
            return
        first = self.main
        second = self._start(self._old(name, fields), "b" if first.name == "a" else "a")
        self.cluster.controllers.append(second.sim)
        for node in fields["moved"]:
            self.cluster.routes[node] = second.sim
        ending, lasts_s = fields["ending"], fields["lasts_s"]
        if ending == "first-pauses":
            first.pause(lasts_s)
        self.cluster.at(
            self.cluster.now + lasts_s, partial(self._one_is_left, first, second, ending)
        )

    def _one_is_left(
        self, first: controllers.Controller, second: controllers.Controller, ending: str
    ) -> None:
        if not (first.runs and second.runs):
            return
        if ending == "second-stops":
            self._stop(second, cleanly=self.chance.random() < 0.5)
            self._go_on_with(first)
        elif ending == "first-pauses":
            # it comes back while the second leads, or waits for it
            self.cluster.at(
                self.cluster.now + 60.0, partial(self._one_is_left, first, second, "first-stops")
            )
        else:
            self._stop(first, cleanly=ending == "first-stops")
            self._go_on_with(second)

    def _mend(self) -> None:
        super()._mend()
        others = [one for one in self.running if one is not self.main]
        for one in others:
            self._stop(one, cleanly=False)
        self._go_on_with(self.main)
        begun = self.cluster.now
        while self.main.adoption.pending:
            self._run(self.cluster.now + telling.LOOK_S)
            if self.cluster.now > begun + TOTAL_S:
                self._hold("locked-out", [f"it still asks: {self.main.adoption.state}"])
        self._forget()

    # -- who adopts

    def _look_after(self, controller: controllers.Controller) -> None:
        """Adopt what waits, if that is possible."""
        if not controller.runs:
            return
        now = self.cluster.now
        self.cluster.at(now + LOOKS_EVERY_S, partial(self._look_after, controller))
        adopting = controller.adoption
        if not adopting.pending or now < controller.paused_until:
            return
        why = adopting.why_not(now)
        if why:
            since = max(controller.free_at, controller.begun_at, controller.paused_until)
            if not adopting.state.blocked and now > since + ADOPTABLE_S:
                self._hold("locked-out", [f"{controller.name}: {why}"])
            self._check_blocked(controller)
            return
        if controller not in self.said:
            self._hold("not-said", ["no event says what the store does not know"])
        waiting = set(adopting.state.awaiting)
        if any(job in waiting for job in self._still_running(controller)):
            return
        chosen = {name for name in sorted(waiting) if self.chance.random() < 0.6}
        trust = self._trusted(controller)
        choice = loop_messages.Adopt(tuple(sorted(chosen)), everything=False, trust=trust)
        if controller.choose(choice):
            self.declined |= waiting - chosen
            self.begun_anew |= chosen

    def _check_blocked(self, controller: controllers.Controller) -> None:
        """Hold that nobody waits for a controller that is gone."""
        others = [one for one in self.running if one is not controller]
        since = max([controller.begun_at, controller.paused_until, self.gone_at])
        blocked = controller.adoption.state.blocked
        if blocked and not others and self.cluster.now > since + SILENT_S:
            self._hold("locked-out", [blocked])

    def _still_running(self, controller: controllers.Controller) -> set[str]:
        """Return the jobs that really run where nobody waits for the end of their lease.

        They have none, or neither git nor the store knows their node.
        """
        memory, unheard = controller.sim.memory, controller.adoption.state.unheard
        heard = {
            name
            for name, node in memory.nodes.items()
            if node.last_report_at >= memory.leader_since
        }
        return {
            task.attempt.job
            for name, node in self.cluster.nodes.items()
            for task in node.tasks.values()
            if name not in heard and (task.attempt.lease_s is None or name not in unheard)
        }

    def _trusted(self, controller: controllers.Controller) -> str:
        """Return the nodes to believe: of two that report a task, the one with the newest try."""
        newest: dict[str, tuple[int, str]] = {}
        unproven = controller.adoption.state.unproven
        for one in unproven:
            task, _, number = one.attempt.rpartition(".")
            newest[task] = max(newest.get(task, (0, "")), (int(number), one.node))
        nodes = {one.node for one in unproven}
        for one in unproven:
            if newest[one.attempt.rpartition(".")[0]][1] != one.node:
                nodes.discard(one.node)
        self.distrusted |= {one.attempt for one in unproven if one.node not in nodes}
        if not unproven:
            return ""
        return ",".join(sorted(nodes)) or "none"

    # -- watching

    def ended(
        self, attempt: records.AttemptRecord, at: float, why: EndReason, ran_s: float
    ) -> None:
        """Hold that nothing ends because a store does not know it."""
        super().ended(attempt, at, why, ran_s)
        node = self.cluster.nodes[attempt.node]
        if why is not EndReason.CANCELLED or attempt.id in node.assigned:
            return
        spec = self.cluster.jobs.get(attempt.job)
        is_wanted = (
            spec is not None
            and spec.key == attempt.job_key
            and (spec.deadline is None or spec.deadline > at)
        )
        excused = self.given_up | self.distrusted
        if is_wanted and attempt.id not in excused and attempt.job not in self.declined:
            self._hold("ended-unknown", [f"{attempt.id} on {attempt.node} is ended as unknown"])

    def decided(self, result: outcome.Outcome) -> None:
        """Check all invariants after a cycle."""
        acting = self.acting
        taken = {one.attempt for one in result.events if one.kind == "AttemptTakenOver"}
        started = [
            one.attempt
            for one in result.actions
            if isinstance(one, outcome.StartAttempt) and one.attempt not in taken
        ]
        if any(one.kind == "StoreFromThePast" for one in result.events):
            self.said.add(acting)
        if not self.asked:
            self.given_up |= {
                one.id for one in result.attempts if one.state.value == "Ended" or one.concluded
            }
        if started:
            self._hold("both-lead", self._leaders_beside(acting, started))
        self._hold("not-new", self._waiting_though_new(acting))
        self.taken_now = frozenset(taken)
        super().decided(result)

    def _leaders_beside(self, acting: controllers.Controller, started: list[str]) -> list[str]:
        now = self.cluster.now
        blocked = acting.adoption.state.blocked
        found = [f"{acting.name} starts {started} although {blocked}"] if blocked else []
        return found + [
            f"{acting.name} starts {started} while {one.name} leads for {one.lease.left_s():.0f} s"
            for one in self.running
            if one is not acting and one.lease.left_s() > 0 and one.paused_until <= now
        ]

    def _waiting_though_new(self, acting: controllers.Controller) -> list[str]:
        state = acting.adoption.state
        if state.blocked or not state.pending:
            return []
        return [
            f"{name} came {self.submitted[name] - acting.free_at:.0f} s later, and waits"
            for name in state.awaiting
            if self.submitted.get(name, 0.0) > acting.free_at + 2 * plans.PACE_S_MAX + 60
        ]

    def _look(self, view: views.View) -> None:
        """Run the checkers that say something about a store from the past."""
        view = msgspec.structs.replace(view, started=view.started - self.taken_now)
        if not (self.asked or self.acting.adoption.pending) and len(self.running) == 1:
            super()._look(view)
            return
        self._hold("once", invariants.once(view))
        reality = [line for line in invariants.capacity(view) if not line.startswith("records")]
        self._hold("capacity", reality)
        self.partly.restart(self.cluster.now)

    def _ending(self) -> set[str]:
        """Return the jobs that are to start anew, and of which all that is known is told to end."""
        tasks: dict[str, set[bool]] = {}
        for one in self.memory.attempts.values():
            tasks.setdefault(one.job, set()).add(one.state is AttemptState.STOPPING)
        return {name for name in self.begun_anew if tasks.get(name) == {True}}

    def _hold(self, checker: str, found: list[str]) -> None:
        # an agent that was started again has forgotten the GPUs of a task that is taken over, and a
        # part of a gang of which somebody said that it is done goes on by itself, or ends, if
        # somebody said that it is to start
        alone: set[str] = set()
        if checker == "whole_gangs":
            alone = self.declined | self._ending()
        elif "artly" in checker:
            alone = self.declined
        broken = (one for one in found if not one.endswith(" of ()"))
        super()._hold(checker, [one for one in broken if _JOB.split(one)[0] not in alone])


def tell(plan: plans.Plan) -> telling.Told:
    """Run a whole story of stores."""
    return StoreTeller(plan).tell()
