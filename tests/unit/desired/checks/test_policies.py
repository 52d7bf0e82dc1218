"""Policies in force: what they refuse stays as it was, what is let off is let off until a time."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.desired.apply import last_good, loader
from reconciler.desired.checks import job_validator, policies
from reconciler.desired.documents import document_reader
from reconciler.desired.git import source
from reconciler.model import desired
from reconciler.model.documents import job_spec
from tests.unit.desired.repositories import Repository, job, queue

DAY_S = 86_400.0
POLICY = """\
apiVersion: muster/v1
kind: Policy
metadata: {{name: {name}}}
spec:
  match: {{kinds: [{kind}]}}
  schema: {schema}
  message: {message}
  waivers: [{waivers}]
"""
OWNED = POLICY.format(
    name="owned", kind="Job", schema="{properties: {spec: {required: [owner]}}}",
    message="say whose it is", waivers="",
)  # fmt: skip
WAIVED = OWNED.replace(
    "waivers: []",
    'waivers: [{object: Job/a, reason: moving, expires: "1970-01-11T00:00:00Z"}]',
)


class Reader:
    """Makes loaders of one repository, with a clock that is set by hand."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self.now = 0.0
        #: Keys of runs that have begun, by the job's name.
        self.begun: dict[str, str] = {}
        #: The names of which that was asked, question by question.
        self.questions: list[list[str]] = []
        self.made: list[loader.Loader] = []

    def asked(self, names: Collection[str]) -> dict[str, str]:
        self.questions.append(sorted(names))
        return {name: self.begun[name] for name in names if name in self.begun}

    def __call__(self, now: float) -> loader.Loader:
        self.now = now
        found = loader.Loader(
            source.GitSource(str(self._repository), branch="main"),
            clock=lambda: self.now,
            begun=self.asked,
        )
        self.made.append(found)
        return found


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    found = Reader(tmp_path / "state.git")
    yield found
    for one in found.made:
        one.close()


def rules(found: loader.Loader) -> list[tuple[str, str]]:
    return [(p.rule, p.severity) for p in found.last.status.problems]


def test_a_new_policy_leaves_what_is_in_force_and_refuses_what_comes(
    tmp_path: Path, reader: Reader
) -> None:
    repository = Repository(tmp_path / "state.git")
    repository.commit({"a.yaml": job("a")})
    one = reader(0.0)
    one.load()
    repository.commit({"policy.yaml": OWNED, "b.yaml": job("b")})
    state = one.load()
    assert set(state.jobs) == {"a"}
    assert set(state.refused) == {"b"}
    assert rules(one) == [("policy/owned", "error")] * 2
    repository.commit({"b.yaml": job("b", owner="ada@example.org")})
    assert set(one.load().jobs) == {"a", "b"}


def test_a_policy_for_a_queue_holds_below_it_wherever_that_is(
    tmp_path: Path, reader: Reader
) -> None:
    repository = Repository(tmp_path / "state.git")
    owned = OWNED.replace("[Job]}", "[Job], queues: [students]}")
    tree = {
        "students": queue("students"), "first": queue("first", parent="students"),
        "nlp": queue("nlp", parent="first"), "staff": queue("staff"),
    }  # fmt: skip
    jobs = {name: job(f"j-{name}", queue=name) for name in tree}
    files = {f"queue-{name}.yaml": text for name, text in tree.items()}
    files |= {f"job-{name}.yaml": text for name, text in jobs.items()}
    repository.commit({"policy.yaml": owned, **files})
    one = reader(0.0)
    assert set(one.load().jobs) == {"j-staff"}
    assert set(one.load().refused) == {"j-students", "j-first", "j-nlp"}
    repository.commit({"queue-first.yaml": queue("first", parent="staff")})
    assert set(one.load().jobs) == {"j-staff", "j-first", "j-nlp"}
    repository.commit({"queue-first.yaml": queue("first", parent="students")})
    later = one.load()
    assert set(later.jobs) == {"j-staff", "j-first", "j-nlp"}, "what is in force stays"
    assert rules(one) == [("policy/owned", "error")] * 3


