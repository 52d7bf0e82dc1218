"""What lists and logs say of jobs that are being stopped, were held, or have more tasks."""

from typing import Any, cast

import pytest

from reconciler.cli import array_elements, reason_order, terminal
from reconciler.cli.jobs import (
    explain,
    job_list,
    show,
)
from reconciler.cli.logs import log_hints
from reconciler.cli.waiting import explain_start, job_wait
from reconciler.model.state import pending_reasons, records
from reconciler.model.state.states import AttemptState, EndReason
from reconciler.model.values import times
from reconciler.model.values.resources import Resources
from reconciler.operations.client import api_client
from reconciler.operations.views import attempt_views, job_views

AT = times.parse_time("2026-11-22T10:00:00Z")
KILL_AT = "2026-11-22T10:00:30.000Z"


def attempt(state: AttemptState, stop: records.StopOrder | None) -> records.AttemptRecord:
    return records.AttemptRecord(
        id="j.1.x.0.main.0.1",
        job="j",
        run=1,
        job_key="x",
        element=0,
        group="main",
        index=0,
        try_number=1,
        node="n1",
        boot_id="b",
        resources=Resources(),
        state=state,
        assigned_at=AT,
        stop=stop,
    )


@pytest.mark.parametrize(
    ("state", "expected"),
    [(AttemptState.RUNNING, KILL_AT), (AttemptState.STOPPING, KILL_AT), (AttemptState.ENDED, None)],
)
def test_an_attempt_that_is_asked_to_leave_says_when_it_is_killed(
    state: AttemptState, expected: str | None
) -> None:
    order = records.StopOrder(EndReason.CANCELLED, "SIGTERM", grace_s=30, at=AT)
    assert attempt_views.attempt_view(attempt(state, order), array=False).kill_at == expected
    assert attempt_views.attempt_view(attempt(state, None), array=False).kill_at is None


def item(*attempts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"state": "Running", "message": "it left", "attempts": list(attempts)} | more


STOPPING = {"state": "Stopping", "killAt": KILL_AT}
RUNNING = {"state": "Running", "killAt": None}
ENDED = {"state": "Ended", "killAt": None, "ended": "2026-11-22T10:02:00Z"}


@pytest.mark.parametrize(
    ("attempts", "stops"),
    [([STOPPING], True), ([STOPPING, ENDED], True), ([STOPPING, RUNNING], False), ([], False)],
)
def test_a_job_is_stopping_where_all_of_it_is(attempts: list[Any], *, stops: bool) -> None:
    told = job_list.reason_text(item(*attempts))
    assert (
        told == f"stopping, SIGKILL at {terminal.format_clock(KILL_AT)}; it left"
        if stops
        else "it left"
    )


def of_gang(task: str, state: str = "Stopping", **more: Any) -> dict[str, Any]:
    """A task of a gang that is being stopped, or that has ended."""
    killed = KILL_AT if state == "Stopping" else None
    return {"task": task, "attempt": 1, "state": state, "killAt": killed, **more}


HEAD = of_gang("head-0", "Ended", ended="2026-11-22T10:00:00Z", exitCode=0, endReason="Exited")
FAILED = of_gang("main-1", "Ended", ended="2026-11-22T10:00:01Z", exitCode=3, endReason="Exited")
LEFT = of_gang("main-2", "Ended", ended="2026-11-22T10:00:02Z", signal=15, endReason="SiblingEnded")


@pytest.mark.parametrize(
    ("attempts", "told"),
    [
        ([of_gang("main-0", stopReason="Cancelled")], "stopping (cancelled), "),
        ([of_gang("main-0", stopReason="TimedOut")], "stopping (time limit), "),
        ([of_gang("main-0", stopReason="Suspended")], "stopping (held), "),
        ([of_gang("main-0", stopReason="Drained")], "stopping (its node is drained), "),
        ([of_gang("main-0", stopReason="Preempted")], "stopping (preempted), "),
        (
            [of_gang("main-0", stopReason="Preempted", stopFor="train")],
            "stopping (preempted by train), ",
        ),
        ([of_gang("main-0", stopReason="SiblingEnded")], "stopping (another task has ended), "),
        (
            [HEAD, LEFT, of_gang("main-3", stopReason="SiblingEnded")],
            "stopping (its head head-0 has ended), ",
        ),
        (
            [HEAD, FAILED, LEFT, of_gang("main-3", stopReason="SiblingEnded")],
            "stopping (main-1 failed), ",
        ),
    ],
)
def test_a_job_that_is_stopping_says_why(attempts: list[Any], told: str) -> None:
    assert job_list.stopping_text(item(*attempts)).startswith(told)


def test_a_deadline_is_told_from_a_time_limit() -> None:
    late = item(of_gang("main-0", stopReason="TimedOut"), message="its deadline has passed")
    assert job_list.stopping_text(late).startswith("stopping (deadline), ")


