"""Checks before a job on live nodes: a gang is turned away, and runs when all is well."""

import sys
from collections.abc import Iterator

import pytest

from tests.integration import beds

POOL = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: virtual}
spec:
  provisioner: virtual
  count: 2
  terminationGrace: 5s
  nodes: {cpu: 4, memory: 2Gi}
  health:
    interval: 15s
    off: [disk-space, inodes, clock, stuck-processes]
    commands: [{name: mark, command: [%s, -c, "%s", "%s"], timeout: 30s}]
    beforeJob: [mark]
    afterJob: [mark]
"""
#: Fails on one node, of which its agent's command line tells, while a file is there.
SCRIPT = (
    "import os,sys; line=open('/proc/%d/cmdline' % os.getppid()).read().split(chr(0)); "
    "print('made'); sys.exit(2 if 'virtual-0' in line and os.path.exists(sys.argv[1]) else 0)"
)
JOB = """\
apiVersion: muster/v1
kind: Job
metadata: {name: pair}
spec:
  owner: tester@example.org
  count: 2
  resources: {cpu: 3}
  command: [sh, -c, "echo ran on $MUSTER_NODE at try $MUSTER_TRY"]
"""


@pytest.fixture
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    made = beds.Bed(tmp_path_factory.mktemp("gates"))
    try:
        made.start()
        made.git("rm", "--quiet", "cluster.yaml", folder=made.clone)
        made.commit({"pool.yaml": POOL % (sys.executable, SCRIPT, made.folder / "mark")})
        made.until(made.all_ready)
        yield made
    finally:
        made.stop()


def test_a_gang_is_turned_away_and_spends_no_retry(bed: beds.Bed) -> None:
    # the check is tried once, and then made around jobs alone
    bed.until(
        lambda: [e for e in bed.get("/v1/events")["items"] if e["kind"] == "CheckTrialPassed"]
    )
    (bed.folder / "mark").touch()
    bed.commit({"pair.yaml": JOB})
    ends = bed.until(
        lambda: [a for a in bed.job("pair")["attempts"] if a["endReason"] == "CheckFailed"], 120
    )
    assert (ends[0]["node"], ends[0]["started"]) == ("virtual-0", None)
    assert ends[0]["message"] == "check mark failed here: made"

    def ill() -> bool:
        nodes = {node["name"]: node for node in bed.get("/v1/nodes")["items"]}
        seen = [(nodes[name]["state"], nodes[name]["message"]) for name in sorted(nodes)]
        return seen == [("Unhealthy", "check mark failed: made"), ("Ready", "")]

    bed.until(ill, 120)
    bed.until_state("pair", "Pending", timeout_s=120)
    (bed.folder / "mark").unlink()
    bed.until_state("pair", "Succeeded", timeout_s=120)
    assert "ran on virtual-" in bed.output("pair", task="main-1")


def test_a_node_that_can_start_no_task_is_left_alone_and_costs_no_retry(bed: beds.Bed) -> None:
    """The job may not be tried again, so that it would have failed; another runs elsewhere."""
    logs = bed.cluster.state / "nodes/virtual-0/logs"
    logs.rename(logs.with_name("logs-away"))
    bed.commit({"pair.yaml": JOB})

    def ill() -> bool:
        nodes = {node["name"]: node for node in bed.get("/v1/nodes")["items"]}
        message = nodes["virtual-0"]["message"]
        return "check task-start failed: " in message and nodes["virtual-1"]["state"] == "Ready"

    bed.until(ill, 120)
    bed.until_state("pair", "Pending", timeout_s=120)
    ends = {one["node"]: one for one in bed.job("pair")["attempts"]}
    assert ends["virtual-0"]["endReason"] == "CheckFailed"
    assert "node virtual-0 could not start it: log of the attempt" in ends["virtual-0"]["message"]
    bed.commit({"one.yaml": JOB.replace("pair", "one").replace("count: 2", "count: 1")})
    bed.until_state("one", "Succeeded", timeout_s=120)
    assert bed.job("pair")["state"] == "Pending"
