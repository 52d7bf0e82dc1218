"""What commands print reaches a pipe in whole lines, and tables have room for what matters."""

import contextlib
from pathlib import Path

import pytest
import typer

from reconciler.cli import main, terminal, usage_errors
from reconciler.cli.changes import job_selection
from reconciler.cli.cluster import drift, inspect_commands
from reconciler.cli.jobs import explain, job_list, show
from reconciler.cli.repository import history
from reconciler.cli.waiting import job_wait
from reconciler.operations.audit import audit_entries, audit_log
from reconciler.operations.views import cluster_status
from reconciler.server.api import audit


def test_reasons_are_lines_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 60 + "end"
    reason = {
        "code": "OverLimit",
        "message": long,
        "funnel": [{"count": 2, "why": long}],
        "unblocks": long,
    }
    job: dict[str, object] = {
        "name": "j",
        "state": "Pending",
        "place": None,
        "estimatedStart": None,
        "attempts": [],
    }
    explain._explain_job({"job": job, "reasons": [reason], "queue": None}, 0.0)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "word" in line] == [
        f"OverLimit: {long}",
        f"      2 nodes: {long}",
        f"  To fix: {long}.",
    ]


@pytest.mark.parametrize(
    ("subject", "expected"),
    [("0123456789abcdef" * 2 + "01234567", "0123456789ab"), ("gpu001", "gpu001"), ("x" * 40,) * 2],
)
def test_commits_are_short_in_tables(subject: str, expected: str) -> None:
    assert cluster_status.short_subject(subject) == expected


AMOUNTS = {"cpu": 4.0, "memory": 3 * 2**30, "gpu": 6.0}
QUEUE = {
    "name": "vision",
    "allocated": AMOUNTS,
    "guaranteed": {"cpu": None, "memory": None, "gpu": 8.0},
    "fairShare": None,
    "limit": {"cpu": None, "memory": None, "gpu": None},
    "demand": {"cpu": 5.5, "memory": 2**40, "gpu": 60.0},
}
#: Six of its eight GPUs are in service.
SHRUNK = {
    **QUEUE,
    "parent": None,
    "fairShare": {"cpu": None, "memory": None, "gpu": 6.0},
    "demand": AMOUNTS | {"gpu": 60.0},
}
BORROWER = {"name": "speech", "over": {"cpu": 1.0, "memory": 0, "gpu": 12.0}}


def _attempt(**fields: object) -> dict[str, object]:
    return {
        "task": "main-0",
        "attempt": 1,
        "node": "n1",
        "state": "Ended",
        "exitCode": 0,
        "started": "1970-01-01T00:01:00Z",
        "ended": "1970-01-01T00:02:00Z",
        "endReason": "Exited",
    } | fields


def _job(**fields: object) -> dict[str, object]:
    return {
        "name": "j", "state": "Pending", "place": None, "estimatedStart": None, "attempts": [],
    } | fields  # fmt: skip


