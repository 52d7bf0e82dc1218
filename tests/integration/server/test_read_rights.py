"""With roles, what other people's tasks write is refused or left out, whichever way one asks."""

import pathlib
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.observed import task_reports
from reconciler.model.policy import access
from reconciler.model.state import events, records
from reconciler.model.state.states import AttemptState, JobState
from reconciler.operations.tokens import token_file
from reconciler.operations.views import stored_views
from tests.integration.server import parts
from tests.unit.store import samples

WHO = {"ada": "user", "eve": "user", "lead": "user", "root": "admin"}
SECRET = "secret-project"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[parts.Served]:
    folder: pathlib.Path = tmp_path_factory.mktemp("reading")
    path = folder / "people"
    lines = [token_file.line_of(who, f"{who}@x.org", role).text() for who, role in WHO.items()]
    token_file.write_private(path, token_file.joined([*lines, "the-test local admin"]))
    made = parts.Served(folder, "--token-file", str(path))
    try:
        yield fill(made.ready())
    finally:
        made.close()


def fill(served: parts.Served) -> parts.Served:
    """A job of ada's that has failed, and roles."""
    rule = access.AccessRule(("read",), queues=("default",))
    known = access.Access(
        {f"{who}@x.org": access.Identity(f"{who}@x.org") for who in WHO},
        (access.Role("leads", ("lead@x.org",), (rule,)),),
    )
    structure = desired.Structure(queues={"default": desired.Queue("default")}, access=known)
    status = desired.SyncStatus("Synced", "abc", "abc", "abc")
    failed = msgspec.structs.replace(
        samples.job("train", owner="ada@x.org", state=JobState.FAILED),
        message=f"task main-0 ended with status 1 on n1: {SECRET}",
    )
    attempt = msgspec.structs.replace(
        samples.attempt(failed, state=AttemptState.ENDED, exit_code=1),
        message=SECRET,
        saved=task_reports.Saved(SECRET, 90.0, 7.0, 100),
    )
    told = f"task main-0: Exited with status 1: {SECRET}"
    ended = events.Event(100.0, "AttemptEnded", told, job="train", attempt=attempt.id)
    served.commit(
        views=stored_views.desired_views(desired.Desired(structure=structure, status=status)),
        jobs=(failed,),
        attempts=(attempt,),
        events=(ended,),
    )
    return served


def ask(served: parts.Served, who: str, path: str) -> httpx.Response:
    """Ask as somebody."""
    return served.client.get(path, headers={"Authorization": f"Bearer {who}"})


@pytest.mark.parametrize("query", ["", "?follow=true", "?stream=metrics", "?every=true&widely=1"])
def test_logs_and_metrics_are_refused_with_the_rule_that_is_missing(
    served: parts.Served, query: str
) -> None:
    refused = ask(served, "eve", f"/v1/jobs/train/logs{query}")
    assert refused.status_code == 403
    told = refused.json()["error"]["message"]
    assert "no role of eve@x.org allows read on Queue/default" in told
    assert "{verbs: [read], queues: [default]}" in told
    assert ask(served, "eve", "/v1/jobs/nothing/logs").status_code == 404
    for who in ("ada", "lead", "root"):
        found = ask(served, who, "/v1/jobs/train/logs?attempt=1")
        assert found.status_code in {200, 404}, found.text


@pytest.mark.parametrize(
    "path",
    ["/v1/jobs", "/v1/jobs/train", "/v1/jobs/train/explain", "/v1/snapshot", "/v1/events"],
)
def test_what_a_task_wrote_is_left_out(served: parts.Served, path: str) -> None:
    for who in ("ada", "lead", "root"):
        assert SECRET in ask(served, who, path).text, who
    shown = ask(served, "eve", path)
    assert shown.status_code == 200
    assert SECRET not in shown.text
    assert "train" in shown.text


@pytest.mark.parametrize(
    "path", ["/v1/nodes", "/v1/queues", "/v1/drift", "/v1/sync", "/v1/audit", "/v1/report/usage"]
)
def test_no_other_page_tells_what_a_task_wrote(served: parts.Served, path: str) -> None:
    shown = ask(served, "eve", path)
    assert shown.status_code == 200, shown.text
    assert SECRET not in shown.text


def test_pages_for_prometheus_are_not_for_users(served: parts.Served) -> None:
    assert ask(served, "eve", "/metrics/nodes/n1").status_code == 403


