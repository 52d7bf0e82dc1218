"""What a caller may read of other people's jobs."""

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.observed import task_reports, task_usage
from reconciler.model.policy import access
from reconciler.model.state import events, records
from reconciler.model.state.states import AttemptState, JobState
from reconciler.operations.reports import attempt_rows
from reconciler.operations.views import attempt_views, job_views, stored_views
from reconciler.server import errors
from reconciler.server.auth import authorization, read_rights, tokens
from tests.unit.store import samples

WHO = ("ada", "bob", "eve", "lead", "boss")
ROLES = (
    access.Role("some", ("bob@x.org",), (access.AccessRule(("submit",), queues=("*",)),)),
    access.Role("leads", ("lead@x.org",), (access.AccessRule(("read",), queues=("vision",)),)),
    access.Role("bosses", ("boss@x.org",), (access.AccessRule(("manage",), queues=("*",)),)),
)
QUEUES = {
    "vision": desired.Queue("vision"),
    "images": desired.Queue("images", parent="vision"),
    "words": desired.Queue("words"),
}
SECRET = "can't start /home/ada/secret-project: no such file"


class Bed:
    """A store with one job of ada's, and a structure in force or none."""

    def __init__(
        self, *, roles: tuple[access.Role, ...] = ROLES, in_force: bool = True, queue: str = "words"
    ) -> None:
        identities = {f"{who}@x.org": access.Identity(f"{who}@x.org") for who in WHO}
        structure = desired.Structure(queues=QUEUES, access=access.Access(identities, roles))
        status = desired.SyncStatus(structure_revision="abc" if in_force else None)
        self._views = stored_views.desired_views(
            desired.Desired(structure=structure, status=status)
        )
        self.record = samples.job("train", queue=queue, owner="ada@x.org", state=JobState.FAILED)
        self.earlier: tuple[records.JobRecord, ...] = ()
        self.record = msgspec.structs.replace(
            self.record, message=f"task main-0 ended with status 127 on n1: {SECRET}"
        )

    def view(self, name: str) -> bytes | None:
        """Return a view."""
        return self._views.get(name)

    def job(self, name: str) -> records.JobRecord | None:
        """Return the job."""
        return self.record if name == "train" else None

    def holders_of(self, names: set[str], since: float, until: float) -> list[records.RunHolder]:
        """Return whose the job is, and whose it was before."""
        return [
            records.RunHolder(
                *(one.key, one.name, one.spec.run, one.spec.queue, one.spec.owner),
                one.submitted_at,
                one.ended_at,
            )
            for one in (self.record, *self.earlier)
            if one.name in names
            and one.submitted_at <= until
            and (one.ended_at is None or one.ended_at >= since)
        ]

    def run(self, key: str) -> records.JobRecord | None:
        """Return a run."""
        return next((one for one in (self.record, *self.earlier) if one.key == key), None)

    def rights(self, who: str, role: str = "user") -> read_rights.ReadRights:
        """Return what somebody may read."""
        return read_rights.ReadRights(self, tokens.Caller(f"{who}@x.org", role))  # type: ignore[arg-type]

    def why_not(self, who: str, role: str = "user", owner: str = "ada@x.org") -> str:
        """Return why somebody may not read the job."""
        return self.rights(who, role).why_not("train", self.record.spec.queue, owner)


@pytest.mark.parametrize(
    ("who", "role", "queue", "allowed"),
    [
        ("ada", "user", "words", True),  # it is hers
        ("bob", "user", "words", False),  # who may submit there
        ("eve", "user", "words", False),
        ("nobody", "user", "words", False),
        ("lead", "user", "words", False),
        ("lead", "user", "vision", True),
        ("lead", "user", "images", True),  # below it
        ("boss", "user", "words", True),  # manage includes read
        ("eve", "admin", "words", True),
    ],
)
def test_who_may_read_a_job(who: str, role: str, queue: str, *, allowed: bool) -> None:
    told = Bed(queue=queue).why_not(who, role)
    assert (told == "") is allowed
    if not allowed:
        assert "allows read on Queue/words" in told or "is not an identity" in told
        assert told.endswith("To fix: ask for a role with {verbs: [read], queues: [words]}")


def test_a_job_of_nobody_is_everybodys() -> None:
    assert Bed().why_not("eve", owner="") == ""


def test_without_roles_everybody_reads_everything() -> None:
    bed = Bed(roles=())
    assert bed.why_not("eve") == ""
    assert bed.rights("eve").everything


def test_while_nobody_knows_the_rules_everybody_reads_the_own_jobs() -> None:
    bed = Bed(in_force=False)
    assert bed.why_not("eve") == authorization.NOTHING_IN_FORCE
    assert bed.why_not("ada") == ""


@pytest.mark.parametrize(
    ("who", "queue", "reads"),
    [("ada", "words", True), ("eve", "words", False), ("lead", "images", True)],
)
def test_measured_use_in_the_table_of_attempts_takes_the_right(
    who: str, queue: str, *, reads: bool
) -> None:
    bed = Bed(queue=queue)
    attempt = samples.attempt(bed.record, state=AttemptState.ENDED, exit_code=0)
    row = attempt_rows.row_of(attempt, bed.record, None)
    shown = bed.rights(who).attempt_row(row)
    assert (shown == row) is reads
    hidden = (shown.used_cpu_s, shown.max_memory_bytes, shown.read_bytes, shown.written_bytes)
    assert reads or hidden == (None,) * 4
    assert (shown.job, shown.gpu_seconds) == (row.job, row.gpu_seconds)