PASSED_BY_NOBODY = {
    "code": "Behind",
    "message": "first goes first, and nobody passes it in queue q, which is strict",
    "unblocks": "wait for the start of first",
    "waitsFor": "FirstInQueue",
}
NEVER_WITHIN = {
    "code": "OverLimit",
    "message": "Quota q limits a to 1 GPU, and one start asks 2: it can't start under it",
    "unblocks": "that",
    "never": True,
}
EXPLAINED = {
    "starts for certain": (
        {
            "job": _job(estimatedStart="1970-01-01T02:00:00Z", estimatedCertain=True),
            "reasons": [{"code": "InsufficientResources", "message": "m"}],
            "queue": None,
            "borrowers": [],
        },
        """\
j is Pending.

InsufficientResources: m

Estimated start: about 1970-01-01 02:00 (in 1h00m).
""",
    ),
    "of an array it is the next element that starts": (
        {
            "job": _job(
                estimatedStart="1970-01-01T02:00:00Z",
                estimatedCertain=True,
                array=True,
                elements={"Pending": 4},
            ),
            "reasons": [{"code": "InsufficientResources", "message": "m"}],
            "queue": None,
            "borrowers": [],
        },
        """\
j is Pending.

4 elements: 4 Pending.

InsufficientResources: m

Estimated start of the next element: about 1970-01-01 02:00 (in 1h00m).
""",
    ),
    "starts for certain, if not when work runs as a rule": (
        {
            "job": _job(
                estimatedStart="1970-01-01T02:00:00Z",
                estimatedCertain=True,
                latestStart="1970-01-01T03:30:00Z",
            ),
            "reasons": [{"code": "Reserved", "message": "m"}],
            "queue": None,
            "borrowers": [],
        },
        """\
j is Pending.

Reserved: m

Estimated start: by 1970-01-01 03:30 (in 2h30m), maybe about 1970-01-01 02:00.
""",
    ),
    "starts when others have to give room back": (
        {
            "job": _job(estimatedStart="1970-01-01T02:00:00Z", startTakesBack=True),
            "reasons": [{"code": "InsufficientResources", "message": "m"}],
            "queue": None,
            "borrowers": [],
        },
        """\
j is Pending.

InsufficientResources: m

Estimated start: about 1970-01-01 02:00 (in 1h00m), when it may preempt others.
""",
    ),
    "starts when others have to give room back, and by then for certain": (
        {
            "job": _job(
                estimatedStart="1970-01-01T02:00:00Z",
                estimatedCertain=True,
                latestStart="1970-01-01T03:30:00Z",
                startTakesBack=True,
            ),
            "reasons": [{"code": "InsufficientResources", "message": "m"}],
            "queue": None,
            "borrowers": [],
        },
        """\
j is Pending.

InsufficientResources: m

Estimated start: by 1970-01-01 03:30 (in 2h30m), maybe about 1970-01-01 02:00, \
when it may preempt others.
""",
    ),
    "should have started": (
        {
            "job": _job(
                estimatedStart="1970-01-01T00:59:34Z",
                estimatedCertain=True,
                latestStart="1970-01-01T03:30:00Z",
            ),
            "reasons": [{"code": "InsufficientResources", "message": "m"}],
            "queue": None,
            "borrowers": [],
        },
        """\
j is Pending.

InsufficientResources: m

Estimated start: by 1970-01-01 03:30 (in 2h30m), as soon as what it waits for is free.
""",
    ),
    "should have started at the latest": (
        {
            "job": _job(
                estimatedStart="1970-01-01T00:59:34Z",
                estimatedCertain=True,
                latestStart="1970-01-01T00:59:50Z",
            ),
            "reasons": [{"code": "InsufficientResources", "message": "m"}],
            "queue": None,
            "borrowers": [],
        },
        """\
j is Pending.

InsufficientResources: m

Estimated start: about 1970-01-01 00:59, 26s ago: it starts as soon as what it waits for is \
free.
""",
    ),
    "waits": (
        {
            "job": _job(place=2, estimatedStart="1970-01-01T02:00:00Z"),
            "reasons": [
                {"code": "Fragmented", "message": "m", "funnel": [{"count": 1, "why": "w"}]}
            ],
            "queue": QUEUE,
            "borrowers": [BORROWER],
        },
        """\
j is Pending.

Fragmented: m
      1 node:  w

Queue vision:
               ALLOCATED  GUARANTEED  FAIR SHARE       LIMIT      DEMAND
  GPUs                 6           8           -           -          60
  CPUs                 4           -           -           -         5.5
  memory           3 GiB           -           -           -    1024 GiB
Queues above their guarantee: speech (12 GPUs, 1 CPU).

Place in its queue: 2.
Estimated start: about 1970-01-01 02:00 (in 1h00m); not certain: others may reclaim it first.
""",
    ),
    "waits in a queue whose guarantee shrank": (
        {
            "job": _job(estimatedStart="1970-01-01T02:00:00Z", estimatedCertain=True),
            "reasons": [{"code": "InsufficientResources", "message": "m"}],
            "queue": SHRUNK,
            "borrowers": [],
        },
        """\
j is Pending.

InsufficientResources: m

Queue vision:
               ALLOCATED  GUARANTEED  FAIR SHARE       LIMIT      DEMAND
  GPUs                 6           8           6           -          60
  CPUs                 4           -           -           -           4
  memory           3 GiB           -           -           -       3 GiB
Only 6 of its guaranteed 8 GPUs count now: less is in service than all guarantees together.

Estimated start: about 1970-01-01 02:00 (in 1h00m).
""",
    ),
    "waits for less than its guarantee": (
        {
            "job": _job(estimatedStart="1970-01-01T02:00:00Z", estimatedCertain=True),
            "reasons": [{"code": "InsufficientResources", "message": "m"}],
            "queue": SHRUNK | {"demand": AMOUNTS},
            "borrowers": [],
        },
        """\
j is Pending.

InsufficientResources: m

Queue vision:
               ALLOCATED  GUARANTEED  FAIR SHARE       LIMIT      DEMAND
  GPUs                 6           8           6           -           6
  CPUs                 4           -           -           -           4
  memory           3 GiB           -           -           -       3 GiB

Estimated start: about 1970-01-01 02:00 (in 1h00m).
""",
    ),
    "backs off": (
        {
            "job": _job(
                reasons=[{"code": "BackingOff"}],
                attempts=[
                    _attempt(exitCode=1, attempt=1),
                    _attempt(exitCode=3, attempt=2, ended="1970-01-01T00:02:30Z"),
                    _attempt(
                        exitCode=None,
                        signal=15,
                        endReason="Cancelled",
                        attempt=2,
                        task="main-1",
                        ended="1970-01-01T00:02:31Z",
                    ),
                ],
            ),
            "reasons": [{"code": "BackingOff", "message": "m", "unblocks": "that"}],
            "queue": None,
        },
        """\
j is Pending.

BackingOff: m
  Last try: main-0, try 2 on n1, after 1m30s: status 3.
  To fix: that.
""",
    ),
    "nothing of it ever ran": (
        {
            "job": _job(
                state="Failed",
                message="no such file",
                attempts=[_attempt(exitCode=None, endReason="StageFailed", started=None)],
            ),
        },
        """\
j is Failed.

no such file

  1970-01-01 00:02  main-0, try 1 on n1: StageFailed
""",
    ),
    "its node could not start it": (
        {
            "job": _job(
                state="Failed",
                message="its deadline has passed",
                attempts=[_attempt(exitCode=None, endReason="CheckFailed")],
            ),
        },
        """\
j is Failed.

its deadline has passed

  1970-01-01 00:02  main-0, try 1 on n1, after 1m00s: CheckFailed
""",
    ),
    "waits without an estimate": (
        {"job": _job(place=1), "reasons": [], "queue": None},
        (
            "j is Pending.\n\nPlace in its queue: 1.\n"
            "No estimated start: it is unknown when enough becomes free; work without a time "
            "limit may run on.\n"
        ),
    ),
    "runs": (
        {
            "job": _job(
                state="Running",
                attempts=[_attempt(state="Running", node=f"n{number}") for number in range(6)],
            ),
            "events": [
                {"kind": "JobPlaced", "at": "1970-01-01T00:00:05Z", "message": "try 1: 6 tasks"},
                {"kind": "JobStarting", "at": "1970-01-01T00:00:05Z", "message": ""},
            ],
            "queue": None,
        },
        """\
j is Running on n0, n1, n2, n3 and 2 more.

It was placed at 1970-01-01 00:00:
  try 1: 6 tasks
""",
    ),
    "an array runs": (
        {
            "job": _job(
                state="Running",
                array=True,
                elements={"Pending": 3, "Running": 4, "Succeeded": 1},
                attempts=[
                    _attempt(element=0),
                    *(_attempt(state="Running", node="n1", element=one) for one in (1, 2, 5)),
                    _attempt(state="Running", node="n2", element=3),
                ],
            ),
            "reasons": [{"code": "ArrayLimit", "message": "4 at once"}],
            "events": [{"kind": "JobPlaced", "at": "1970-01-01T00:00:05Z", "message": "element 5"}],
            "queue": QUEUE,
            "borrowers": [BORROWER],
        },
        """\
j is Running on n1, n2.

8 elements: 3 Pending, 4 Running, 1 Succeeded.
  on n1: 1-2, 5
  on n2: 3

Waiting elements:

ArrayLimit: 4 at once

The last element was placed at 1970-01-01 00:00:
  element 5
""",
    ),
    "waits for another job": (
        {
            "job": _job(place=1, reasons=[{"code": "Dependency"}]),
            "reasons": [{"code": "Dependency", "message": "afterOk a: waits until it ends"}],
            "queue": QUEUE,
            "borrowers": [BORROWER],
        },
        """\
j is Pending.

Dependency: afterOk a: waits until it ends

No estimated start: it depends on jobs that have not ended.
""",
    ),
    "is over its own limit": (
        {
            "job": _job(place=1, reasons=[{"code": "OverLimit"}]),
            "reasons": [{"code": "OverLimit", "message": "m", "unblocks": "that"}],
            "queue": QUEUE,
            "borrowers": [BORROWER],
        },
        """\
j is Pending.

OverLimit: m
  To fix: that.
  Free nodes are checked once the queue is below its limit.

Queue vision:
               ALLOCATED  GUARANTEED  FAIR SHARE       LIMIT      DEMAND
  GPUs                 6           8           -           -          60
  CPUs                 4           -           -           -         5.5
  memory           3 GiB           -           -           -    1024 GiB

Place in its queue: 1.
No estimated start: it is unknown when the limit leaves room for it.
""",
    ),
    "waits for its turn under a quota": (
        {
            "job": _job(
                place=1,
                reasons=[{"code": "OverLimit", "waitsFor": "EarlierStart"}],
            ),
            "reasons": [
                {"code": "OverLimit", "message": "Quota ada considers 1 job of ada@x at a time"}
            ],
            "queue": None,
        },
        """\
j is Pending.

OverLimit: Quota ada considers 1 job of ada@x at a time
  Free nodes are checked once Quota ada allows it.

Place in its queue: 1.
No estimated start: a job before it must start first, and it is unknown when.
""",
    ),
    "can never start under its own limit": (
        {
            "job": _job(place=3, reasons=[NEVER_WITHIN]),
            "reasons": [NEVER_WITHIN],
            "queue": None,
        },
        """\
j is Pending.

OverLimit: Quota q limits a to 1 GPU, and one start asks 2: it can't start under it
  To fix: that.

No estimated start: it can't start as things are.
""",
    ),
    "is behind one that nobody passes": (
        {
            "job": _job(place=1, reasons=[PASSED_BY_NOBODY]),
            "reasons": [PASSED_BY_NOBODY],
            "queue": None,
        },
        """\
j is Pending.

Behind: first goes first, and nobody passes it in queue q, which is strict
  To fix: wait for the start of first.

No estimated start: it is unknown when the first job of its queue starts.
""",
    ),
    "can never start": (
        {
            "job": _job(place=3, reasons=[{"code": "NeverFits"}]),
            "reasons": [{"code": "NeverFits", "message": "m", "unblocks": "that"}],
            "queue": QUEUE,
            "borrowers": [],
        },
        """\
j is Pending.

NeverFits: m
  To fix: that.

Queue vision:
               ALLOCATED  GUARANTEED  FAIR SHARE       LIMIT
  GPUs                 6           8           -           -
  CPUs                 4           -           -           -
  memory           3 GiB           -           -           -

No estimated start: it can't start as things are.
""",
    ),
    "failed": (
        {
            "job": _job(
                state="Failed",
                message="task main-1 ended with status 3 on n1",
                attempts=[
                    _attempt(devices=[0, 3]),
                    _attempt(task="main-1", exitCode=3, ended="1970-01-01T00:01:30Z"),
                ],
            ),
            "queue": QUEUE,
        },
        """\
j is Failed.

task main-1 ended with status 3 on n1

  1970-01-01 00:01  main-1, try 1 on n1, after 30s: status 3
  1970-01-01 00:02  main-0, try 1 on n1 (GPU 0,3), after 1m00s: status 0

Output: muster logs j --task main-1 --stderr
""",
    ),
    "cancelled": (
        {
            "job": _job(
                state="Cancelled",
                message="m",
                attempts=[
                    _attempt(task=f"main-{rank}", ended=f"1970-01-01T00:02:00.{9 - rank}Z")
                    for rank in (0, 2, 1)
                ],
            ),
            "queue": QUEUE,
        },
        """\
j is Cancelled.

m

  1970-01-01 00:02  main-0, try 1 on n1, after 1m00s: status 0
  1970-01-01 00:02  main-1, try 1 on n1, after 1m00s: status 0
  1970-01-01 00:02  main-2, try 1 on n1, after 1m00s: status 0

Output: muster logs j
""",
    ),
    "an element failed": (
        {
            "job": _job(
                state="Failed",
                message="",
                attempts=[_attempt(element=0), _attempt(element=7, exitCode=3)],
            ),
            "queue": QUEUE,
        },
        """\
j is Failed.

  1970-01-01 00:02  [0] main-0, try 1 on n1, after 1m00s: status 0
  1970-01-01 00:02  [7] main-0, try 1 on n1, after 1m00s: status 3

Output: muster logs j --task main-0 --element 7 --stderr
""",
    ),
    "has run, was evicted, and has run again": (
        {
            "job": _job(
                state="Succeeded",
                submitted="1970-01-01T00:00:10Z",
                started="1970-01-01T00:01:00Z",
                ended="1970-01-01T00:09:00Z",
                attempts=[
                    _attempt(attempt=2, ended="1970-01-01T00:09:00Z"),
                    _attempt(endReason="Preempted", exitCode=None, signal=15),
                ],
            ),
            "events": [
                {"kind": "JobSubmitted", "at": "1970-01-01T00:00:10Z", "message": "run 1"},
                {
                    "kind": "JobPlaced",
                    "at": "1970-01-01T00:01:00Z",
                    "message": "try 1: 1 task on n1; until now it waited: Behind: others",
                },
                {"kind": "JobEvicted", "at": "1970-01-01T00:02:00Z", "message": "for urgent"},
                {"kind": "JobPlaced", "at": "1970-01-01T00:03:00Z", "message": "try 2: n1"},
                {"kind": "JobSucceeded", "at": "1970-01-01T00:09:00Z", "message": ""},
            ],
            "queue": QUEUE,
        },
        """\
j is Succeeded: it waited 50s, ran 8m00s and ended at 1970-01-01 00:09.

  1970-01-01 00:00  submitted: run 1
  1970-01-01 00:01  placed: try 1: 1 task on n1; until now it waited: Behind: others
  1970-01-01 00:02  evicted: for urgent
  1970-01-01 00:03  placed: try 2: n1

  1970-01-01 00:02  main-0, try 1 on n1, after 1m00s: Preempted, signal 15
  1970-01-01 00:09  main-0, try 2 on n1, after 8m00s: status 0
""",
    ),
    "on nodes that are silent": (
        {
            "job": _job(
                state="Running",
                attempts=[
                    _attempt(state="Unknown", node=node, ended=None) for node in ("n1", "n2")
                ],
            ),
            "silent": [
                {
                    "node": "n1",
                    "pool": "a",
                    "lastHeard": "1970-01-01T00:55:50Z",
                    "tasks": 3,
                    "givenUp": "1970-01-01T01:06:00Z",
                    "endless": 2,
                },
                {
                    "node": "n2",
                    "pool": "",
                    "lastHeard": None,
                    "tasks": 1,
                    "givenUp": None,
                    "endless": 1,
                },
            ],
            "queue": None,
        },
        """\
j is Running on n1, n2.

n1, with 3 tasks of this job, last reported 4m10s ago, at 1970-01-01 00:55.
  If it stays silent, tasks with a lease restart elsewhere at 1970-01-01 01:06 or later.
  2 tasks without a lease: restarted only after the node is back. To fix: if you know that the \
node runs nothing, set an override with `gone: true` in NodePool a.

n2, with 1 task of this job, never reported.
  1 task without a lease: restarted only after the node is back. To fix: if you know that the \
node runs nothing, set an override with `gone: true` in a NodePool that has it.
""",
    ),
}


