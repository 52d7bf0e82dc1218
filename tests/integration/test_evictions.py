"""What an eviction costs a whole cluster: what was done since the newest whole checkpoint."""

from collections import Counter
from pathlib import Path

import pytest

from tests.integration import beds

URGENT = """\
apiVersion: muster/v1
kind: PriorityClass
metadata: {name: urgent}
spec: {value: 900}
"""
#: Tells of a checkpoint once a file is there; says where it goes on; leaves when it is told to.
WORK = """\
  owner: tester@example.org
  checkpoint: {{path: saved/{name}, signal: SIGTERM, grace: 5s}}
  resources: {{cpu: 1, memory: 16Mi}}
  script: |
    trap 'exit 0' TERM
    echo "goes on at ${{MUSTER_CHECKPOINT_STEP:-nothing}}"
    until [ -e {save} ]; do sleep 0.1; done
    echo bytes > "$MUSTER_CHECKPOINT_DIR/step-7"
    echo '{{"checkpoint": "step-7", "step": 7}}' >> "$MUSTER_METRICS"
    while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("saves", [True, False])
def test_who_has_saved_loses_least_and_goes_on_where_it_was(tmp_path: Path, *, saves: bool) -> None:
    """The older of two loses more, unless it has saved since the younger began."""
    with beds.Bed(tmp_path, nodes=1, cpus=2) as bed:
        files = {name: tmp_path / f"save-{name}" for name in ("older", "younger")}
        for name, save in files.items():
            text = beds.job(name, WORK.format(name=name, save=save))
            bed.commit({f"{name}.yaml": text, "urgent.yaml": URGENT})
            bed.until_state(name, "Running", timeout_s=120)
        if saves:
            files["older"].touch()

            def told() -> bool:
                return bed.job("older")["attempts"][0]["checkpoint"] is not None

            bed.until(told, 120)
        now = "  priorityClass: urgent\n  resources: {cpu: 1}\n  command: [sleep, '3600']"
        bed.commit({"now.yaml": beds.job("now", now)})
        bed.until_state("now", "Running", timeout_s=120)
        evicted, stays = ("older", "younger") if saves else ("younger", "older")
        assert [one["endReason"] for one in bed.job(evicted)["attempts"]] == ["Preempted"]
        assert [one["state"] for one in bed.job(stays)["attempts"]] == ["Running"]
        bed.commit({"now.yaml": None})
        bed.until(lambda: len(bed.job(evicted)["attempts"]) == 2, 120)
        bed.until_state(evicted, "Running", timeout_s=120)
        said = f"goes on at {7 if saves else 'nothing'}\n"
        bed.until(lambda: bed.output(evicted, attempt="2") == said, 120)


def test_a_job_of_two_nodes_never_runs_on_four(tmp_path: Path) -> None:
    """Each of four nodes has room for one of its tasks left; it waits until two have for two."""
    with beds.Bed(tmp_path, nodes=4, cpus=4) as bed:
        wide = "  count: 4\n  tasksPerNode: 2\n  resources: {cpu: 1}\n  command: [sleep, '3600']"
        bed.commit({"wide.yaml": beds.job("wide", wide), "urgent.yaml": URGENT})
        bed.until_state("wide", "Running", timeout_s=120)
        assert sorted(_tasks_of_nodes(bed)) == [2, 2]
        urgent = "  priorityClass: urgent\n  count: 4\n  tasksPerNode: 1\n"
        urgent += "  resources: {cpu: 3}\n  command: [sleep, '3600']"
        bed.commit({"now.yaml": beds.job("now", urgent)})
        bed.until_state("now", "Running", timeout_s=120)
        bed.until_state("wide", "Pending", timeout_s=120)
        said = str(bed.job("wide")["reasons"])
        assert "lack room for 2 tasks each" in said, said
        bed.commit({"now.yaml": None})
        bed.until_state("wide", "Running", timeout_s=120)
        assert sorted(_tasks_of_nodes(bed)) == [2, 2]


def _tasks_of_nodes(bed: beds.Bed) -> list[int]:
    """Return the numbers of tasks that the job `wide` runs, node by node."""
    running = [one["node"] for one in bed.job("wide")["attempts"] if one["state"] == "Running"]
    return list(Counter(running).values())
