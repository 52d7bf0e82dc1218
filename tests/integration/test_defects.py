"""A job that the core fails on costs that job: what its commit brings besides applies."""

from pathlib import Path

from tests.integration import beds


def test_a_job_that_the_core_fails_on_costs_nobody_else(tmp_path: Path) -> None:
    bed = beds.Bed(tmp_path, nodes=1, controller="tests.integration.poisoned", expects_defects=True)
    flag = tmp_path / "go"
    waits = f"while [ ! -e {flag} ]; do sleep 0.1; done"
    try:
        first = beds.job("first", f"  command: [sh, -c, '{waits}']\n  resources: {{cpu: 1}}")
        true = "  command: ['true']\n  resources: {cpu: 1}"
        bed.commit({"jobs/first.yaml": first})
        bed.start()
        bed.until_state("first", "Running")
        process = bed.process("first")
        bad = bed.commit(
            {"jobs/p.yaml": beds.job("poison", true), "jobs/beside.yaml": beds.job("beside", true)}
        )

        def refused() -> beds.Json:
            sync = bed.get("/v1/sync")["sync"]
            found = [(one["rule"], one["object"]) for one in sync["problems"]]
            is_told = found == [("defect", "Job/poison")]
            return sync if is_told and sync["attemptedRevision"] == bad else None

        sync = bed.until(refused)
        assert (sync["sync"], sync["jobsRevision"]) == ("OutOfSync", bad)
        message = sync["problems"][0]["message"]
        assert "LookupError in reconciler/" in message
        assert "nobody foresaw" not in message
        bed.until_state("beside", "Succeeded")

        def told() -> beds.Json:
            job = bed.job("poison")
            return job if message in str(job["reasons"]) else None

        assert bed.until(told)["state"] == "Pending"

        def noted() -> bool:
            bed.git(
                "fetch",
                "--quiet",
                "origin",
                "+refs/notes/muster:refs/notes/muster",
                folder=bed.clone,
            )
            said = bed.git("log", "--notes=muster", "--format=%N", "-1", bad, folder=bed.clone)
            return "Job/poison: an internal error" in said

        bed.until(noted)
        bed.cluster.kill_controller()
        bed.cluster.start_controller()
        bed.cluster.wait_ready()
        bed.until(refused)
        assert bed.process("first") == process
        fixed = bed.commit({"jobs/p.yaml": None, "jobs/then.yaml": beds.job("then", true)})
        bed.until_state("then", "Succeeded")
        sync = bed.get("/v1/sync")["sync"]
        assert (sync["sync"], sync["jobsRevision"]) == ("Synced", fixed)
        flag.touch()
        bed.until_state("first", "Succeeded")
        assert bed.api is not None
        page = bed.api.data("/metrics").decode()
        assert 'muster_defects_total{part="job"} 1.0' in page
    finally:
        bed.stop()


def test_a_job_that_the_core_fails_on_when_it_is_placed_costs_nobody_else(tmp_path: Path) -> None:
    bed = beds.Bed(tmp_path, nodes=1, controller="tests.integration.poisoned", expects_defects=True)
    true = "  command: ['true']\n  resources: {cpu: 1}"
    try:
        head = bed.commit(
            {
                "jobs/first.yaml": beds.job("first", true),
                "jobs/late.yaml": beds.job("late", f"{true}\n  dependsOn: [{{job: first}}]"),
            }
        )
        bed.start()
        bed.until_state("first", "Succeeded")

        def told() -> beds.Json:
            reasons = bed.job("late")["reasons"]
            is_told = reasons and "an internal error" in reasons[0]["message"]
            return reasons[0] if is_told else None

        def refused() -> beds.Json:
            sync = bed.get("/v1/sync")["sync"]
            found = [(one["rule"], one["object"]) for one in sync["problems"]]
            return sync if found == [("defect", "Job/late")] else None

        assert bed.until(told)["code"] == "Invalid"
        assert bed.until(refused)["jobsRevision"] == head
        assert bed.job("late")["state"] == "Pending"
        bed.commit({"jobs/then.yaml": beds.job("then", true)})
        bed.until_state("then", "Succeeded")
        bed.cluster.kill_controller()
        bed.cluster.start_controller()
        bed.cluster.wait_ready()
        bed.until(told)
        bed.commit({"jobs/again.yaml": beds.job("again", true)})
        bed.until_state("again", "Succeeded")
        bed.commit({"jobs/late.yaml": None})
        bed.until_state("late", "Cancelled")
    finally:
        bed.stop()
