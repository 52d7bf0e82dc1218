"""The remote is gone and the controller starts again: jobs go on, also those that still wait."""

from pathlib import Path

import pytest

from tests.integration import beds


@pytest.mark.parametrize("url", [True, False], ids=["mirrored", "read in place"])
def test_jobs_go_on_without_the_remote(tmp_path: Path, url: bool) -> None:
    bed = beds.Bed(tmp_path, nodes=1, cpus=1, url=url)
    remote = tmp_path / "repository.git"
    flag = tmp_path / "go"
    waits = f"while [ ! -e {flag} ]; do sleep 0.1; done"
    try:
        first = beds.job("first", f"  command: [sh, -c, '{waits}']\n  resources: {{cpu: 1}}")
        then = beds.job("then", "  command: ['true']\n  resources: {cpu: 1}\n  priority: 1")
        bed.commit({"jobs/first.yaml": first})
        bed.start()
        bed.until_state("first", "Running")
        head = bed.commit({"jobs/then.yaml": then})
        if bed.api is not None:
            bed.api.post("/v1/hooks/git")
        bed.until_state("then", "Pending")
        bed.cluster.kill_controller()
        remote.rename(tmp_path / "gone.git")
        bed.cluster.start_controller()
        bed.cluster.wait_ready()
        bed.until(lambda: bed.get("/v1/sync")["sync"]["sync"] == "Unknown")
        assert bed.get("/v1/sync")["sync"]["jobsRevision"] == head
        assert bed.job("first")["state"] == "Running"
        assert bed.job("then")["state"] == "Pending"
        flag.touch()
        bed.until_state("first", "Succeeded")
        bed.until_state("then", "Succeeded")
    finally:
        bed.stop()