POOL = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: p}
spec: {hosts: n1, nodes: {cpu: 8, memory: 8Gi}}
"""
RESERVED = """\
apiVersion: muster/v1
kind: Reservation
metadata: {name: paper}
spec: {pools: [p], users: [ada@x.org], start: "2090-01-01T00:00:00Z", end: "2090-01-02T00:00:00Z"}
"""


def test_structure_that_comes_later_makes_no_error_of_a_run_that_has_begun(
    tmp_path: Path, reader: Reader
) -> None:
    repository = Repository(tmp_path / "state.git")
    reserved = job("a", reservation="paper", owner="ada@x.org")
    repository.commit({"p.yaml": POOL, "r.yaml": RESERVED, "a.yaml": reserved, "b.yaml": job("b")})
    one = reader(0.0)
    jobs = one.load().jobs
    assert one.last.status.sync == "Synced", one.last.status.problems
    reader.begun = {name: jobs[name].key for name in ("a", "b")}
    repository.commit({"policy.yaml": OWNED})
    assert one.load().jobs == jobs
    assert rules(one) == [("policy/owned", "warning")]
    repository.commit({"policy.yaml": None, "r.yaml": None})
    assert one.load().jobs == jobs
    assert ("unknown-reservation", "warning") in rules(one)
    assert one.last.status.sync == "Synced"
    assert "its run was admitted before" in one.last.status.problems[0].message
    kept = last_good.decode(last_good.encode(one.incumbents()))
    again = loader.Loader(
        source.GitSource(str(tmp_path / "state.git"), branch="main"),
        kept,
        begun=reader.asked,
    )
    reader.made.append(again)
    assert again.load().jobs == jobs, "after a restart as well"
    assert again.last.status.sync == "Synced"


class Counted:
    """Counts how often documents of jobs are judged."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        job_of = job_validator.JobValidator.job

        def counted(
            judge: job_validator.JobValidator, part: job_spec.JobDocument, *rest: Any
        ) -> Any:
            self.names.append(part.metadata.name)
            return job_of(judge, part, *rest)

        patch.setattr(job_validator.JobValidator, "job", counted)

    def taken(self) -> list[str]:
        found, self.names = sorted(self.names), []
        return found