def test_why_an_attempt_is_stopping_is_in_its_view() -> None:
    order = records.StopOrder(EndReason.PREEMPTED, "SIGTERM", grace_s=30, at=AT, by="train")
    shown = attempt_views.attempt_view(attempt(AttemptState.STOPPING, order), array=False)
    assert (shown.stop_reason, shown.stop_for) == ("Preempted", "train")
    over = attempt_views.attempt_view(attempt(AttemptState.ENDED, order), array=False)
    assert (over.stop_reason, over.stop_for) == (None, "")


def a_try(started: str | None, ended: str | None) -> dict[str, Any]:
    day = "2026-11-22T10:"
    return {
        "state": "Ended" if ended else "Running",
        "started": started and f"{day}{started}Z",
        "ended": ended and f"{day}{ended}Z",
    }


FIRST = a_try("00:00", "02:00")


@pytest.mark.parametrize(
    ("tries", "expected"),
    [
        ([FIRST], "2m00s"),
        ([FIRST, a_try("05:00", None)], "7m00s"),
        ([FIRST, a_try("05:00", "06:00")], "3m00s"),
        # tasks of a gang at once
        ([FIRST, a_try("00:10", "02:30"), a_try(None, None)], "2m30s"),
        ([a_try("01:00", "02:00"), a_try("00:30", "03:00")], "2m30s"),
    ],
)
@pytest.mark.parametrize("state", ["Running", "Held", "Pending", "Failed"])
def test_time_that_a_job_ran_is_that_of_its_tries(
    tries: list[dict[str, Any]], expected: str, state: str
) -> None:
    found = item(*tries, state=state, started="2026-11-22T10:00:00Z")
    for one in (found, found | {"array": True}):
        assert job_list._ran(one, AT + 600) == expected
    assert job_list._ran(item(state="Held"), AT) == "-"


@pytest.mark.parametrize(
    ("state", "expected"), [("Running", "<=10m00s"), ("Held", "<=2m00s"), ("Pending", "<=2m00s")]
)
@pytest.mark.parametrize("is_array", [False, True])
def test_of_more_tries_than_are_told_it_is_at_most_the_time_since_the_start(
    state: str, expected: str, *, is_array: bool
) -> None:
    assert job_views.ATTEMPTS_IN_LIST == job_list.TRIES_TOLD
    assert job_views.ATTEMPTS_IN_JOB == job_list.TRIES_OF_JOB
    tries = [FIRST] * job_list.TRIES_TOLD
    found = item(*tries, state=state, started="2026-11-22T10:00:00Z", array=is_array)
    assert job_list._ran(found, AT + 600) == expected


def test_elements_that_failed_are_not_done() -> None:
    def told(**counts: int) -> str:
        return ", ".join(array_elements.done_words({"array": True, "elements": counts}))

    assert told(Succeeded=5, Failed=1) == "5/6, 1 failed"
    assert told(Succeeded=1, Running=2, TimedOut=1, Cancelled=2) == "1/6, 1 failed, 2 cancelled"
    assert told(Pending=4) == "0/4"


def test_times_below_a_row_are_those_of_the_reader() -> None:
    told = f"task main-0 failed; it is tried again at {KILL_AT}"
    reasons = [{"code": "BackingOff", "message": told}]
    rows = [["a" * 60, told]]
    assert job_list._move_down(rows, [{"reasons": reasons}], 20) == {
        0: terminal.format_clocks(told)
    }
    assert KILL_AT not in terminal.format_clocks(told)


class Api:
    """A controller that knows one job."""

    def __init__(self, **job: Any) -> None:
        self.job = {"array": False, "elements": {"Running": 1}, "attempts": []} | job

    def get(self, _path: str, **_query: Any) -> Any:
        return {"job": self.job}


def tasks(*names: str, reason: str = "Exited") -> list[dict[str, Any]]:
    return [
        {"task": one, "attempt": 1, "exitCode": None, "signal": 15, "endReason": reason}
        for one in names
    ]


@pytest.mark.parametrize(
    ("job", "query", "told"),
    [
        ({}, {}, ""),
        ({"attempts": tasks("a-0", "a-1")}, {}, "one of 2 tasks (another: --task NAME; "),
        ({"attempts": tasks("a-0", "a-1")}, {"task": "a-1"}, ""),
        (
            {"attempts": [*tasks("a-0"), tasks("a-0")[0] | {"attempt": 2}]},
            {},
            "try 2 (earlier: --try N",
        ),
        ({"attempts": [*tasks("a-0"), tasks("a-0")[0] | {"attempt": 2}]}, {"attempt": "1"}, ""),
        ({"array": True, "elements": {"Failed": 1, "Pending": 15}}, {}, "element 0 of 16 "),
        ({"array": True, "elements": {"Failed": 16}}, {"element": "3"}, ""),
    ],
)
def test_logs_of_one_task_say_that_there_are_more(
    job: dict[str, Any], query: dict[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log_hints.hint_at_others(cast("api_client.ApiClient", Api(**job)), "train", query)
    err = " ".join(capsys.readouterr().err.split())
    assert err.startswith(f"train: {told}") if told else not err


@pytest.mark.parametrize(
    ("reason", "failed"),
    [("Exited", True), ("TimedOut", True), ("Suspended", False), ("Preempted", False)],
)
def test_what_was_stopped_has_not_failed(reason: str, *, failed: bool) -> None:
    api = Api(attempts=tasks("a-0", reason=reason))
    found = log_hints._newest_failure(cast("api_client.ApiClient", api), "train", {})
    assert (found is not None) == failed


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        (["Held"], "the job is on hold"),
        (["OverLimit", "NeverFits"], "it can't start as things are"),
        (["InsufficientResources"], explain_start.NO_ROOM),
        (["OverLimit"], "it is unknown when the limit leaves room for it"),
        ([], explain_start.NO_ROOM),
    ],
)
def test_why_no_start_is_expected_is_told(codes: list[str], told: str) -> None:
    found = [{"code": code, "message": "m"} for code in codes]
    assert explain_start.why_no_estimate(found) == told