def test_use_of_a_run_that_is_forgotten_is_for_who_reads_everything() -> None:
    bed = Bed()
    row = attempt_rows.row_of(samples.attempt(bed.record, state=AttemptState.ENDED), None, None)
    assert bed.rights("boss").attempt_row(row).used_cpu_s is None
    assert bed.rights("eve", "admin").attempt_row(row) == row


def test_a_refusal_is_a_403() -> None:
    with pytest.raises(errors.Failure, match="belongs to ada") as caught:
        Bed().rights("eve").require("train", "words", "ada@x.org")
    assert caught.value.status == 403


def test_others_see_state_and_place_of_a_job_and_nothing_that_it_wrote() -> None:
    bed = Bed()
    attempt = msgspec.structs.replace(
        samples.attempt(bed.record, state=AttemptState.ENDED, exit_code=127),
        message=SECRET,
        saved=task_reports.Saved("secret-project-7", 90.0, 7.0, 100),
    )
    metric = task_reports.Metric("secret-loss", 0.5, 91.0, 7.0)
    written = {attempt.id: task_reports.TaskMetrics(attempt.id, (metric,), lines=1, bad_lines=0)}
    view = job_views.job_view(
        bed.record,
        attempts=[attempt],
        reports=attempt_views.TaskReports(
            written, {attempt.id: task_usage.TaskUse(attempt.id, 91.0, cpu_s=7.0)}
        ),
    )
    for who in ("ada", "boss"):
        assert bed.rights(who).job(view) == view
    shown = bed.rights("eve").job(view)
    assert "secret" not in str(shown)
    assert view.attempts[0].use is not None
    assert shown.attempts[0].use is None
    assert shown.message == "task main-0 ended with status 127 on n1"
    assert (shown.state, shown.owner, shown.attempts[0].exit_code) == ("Failed", "ada@x.org", 127)


def test_others_see_that_a_policy_set_a_field_and_not_what_the_job_runs() -> None:
    bed = Bed()
    fields = (
        ("spec.timeLimit", '"1h"', '"1h"'),
        ("spec.environment.PROXY", '"http://a:secret@b"', "(not shown)"),
        ("spec.environment.OLD", "", ""),
        ("spec.groups", '[{"name":"a","command":["secret…', "(not shown)"),
    )
    mutations = tuple(desired.FieldMutation("p", field, value) for field, value, _ in fields)
    checkpoint = desired.Checkpoint("SIGTERM", 30, "checkpoints/train/1-secret")
    spec = msgspec.structs.replace(bed.record.spec, mutations=mutations, checkpoint=checkpoint)
    view = job_views.job_view(msgspec.structs.replace(bed.record, spec=spec))
    for who in ("ada", "boss"):
        assert bed.rights(who).job(view) == view
    shown = bed.rights("eve").job(view)
    assert [(one.field, one.value) for one in shown.set_by_policy] == [
        (field, told) for field, _, told in fields
    ]
    assert "secret" not in str(shown)


def test_others_see_that_a_task_ended_and_not_what_it_said() -> None:
    bed = Bed()
    told = [
        events.Event(
            100.0, "AttemptEnded", f"task main-0: Exited with status 1: {SECRET}", "train"
        ),
        events.Event(
            100.0, "JobFailed", f"task main-0 ended with status 1 on n1: {SECRET}", "train"
        ),
        events.Event(100.0, "AttemptEnded", f"task main-0: Exited: {SECRET}", "pruned"),
        events.Event(100.0, "JobPlaced", "it starts on n1; until now it waited: A: b", "train"),
        events.Event(100.0, "NodeReady", "well: again", node="n1"),
    ]
    views = list(map(job_views.event_view, told))
    assert bed.rights("boss").events(views)[:2] == views[:2]
    assert bed.rights("ada").events(views)[:2] == views[:2]
    assert [one.message for one in bed.rights("eve").events(views)] == [
        "task main-0: Exited with status 1",
        "task main-0 ended with status 1 on n1",
        "task main-0: Exited",
        "it starts on n1; until now it waited: A: b",
        "well: again",
    ]


AT_ENDS = f"task main-0 ended with status 1 on n1: {SECRET}"


@pytest.mark.parametrize(
    ("kind", "at", "of", "who"),
    [
        ("JobFailed", 50.0, "", "bob"),
        ("JobFailed", 99.0, "", "bob"),
        ("JobFailed", 99.0004, "", "bob"),
        ("JobFailed", 100.0, "", "ada"),
        ("JobFailed", 150.0, "", "ada"),
        ("JobFailed", 99.5, "", ""),  # between both: nobody knows whose it is
        ("AttemptEnded", 150.0, "bob", "bob"),  # heard late
        ("AttemptEnded", 50.0, "ada", "ada"),
        ("AttemptEnded", 150.0, "pruned", ""),
    ],
)
def test_an_event_is_of_the_run_that_was_there_and_not_of_a_later_one_of_its_name(
    kind: str, at: float, of: str, who: str
) -> None:
    bed = Bed()
    spec = msgspec.structs.replace(bed.record.spec, hash="b" * 16, owner="bob@x.org")
    bobs = msgspec.structs.replace(bed.record, spec=spec, submitted_at=10.0, ended_at=99.0)
    bed.earlier = (bobs,)
    runs = {"bob": bobs.key, "ada": bed.record.key, "pruned": "train.1.cccccccccccccccc"}
    attempt = f"{runs[of]}.0.main.0.1" if of else ""
    view = job_views.event_view(events.Event(at, kind, AT_ENDS, "train", attempt=attempt))
    seen = {one for one in ("ada", "bob", "eve") if bed.rights(one).events([view]) == [view]}
    assert seen == ({who} if who else set())
