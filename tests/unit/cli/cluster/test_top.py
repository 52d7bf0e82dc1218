"""``muster top``: what its screen shows, and that it fits."""

import pytest

from reconciler.cli.cluster import top
from reconciler.model.state import events

NOW = 1_700_000_000.0


def node(
    number: int, state: str = "Ready", *, given: int = 0, busy: float | None = None
) -> top.Json:
    usage = None if busy is None else {"utilization": busy}
    return {
        "name": f"gpu{number:03}",
        "state": state,
        "capacity": {"cpu": 64, "memory": 2**38, "gpu": 8},
        "allocated": {"cpu": 8 * given, "memory": given * 2**34, "gpu": given},
        "gpus": [{"usage": usage} for _ in range(8)],
    }


def queue(name: str, **more: top.Json) -> top.Json:
    return {"name": name, "running": 0, "pending": 0} | more


SEEN = {
    "sync": {"sync": "Synced", "jobsRevision": "0123456789abcdef0123"},
    "queues": [
        queue("default", allocated={"gpu": 0}, guaranteed={}, limit={}),
        queue(
            "research", running=3, pending=12, allocated={"gpu": 12}, guaranteed={"gpu": 16},
            limit={"gpu": 24},
        ),
    ],
    "nodes": [
        node(1, given=4, busy=0.5), node(2, "Unknown"), node(3, given=8, busy=0.75),
        *(node(number) for number in range(4, 40)),
    ],
    "drift": [{"kind": "node-silent"}],
}  # fmt: skip
EVENTS = [
    {"at": "2023-11-14T22:13:20Z", "kind": "JobRunning", "job": "train", "node": "gpu001",
     "message": "all its tasks run"},
    {"at": "2023-11-14T22:13:20Z", "kind": "NodeUnknown", "job": "", "node": "gpu002",
     "message": "not heard of" + " for long" * 20},
]  # fmt: skip

SCREEN = """\
22:13:20  git Synced at 0123456789ab  drift 1 difference

GPUs [#.............................] 12 of 312
CPUs [#.............................] 96 of 2496
GiB  [#.............................] 192 of 9984
busy [###################...........] 62% of 16 GPUs that report

QUEUE                 RUN  WAIT    GPUS   GUAR  LIMIT  SHARE
research                3    12      12     16     24  [########..]
default                 0     0       0      -      -  [..........]

NODE                STATE           CPUS     GPUS  ALLOCATED   BUSY
gpu002              Unknown         0/64      0/8  [..........]
gpu003              Ready          64/64      8/8  [##########]  75%
gpu001              Ready          32/64      4/8  [#####.....]  50%
gpu004              Ready           0/64      0/8  [..........]
... and 35 more nodes

EVENTS
2023-11-14 22:13  JobRunning       train on gpu001  all its tasks run
2023-11-14 22:13  NodeUnknown      gpu002  not heard of for long for long for l…"""


@pytest.mark.usefixtures("in_utc")
def test_the_screen_shows_what_matters_first() -> None:
    lines = top.picture(SEEN, EVENTS, 80, 24, NOW)
    assert "\n".join(lines) == SCREEN


@pytest.mark.parametrize("height", [16, 24, 60])
def test_it_fits(height: int) -> None:
    lines = top.picture(SEEN, EVENTS * 50, 80, height, NOW)
    assert len(lines) <= height
    assert max(map(len, lines)) <= 80


def test_a_cluster_that_has_nothing_yet_has_a_screen() -> None:
    empty: dict[str, top.Json] = {"sync": {}, "queues": [], "nodes": [], "drift": []}
    lines = top.picture(empty, [], 80, 24, NOW)
    assert lines[-1] == "none yet"


@pytest.mark.usefixtures("in_utc")
def test_what_happens_to_many_jobs_at_once_is_one_line() -> None:
    at, waits = "2023-11-14T22:13:20Z", "run 1 waits in queue research"
    many = [
        {"at": at, "kind": "JobSubmitted", "job": f"train-{number}", "node": "", "message": waits}
        for number in range(12)
    ]
    other = many[0] | {"job": "eval", "message": "run 1 waits in queue default"}
    lines = top.picture(SEEN, [EVENTS[0], *many, other], 100, 60, NOW)
    assert lines[lines.index("EVENTS") + 1 :] == [
        "2023-11-14 22:13  JobRunning       train on gpu001  all its tasks run",
        f"2023-11-14 22:13  JobSubmitted     12 jobs, train-11  {waits}",
        "2023-11-14 22:13  JobSubmitted     eval  run 1 waits in queue default",
    ]


