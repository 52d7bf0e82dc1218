"""A start that hangs holds itself, and nothing else of its node: with a real supervisor, and a real
file system that does not answer."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.host import processes
from agents.supervisor import client
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason
from tests import started
from tests.integration import hanging
from tests.integration.agents import supervised
from tests.integration.agents.supervised import Bed, alive, wait

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount here")
#: Longer than any test waits.
NEVER_S = 9999
#: For a group in each hierarchy.
LIMITS = {"memory_bytes": 2**26, "cpu_milli": 500, "pids": 64}


@pytest.fixture(params=["process-group", "auto"])
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bed]:
    with supervised.made_in(tmp_path, request.param) as made:
        yield made


@pytest.fixture(params=[False, True], ids=["a kill ends it", "nothing ends it"])
def away(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hanging.Hanging]:
    with hanging.mounted(tmp_path / "away", swallow=request.param) as made:
        yield made


def hangs(bed: Bed, away: hanging.Hanging, name: str = "h.1", **more: Any) -> None:
    """Order a task whose folder does not answer, and see that somebody waits for it."""
    given = {"cwd": f"{away.place}/x", "start_s": NEVER_S, "limits": LIMITS, **more}
    bed.start(name, f"echo x >> {bed.root.parent}/ran", **given)
    assert away.asked.wait(60)


def ran(bed: Bed) -> int:
    """How often what hung has run."""
    told = bed.root.parent / "ran"
    return len(told.read_text().split()) if told.exists() else 0


def on_its_way(bed: Bed) -> list[int]:
    """Children of the supervisor that have not got a program yet."""
    (supervisor,) = processes.supervisors_of(str(bed.root))
    command = started.command_of(supervisor)
    table = processes.processes()
    return [pid for pid, facts in table.items()
            if facts[0] == supervisor and started.command_of(pid) == command]  # fmt: skip


def goes_on(bed: Bed) -> None:
    """Tasks of both users start and end."""
    assert bed.run("exit 3").exit_code == 3
    assert bed.run("exit 4", user="nobody").exit_code == 4


WHERE: dict[str, dict[str, Any]] = {
    "folder": {"cwd": "/x"},
    "command": {"argv": ["/x"]},
    "path": {"argv": ["true"]},
    "interpreter": {"script": "#!/sh\n", "argv": []},
    "link": {"argv": ["/../link"]},
}


@pytest.mark.parametrize("user", [None, "nobody"])
@pytest.mark.parametrize("what", WHERE)
def test_the_others_go_on(bed: Bed, away: hanging.Hanging, what: str, user: str | None) -> None:
    (away.place.parent / "link").symlink_to(away.place / "x")
    order = bed.order("h.1", "echo ran", user=user, start_s=NEVER_S) | WHERE[what]
    if what == "path":
        order["env"]["PATH"] = f"{away.place}/bin:/usr/bin:/bin"
    elif what == "folder":
        order["cwd"] = f"{away.place}/x"
    elif what == "interpreter":
        order |= {"script": f"#!{away.place}/sh\n", "argv": [f"{bed.root}/attempts/h.1/script"]}
    else:
        order["argv"] = [os.path.normpath(f"{away.place}{order['argv'][0]}")]
    bed.start("before", "exec sleep 999")
    bed.until("before", AttemptState.RUNNING)
    bed.supervisor.send([order])
    assert away.asked.wait(60)
    goes_on(bed)
    bed.supervisor.send(
        [{"op": "stop", "id": "before", "reason": "Preempted", "signal": "SIGTERM"}]
    )
    assert bed.ended("before").signal == 15


def test_an_agent_that_comes_hears_of_it(bed: Bed, away: hanging.Hanging) -> None:
    hangs(bed, away)
    bed.start("h.1", "echo again")  # an agent that does not know orders it again
    goes_on(bed)
    second = client.SupervisorClient(bed.root)
    told = {one.id: one.state for one in second.connect(threading.Event())}
    second.close()
    assert told["h.1"] is AttemptState.STARTING
    away.answer()
    assert bed.ended("h.1").exit_code == 0
    assert ran(bed) == 1


@pytest.mark.parametrize("user", [None, "nobody"])
def test_one_that_is_answered_in_time_runs_once(
    bed: Bed, away: hanging.Hanging, user: str | None
) -> None:
    (bed.root.parent / "ran").touch()
    (bed.root.parent / "ran").chmod(0o666)
    hangs(bed, away, user=user)
    goes_on(bed)
    away.answer()
    report = bed.ended("h.1")
    assert (report.end_reason, report.exit_code) == (EndReason.EXITED, 0)
    assert ran(bed) == 1


@pytest.mark.parametrize("user", [None, "nobody"])
def test_one_that_hangs_for_too_long_fails_and_never_runs(
    bed: Bed, away: hanging.Hanging, user: str | None
) -> None:
    hangs(bed, away, user=user, start_s=0.5)
    report = bed.ended("h.1")
    assert (report.end_reason, report.exit_code) == (EndReason.START_FAILED, 126)
    assert f"{away.place}/x" in report.message
    assert "within 0.5 s" in report.message
    goes_on(bed)
    away.answer()
    wait(lambda: not on_its_way(bed), "the end of what hung")
    wait(lambda: not bed.groups(), "the end of its groups")
    goes_on(bed)
    assert not ran(bed)
    assert bed.reports["h.1"].end_reason is EndReason.START_FAILED


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"op": "stop", "id": "h.1", "reason": "Preempted", "signal": "SIGTERM"}, "Preempted"),
        ({"op": "renew", "at": 0.0}, "LeaseExpired"),
    ],
    ids=["by order", "by its lease"],
)
def test_one_that_is_not_wanted_any_more_ends(
    bed: Bed, away: hanging.Hanging, order: dict[str, Any], reason: str
) -> None:
    hangs(bed, away, lease_s=1.0 if order["op"] == "renew" else None)
    bed.supervisor.send([order])
    report = bed.ended("h.1")
    assert (report.end_reason, report.exit_code, report.signal) == (EndReason(reason), None, None)
    assert "stopped before it started" in report.message
    away.answer()
    goes_on(bed)
    assert not ran(bed)


def test_one_that_hangs_is_told_before_it_is_given_up(bed: Bed, away: hanging.Hanging) -> None:
    hangs(bed, away)
    report = bed.until("h.1", AttemptState.STARTING)
    told = f"working directory {away.place}/x or command /bin/sh has not answered within 5 s"
    assert told in report.message
    away.answer()
    assert bed.ended("h.1").exit_code == 0
    assert ran(bed) == 1


def test_a_supervisor_that_is_to_leave_does(bed: Bed, away: hanging.Hanging) -> None:
    hangs(bed, away)
    told: list[AttemptReport] = []
    bed.supervisor.end_all(1.0, told.extend)
    assert [(one.id, one.end_reason) for one in told if one.state is AttemptState.ENDED] == [
        ("h.1", EndReason.NODE_STOPPED)
    ]
    wait(lambda: not processes.supervisors_of(str(bed.root)), "the end of the supervisor")
    away.answer()
    assert not ran(bed)


def test_where_the_supervisor_dies_another_follows(bed: Bed, away: hanging.Hanging) -> None:
    """Though what hangs can't be ended: it holds neither the lock nor the other tasks."""
    bed.start("other", "exec sleep 999")
    bed.until("other", AttemptState.RUNNING)
    pid = bed.supervisor.pids["other"]
    hangs(bed, away)
    goes_on(bed)
    bed.kill_supervisor()
    wait(lambda: not alive(pid), "the end of the other task, by the reaper")
    bed.meet()
    assert bed.reports["h.1"].end_reason is EndReason.LOST
    goes_on(bed)
    away.answer()
    goes_on(bed)
    assert not ran(bed)
