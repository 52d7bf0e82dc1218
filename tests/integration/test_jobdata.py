"""What tasks say of their work, from a task's own Python to the command line."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import beds

Json = Any

#: Fails at its first attempt, after two checkpoints; the second attempt says where it goes on.
TRAIN = """\
import muster, os, sys, time
folder = os.environ["MUSTER_CHECKPOINT_DIR"]
begin = int(float(os.environ.get("MUSTER_CHECKPOINT_STEP", "0")))
print("begins at", begin, os.path.basename(muster.latest_checkpoint() or "-"), flush=True)
for step in range(begin + 1, begin + 21):
    muster.log(step=step, loss=10.0 / step)
    if step % 10 == 0:
        with open(os.path.join(folder, "step-%d" % step), "w") as stream:
            stream.write("w" * step)
        muster.checkpoint("step-%d" % step, step=step)
with open(os.environ["MUSTER_METRICS"], "a") as stream:
    stream.write("what is this\\nspeed 3.5\\n")
if begin == 0:
    sys.exit(1)
while not os.path.exists(os.path.join(folder, "leave")):
    time.sleep(0.1)
"""
JOB = """\
apiVersion: muster/v1
kind: Job
metadata: {name: train}
spec:
  owner: tester@example.org
  retries: {limit: 2, backoff: 0s}
  checkpoint: {path: checkpoints/train, every: 10m}
  command: ["%s", "-c", "%s"]
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    made = beds.Bed(tmp_path_factory.mktemp("jobdata"), nodes=1)
    try:
        made.start()
        command = TRAIN.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        made.commit({"train.yaml": JOB % (sys.executable, command)})
        yield made
    finally:
        made.stop()


def muster(bed: beds.Bed, *arguments: str) -> subprocess.CompletedProcess[str]:
    endpoint = bed.cluster.endpoint
    command = [sys.executable, "-m", "reconciler.cli.main", *arguments, "--server", endpoint.url]
    if endpoint.token_file is not None:
        command += ["--token-file", str(endpoint.token_file)]
    environment = {**os.environ, "COLUMNS": "80"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=120
    )


def newest(bed: beds.Bed) -> Json:
    return max(bed.job("train")["attempts"], key=lambda one: one["attempt"])


def test_a_task_is_heard_and_goes_on_where_it_was(bed: beds.Bed, tmp_path: Path) -> None:
    def told() -> bool:
        now = newest(bed)
        values = {m["name"]: m for m in (now["metrics"] or {"series": []})["series"]}
        done = values.get("loss", {}).get("step") == 40 and "speed" in values
        return now["attempt"] == 2 and done and now["checkpoint"] is not None

    bed.until(told, 120)
    assert bed.output("train", attempt="2") == "begins at 20 step-20\n"
    attempt = newest(bed)
    assert (attempt["checkpoint"]["path"], attempt["checkpoint"]["step"]) == ("step-40", 40)
    assert attempt["metrics"]["badLines"] == 1
    assert "what is this" in attempt["metrics"]["problem"]

    assert bed.api is not None
    page = bed.api.data("/metrics/nodes/virtual-0").decode()
    row = next(line for line in page.splitlines() if line.startswith("muster_task_metric{"))
    assert 'job_name="train"' in row
    assert 'metric="loss"} 0.25' in row
    assert "muster_task_checkpoint_interval_seconds" in page

    shown = muster(bed, "job", "train").stdout
    assert "step-40" in shown
    assert "what is this" in shown
    drawn = muster(bed, "plot", "train", "--metric", "loss")
    assert drawn.returncode == 0, drawn.stderr
    lines = drawn.stdout.splitlines()
    assert lines[0] == "loss: 0.25 now, over steps"
    assert max(map(len, lines)) <= 80
    axis, mark = lines[-2:]
    assert axis.split() == ["1", "40"]
    assert mark.startswith("┊ try 2 from step 21, after status 1")
    picture = tmp_path / "loss.png"
    assert muster(bed, "plot", "train", "--png", str(picture)).returncode == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    wrong = muster(bed, "plot", "train", "-m", "los")
    assert wrong.returncode == 1
    assert "did you mean loss" in wrong.stderr

    folder = next(Path(bed.folder).rglob("checkpoints/train"))
    (folder / "leave").touch()
    bed.until_state("train", "Succeeded", timeout_s=120)
    again = muster(bed, "plot", "train", "-m", "loss", "-o", "json")
    assert '"points"' in again.stdout  # the past outlives the job


def test_a_picture_of_one_element_is_named_after_it(bed: beds.Bed, tmp_path: Path) -> None:
    script = 'echo \'{"step": 1, "loss": 0.5}\' >> "$MUSTER_METRICS"'
    body = f"  array: {{count: 2}}\n  command: [sh, -c, {json.dumps(script)}]"
    bed.commit({"jobs/sweep.yaml": beds.job("sweep", body)})
    bed.until_state("sweep", "Succeeded", timeout_s=120)
    picture = tmp_path / "loss.png"
    for words in (["sweep[1]"], ["sweep", "--element", "1"]):
        drawn = muster(bed, "plot", *words, "--png", str(picture))
        assert f"{picture}: 1 series of job sweep[1]" in drawn.stderr
    drawn = muster(bed, "plot", "sweep", "--png", str(picture))
    assert f"{picture}: 2 series of job sweep\n" in drawn.stderr