@pytest.mark.parametrize(("part", "shown"), [(0.0, "[....]"), (0.5, "[##..]"), (7.0, "[####]")])
def test_a_bar_is_never_wider_than_its_frame(part: float, shown: str) -> None:
    assert top.bar(part, 4) == shown


@pytest.mark.usefixtures("in_utc")
def test_what_has_gone_is_not_counted() -> None:
    nodes = [node(1, given=4), node(2, "Gone")]
    lines = top.picture(SEEN | {"nodes": nodes}, EVENTS, 80, 24, NOW)
    assert lines[2].endswith(" 4 of 8")
    assert any("gpu002              Gone" in line for line in lines)


@pytest.mark.parametrize(
    ("kind", "message", "is_news"),
    [
        ("JobRunning", events.SENTENCES["JobRunning"], False),  # AttemptRunning says where
        ("JobSucceeded", events.SENTENCES["JobSucceeded"], True),
        ("NodeReady", events.SENTENCES["NodeReady"], False),
        ("NodeReady", "its checks pass again", True),
    ],
)
def test_what_follows_from_other_news_is_none(kind: str, message: str, is_news: bool) -> None:
    assert top.is_news({"kind": kind, "message": message}) == is_news


def test_a_long_name_leaves_room_for_what_became_of_it() -> None:
    name = "wait-19-33-with-a-long-name-of-an-experiment"
    long = {"at": "2023-11-14T22:13:20Z", "kind": "JobHeld", "job": name, "message": "it is held"}
    (line,) = (
        line for line in top.picture(SEEN, [long], 80, 24, NOW) if line.endswith("it is held")
    )
    assert "wait-19" in line
    assert "experiment" in line


@pytest.mark.usefixtures("in_utc")
def test_jobs_come_before_queues() -> None:
    job = {
        "name": "train", "state": "Pending", "array": False, "elements": {},
        "queue": "research", "started": None,
        "submitted": "2023-11-14T22:03:20Z",
        "reasons": [{"code": "Behind", "message": "others go first", "never": False}],
    }  # fmt: skip
    jobs = [job, job | {"queue": "default"}] * 10
    lines = top.picture(SEEN | {"jobs": jobs}, EVENTS, 110, 40, NOW)
    at = lines.index(next(line for line in lines if line.startswith("JOB ")))
    assert lines[at + 1].split()[:3] == ["train", "Pending", "research"]
    assert "Behind: others go first" in lines[at + 1]
    assert any(line.endswith("more jobs") for line in lines)
    assert at < lines.index(next(line for line in lines if line.startswith("QUEUE ")))
    assert len(lines) <= 40


def test_jobs_of_a_narrow_screen_show_their_counts_and_why_they_wait() -> None:
    job = {
        "name": "sweep", "state": "Running", "queue": "research", "array": True,
        "elements": {"Succeeded": 3, "Failed": 1, "Running": 2}, "reasons": [],
        "started": "2023-11-14T22:03:20Z",
    }  # fmt: skip
    reason = {"code": "Behind", "message": "3 jobs of this queue go first", "never": False}
    waits = job | {"name": "a", "state": "Pending", "array": False, "reasons": [reason]}
    lines = top.picture(SEEN | {"jobs": [job, waits]}, EVENTS, 80, 40, NOW)
    at = next(place for place, line in enumerate(lines) if line.startswith("JOB "))
    assert lines[at : at + 3] == [
        "JOB    STATE    DONE            SINCE  WHY",
        "sweep  Running  3/6, 1 failed  10m00s",
        "a      Pending  -              10m00s  Behind: 3 jobs of this queue go first",
    ]


def test_without_gpus_queues_show_cpus_and_their_share() -> None:
    seen = SEEN | {
        "queues": [queue("default", allocated={"cpu": 4}, guaranteed={}, limit={})],
        "nodes": [{"name": "here", "state": "Ready", "capacity": {"cpu": 8}, "allocated": {}}],
    }
    lines = top.picture(seen, EVENTS, 80, 24, NOW)
    at = next(place for place, line in enumerate(lines) if line.startswith("QUEUE "))
    assert lines[at].split()[3] == "CPUS"
    assert lines[at + 1].endswith("[#####.....]")


@pytest.mark.parametrize(
    ("pause_s", "told", "rest_s"),
    [(2, True, 2), (2, False, top.NEWS_S), (60, True, 60), (60, False, 60)],
)
def test_lists_are_never_read_sooner_than_asked(pause_s: float, told: bool, rest_s: float) -> None:
    assert top.rest_s(pause_s, told=told) == rest_s
