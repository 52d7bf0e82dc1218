"""A cluster that is ended in good order takes its work along, and goes on when it is up again."""

import contextlib
from pathlib import Path

from reconciler.store import StoreReader
from tests.integration import beds


def test_what_runs_when_a_cluster_is_ended_is_not_started_again_before_it_is_up(
    tmp_path: Path,
) -> None:
    bed = beds.Bed(tmp_path, nodes=3)
    log = tmp_path / "starts"
    runs = f"echo started >> {log}; exec sleep 600"
    wanted = f"  command: [sh, -c, '{runs}']\n  resources: {{cpu: 1}}\n  retries: {{limit: 0}}"
    try:
        bed.commit({"jobs/work.yaml": beds.job("work", wanted)})
        bed.start()
        bed.until_state("work", "Running")
        bed.until(log.exists)
        assert bed.api is not None
        bed.api.close()
        bed.cluster.stop()
        assert log.read_text() == "started\n"
        with contextlib.closing(
            StoreReader.open(f"sqlite:///{bed.cluster.state / 'store.db'}")
        ) as reader:
            (job,) = [one for one in reader.observed(0.0).jobs.values() if one.name == "work"]
            attempts = [one for one in reader.observed(0.0).attempts.values() if one.job == "work"]
        assert job.state.value == "Running"
        assert [one.state.value for one in attempts] == ["Running"]
        bed.start()
        bed.until(lambda: log.read_text() == "started\nstarted\n")
        shown = bed.until_state("work", "Running")
        told = sorted((one["state"], one["endReason"]) for one in shown["attempts"])
        assert told == [("Ended", "NodeStopped"), ("Running", None)]
    finally:
        bed.stop()
