"""Data of jobs from git to the nodes and back: volumes, copies in, results out, and reasons."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import beds

Json = Any

VOLUMES = """\
apiVersion: muster/v1
kind: Volume
metadata: {{name: sets}}
spec: {{mountPath: {sets}, readOnly: true}}
---
apiVersion: muster/v1
kind: Volume
metadata: {{name: results}}
spec: {{mountPath: {results}, readOnly: false}}
---
apiVersion: muster/v1
kind: Volume
metadata: {{name: elsewhere}}
spec: {{mountPath: {sets}, fileSystem: nfs4}}
"""
GANG = """\
apiVersion: muster/v1
kind: Job
metadata: {name: gang}
spec:
  owner: tester@example.org
  count: 2
  volumes: [sets]
  stage:
    inputs: [{volume: sets, path: a, name: my-set}]
    outputs: [{path: out, volume: results, to: "{job}/{index}"}]
  command: [sh, -ec, "mkdir out; cat $MUSTER_STAGED_MY_SET/x $MUSTER_VOLUME_SETS/a/x > out/twice"]
"""
FAILS = """\
apiVersion: muster/v1
kind: Job
metadata: {name: fails}
spec:
  owner: tester@example.org
  stage: {inputs: [{volume: sets, path: nothing}]}
  command: ["true"]
"""
WAITS = """\
apiVersion: muster/v1
kind: Job
metadata: {name: waits}
spec:
  owner: tester@example.org
  volumes: [elsewhere]
  command: ["true"]
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    made = beds.Bed(tmp_path_factory.mktemp("data"), nodes=2)
    try:
        made.start()
        sets, results = made.folder / "sets", made.folder / "results"
        (sets / "a").mkdir(parents=True)
        (sets / "a" / "x").write_text("data\n")
        results.mkdir()
        made.commit({"volumes.yaml": VOLUMES.format(sets=sets, results=results)})
        yield made
    finally:
        made.stop()


def test_a_gang_gets_its_data_and_leaves_its_results(bed: beds.Bed) -> None:
    bed.commit({"gang.yaml": GANG})
    job = bed.until_state("gang", "Succeeded", "Failed", timeout_s=120)
    assert job["state"] == "Succeeded", job
    for index in ("0", "1"):
        left = Path(bed.folder) / "results" / "gang" / index / "out" / "twice"
        assert left.read_text() == "data\ndata\n"


def test_what_can_not_be_copied_is_the_reason_of_a_failure(bed: beds.Bed) -> None:
    bed.commit({"fails.yaml": FAILS})
    job = bed.until_state("fails", "Failed", timeout_s=120)
    assert "nothing" in job["message"]
    assert [one["endReason"] for one in job["attempts"]] == ["StageFailed"]


def test_a_job_waits_for_a_node_that_has_its_volume_and_says_so(bed: beds.Bed) -> None:
    bed.commit({"waits.yaml": WAITS})

    def told() -> bool:
        reasons = bed.job("waits")["reasons"]
        whys = [step["why"] for reason in reasons for step in reason["funnel"]]
        return any("volume elsewhere:" in why and "is not mounted" in why for why in whys)

    bed.until(told, 120)
