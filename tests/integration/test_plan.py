"""A branch is planned against a live cluster, merged, and then exactly that happens."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import beds

STRUCTURE = """\
apiVersion: muster/v1
kind: Queue
metadata: {name: research}
spec: {weight: 1}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: students}
spec: {weight: 0}
---
apiVersion: muster/v1
kind: PriorityClass
metadata: {name: urgent}
spec: {value: 100}
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path_factory.mktemp("plan"), gpus=2) as made:
        made.commit({"queues.yaml": STRUCTURE})
        yield made


def _gpus(name: str, spec: str) -> str:
    return beds.job(name, f"  resources: {{gpu: 2}}\n{spec}")


def _plan(bed: beds.Bed, *arguments: str) -> tuple[int, str]:
    """Exit status and output of ``muster plan`` in the clone."""
    command = [str(Path(sys.executable).with_name("muster")), "plan", *arguments]
    command += ["--server", bed.cluster.endpoint.url]
    if bed.cluster.endpoint.token_file:
        command += ["--token-file", bed.cluster.endpoint.token_file]
    done = subprocess.run(
        command, cwd=bed.clone, capture_output=True, text=True, timeout=120, check=False
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def _propose(bed: beds.Bed, files: dict[str, str]) -> str:
    """Commit files on a branch of their own, and leave main as it is; the revision."""
    bed.git("checkout", "--quiet", "-B", "proposal", "main", folder=bed.clone)
    for name, text in files.items():
        path = bed.clone / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    bed.git("add", "--all", folder=bed.clone)
    bed.git("commit", "--quiet", "--message", "propose", folder=bed.clone)
    bed.git("push", "--quiet", "--force", "origin", "proposal", folder=bed.clone)
    revision = bed.git("rev-parse", "HEAD", folder=bed.clone)
    bed.git("checkout", "--quiet", "main", folder=bed.clone)
    return revision


def test_what_the_plan_says_is_what_happens(bed: beds.Bed) -> None:
    kept = "  queue: research\n  priority: 200\n  timeLimit: 2h\n  command: [sleep, '7200']"
    low = "  queue: research\n  priority: 10\n  timeLimit: 1h\n  command: [sleep, '3600']"
    bed.commit({"jobs/kept.yaml": _gpus("kept", kept), "jobs/low.yaml": _gpus("low", low)})
    for name in ("kept", "low"):
        bed.until_state(name, "Running")
    waits = "  queue: students\n  priority: 5\n  timeLimit: 10m\n  command: ['true']"
    bed.commit({"jobs/homework.yaml": _gpus("homework", waits)})
    bed.until(lambda: bed.job("homework")["reasons"])

    urgent = "  queue: research\n  priorityClass: urgent\n  timeLimit: 100m\n"
    urgent += "  command: [sleep, '6000']"
    revision = _propose(bed, {"jobs/urgent.yaml": _gpus("urgent", urgent)})
    status, text = _plan(bed, "proposal")
    assert status == 2
    assert "+ Job/urgent" in text
    assert "  low                is preempted for urgent at once" in text
    assert "  urgent             new: starts at once" in text
    assert "  queue students     1 wait: 1 later; " in text

    status, told = _plan(bed, "proposal", "-o", "json")
    assert status == 2
    plan = json.loads(told)
    (gone,) = plan["forecast"]["evictions"]
    assert (gone["job"], gone["queue"], gone["reason"]) == ("low", "research", "Preempted")
    assert gone["gpuHoursLost"] > 0
    students = {one["queue"]: one for one in plan["forecast"]["queues"]}["students"]
    assert (students["waiting"], students["later"]) == (1, 1)
    # an hour of the one that is displaced would have been less than the urgent one's time
    assert students["later_s"] > 2300
    (change,) = plan["changes"]
    assert change.pop("summary")
    path = "jobs/urgent.yaml"
    assert change == {
        "operation": "add", "kind": "Job", "name": "urgent", "path": path, "fields": {}, "note": ""
    }  # fmt: skip

    # the controller plans the same
    found = bed.get("/v1/plan", revision=revision)
    assert [(one["job"], one["reason"]) for one in found["forecast"]["evictions"]] == [
        ("low", "Preempted")
    ]
    assert found["verdict"] == "changes"
    assert {one["name"] for one in bed.get("/v1/jobs")["items"]} == {"kept", "low", "homework"}

    before = bed.job("homework")["estimatedStart"]
    bed.git("merge", "--quiet", "--ff-only", "proposal", folder=bed.clone)
    bed.git("push", "--quiet", "origin", "main", folder=bed.clone)
    bed.until_state("urgent", "Running")
    displaced = bed.job("low")
    assert displaced["state"] == "Pending"
    assert displaced["attempts"][0]["endReason"] == "Preempted"
    assert bed.job("kept")["state"] == "Running"
    assert bed.job("homework")["state"] == "Pending"
    bed.until(lambda: bed.job("homework")["estimatedStart"] > before)

    status, text = _plan(bed, "main")
    assert status == 0
    assert "No changes." in text


def test_a_snapshot_stands_in_for_a_controller_that_cant_be_reached(
    bed: beds.Bed, tmp_path: Path
) -> None:
    muster = str(Path(sys.executable).with_name("muster"))
    file = tmp_path / "cluster.snapshot"
    reach = ["--server", bed.cluster.endpoint.url]
    if bed.cluster.endpoint.token_file:
        reach += ["--token-file", bed.cluster.endpoint.token_file]
    done = subprocess.run(
        [muster, "snapshot", str(file), *reach], capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert "2 nodes" in done.stderr
    _propose(bed, {"jobs/small.yaml": beds.job("small", "  command: ['true']")})
    planned = subprocess.run(
        [muster, "plan", "proposal", "--against", str(file)],
        cwd=bed.clone, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert planned.returncode == 2, planned.stderr
    assert "small              new: starts at once" in planned.stdout
    # somewhere else no controller is known
    bed.git("clone", "--quiet", str(bed.folder / "repository.git"), str(tmp_path / "elsewhere"))
    alone = subprocess.run(
        [muster, "plan", "origin/proposal"],
        cwd=tmp_path / "elsewhere", capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert alone.returncode == 2, alone.stderr
    assert "none: no controller is known here" in alone.stdout
