"""A name is used again: for other work, by other people, and for the same work once more."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration import beds

SCRIPT = """\
  owner: {owner}
  run: {run}
  checkpoint: {{pattern: "step-*", settle: 0s}}
  resources: {{cpu: 1}}
  script: |
    #!/bin/sh
    echo "{text} goes on from ${{MUSTER_CHECKPOINT:-nothing}}"
    echo w > "$MUSTER_CHECKPOINT_DIR/step-1"
    echo "run $MUSTER_RUN_ID"
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    made = beds.Bed(tmp_path_factory.mktemp("again"), nodes=1)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def muster(bed: beds.Bed, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "reconciler.cli.main", *arguments],
        cwd=bed.clone, env={**bed.environment, "COLUMNS": "100"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def text_of(name: str, owner: str = "ada@example.org", run: int = 1, text: str = "it") -> str:
    return beds.job(name, SCRIPT.format(owner=owner, run=run, text=text))


def ended(bed: beds.Bed, name: str, **of: Any) -> Any:
    """Wait until the run with these values has ended well, and return it."""

    def look() -> Any:
        found = bed.job(name)
        is_it = all(found[key] == value for key, value in of.items())
        return found if is_it and found["state"] == "Succeeded" else None

    return bed.until(look)


def test_somebody_elses_work_of_the_same_name_begins_with_nothing(bed: beds.Bed) -> None:
    bed.commit({"resnet.yaml": text_of("resnet")})
    first = ended(bed, "resnet", owner="ada@example.org")
    assert bed.output("resnet").startswith("it goes on from nothing")
    bed.commit({"resnet.yaml": None})
    bed.commit({"resnet.yaml": text_of("resnet", "bob@example.org", text="his")})
    second = ended(bed, "resnet", owner="bob@example.org")
    assert bed.output("resnet").startswith("his goes on from nothing")
    assert first["checkpointFolder"] != second["checkpointFolder"]
    folder = second["checkpointFolder"].rpartition("/")[2]
    assert bed.output("resnet").splitlines()[1] == f"run {folder}"
    assert {one["id"].rsplit(".", 4)[0] for one in second["attempts"]} == {second["key"]}
    shown = muster(bed, "job", "resnet").stdout
    assert f"Saves in  {second['checkpointFolder']}" in shown
    shown = muster(bed, "logs", "resnet", "--all").stdout
    assert "his goes on" in shown
    assert "it goes on" not in shown, "it is ada's"


def test_a_job_that_runs_again_goes_on_unless_it_is_to_begin_afresh(bed: beds.Bed) -> None:
    bed.commit({"again.yaml": text_of("again")})
    first = ended(bed, "again", run=1)
    bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=bed.clone)
    said = muster(bed, "rerun", "again")
    assert said.returncode == 0, said.stderr
    assert "runs again, from the checkpoints of run 1 (--fresh: without)" in said.stderr
    second = ended(bed, "again", run=2)
    assert second["checkpointFolder"] == first["checkpointFolder"]
    assert "/step-1" in bed.output("again").splitlines()[0]
    said = muster(bed, "rerun", "again")
    assert "from the checkpoints of run 1 " in said.stderr, "all of them are in one folder"
    ended(bed, "again", run=3)
    said = muster(bed, "rerun", "again", "--fresh")
    assert "runs again, without earlier checkpoints" in said.stderr
    last = ended(bed, "again", run=4)
    assert last["checkpointFolder"] != first["checkpointFolder"]
    assert bed.output("again").splitlines()[0] == "it goes on from nothing"


def test_changed_work_begins_with_nothing_and_says_how_it_would_go_on(bed: beds.Bed) -> None:
    bed.commit({"changed.yaml": text_of("changed")})
    first = ended(bed, "changed")
    bed.commit({"changed.yaml": None})
    file = bed.folder / "changed.yaml"
    text = text_of("changed", text="lr 0.2").replace("ada@", "tester@")
    file.write_text(text.replace("tester@", "ada@"))
    said = muster(bed, "submit", str(file))
    assert said.returncode == 0, said.stderr
    assert (
        "changed begins without the checkpoints of run 1, because what it executes has changed. "
        f"To go on from them instead: spec.resumeFrom: {first['key']}"
    ) in " ".join(said.stderr.split()), json.dumps([said.stdout, said.stderr])
    second = bed.until(lambda: (found := bed.job("changed"))["key"] != first["key"] and found)
    ended(bed, "changed", key=second["key"])
    assert bed.output("changed").splitlines()[0] == "lr 0.2 goes on from nothing"
    resumes = text_of("changed", run=2, text="lr 0.3") + f"  resumeFrom: {first['key']}\n"
    bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=bed.clone)
    bed.commit({bed.job("changed")["path"]: resumes})
    third = ended(bed, "changed", run=2)
    assert third["checkpointFolder"] == first["checkpointFolder"]
    assert bed.output("changed").splitlines()[0].startswith("lr 0.3 goes on from /")
