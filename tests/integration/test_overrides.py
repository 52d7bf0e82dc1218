"""A cluster whose repository goes away: what people can still do, and how git catches up."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.integration import beds

QUEUES = """
apiVersion: muster/v1
kind: Queue
metadata: {name: team}
spec: {}
"""
CLOCK = re.compile(r"\b(\d\d-\d\d )?\d\d:\d\d(:\d\d)?\b")


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path) as made:
        yield made


def muster(bed: beds.Bed, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Run the command in the cluster's folder; stdout and stderr, times of day taken out.

    Columns stand two spaces apart, however wide a time is: tomorrow's is shown with its day.
    """
    done = subprocess.run(
        [sys.executable, "-m", "reconciler.cli.main", *arguments],
        check=False,
        cwd=bed.folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done
    told = [CLOCK.sub("TIME", text) for text in (done.stdout, done.stderr)]
    printed, noted = (re.sub(" {2,}", "  ", text) for text in told)
    return printed, noted


def _drift(bed: beds.Bed) -> list[tuple[str, str]]:
    found = bed.get("/v1/drift")["items"]
    return [(one["kind"], one["subject"]) for one in found if "override" in one["kind"]]


def _kinds(bed: beds.Bed, node: str) -> list[str]:
    return [event["kind"] for event in bed.get("/v1/events", node=node)["items"]]


def _node(bed: beds.Bed, name: str) -> beds.Json:
    return next(node for node in bed.get("/v1/nodes")["items"] if node["name"] == name)


def test_cancel_and_drain_while_git_is_away(bed: beds.Bed) -> None:
    files = {
        "jobs/long.yaml": beds.job("long", "  command: [sleep, '600']"),
        "jobs/big.yaml": beds.job("big", "  resources: {cpu: 99}\n  command: ['true']"),
    }
    bed.commit(dict(files))
    bed.until_state("long", "Running")
    bed.until(lambda: bed.job("big")["reasons"])
    repository = bed.folder / "repository.git"
    repository.rename(bed.folder / "away.git")

    _, told = muster(bed, "drain", "virtual-0", "--reason", "it smokes", code=1)
    assert "git can't be reached" in told
    command = "muster drain virtual-0 --override --reason 'it smokes'"
    assert f"To do it before git can be reached: {command}" in told
    _, told = muster(bed, "cancel", "long", code=1)
    assert "muster cancel long --override --reason WHY" in told

    printed, told = muster(
        bed, "drain", "virtual-0", "--override", "--for", "1h", "-m", "it smokes"
    )
    assert printed == "virtual-0\n"
    assert told == (
        "drained by an override until TIME\n"
        "Shown as drift until committed. To commit it: "
        "muster drain virtual-0 --reason 'it smokes'\n"
    )
    printed, told = muster(bed, "cancel", "long", "big", "--override", "-m", "fills the disk")
    assert printed == "long\nbig\n"
    assert told.count("cancelled by an override until TIME\n") == 2
    bed.until_state("long", "Cancelled")
    bed.until_state("big", "Cancelled")
    behind = [
        ("job-cancelled-by-override", "big"),
        ("job-cancelled-by-override", "long"),
        ("node-drained-by-override", "virtual-0"),
    ]
    bed.until(lambda: _drift(bed) == behind)
    _, told = muster(bed, "cancel", "nobody", "--override", "-m", "x", code=1)
    assert "nobody: there is no Job/nobody" in told
    _, told = muster(bed, "cancel", "long", "--override", code=64)
    assert "needs a --reason" in told

    bed.cluster.kill_controller()
    bed.cluster.start_controller()
    bed.cluster.wait_ready()
    bed.until(lambda: _node(bed, "virtual-0")["state"] == "Drained")
    printed, told = muster(bed, "overrides")
    assert printed == (
        "KIND  NAME  BY  UNTIL  REASON\n"
        "drain  virtual-0  tester@example.org  TIME  it smokes\n"
        "cancel  long  tester@example.org  TIME  fills the disk\n"
        "cancel  big  tester@example.org  TIME  fills the disk\n"
    )
    assert "To commit it: muster cancel big --reason 'fills the disk'" in told
    printed, _ = muster(bed, "status")
    assert "Override: drain virtual-0 until TIME, by tester@example.org: it smokes" in printed

    (bed.folder / "away.git").rename(repository)
    _commit_what_was_overridden(bed)


def _commit_what_was_overridden(bed: beds.Bed) -> None:
    """Git is back: what it says by now is drift no more, and the rest is cleared by hand."""
    assert bed.api is not None
    bed.api.post("/v1/hooks/git")  # it would look by itself, later
    bed.until(lambda: bed.get("/v1/sync")["sync"]["sync"] == "Synced")
    assert len(_drift(bed)) == 3, "git still says something else"
    muster(bed, "drain", "virtual-0", "--reason", "it smokes")
    muster(bed, "cancel", "long", "--reason", "fills the disk")
    bed.until(lambda: _drift(bed) == [("job-cancelled-by-override", "big")])
    assert _node(bed, "virtual-0")["drain"]["until"] is None
    printed, told = muster(bed, "overrides", "clear", "cancel", "big")
    assert printed == "big\n"
    assert "stays cancelled" in told
    bed.until(lambda: _drift(bed) == [])
    assert _kinds(bed, "virtual-0").count("NodeReady") == 1, (
        "from its first start to its drain in git"
    )
    assert bed.job("big")["state"] == "Cancelled"


def test_what_makes_no_sense_is_an_error(bed: beds.Bed) -> None:
    bed.commit({"jobs/quick.yaml": beds.job("quick", "  command: ['true']")})
    bed.until_state("quick", "Succeeded")
    before = bed.git("rev-parse", "main", folder=bed.folder / "repository.git")
    for clone in ((), ("--clone", str(bed.clone))):
        _, told = muster(bed, "cancel", "quikc", *clone, code=1)
        assert "did you mean quick?" in told
        _, told = muster(bed, "hold", "quick", *clone, code=1)
        assert "is Succeeded already, and can't be held" in told
        for verb in ("cancel", "hold", "rerun", "release"):
            muster(bed, verb, "quikc", "--dry-run", *clone, code=1)
        said = muster(bed, "rerun", "quick", "--dry-run", *clone)
        assert said == ("", "quick: would run again\n"), "nothing was done"
        said = muster(bed, "drain", "virtual-0", "-m", "fan", "--dry-run", *clone)
        assert said == ("", "virtual-0: would be drained\n")
        _, told = muster(bed, "drain", "virtual-7", "-m", "fan", "--dry-run", *clone, code=1)
        assert "did you mean virtual-" in told
    assert bed.git("rev-parse", "main", folder=bed.folder / "repository.git") == before
    assert bed.git("rev-parse", "HEAD", folder=bed.clone) == before


def test_an_override_expires_by_itself_and_git_is_preferred(bed: beds.Bed) -> None:
    said = muster(bed, "drain", "virtual-1", "--override", "-m", "fan")
    ending = "it does not expire; muster undrain virtual-1 ends it"
    by_commit = f"drained by a commit, because git could be reached: {ending}\n"
    assert said == ("virtual-1\n", by_commit)
    assert bed.get("/v1/overrides")["items"] == []
    (bed.folder / "repository.git").rename(bed.folder / "away.git")
    muster(bed, "drain", "virtual-0", "--override", "--for", "2s", "-m", "fan")
    # Ready it is before it is drained as well: what happened tells which of both this is
    happened = ["OverrideMade", "NodeDrained", "OverrideExpired", "NodeReady"]
    bed.until(lambda: _kinds(bed, "virtual-0")[-4:] == happened)
    assert _node(bed, "virtual-0")["state"] == "Ready"
    printed, _ = muster(bed, "overrides", "-o", "json")
    assert msgspec.json.decode(printed)["items"] == []


def test_a_drain_applies_though_other_structure_in_git_is_refused(bed: beds.Bed) -> None:
    broken = "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: odd}\nspec: {weight: many}\n"
    bed.commit({"odd.yaml": broken})
    bed.until(lambda: bed.get("/v1/sync")["sync"]["sync"] == "OutOfSync")
    printed, told = muster(bed, "drain", "virtual-1", "-m", "fan")
    assert printed == "virtual-1\n"
    assert "not in force" not in told
    bed.until(lambda: _node(bed, "virtual-1")["state"] == "Drained")
    assert bed.get("/v1/sync")["sync"]["sync"] == "OutOfSync"
    printed, told = muster(bed, "submit", "--queue", "odd", "--", "true", code=1)
    assert "unknown queue" in told
    assert "the newest one in git is not in force" in told
    bed.git("pull", "--quiet", "--rebase", folder=bed.clone)
    bed.commit({"odd.yaml": None})
    bed.until(lambda: bed.get("/v1/sync")["sync"]["sync"] == "Synced")


def test_a_suspension_passes_by_a_structure_that_is_held(bed: beds.Bed) -> None:
    """Somebody else's change waits for approval: nobody has to wait for that with an alarm."""
    limited = beds.POOL.replace("spec: {{lease", "spec: {{sync: {{limits: {{queues: 0}}}}, lease")
    text = limited.format(nodes=2, cpus=4, gpus=0, lease="5s", silence="3s")
    bed.commit({"cluster.yaml": text, "queue.yaml": QUEUES})
    bed.until(lambda: any(one["name"] == "team" for one in bed.get("/v1/queues")["items"]))
    bed.commit({"queue.yaml": None})
    bed.until(lambda: bed.get("/v1/sync")["sync"]["held"])
    _, told = muster(bed, "suspend", "cluster", "-m", "no cooling", code=3)
    assert "muster suspend cluster --override --reason 'no cooling'" in told
    _, told = muster(bed, "drain", "virtual-0", "-m", "it smokes", code=3)
    assert "muster drain virtual-0 --override --reason 'it smokes'" in told
    printed, told = muster(bed, "suspend", "cluster", "--override", "-m", "no cooling")
    assert printed == "cluster\n"
    assert "suspended by an override until TIME\nAlso committed" in told
    printed, told = muster(bed, "suspend", "queue/team", "--override", "-m", "no cooling")
    assert printed == "queue/team\n"
    assert "suspended by an override until TIME\nShown as drift until committed" in told, (
        "its YAML is deleted already"
    )
    bed.git("pull", "--quiet", "--rebase", folder=bed.clone)
    bed.commit({"jobs/late.yaml": beds.job("late", "  command: ['true']")})
    bed.until(lambda: bed.job("late")["reasons"])
    (why,) = bed.job("late")["reasons"]
    assert "the cluster is suspended by override of tester@example.org" in why["message"]
    suspended = {("suspended-by-override", name) for name in ("cluster", "queue/team")}
    bed.until(lambda: suspended <= set(_drift(bed)))
    printed, _ = muster(bed, "status")
    assert "`muster resume cluster --override`" in " ".join(printed.split())
    assert "Override: suspend queue/team until TIME" in printed
    said = muster(bed, "resume", "cluster", "--override")
    assert said == ("cluster\n", "override ended; git applies again\n")
    bed.until_state("late", "Succeeded")
    printed, _ = muster(bed, "overrides", "clear", "suspend", "queue/team")
    bed.until(lambda: bed.get("/v1/overrides")["items"] == [])
    _, told = muster(bed, "suspend", "job/late", "--override", "-m", "x", code=64)
    assert "suspends only the cluster and queues" in told


def test_what_could_not_run_is_refused_at_once_and_explained_where_it_is_written(
    bed: beds.Bed,
) -> None:
    bed.commit({"jobs/lost.yaml": beds.job("lost", "  queue: reserch\n  command: ['true']")})
    for clone in ((), ("--clone", str(bed.clone))):
        _, told = muster(bed, "submit", "--queue", "nowhere", *clone, "--", "true", code=1)
        assert "1 problem; nothing was submitted" in told
        assert "--queue: unknown queue" in told
        assert "one of default" in told
    bed.until(lambda: bed.job("lost")["reasons"])
    (why,) = bed.job("lost")["reasons"]
    assert why["code"] == "Invalid"
    printed, _ = muster(bed, "job", "lost")
    assert "unknown queue" in printed
    printed, _ = muster(bed, "explain", "lost")
    assert "unknown queue" in printed
    _, told = muster(bed, "job", "nobody", code=1)
    assert "there is no Job/nobody" in told
