"""Jobs that no file in git describes: they begin, change and end by requests alone."""

from typing import Any

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.policy import access
from reconciler.model.state import ephemeral_requests, records
from reconciler.model.state.states import JobState
from tests.unit.core.world import World, job

ALLOWED = desired.ClusterSettings(ephemeral=True)
ADA, EVE = "ada@example.org", "eve@example.org"


class EphemeralWorld(World):
    """A world in which people ask for jobs."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(settings=changes.pop("settings", ALLOWED), **changes)
        self.asked = 0

    def ask(self, request: Any) -> str:
        """Return the answer to a request, after all has settled."""
        self.memory.ask(request)
        answer = self.cycle().answers[request.id]
        self.settle()
        return answer

    def begin(self, *jobs: desired.Job) -> str:
        """Ask for jobs without a file in git."""
        self.asked += 1
        return self.ask(ephemeral_requests.BeginEphemeral(str(self.asked), ADA, jobs))

    def change(self, verb: ephemeral_requests.EphemeralVerb, name: str, reason: str = "") -> str:
        """Ask for a change of one, as it is now."""
        return self.ask(self.reviewed(verb, name, reason))

    def reviewed(
        self, verb: ephemeral_requests.EphemeralVerb, name: str, reason: str = ""
    ) -> ephemeral_requests.ChangeEphemeral:
        """A change that was reviewed by what is known now, and that nobody has asked for yet."""
        self.asked += 1
        record = self.memory.jobs.get(name)
        meant = ("", "") if record is None else (record.key, record.spec.owner)
        return ephemeral_requests.ChangeEphemeral(
            *(str(self.asked), verb, name, EVE), *meant, reason=reason
        )


def test_it_runs_without_a_document_and_ends_once() -> None:
    world = EphemeralWorld()
    assert world.begin(job("a", owner=ADA)) == ""
    assert world.state("a") is JobState.RUNNING
    assert world.memory.jobs["a"].ephemeral
    assert world.events("JobSubmitted") == ["a"]
    world.commit(job("b"))  # a revision without it removes nothing
    world.settle()
    world.change_structure(unix_users={"x@example.org": "x"})
    world.settle()
    assert world.states() == {"a": "Running", "b": "Running"}
    assert not world.outcomes[-1].drift
    world.end("a")
    assert world.state("a") is JobState.SUCCEEDED
    assert world.events("JobSucceeded") == ["a"]


def test_its_record_goes_after_the_usual_time() -> None:
    world = EphemeralWorld()
    world.begin(job("a"))
    world.end("a")
    world.advance(ALLOWED.retain_finished_jobs_s - 1000)
    assert "a" in world.memory.jobs
    world.advance(1000 + 600)
    world.advance(600)
    assert "a" not in world.memory.jobs


@pytest.mark.parametrize(
    ("prepare", "asked", "told"),
    [
        ((), [job("a")], ""),
        ((), [job("a"), job("b")], ""),
        ("in git", [job("a")], "Job/a is in git"),
        ("in git", [job("b"), job("a")], "Job/a is in git"),  # all, or none
        ("alive", [job("a", hash="other", owner=ADA)], "has not ended"),
        ("alive", [job("a", owner=EVE)], "has not ended"),
        ("alive", [job("a", owner=ADA)], ""),  # an answer was lost: the same again
        ("ended", [job("a", owner=ADA)], "was before"),
        ("ended", [job("a", hash="other", owner=ADA)], ""),
        # who depends on it would be decided by another's job
        ("ended", [job("a", hash="other", owner=EVE)], f"Job/a of {ADA} has this name"),
        ("waits", [job("a")], "waits for git"),
    ],
)
def test_a_name_is_used_once(prepare: str, asked: list[desired.Job], told: str) -> None:
    world = EphemeralWorld()
    if prepare == "in git":
        world.commit(job("a"))
        world.settle()
    if prepare in ("alive", "ended"):
        world.begin(job("a", owner=ADA))
    if prepare == "ended":
        world.end("a")
    if prepare == "waits":
        waiting = records.Override(
            *("submit", "a", "git is away", ADA, world.now, world.now + 999),
            submission=records.Submission("1", "text"),
        )
        assert world.ask(records.QueueSubmissions("q", (waiting,))) == ""
    known = dict(world.memory.jobs)
    answer = world.begin(*asked)
    assert (told in answer) if told else answer == ""
    if told:
        assert world.memory.jobs.keys() == known.keys()
    else:
        assert {one.name for one in asked} <= world.memory.jobs.keys()


def test_where_the_cluster_forbids_it_nothing_begins() -> None:
    world = EphemeralWorld(settings=desired.ClusterSettings())
    assert "forbids" in world.begin(job("a"))
    assert not world.memory.jobs


@pytest.mark.parametrize(
    ("name", "most", "owner"),
    [
        ("OWNER_EPHEMERAL_MAX", 2, "of ada@example.org"),
        ("EPHEMERAL_MAX", 2, "of all"),
    ],
)
def test_there_is_a_limit(
    name: str, most: int, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ephemeral_requests, name, most)
    world = EphemeralWorld()
    assert world.begin(job("a", owner=ADA), job("b", owner=ADA)) == ""
    assert owner in world.begin(job("c", owner=ADA))
    world.end("a")
    assert world.begin(job("c", owner=ADA)) == ""


@pytest.mark.parametrize(
    ("verbs", "state", "told"),
    [
        (["cancel"], JobState.CANCELLED, ""),
        (["hold"], JobState.HELD, ""),
        (["hold", "hold"], JobState.HELD, ephemeral_requests.UNCHANGED),
        (["hold", "release"], JobState.RUNNING, ""),
        (["release"], JobState.RUNNING, ephemeral_requests.UNCHANGED),
        (["rerun"], JobState.RUNNING, "run 1 of Job/a has not ended: cancel it first"),
        (["cancel", "rerun"], JobState.RUNNING, ""),
        (["cancel", "cancel"], JobState.CANCELLED, "run 1 of Job/a is Cancelled already"),
    ],
)
def test_verbs_need_no_commit(
    verbs: list[ephemeral_requests.EphemeralVerb], state: JobState, told: str
) -> None:
    world = EphemeralWorld()
    world.begin(job("a"))
    answer = ""
    for verb in verbs:
        answer = world.change(verb, "a", "busy")
    assert answer.startswith(told) if told else answer == ""
    assert world.state("a") is state


def test_who_cancelled_it_is_told() -> None:
    world = EphemeralWorld()
    world.begin(job("a", owner=ADA))
    world.change("cancel", "a", "in the way")
    assert world.memory.jobs["a"].message == f"cancelled by {EVE}: in the way"


def test_another_run_has_another_number() -> None:
    world = EphemeralWorld()
    world.begin(job("a"))
    world.end("a")
    assert world.change("rerun", "a") == ""
    record = world.memory.jobs["a"]
    assert (record.spec.run, record.ephemeral, record.state) == (2, True, JobState.RUNNING)


def test_another_run_is_refused_where_a_new_job_would_be() -> None:
    world = EphemeralWorld()
    world.begin(job("a", owner=ADA, priority=900))
    world.end("a")
    rule = access.AccessRule(("submit",), queues=("default",), max_priority=50)
    roles = (access.Role("users", members=(ADA,), rules=(rule,)),)
    identities = {ADA: access.Identity(ADA)}
    world.change_structure(access=access.Access(identities, roles))
    assert "maxPriority has to allow it" in world.change("rerun", "a")
    world.change_structure(access=access.Access())
    world.change_structure(settings=desired.ClusterSettings())
    assert "forbids jobs without a file" in world.change("rerun", "a")
    world.change_structure(settings=ALLOWED)
    assert world.memory.jobs["a"].spec.run == 1


@pytest.mark.parametrize("verb", ephemeral_requests.EPHEMERAL_VERBS)
def test_what_is_in_git_is_not_changed_so(verb: ephemeral_requests.EphemeralVerb) -> None:
    world = EphemeralWorld()
    world.commit(job("a"))
    world.settle()
    assert world.change(verb, "a") == "there is no Job/a without a file in git"
    assert world.state("a") is JobState.RUNNING


@pytest.mark.parametrize("run", [1, 2])
def test_a_document_of_its_name_waits_for_its_end(run: int) -> None:
    world = EphemeralWorld()
    world.begin(job("a", owner=ADA))
    world.commit(job("a", owner=EVE, hash="other", run=run))
    world.settle()
    record = world.memory.jobs["a"]
    assert (record.spec.owner, record.state) == (ADA, JobState.RUNNING)
    assert "comes into force then" in record.message
    assert world.events("JobChangeIgnored") == ["a"]
    world.end("a")
    record = world.memory.jobs["a"]
    assert (record.spec.owner, record.ephemeral) == (EVE, False)
    assert record.state is JobState.RUNNING


def test_the_same_job_that_comes_into_git_is_the_same_run() -> None:
    world = EphemeralWorld()
    world.begin(job("a", owner=ADA))
    world.commit(job("a", owner=ADA, path="a.yaml"))
    world.settle()
    assert not world.memory.jobs["a"].ephemeral
    assert world.state("a") is JobState.RUNNING
    world.commit(remove=("a",))
    world.settle()
    assert world.state("a") is JobState.CANCELLED


def test_an_override_cancels_it() -> None:
    world = EphemeralWorld()
    world.begin(job("a", owner=ADA))
    override = records.Override("cancel", "a", "now", EVE, world.now, world.now + 600)
    assert world.ask(records.PutOverride("o", override)) == ""
    assert world.state("a") is JobState.CANCELLED
    assert not world.memory.overrides


def test_dependencies_go_both_ways() -> None:
    world = EphemeralWorld()
    world.begin(job("a"))
    world.commit(job("b", depends_on=(desired.Dependency("a"),)))
    world.settle()
    assert world.reason("b") == "Dependency"
    world.begin(job("c", depends_on=(desired.Dependency("b"),)))
    world.end("a")
    assert world.state("b") is JobState.RUNNING
    world.end("b")
    assert world.state("c") is JobState.RUNNING


def test_requests_survive_the_journal() -> None:
    request = ephemeral_requests.BeginEphemeral("1", ADA, (job("a"),))
    encoded = msgspec.msgpack.encode((request,))
    decoded = msgspec.msgpack.decode(encoded, type=tuple[records.OverrideRequest, ...])
    assert decoded == (request,)


@pytest.mark.parametrize("verb", ephemeral_requests.EPHEMERAL_VERBS)
def test_a_change_of_one_run_does_not_reach_another_that_came_meanwhile(
    verb: ephemeral_requests.EphemeralVerb,
) -> None:
    world = EphemeralWorld()
    world.begin(job("a", owner=EVE))
    meant = world.reviewed(verb, "a")
    world.end("a")
    assert world.begin(job("a", owner=EVE, hash="other", suspend=verb == "release")) == ""
    before = world.memory.jobs["a"]
    assert "has come meanwhile" in world.ask(meant)
    assert world.memory.jobs["a"] == before


def test_a_change_does_not_reach_the_same_run_of_somebody_else() -> None:
    """Whose it is decides who may change it."""
    world = EphemeralWorld()
    world.begin(job("a", owner=ADA))
    meant = msgspec.structs.replace(world.reviewed("cancel", "a"), owner=EVE)
    assert "of ada@example.org, has come meanwhile" in world.ask(meant)
    assert world.state("a") is JobState.RUNNING