def test_who_was_refused_and_who_read_is_written_down(served: parts.Served) -> None:
    assert ask(served, "nobodys-token", "/v1/jobs").status_code == 401
    assert ask(served, "eve", "/v1/snapshot/records").status_code == 403
    assert ask(served, "eve", "/v1/jobs/train/logs").status_code == 403
    assert ask(served, "lead", "/v1/jobs/train/logs").status_code == 200
    assert ask(served, "ada", "/v1/jobs/train/logs").status_code == 200
    assert ask(served, "root", "/v1/snapshot/records").status_code == 200
    body = {"verb": "drain", "names": ["n1"], "reason": "smoke"}
    for who, status in (("eve", 403), ("root", 200)):
        headers = {"Authorization": f"Bearer {who}"}
        put = served.client.post("/v1/overrides", json=body, headers=headers)
        assert put.status_code == status, put.text
    assert ask(served, "eve", "/v1/audit/access").status_code == 403
    wanted = {
        ("Unauthenticated", "", "GET /v1/jobs"),
        ("Forbidden", "eve@x.org", "GET /v1/snapshot/records"),
        ("Forbidden", "eve@x.org", "GET /v1/jobs/train/logs"),
        ("Forbidden", "eve@x.org", "POST /v1/overrides"),
        ("Forbidden", "eve@x.org", "GET /v1/audit/access"),
        ("LogsRead", "lead@x.org", "GET /v1/jobs/train/logs"),
        ("SnapshotRead", "root@x.org", "GET /v1/snapshot/records"),
        ("OverrideChanged", "root@x.org", "POST /v1/overrides"),
    }

    def items() -> list[dict[str, str]]:
        found: list[dict[str, str]] = ask(served, "root", "/v1/audit/access").json()["items"]
        return found

    def seen() -> set[tuple[str, str, str]]:
        return {(one["action"], one["identity"], one["request"]) for one in items()}

    served.until(lambda: wanted <= seen())
    assert ("LogsRead", "ada@x.org", "GET /v1/jobs/train/logs") not in seen(), "they are her own"
    assert "nobodys-token" not in str(items())
    assert {one["address"] for one in items()} == {"127.0.0.1"}


class Taken:
    """A name that ada had first and eve has now, under the same run number, and others the like."""

    def __init__(self, served: parts.Served) -> None:
        self.hers = self._job("ada", "a" * 16, JobState.CANCELLED, 1)
        self.taken = self._job("eve", "e" * 16, JobState.FAILED, 2)
        self.tries = [self._attempt(one, ended_at) for one, ended_at in self._ends()]
        told = [
            (190.0, "AttemptEnded", f"task main-0: Exited: {SECRET}", self.tries[0].id),
            (200.0, "JobCancelled", f"task main-0 ended with status 1 on n1: {SECRET}", ""),
            (390.0, "AttemptEnded", "task main-0: Exited: of-eve", self.tries[1].id),
            (400.0, "JobFailed", "task main-0 ended with status 1 on n1: of-eve", ""),
        ]
        happened = [
            events.Event(at, kind, words, job="taken", attempt=of) for at, kind, words, of in told
        ]
        served.commit(jobs=(self.hers,), attempts=(self.tries[0],))
        served.commit(left_jobs=("taken",))
        served.commit(jobs=(self.taken,), attempts=(self.tries[1],), events=tuple(happened))

    def _ends(self) -> list[tuple[records.JobRecord, float]]:
        return [(self.hers, 190.0), (self.taken, 390.0)]

    @staticmethod
    def _job(who: str, digest: str, state: JobState, order: int) -> records.JobRecord:
        made = samples.job("taken", owner=f"{who}@x.org", state=state, order=order)
        return msgspec.structs.replace(
            made,
            spec=msgspec.structs.replace(made.spec, hash=digest),
            submitted_at=order * 200.0 - 100.0,
            ended_at=order * 200.0,
        )

    @staticmethod
    def _attempt(of: records.JobRecord, ended_at: float) -> records.AttemptRecord:
        made = samples.attempt(of, state=AttemptState.ENDED, exit_code=1, node=f"n-{of.spec.hash}")
        message = SECRET if of.spec.owner.startswith("ada") else "of-eve"
        return msgspec.structs.replace(made, message=message, ended_at=ended_at)


@pytest.fixture(scope="module")
def taken(served: parts.Served) -> Taken:
    return Taken(served)


@pytest.mark.parametrize(
    "query", ["", "&run=1", "&stream=metrics", "&widely=1", "&since=1970-01-01T00:00:00Z"]
)
def test_who_takes_a_name_reads_nothing_of_who_had_it(
    served: parts.Served, taken: Taken, query: str
) -> None:
    hers, later = (f"n-{one.spec.hash}" for one in (taken.hers, taken.taken))
    for who, node, other in (("eve", later, hers), ("ada", hers, later), ("root", later, hers)):
        found = ask(served, who, f"/v1/jobs/taken/logs?every=true{query}")
        assert found.status_code == 200, found.text
        assert node in found.text, who
        assert other not in found.text, who


def test_the_name_of_another_job_gives_no_right_to_its_tries(
    served: parts.Served, taken: Taken
) -> None:
    paths = ["/v1/jobs/taken", "/v1/jobs/taken?run=1", "/v1/jobs", "/v1/jobs/taken/explain"]
    for path in (*paths, "/v1/events?job=taken", "/v1/events", "/v1/snapshot"):
        shown = ask(served, "eve", path).text
        assert "of-eve" in shown, path
        assert SECRET not in shown, path
    shown = ask(served, "ada", "/v1/events?job=taken").text
    assert SECRET in shown
    assert "of-eve" not in shown


def test_it_is_written_down_whose_output_was_read(served: parts.Served, taken: Taken) -> None:
    assert ask(served, "lead", "/v1/jobs/taken/logs").status_code == 200
    del taken

    def told() -> set[str]:
        found = ask(served, "root", "/v1/audit/access").json()["items"]
        return {one["message"] for one in found if one["request"] == "GET /v1/jobs/taken/logs"}

    served.until(lambda: "of eve@x.org" in told())
    assert "of ada@x.org" not in told()