@pytest.mark.parametrize("event", list(pending_reasons.WaitsFor))
def test_each_event_that_a_reason_waits_for_has_its_text(event: pending_reasons.WaitsFor) -> None:
    found = [{"code": "InsufficientResources", "message": "m", "waitsFor": event.value}]
    assert explain_start.why_no_estimate(found) == explain_start.NO_ESTIMATE_BY_EVENT[event]
    assert explain_start.is_out_of_line(found) == (event.value == "FirstInQueue")


@pytest.mark.parametrize(
    ("code", "event", "told"),
    [
        ("Held", "Resume", "nothing new starts before `muster resume`"),
        ("Held", None, "the job is on hold"),
        ("Behind", "FirstInQueue", "it is unknown when the first job of its queue starts"),
        ("Behind", None, explain_start.NO_ROOM),
        ("OverLimit", "TimeLimit", "other jobs may take what becomes free"),
        ("OverLimit", "Later", "it is unknown when the limit leaves room for it"),
    ],
)
def test_the_event_is_more_exact_than_the_code(code: str, event: str | None, told: str) -> None:
    found = [{"code": code, "message": "m", "never": False, "waitsFor": event}]
    assert explain_start.why_no_estimate(found) == told


def test_a_job_with_a_reason_that_never_ends_has_no_start_at_all() -> None:
    never = {"code": "OverLimit", "message": "m", "never": True}
    other = {"code": "Reserved", "message": "m", "never": False}
    assert explain_start.why_no_estimate([never]) == "it can't start as things are"
    assert explain_start.why_no_estimate([other, never]) == "it can't start as things are"


def test_all_commands_lead_with_the_same_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """The first reason that waiting does not end, else the first."""
    limit = {"code": "OverLimit", "message": "4 in use, 6 asked", "never": False}
    busy = {"code": "NoTopologyDomain", "message": "m", "never": False}
    final = {"code": "NoTopologyDomain", "message": "m", "never": True}
    assert reason_order.leading([limit, busy]) == limit
    assert reason_order.leading([limit, final]) == final
    assert reason_order.leading([]) is None
    item = _waiting([limit, final])
    assert job_list.reason_text(item).startswith("NoTopologyDomain: m")
    assert job_wait._hopeless(item) == "NoTopologyDomain: m"
    explain._explain_job({"job": item, "reasons": item["reasons"], "queue": None}, 0.0)
    explained = capsys.readouterr().out
    show.facts(item, [])
    shown = capsys.readouterr().out
    for text in (explained, shown):
        assert text.index("NoTopologyDomain: m") < text.index("OverLimit: 4 in use")


def _waiting(reasons: list[dict[str, object]]) -> dict[str, Any]:
    """Return a pending job as the API has it."""
    return {
        "name": "j", "run": 0, "queue": "q", "state": "Pending", "array": False, "attempts": [],
        "place": None, "estimatedStart": None, "message": "", "reasons": reasons, "elements": {},
        "submitted": None, "started": None, "ended": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        (["OverLimit", "NeverFits"], "NeverFits"),
        (["OverLimit", "Behind"], "OverLimit"),
        ([], ""),
    ],
)
def test_of_a_job_that_no_waiting_starts_that_is_told(codes: list[str], told: str) -> None:
    reasons = [{"code": code, "message": "so"} for code in codes]
    row = {"reasons": reasons, "state": "Pending"}
    assert job_list.reason_text(row) == (f"{told}: so" if told else "")


LATE = "its deadline can't be met by its time limit: it would have had to start by then"


def test_what_is_said_of_a_job_that_waits_is_told_beside_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reason = {"code": "OverLimit", "message": "so"}
    row: dict[str, object] = {"reasons": [reason], "state": "Pending", "message": LATE}
    assert job_list.reason_text(row) == f"OverLimit: so; {LATE}"
    rows = [["a", "Pending", job_list.reason_text(row)]]
    assert job_list._move_down(rows, [row], 20) == {0: f"so; {LATE}"}
    assert rows[0][-1] == "OverLimit"
    row |= {"name": "a", "place": None, "estimatedStart": None, "attempts": []}
    explain._explain_job({"job": row, "reasons": [reason], "queue": None}, 0.0)
    assert LATE in capsys.readouterr().out.splitlines()
