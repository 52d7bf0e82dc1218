"""A node that was cut off until its work was given up, and comes back, on real processes."""

from pathlib import Path

from tests.integration import beds

#: Writes the id of its attempt, and ends well once a file is there.
UNTIL_GO = """\
  retries: {{limit: 3}}
  script: |
    #!/bin/sh
    echo $MUSTER_ATTEMPT >>{0}.starts
    until [ -e {0}.go ]; do sleep 0.1; done"""


def test_a_success_during_the_cut_counts_and_nothing_runs_twice(tmp_path: Path) -> None:
    with beds.Bed(tmp_path, nodes=1) as bed:
        starts, go = bed.folder / "train.starts", bed.folder / "train.go"
        bed.commit({"train.yaml": beds.job("train", UNTIL_GO.format(bed.folder / "train"))})
        bed.until_state("train", "Running")
        bed.until(starts.exists)
        (attempt,) = bed.job("train")["attempts"]
        nodes = bed.cluster.nodes
        assert nodes is not None
        # its supervisor goes on, and nobody hears of it
        nodes.kill_agent(attempt["node"])
        go.touch()
        lost = bed.until_state("train", "Pending")
        assert [one["endReason"] for one in lost["attempts"]] == ["NodeLost"]
        nodes.restart(attempt["node"])
        done = bed.until_state("train", "Succeeded")
        (only,) = done["attempts"]
        assert (only["id"], only["exitCode"]) == (attempt["id"], 0)
        assert len(starts.read_text().splitlines()) == 1