def test_what_a_policy_says_of_many_jobs_is_not_found_out_again_with_every_revision(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that wait it is asked, all at once, whether they have begun by now."""
    repository = Repository(tmp_path / "state.git")
    ended, waiting = [f"e{number}" for number in range(4)], [f"w{number}" for number in range(4)]
    written = {f"{name}.yaml": job(name) for name in (*ended, *waiting)}
    repository.commit(written)
    one = reader(0.0)
    jobs = one.load().jobs
    reader.begun = {name: jobs[name].key for name in ended}
    repository.commit({"policy.yaml": OWNED, "new.yaml": job("new")})
    state = one.load()
    assert state.jobs == jobs
    assert "say whose it is" in state.refused["new"]
    said = one.last.status.problems
    judged = Counted(monkeypatch)
    reader.questions.clear()

    repository.commit({"other.yaml": job("other", owner="ada@example.org")})
    state = one.load()
    assert judged.taken() == ["other"]
    assert reader.questions == [["new", *waiting]]
    assert state.jobs.keys() == {*jobs, "other"}
    assert state.refused.keys() == {"new"}
    assert one.last.status.problems == said

    reader.begun["w0"] = jobs["w0"].key
    repository.commit({"e0.yaml": job("e0", owner="ada@example.org"), "e1.yaml": None})
    state = one.load()
    assert judged.taken() == ["e0", "w0"]
    assert "e1" not in state.jobs
    severities = {p.object: p.severity for p in one.last.status.problems}
    assert severities == {
        **dict.fromkeys(("Job/e2", "Job/e3", "Job/w0"), "warning"),
        **dict.fromkeys(("Job/w1", "Job/w2", "Job/w3", "Job/new"), "error"),
    }

    repository.commit({"policy.yaml": None})
    assert one.load().jobs.keys() == {*ended, *waiting, "new", "other"} - {"e1"}
    assert one.last.status.problems == ()
    assert one.last.status.sync == "Synced"


def test_nothing_is_said_of_runs_that_have_begun_when_their_pool_leaves(
    tmp_path: Path, reader: Reader
) -> None:
    repository = Repository(tmp_path / "state.git")
    jobs = {f"{name}.yaml": job(name, pools="[p]") for name in ("ended", "waiting")}
    other = POOL.replace("name: p", "name: q").replace("hosts: n1", "hosts: n2")
    repository.commit({"p.yaml": POOL, "q.yaml": other, **jobs})
    one = reader(0.0)
    reader.begun = {"ended": one.load().jobs["ended"].key}
    repository.commit({"p.yaml": None})
    one.load()
    assert [(p.object, p.rule) for p in one.last.status.problems] == [
        ("Job/waiting", "unknown-pool")
    ]
    # Another run of it is one that waits.
    repository.commit({"ended.yaml": job("ended", pools="[p]", run=2)})
    one.load()
    assert {p.object for p in one.last.status.problems} == {"Job/ended", "Job/waiting"}
    assert all(p.severity == "warning" for p in one.last.status.problems)


def test_a_restart_knows_what_was_in_force_of_jobs_that_are_judged_once(
    tmp_path: Path, reader: Reader
) -> None:
    repository = Repository(tmp_path / "state.git")
    repository.commit({"a.yaml": job("a"), "b.yaml": job("b")})
    one = reader(0.0)
    jobs = one.load().jobs
    reader.begun = {"a": jobs["a"].key}
    repository.commit({"policy.yaml": OWNED})
    one.load()
    repository.commit({"c.yaml": job("c", owner="ada@example.org")})
    one.load()
    kept = last_good.decode(last_good.encode(one.incumbents()))
    again = loader.Loader(
        source.GitSource(str(tmp_path / "state.git"), branch="main"), kept, begun=reader.asked
    )
    reader.made.append(again)
    assert again.load().jobs == one.load().jobs
    assert again.load().jobs.keys() == {"a", "b", "c"}


@pytest.mark.parametrize(
    "changed",
    [{"run": 2}, {"queue": "nowhere"}, {"command": "[other]"}],
)
def test_a_run_that_is_still_to_begin_is_judged(
    tmp_path: Path, reader: Reader, changed: dict[str, Any]
) -> None:
    repository = Repository(tmp_path / "state.git")
    repository.commit({"a.yaml": job("a"), "b.yaml": job("b")})
    one = reader(0.0)
    jobs = one.load().jobs
    reader.begun = {"a": jobs["a"].key}
    repository.commit({"policy.yaml": OWNED, "a.yaml": job("a", **changed)})
    one.load()
    assert {severity for _, severity in rules(one)} == {"error"}, "b waits, and a is another one"
    assert {one.object for one in one.last.status.problems} == {"Job/a", "Job/b"}
    assert one.last.status.sync == "OutOfSync"


def test_a_waiver_ends_by_itself_and_what_it_let_in_stays(tmp_path: Path, reader: Reader) -> None:
    repository = Repository(tmp_path / "state.git")
    repository.commit({"a.yaml": job("a"), "policy.yaml": WAIVED})
    one = reader(DAY_S)
    assert set(one.load().jobs) == {"a"}
    assert rules(one) == [("policy/owned", "warning")]
    assert one.last.status.sync == "Synced"
    reader.now = 10 * DAY_S
    assert set(one.load().jobs) == {"a"}
    assert rules(one) == [("policy/owned", "error")]
    assert "its waiver ended" in one.last.status.problems[0].message
    assert set(reader(10 * DAY_S).load().jobs) == set(), "a controller that never had it"


def test_structure_that_a_policy_denies_is_refused_as_a_whole(
    tmp_path: Path, reader: Reader
) -> None:
    limited = POLICY.format(
        name="limited", kind="Queue", schema="{properties: {spec: {required: [limit]}}}",
        message="say its limit", waivers="",
    )  # fmt: skip
    repository = Repository(tmp_path / "state.git")
    repository.commit({"q.yaml": queue("q", limit="{gpu: 4}"), "policy.yaml": limited})
    one = reader(0.0)
    assert set(one.load().structure.queues) == {"default", "q"}
    repository.commit({"r.yaml": queue("r")})
    assert set(one.load().structure.queues) == {"default", "q"}
    assert [(p.rule, p.object) for p in one.last.status.problems] == [("policy/limited", "Queue/r")]
    repository.commit({"policy.yaml": limited.replace("spec:\n", "spec:\n  action: warn\n")})
    assert set(one.load().structure.queues) == {"default", "q", "r"}
    assert rules(one) == [("policy/limited", "warning")]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("{type: nonsense}", "this is not a JSON Schema"),
        ('{$ref: "https://example.org/schema.json"}', "refer to anything outside itself"),
        ("{properties: {a: {$ref: other.json}}}", "refer to anything outside itself"),
    ],
)
def test_a_schema_that_is_none_refuses_its_policy(
    schema: str, told: str, tmp_path: Path, reader: Reader
) -> None:
    text = POLICY.format(name="p", kind="Job", schema=schema, message="no", waivers="")
    repository = Repository(tmp_path / "state.git")
    repository.commit({"policy.yaml": text, "a.yaml": job("a")})
    one = reader(0.0)
    state = one.load()
    assert state.structure.policies == {}
    (problem,) = state.status.problems
    assert (problem.rule, problem.line) == ("bad-schema", problem.line)
    assert problem.line >= 6
    assert told in problem.message


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ("{properties: {effective: {required: [timeLimitSeconds]}}}", ""),
        ("{properties: {effective: {properties: {gpu: {maximum: 1}}}}}", "gpu 2"),
        ("{properties: {effective: {properties: {cpu: {maximum: 0.1}}}}}", "cpu 0.5"),
    ],
)
def test_what_a_job_comes_to_is_told_as_people_write_it(
    tmp_path: Path, reader: Reader, schema: str, found: str
) -> None:
    repository = Repository(tmp_path / "state.git")
    limits = POLICY.format(name="p", kind="Job", schema=schema, message="less", waivers="")
    big = job("a").replace("spec:", "spec:\n  resources: {gpu: 2, cpu: 500m}")
    repository.commit({"p.yaml": limits, "q.yaml": queue("default"), "a.yaml": big})
    reading = reader(0)
    reading.load()
    told = {one.rule: one.found for one in reading.last.status.problems}
    assert told.get("policy/p") == found


def test_a_pattern_that_takes_too_long_counts_as_violated_and_says_why() -> None:
    schema: dict[str, Any] = {"properties": {"note": {"pattern": "^(a|aa)+$"}}}
    for key in ("annotations", "metadata"):
        schema = {"properties": {key: schema}}
    rule = desired.AdmissionPolicy(
        "slow", "notes are plain", json.dumps(schema), kinds=("Queue",), path="p"
    )
    text = queue("q").replace("name: q", f"name: q, annotations: {{note: {'a' * 60}!}}")
    part = document_reader.read(text.encode()).documents[0].part
    assert part is not None
    (found,) = policies.PolicyRules({"slow": rule}).faults("Queue", "q", part, 0.0)
    assert found.rule == "policy/slow"
    assert found.severity == "error"
    assert "takes longer than 0.5 s on what is written here" in found.message
