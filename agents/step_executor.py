"""Carries out the steps that the agent's state machine decides.

Steps come in; commands to the supervisor go out, all of one call in one message. Everything else is
done through the callables of :class:`StepEffects`. All methods are called under the agent's lock.
"""

import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from agents import state
from agents.host import failpoints
from agents.supervisor import client
from agents.supervisor.commands import Command
from agents.tasks import launcher, preparation, start_commands
from reconciler.model import desired
from reconciler.model.observed.health_checks import CheckPlan
from reconciler.model.observed.job_commands import JobCommands
from reconciler.model.policy.drift_kinds import DriftRemedy
from reconciler.model.protocol.agent_messages import LogRequest
from reconciler.model.protocol.session_messages import SessionRequest
from reconciler.model.state.states import EndReason


class StepEffects(NamedTuple):
    """The effects of steps beside commands to the supervisor.

    Attributes:
        set_check_plan: makes these checks from now on.
        watch_volumes: checks these volumes from now on.
        set_mig_plan: splits GPUs by this plan from now on.
        set_job_commands: runs these commands around jobs from now on.
        remediate: carries out these remediations.
        stream_log: sends the log that a request names.
        serve_session: serves a session of somebody in a task.
        report_now: reports to the controller at once.
        save_epoch: saves the epoch of the newest leader.
        save_proofs: saves what proves that attempts were assigned here.
        leases_renewed: called with the moment of the renewal, on the boot clock.
        discard: deletes the folders of attempts.
        note_containers: returns the commands after it has noted how to remove their containers.
        say: shows a message to the operator.
    """

    set_check_plan: Callable[[CheckPlan | None], None]
    watch_volumes: Callable[[Any], None]
    set_mig_plan: Callable[[desired.MigPlan | None], None]
    set_job_commands: Callable[[JobCommands], None]
    remediate: Callable[[Iterable[DriftRemedy]], None]
    stream_log: Callable[[LogRequest], None]
    serve_session: Callable[[SessionRequest], None]
    report_now: Callable[[], None]
    save_epoch: Callable[[int], None]
    save_proofs: Callable[[dict[str, str]], None]
    leases_renewed: Callable[[float], None]
    discard: Callable[[tuple[str, ...]], None]
    note_containers: Callable[[Sequence[Command]], Sequence[Command]]
    say: Callable[[str], None]


class StepExecutor:
    """Carries out the steps of one agent."""

    def __init__(
        self,
        supervisor: client.SupervisorClient,
        tasks: launcher.Launcher,
        effects: StepEffects,
        send_later: preparation.Send,
    ) -> None:
        self._supervisor = supervisor
        self._launcher = tasks
        self._effects = effects
        self._send_later = send_later

    def carry_out(self, steps: Iterable[state.Step]) -> None:
        """Carry out steps, with all commands to the supervisor in one message."""
        commands: list[Command] = []
        renewed_at: float | None = None
        for step in steps:
            try:
                commands += self._carry_out(step)
            except Exception:  # the controller does not ask again for the steps behind this one
                self._effects.say(
                    f"internal error in step {type(step).__name__}: {traceback.format_exc()}"
                )
            if isinstance(step, state.RenewLeases):
                renewed_at = step.at
        if any(command["op"] == "start" for command in commands):
            failpoints.reach("sent-not-spawned")
        if commands:
            self.send(commands)
        if renewed_at is not None:  # after the stops of attempts that moved to another node
            self._effects.leases_renewed(renewed_at)

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands to the supervisor. A command that cannot be encoded fails alone."""
        commands = self._effects.note_containers(commands)
        try:
            self._supervisor.send(commands)
        except (UnicodeError, TypeError, ValueError):  # raised before anything was sent
            for command in commands:
                self._send_alone(command)

    def _send_alone(self, command: Command) -> None:
        try:
            self._supervisor.send([command])
        except (UnicodeError, TypeError, ValueError) as problem:
            self._effects.say(f"order {command['op']} of {command.get('id')!a}: {problem}")
            if command["op"] == "start":
                self._supervisor.send([_failed_start(command["id"])])

    def _carry_out(self, step: state.Step) -> Sequence[Command]:
        """Carry out a step. Return the commands to the supervisor that belong to it."""
        effects = self._effects
        match step:
            case state.Start():
                return self._start(step)
            case state.Release(attempt):
                return self._launcher.release(attempt)
            case state.Refuse(attempt, reason, message):
                return [start_commands.refusal(attempt, reason, message)]
            case state.EndAttempt():
                return [self._launcher.stop_command(step)]
            case state.Forget(attempts):
                failpoints.reach("acknowledged-not-deleted")
                effects.discard(attempts)
                return [{"op": "forget", "ids": list(attempts)}]
            case state.RenewLeases(at):
                return [{"op": "renew", "at": at}]
            case state.SaveEpoch(epoch):
                effects.save_epoch(epoch)
            case state.SaveProofs(proofs):
                effects.save_proofs(proofs)
            case state.CarryOutRemedies(remedies):
                effects.remediate(remedies)
            case state.StreamLog(request):
                effects.stream_log(request)
            case state.ServeSession(request=wanted):
                effects.serve_session(wanted)
            case state.ReportNow():
                effects.report_now()
            case state.Complain(message):
                effects.say(message)
            case _:
                self._follow(step)
        return []

    def _follow(self, step: state.Step) -> None:
        """Follow what the node's pool asks for from now on."""
        effects = self._effects
        match step:
            case state.SetCheckPlan(plan):
                effects.set_check_plan(plan)
            case state.WatchVolumes(volumes):
                effects.watch_volumes(volumes)
            case state.SetMigPlan(layout):
                effects.set_mig_plan(layout)
            case state.SetJobCommands(commands):
                effects.set_job_commands(commands)

    def _start(self, step: state.Start) -> Sequence[Command]:
        """Return the commands that start an attempt. An internal error ends this attempt alone."""
        try:
            return self._launcher.start(step, self._send_later)
        except Exception:  # other attempts start with this one, and must not be affected
            attempt = step.assignment.attempt
            self._effects.say(f"internal error in the start of {attempt}: {traceback.format_exc()}")
            return [_failed_start(attempt)]


def _failed_start(attempt: str) -> Command:
    return start_commands.refusal(attempt, EndReason.START_FAILED, preparation.INTERNAL_ERROR)
