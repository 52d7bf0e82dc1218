"""Waiting for a job to be in some state, with what is said meanwhile.

A job that was just committed may not be known yet. If its commit is held, it stays unknown until
somebody approves it; this is reported with what lets it apply. One that git can't take now is
committed later, and waited for until then.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn

from reconciler.cli import lazy_import, reason_order, retries, terminal
from reconciler.cli.waiting import explain_start
from reconciler.operations.changes import held_changes

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")

#: Exit code of `muster run` and `muster wait` when the time is up.
TIMED_OUT = 124
#: How long one request waits for events of a job.
LOOK_S = 20.0
#: How long an unknown job may take to appear: the controller reads commits at once.
UNKNOWN_S_MAX = 15.0
#: After how long of that it is reported.
UNKNOWN_TOLD_S = 5.0
#: How long a job that can't start stays: nodes may be about to report for the first time.
IMPOSSIBLE_S_MAX = 30.0
#: Reasons that the job itself asks for.
AS_ASKED = frozenset({"ArrayLimit"})
FINISHED = frozenset({"Succeeded", "Failed", "Cancelled", "TimedOut"})

Json = Any


class ImpossibleError(Exception):
    """Error: a job waits for something that will not happen."""


class NotAppliedError(Exception):
    """Error: a job is committed but unknown, because git is held. The message has what lets it
    apply.
    """


class VanishedError(Exception):
    """Error: a job that waited is gone without a start. The message has the reason for which it
    waited.
    """


def wait_until(
    api: retries.Patient,
    name: str,
    condition: Any,
    ends_at: float | None = None,
    *,
    give_up: bool = False,
    if_held: bool = False,
    newer_than: str | None = None,
) -> Json:
    """Return the job as soon as `condition` holds; None if the time is up before.

    The job is read at once in any case, and once more when the time is up. One that waits for git
    to commit it is waited for. With `newer_than`, the run that was submitted then is another job;
    empty: one that has ended is another if a submission of its name waits for git.

    Raises:
        NotAppliedError: the job is unknown, because git does not apply.
        VanishedError: the job was refused, and its YAML was deleted.
        ImpossibleError: with `give_up`, if it could never start for a while; with `if_held` also
            if it was held for as long.
    """
    after: int | None = None
    last_reason = ""
    usual: set[str] = set()
    reader = _JobReader(api, name, newer_than)
    impossible_until: float | None = None
    while True:
        is_over = ends_at is not None and time.monotonic() >= ends_at
        job = reader.read(last_reason)
        if job is not None and condition(job):
            return job
        if is_over:
            return None
        if job is not None and job["reasons"]:
            reason = new_reason_text(reason_order.ordered(job["reasons"])[0], last_reason, usual)
            if reason:
                last_reason = reason
                start = explain_start.short_start(job, time.time())
                told = f"{terminal.format_clocks(reason)}{f'; starts {start}' if start else ''}"
                terminal.note(f"{name} waits: {told}")
        hopeless = _hopeless(job, if_held=if_held) if give_up and job is not None else ""
        if not hopeless:
            impossible_until = None
        elif impossible_until is None:
            impossible_until = time.monotonic() + IMPOSSIBLE_S_MAX
        elif time.monotonic() > impossible_until:
            raise ImpossibleError(hopeless)
        left_s = LOOK_S if ends_at is None else min(LOOK_S, max(0.0, ends_at - time.monotonic()))
        if hopeless or (job is None and not reader.waits_for_git):
            left_s = min(left_s, 1.0)
        page = api.get(
            "/v1/events", job=name, after=after, wait_s=left_s if after is not None else None
        )
        after = page["next"]


def uncommitted_reason(api: retries.Patient, name: str) -> str:
    """Return why a job waits for git to commit it; empty if it does not."""
    kept = [one for one in api.get("/v1/overrides")["items"] if one["verb"] == "submit"]
    waiting = (one for one in kept if one["subject"] == name and not one.get("refused"))
    return next((one["reason"] for one in waiting), "")


def _only_earlier(name: str) -> str:
    return (
        f"the controller has no run of {name} but one that was submitted before. To fix: see "
        f"muster overrides, and muster events --job {name}"
    )


class _JobReader:
    """Reader of a job that was submitted, and that the controller may not know yet.

    Args:
        api: the connection.
        name: of the job.
        newer_than: when the last known run was submitted, which is not the job; None: any is;
            empty: so is one that has ended, if no submission of its name waits for git.

    Attributes:
        waits_for_git: True if the job was not committed yet when it was read last.
    """

    def __init__(self, api: retries.Patient, name: str, newer_than: str | None) -> None:
        self._api = api
        self._name = name
        self._newer_than = newer_than
        self._unknown_until = time.monotonic() + UNKNOWN_S_MAX
        self._is_unknown_told = False
        self._is_asked = newer_than == ""
        self._told = ""
        self.waits_for_git = False

    def read(self, last_reason: str) -> Json | None:
        """Return the job, or None if the controller does not know it yet, and say why.

        Args:
            last_reason: the last printed reason for which it waits.

        Raises:
            NotAppliedError: the job is unknown for longer, because git does not apply.
            VanishedError: the job waited before.
        """
        try:
            job = self._api.get(f"/v1/jobs/{self._name}")["job"]
            if self._is_asked and job["state"] in FINISHED:
                # else the run that ended would be taken for the one that is to come
                waits = uncommitted_reason(self._api, self._name)
                self._newer_than = job["submitted"] if waits else ""
            self._is_asked = False
            if not self._newer_than or job["submitted"] != self._newer_than:
                return job
            if job["state"] not in FINISHED:
                self._tell_earlier(job)
                return None
            problem = api_client.ApiError(_only_earlier(self._name), 404)
        except api_client.ApiError as error:
            if error.status != 404:
                raise
            if last_reason:
                raise VanishedError(f"{self._name} never started: {last_reason}") from None
            problem = error
        self._tell_absent(problem)
        return None

    def _tell_earlier(self, job: Json) -> None:
        """Say once that a run before has to end first, as one without a file in git has."""
        self._unknown_until = time.monotonic() + UNKNOWN_S_MAX
        told = f"{self._name} waits for the end of its run {job['run']}, which goes on"
        if told != self._told:
            self._told = told
            terminal.note(told)

    def _tell_absent(self, problem: api_client.ApiError) -> None:
        """Say why there is no job yet.

        Raises:
            NotAppliedError: git does not apply.
            ApiError: the problem, if the job should be there by now.
        """
        why = uncommitted_reason(self._api, self._name)
        self.waits_for_git = bool(why)
        now = time.monotonic()
        if why:
            self._unknown_until = now + UNKNOWN_S_MAX
            if why != self._told:
                self._told = why
                terminal.note(f"{self._name} waits for git: {terminal.format_clocks(why)}")
        elif now > self._unknown_until:
            _leave_unknown(self._api, problem)
        elif (
            not self._is_unknown_told and now > self._unknown_until - UNKNOWN_S_MAX + UNKNOWN_TOLD_S
        ):
            self._is_unknown_told = True
            _tell_unknown(self._api, self._name)


def new_reason_text(reason: Json, last: str, usual: set[str]) -> str:
    """Return the text of the first reason for which a job waits; empty if it is no news.

    An array that runs as many elements at once as it asks for waits for changing reasons between
    two elements; each is reported once.

    Args:
        reason: code and message.
        last: the last text that was printed.
        usual: texts about reasons that the job asked for; grows.
    """
    text = f"{reason['code']}: {reason['message']}"
    if text == last or text in usual:
        return ""
    if reason["code"] in AS_ASKED:
        usual.add(text)
    return text


def _tell_unknown(api: retries.Patient, name: str) -> None:
    """Print why the controller does not know what was committed."""
    left = f"waiting up to {UNKNOWN_S_MAX:.0f}s"
    why = held_changes.revision(api.get("/v1/sync")["sync"])
    why = f"its commit is not applied: {why}" if why else left
    terminal.note(f"the controller does not know {name} yet; {why}")


def _leave_unknown(api: retries.Patient, error: api_client.ApiError) -> NoReturn:
    """Raise the error about a job that did not appear."""
    why = held_changes.revision(api.get("/v1/sync")["sync"])
    if why:
        raise NotAppliedError(why) from error
    raise error


def _hopeless(job: Json, *, if_held: bool = False) -> str:
    """Return the reason that waiting does not end, if there is one."""
    is_held = if_held and job["state"] == "Held"
    for reason in job["reasons"]:
        if reason_order.is_never(reason) or (is_held and reason["code"] == "Held"):
            return f"{reason['code']}: {reason['message']}"
    return ""


def continues_text(names: list[str]) -> str:
    """Return a sentence that names jobs which go on without this command."""
    verb = "continues" if len(names) == 1 else "continue"
    return f"{', '.join(names)} {verb} without this command: muster wait {' '.join(names)}"