@pytest.mark.parametrize("case", EXPLAINED)
@pytest.mark.usefixtures("in_utc")
def test_what_is_explained(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    item, expected = EXPLAINED[case]
    explain._explain_job(item, 3600.0)
    assert capsys.readouterr().out == expected


def _listed(name: str, state: str, **fields: object) -> dict[str, object]:
    return {
        "name": name, "queue": "q", "state": state, "array": False, "elements": {}, "run": 1,
        "owner": "", "submitted": "1970-01-01T00:00:00Z", "started": None, "ended": None,
        "attempts": [], "reasons": [], "message": "",
    } | fields  # fmt: skip


def _tried(state: str, started: str, ended: str | None = None) -> dict[str, object]:
    return {"state": state, "node": "n", "started": started, "ended": ended}


AT_5, AT_7, AT_60 = ("1970-01-01T00:00:05Z", "1970-01-01T00:00:07Z", "1970-01-01T00:01:00Z")
JOBS = [
    _listed("a", "Pending", reasons=[{"code": "Behind", "message": "long " * 20}]),
    _listed("b", "Running", started=AT_60, attempts=[_tried("Running", AT_60)]),
    _listed("c", "Cancelled", ended="1970-01-01T00:00:30Z"),
    _listed("d", "Succeeded", started=AT_5, ended=AT_7, attempts=[_tried("Ended", AT_5, AT_7)]),
]


def test_lists_tell_waiting_from_running(capsys: pytest.CaptureFixture[str]) -> None:
    job_list.show(JOBS, 3600.0, wide=False)
    assert capsys.readouterr().out.splitlines() == [
        "NAME  QUEUE  STATE      WAITED     RAN  REASON",
        "a     q      Pending     1h00m       -  Behind",
        "    " + " ".join(["long"] * 15),
        "    " + " ".join(["long"] * 5),
        "b     q      Running     1m00s  59m00s",
        "c     q      Cancelled     30s       -",
        "d     q      Succeeded    5.0s    2.0s",
    ]


def test_wide_lists_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    array = _listed("e", "Running", array=True, elements={"Succeeded": 3, "Running": 1})
    job_list.show([*JOBS, array], 3600.0, wide=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].rstrip().endswith("Behind: " + ("long " * 20).rstrip())
    assert "3/4" in lines[-1]


def test_an_empty_list_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    job_list.show([], 0.0, wide=False)
    assert capsys.readouterr() == ("", "no jobs\n")


@pytest.mark.parametrize(
    ("written", "expected"),
    [("Pending", "Pending"), ("pending", "Pending"), ("timedout", "TimedOut")],
)
def test_states_however_they_are_capitalised(written: str, expected: str) -> None:
    assert job_selection.state_named(written) == expected


def test_a_state_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        job_selection.state_named("pendng")
    assert left.value.exit_code == terminal.USAGE
    assert "did you mean Pending?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], ""),
        (["OverLimit"], ""),
        (["OverLimit", "NeverFits"], "NeverFits: m"),
        (["Invalid"], "Invalid: m"),
        (["Held"], ""),
    ],
)
def test_what_no_waiting_ends(codes: list[str], expected: str) -> None:
    job = {"reasons": [{"code": code, "message": "m"} for code in codes]}
    assert job_wait._hopeless(job) == expected


@pytest.mark.parametrize("command", ["history", "audit"])
def test_more_entries_than_a_controller_tells_at_once_are_wrong_usage(command: str) -> None:
    """So that nobody takes it for one that fails: no controller is asked."""
    assert history.ENTRIES_MAX == audit.ENTRIES_MAX
    with pytest.raises(usage_errors.UsageError, match="not in the range"):
        main.application(command).main(
            [command, "-n", str(audit.ENTRIES_MAX + 1)], prog_name="muster", standalone_mode=False
        )


@pytest.mark.parametrize(("number", "text"), [(0, "0 pools"), (1, "1 pool"), (2, "2 pools")])
def test_counts_are_in_grammar(number: int, text: str) -> None:
    assert terminal.counted(number, "pool") == text


def _item(name: str, **fields: object) -> dict[str, object]:
    return {
        "name": name,
        "queue": "research-and-development",
        "state": "Pending",
        "array": False,
        "elements": {},
        "submitted": None,
        "reasons": [],
        "message": "",
    } | fields


@pytest.fixture
def in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound tables to 80 columns: in a pipe without COLUMNS they are as wide as their texts."""
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("in_80_columns")
def test_a_list_of_jobs_keeps_room_for_why_they_wait(capsys: pytest.CaptureFixture[str]) -> None:
    reason = {"code": "InsufficientResources", "message": "8 GPUs asked; 5 nodes: 3 drained"}
    items = [_item("pretraining-of-the-large-model", reasons=[reason]), _item("short")]
    job_list.show(items, 0.0, wide=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[-1] == "InsufficientResources"
    assert lines[1].startswith("pretraining-of-t")
    job_list.show([_item("short", queue="q", reasons=[reason])], 0.0, wide=False)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "short  q      Pending       -    -  InsufficientResources",
        "    8 GPUs asked; 5 nodes: 3 drained",
    ]


LACKS = [{"code": "InsufficientResources", "message": "8 GPUs asked; 5 nodes " * 3}]
CANCELLED = {"Succeeded": 0, "Cancelled": 2}


@pytest.mark.usefixtures("in_80_columns")
def test_names_give_way_to_codes(capsys: pytest.CaptureFixture[str]) -> None:
    items = [
        _item("pretraining-of-the-large-model", reasons=LACKS),
        _item("sweep-over-all", reasons=LACKS, array=True, elements=CANCELLED),
    ]
    job_list.show(items, 0.0, wide=False)
    heading, first, _, second, ends = (
        line for line in capsys.readouterr().out.splitlines() if not line.startswith("     ")
    )
    assert max(map(len, (heading, first, second))) <= 80
    assert first.endswith("  InsufficientResources")
    assert first.split()[0] == "pretraining-of-t…"
    assert "  0/2  " in second
    assert second.endswith("  as above")
    assert ends == "    2 cancelled"


@pytest.mark.usefixtures("in_80_columns")
def test_codes_without_room_stand_below_whole(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = {"running": 3000, "min": 2000, "max": 60000}
    behind = [{"code": "Behind", "message": "others go first, which " * 4}]
    items = [
        _item("pretraining-of-the-large-model", reasons=LACKS, tasks=tasks),
        _item("sweep-over-all", reasons=LACKS, array=True, elements=CANCELLED),
        _item("last-of-all", queue="q", reasons=behind),
    ]
    job_list.show(items, 0.0, wide=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if not line.startswith("    ")]
    assert rows[0].split()[3:5] == ["TASKS", "DONE"]
    assert [line.split()[-1] for line in rows[1:]] == ["InsufficientResources", "above", "Behind"]
    assert "  3000 of 2000-60000  " in rows[1]
    assert "  0/2  " in rows[2]
    assert lines[2].startswith("    8 GPUs asked; 5 nodes")
    assert lines[4] == "    2 cancelled"


def test_a_job_whose_message_is_its_reason_tells_it_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    why = "jobs/a.yaml:3:1: error: there is no such field"
    item = _item("a", reasons=[{"code": "Invalid", "message": why}], message=why, attempts=[])
    assert job_list.reason_text(item) == f"Invalid: {why}"
    more = {"place": None, "estimatedStart": None}
    explained = {"job": item | more, "reasons": item["reasons"], "queue": None}
    explain._explain_job(explained, 0.0)
    assert capsys.readouterr().out.count(why) == 1


def test_jobs_in_a_row_that_wait_alike_tell_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    reason = {"code": "InsufficientResources", "message": "8 GPUs asked; " + "so many nodes " * 6}
    other = {"code": "Behind", "message": "others go first"}
    items = [_item("a", reasons=[reason]), _item("b", reasons=[reason])]
    items += [_item("c", reasons=[other]), _item("d", reasons=[reason])]
    job_list.show(items, 0.0, wide=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["a", "8", "many", "b", "c", "d", "8", "many"]
    assert lines[1].endswith("  InsufficientResources")
    assert lines[4].endswith("  as above"), "there is no room for more at 80 columns"
    assert not lines[6].endswith("above"), "between them one waits for something else"
    short = [_item(name, queue="q", reasons=[reason]) for name in "abc"]
    job_list.show(short, 0.0, wide=False)
    lines = capsys.readouterr().out.splitlines()
    told = [line.partition("-    -  ")[2] for line in lines[1:] if not line.startswith(" ")]
    assert told == ["InsufficientResources", *["InsufficientResources, as above"] * 2]


def test_of_names_that_differ_at_their_end_the_middle_is_cut() -> None:
    ranks = [f"pretraining.1.0a1b2c3d.0.worker.{rank}.1" for rank in range(3)]
    shown = {terminal.shortened(rank, 20, middle=True) for rank in ranks}
    assert len(shown) == 3
    assert all(len(one) == 20 and one.startswith("pretra") for one in shown)
    assert terminal.shortened("abcdef", 4) == "abc…"
    assert terminal.shortened("abcd", 4, middle=True) == "abcd"


def test_columns_give_way_where_they_are_widest() -> None:
    assert terminal.fit_columns([10, 20, 30], 100) == [10, 20, 30]
    assert terminal.fit_columns([10, 20, 30], 54) == [10, 20, 20]
    assert terminal.fit_columns([10, 500, 30], 44) == [10, 15, 15]
    assert terminal.fit_columns([10, 30, 30], 64, [8, 8, 28]) == [10, 20, 30]
    assert terminal.fit_columns([10, 30, 30], 32, [8, 8, 28]) == [8, 8, 12]
    assert terminal.fit_columns([10, 30, 30], 10) == [8, 8, 8]


def test_every_command_has_an_example_and_a_summary_that_is_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = main.application()
    with contextlib.suppress(SystemExit):
        whole.main(["--help"], prog_name="muster", standalone_mode=False)
    listed = capsys.readouterr().out.partition("Commands:")[2]
    assert "..." not in listed
    for name, command in whole.commands.items():
        if name in {"version", "controller", "agent"}:
            continue
        inside = getattr(command, "commands", {})
        for one in inside.values() or [command]:
            assert "Example: muster" in (one.help or ""), name


def test_times_in_what_people_read_are_as_in_tables(capsys: pytest.CaptureFixture[str]) -> None:
    at = "2026-01-31T06:00:00.000Z"
    reason = {"code": "Reserved", "message": f"kept until {at}", "unblocks": f"{at}", "funnel": []}
    item = {"state": "Pending", "reasons": [reason], "message": ""}
    shown = terminal.format_clock(at)
    assert job_list.reason_text(item) == f"Reserved: kept until {shown}"
    listed = {
        "kind": "node-silent",
        "subject": "n1",
        "severity": "warning",
        "action": "remediate",
        "firstSeen": at,
        "message": f"silent since {at}",
        "wanted": "",
        "found": "",
        "remedy": f"next at {at}",
        "givenUp": True,
    }
    drift._table([listed], wide=True)
    told = capsys.readouterr()
    assert f"silent since {shown}" in told.out
    assert f"next at {shown}" in told.out
    assert at not in told.out + told.err


def test_what_a_difference_is_about_stays_whole_in_80_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = "the driver does not know GPU 0 (GPU-sim-virtual-0-0), which the pool declares there"
    common: dict[str, object] = {
        "severity": "critical",
        "action": "report",
        "firstSeen": None,
        "givenUp": False,
    }
    kinds = ("job-cancelled-by-override", "repository-unreadable")
    drift._table(
        [{"kind": kind, "subject": "virtual-0/gpu0", "message": message} | common for kind in kinds]
        + [{"kind": "node-silent", "subject": "n1", "message": "short"} | common],
        wide=False,
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()).count(message) == 2
    for kind in kinds:
        assert any(line.startswith(f"{kind:<25}  virtual-0/gpu0  critical") for line in lines)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [("132", 132), ("40", 40), ("", 80), ("0", 80), ("-5", 80), ("wide", 80), (None, 80)],
)
def test_a_pipe_is_as_wide_as_columns_says(
    columns: str | None,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    terminal.print_table(["NAME", "WHY"], [["j", "word " * 40]])
    assert max(map(len, capsys.readouterr().out.splitlines())) == expected
    terminal.print_paragraph("word " * 40)
    assert max(map(len, capsys.readouterr().out.splitlines())) in range(expected - 4, expected + 1)


@pytest.mark.parametrize("wide", [True, False])
def test_amounts_by_pool_stand_below_their_queue(*, wide: bool) -> None:
    pools = [
        {"pool": "a100", "named": True, "allocated": {"gpu": 2.0}, "limit": {"gpu": 6.0}},
        {"pool": "h200", "named": False, "allocated": {"gpu": 4.0}, "limit": {"gpu": None}},
    ]
    counts = {"running": 3, "pending": 1, "weight": 2.0, "priority": 0, "parent": None}
    items = [QUEUE | counts | {"pools": pools}, QUEUE | counts | {"name": "speech"}]
    rows = inspect_commands.queue_rows(items, ["allocated", "limit"], wide=wide)
    blank = [""] * (4 if wide else 2)
    end = [*(["2", "0"] if wide else []), "3", "1"]
    expected = [
        ["vision", "-", "6", "-", "4", "-", *end],
        ["  in a100", "", "2", "6", "-", "-", *blank],
        ["speech", "-", "6", "-", "4", "-", *end],
    ]
    if wide:
        expected.insert(2, ["  in h200", "", "4", "-", "-", "-", *blank])
    assert rows == expected


def test_a_queue_counts_the_jobs_of_those_below_it() -> None:
    tree = [("vision", "research", 3, 1), ("research", None, 0, 0), ("night", "vision", 2, 5)]
    items = [
        {"name": name, "parent": parent, "running": running, "pending": pending}
        for name, parent, running, pending in tree
    ]
    alone = {"name": "default", "parent": "gone", "running": 1, "pending": 0}
    counted = inspect_commands.with_children([*items, alone])
    assert [(one["name"], one["running"], one["pending"]) for one in counted] == [
        ("vision", 5, 6),
        ("research", 5, 6),
        ("night", 2, 5),
        ("default", 1, 0),
    ]
    assert items[0]["running"] == 3, "what the API said stays"


LENDS = {"lendingLimit": {"cpu": None, "memory": None, "gpu": 2.0}}


@pytest.mark.parametrize(
    ("items", "wide", "expected"),
    [
        ([QUEUE], False, ["allocated", "guaranteed", "limit"]),
        ([QUEUE | {"lendingLimit": {"gpu": None}}], False, ["allocated", "guaranteed", "limit"]),
        ([QUEUE, QUEUE | LENDS], False, ["allocated", "guaranteed", "lendingLimit", "limit"]),
        (
            [QUEUE | {"pools": [LENDS]}],
            True,
            ["allocated", "fairShare", "demand", "guaranteed", "lendingLimit", "limit"],
        ),
    ],
)
def test_what_queues_lend_is_shown_where_one_says_it(
    items: list[dict[str, object]], expected: list[str], *, wide: bool
) -> None:
    kinds, names = inspect_commands.queue_columns(items, wide=wide)
    assert kinds == expected
    assert ("LENDS" in names) is ("lendingLimit" in expected)
    assert len(names) == len(kinds) - 1


def test_reasons_of_what_is_held_stand_each_on_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reasons = ["3 GPUs leave service; at most 2 may", "queue a is removed"]
    inspect_commands._held(
        "held: " + "; ".join(reasons) + "; `muster approve X` approves this", reasons
    )
    assert capsys.readouterr().out.splitlines() == [
        "       held, for 2 reasons:",
        "       - 3 GPUs leave service; at most 2 may",
        "       - queue a is removed",
        "       `muster approve X` approves this",
    ]
    inspect_commands._held("held: queue a is removed", reasons[1:])
    assert capsys.readouterr().out == "       held: queue a is removed\n"


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (3, []),
        (4, ["Evicted   1 time before: muster events --job j"]),
        (9, ["Evicted   6 times before: muster events --job j"]),
    ],
)
def test_a_job_says_that_there_are_more_evictions_than_it_lists(
    count: int, told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    item = _job(run=1, queue="", array=False) | {"submitted": None, "started": None, "ended": None}
    evicted = [{"at": "1970-01-01T00:00:05Z", "message": f"element {one}"} for one in range(count)]
    show.facts(item, evicted)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Evicted")]
    assert lines[:-3] == told
    assert [line.rpartition(" ")[2] for line in lines[-3:]] == [
        str(one) for one in range(count - 3, count)
    ]


@pytest.mark.parametrize(
    ("begins", "words", "told"),
    [
        (
            1,
            ["--from", "3"],
            "no line could be verified: the log begins with line 1, before",
        ),
        (3, [], "no line could be verified: line 1: found number 3, expected 1"),
        (
            *(1, ["--from", "9"]),
            "without a first number (--from) the log is verified from its first line",
        ),
    ],
)
def test_a_log_that_begins_elsewhere_than_was_said_is_told(
    begins: int, words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = audit_log.Log(tmp_path / audit_log.FILE)
    for revision in "abcde":
        log.append(audit_entries.AuditEntry(at=1.0, revision=revision, result="Synced"))
    kept = log.path.read_bytes().splitlines(keepends=True)[begins - 1 :]
    log.path.write_bytes(b"".join(kept))
    command = main.application("audit")
    asked = ["audit", "verify", "--file", str(log.path), *words]
    assert command.main(asked, prog_name="muster", standalone_mode=False) == terminal.ERROR
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("wide", [False, True])
def test_of_elastic_gangs_it_is_told_how_many_tasks_run(
    *, wide: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    gang = _listed("gang", "Running", tasks={"running": 3, "min": 2, "max": 6})
    ended = _listed("over", "Succeeded", tasks={"running": 0, "min": 2, "max": 6})
    job_list.show([gang, ended, _listed("e", "Running", tasks=None)], 3600.0, wide=wide)
    heading, first, second, third = capsys.readouterr().out.splitlines()
    place = heading.index("TASKS") + len("TASKS")
    told = [line[:place].split("  ")[-1].strip() for line in (first, second, third)]
    assert told == ["3 of 2-6", "-", "-"]
    assert max(map(len, (heading, first, second, third))) <= 80
    job_list.show(JOBS, 3600.0, wide=wide)
    assert "TASKS" not in capsys.readouterr().out


def test_an_elastic_gang_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    gang = _listed("gang", "Running", tasks={"running": 1, "min": 2, "max": 6})
    assert job_list.tasks_text(gang) == "1 task runs (minimum 2, maximum 6)"
    gang |= {"place": None, "estimatedStart": None, "attempts": []}
    explain._explain_job({"job": gang, "reasons": [], "queue": None}, 0.0)
    assert "1 task runs (minimum 2, maximum 6)." in capsys.readouterr().out.splitlines()
    show.facts({**gang, "run": 0, "reasons": []}, [])
    assert "Tasks     1 task runs (minimum 2, maximum 6)" in capsys.readouterr().out
