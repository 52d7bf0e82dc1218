"""Many people's changes share a push, and what one of them meets costs the others nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
import yaml

from reconciler.desired.documents import object_changes
from reconciler.desired.git import source
from reconciler.operations.changes import pusher, remote_changes
from tests.unit.desired.repositories import ENVIRONMENT, Repository, documents, git, job

Make = Callable[..., pusher.GitPusher]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
        monkeypatch.setenv(name, ENVIRONMENT[name])
    return Repository(tmp_path / "state.git")


@pytest.fixture
def make(repository: Repository) -> Iterator[Make]:
    made: list[pusher.GitPusher] = []

    def _make(pools: pusher.PoolNames = dict) -> pusher.GitPusher:
        made.append(pusher.GitPusher(source.GitSource(str(repository.path)), pools))
        return made[-1]

    yield _make
    for one in made:
        one.close()


def change(
    verb: remote_changes.Verb, name: str, text: str = ""
) -> remote_changes.SubmittedDocument:
    return remote_changes.SubmittedDocument(verb, "me", name, text, reason="why")


BESIDE = change("submit", "beside", job("beside"))


def head(kind: str, name: str) -> str:
    return f"apiVersion: muster/v1\nkind: {kind}\nmetadata: {{name: {name}}}\n"


def nodes() -> Mapping[str, Sequence[str]]:
    return {"p": ("n1", "n2")}


@pytest.mark.parametrize(
    ("verb", "spec", "status", "told"),
    [
        ("rerun", "{run: two}", 409, 'spec.run of Job/a: found "two", expected a whole number'),
        ("rerun", "{run: 1.5}", 409, "found 1.5, expected a whole number"),
        ("rerun", "{run: true}", 409, "found true, expected a whole number"),
        ("rerun", "{run: .nan}", 409, "expected a whole number"),
        ("rerun", "[1]", 409, "spec of Job/a: found a list of 1, expected a mapping"),
        ("rerun", "text", 409, 'found "text", expected a mapping'),
        ("rerun", "null", 200, ""),
        ("hold", "[1]", 400, ""),
        ("release", "[1]", 200, ""),
        ("cancel", "[1]", 200, ""),
    ],
)
def test_a_job_that_is_no_job(  # noqa: PLR0917
    repository: Repository, make: Make, verb: remote_changes.Verb, spec: str, status: int, told: str
) -> None:
    repository.commit({"a.yaml": head("Job", "a") + f"spec: {spec}\n"})
    (first,), (second,) = make().push([[change(verb, "a")], [BESIDE]])
    assert (first.status, second.status) == (status, 200), (first.message, second.message)
    assert told in first.message
    assert git(repository.path, "show", "main:jobs/beside.yaml") + "\n" == job("beside")


def test_who_holds_what_is_held_keeps_why(repository: Repository, make: Make) -> None:
    repository.commit({"a.yaml": job("a")})
    held = remote_changes.SubmittedDocument("hold", "me", "a", reason="the data is wrong")
    ((first,),) = make().push([[held]])
    ((again,),) = make().push([[msgspec.structs.replace(held, reason="")]])
    assert (first.message, again.message) == ("", "it is held already")
    assert "the data is wrong" in git(repository.path, "show", "main:a.yaml")


@pytest.mark.parametrize("verb", ["drain", "undrain"])
@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ("[1]", 409),
        ("{overrides: 5}", 409),
        ("{overrides: {hosts: n1}}", 409),
        ("{overrides: [n1]}", 409),
    ],
)
def test_a_pool_that_is_no_pool(
    repository: Repository, make: Make, verb: remote_changes.Verb, spec: str, status: int
) -> None:
    repository.commit({"p.yaml": head("NodePool", "p") + f"spec: {spec}\n"})
    (first,), (second,) = make(nodes).push([[change(verb, "n1")], [BESIDE]])
    assert (first.status, second.status) == (status, 200), (first.message, second.message)
    assert "mend the document first" in first.message


@pytest.mark.parametrize(
    ("error", "status"), [(remote_changes.UnavailableError("later"), 503), (KeyError("x"), 500)]
)
def test_nodes_that_nobody_can_tell(
    repository: Repository, make: Make, error: Exception, status: int
) -> None:
    def fails() -> Mapping[str, Sequence[str]]:
        raise error

    repository.commit({"a.yaml": job("a")})
    group = [change("cancel", "a"), change("drain", "n1")]
    (first,), two, (second,) = make(fails).push([[change("drain", "n1")], group, [BESIDE]])
    assert (first.status, second.status) == (status, 200), (first.message, second.message)
    assert [one.status for one in two] == [remote_changes.WITHDRAWN, status]


@pytest.mark.parametrize(("verb", "status"), [("cancel", 403), ("hold", 403), ("rerun", 403)])
def test_nothing_is_changed_where_the_controllers_key_does_not_count(
    repository: Repository, make: Make, verb: remote_changes.ChangeVerb, status: int
) -> None:
    """It would be answered as done, refused as a commit, and go on as it was."""
    repository.commit({"jobs/a.yaml": job("a"), "team/b.yaml": job("b"), "team/c.yaml": job("c")})
    copied = {"jobs/c.yaml": job("c")} if verb == "cancel" else {}
    repository.commit(copied or {"note": "x"})
    before = git(repository.path, "rev-parse", "main")
    one = make()
    wanted = [
        msgspec.structs.replace(change(verb, name), below="jobs/", dry_run=dry_run)
        for name in "bc"
        for dry_run in (False, True)
    ]
    for (found,) in one.push([[each] for each in wanted]):
        assert found.status == status
        assert f"it stands in team/{found.name}.yaml, not below jobs/" in found.message
    assert git(repository.path, "rev-parse", "main") == before
    mine = msgspec.structs.replace(change(verb, "a"), below="jobs/")
    ((found,),) = one.push([[mine]])
    assert found.status == 200


def test_who_may_is_asked_again_of_what_stands_where_it_is_committed(
    repository: Repository,
) -> None:
    """By the very documents that are acted upon; of what goes together nothing is done then."""
    texts = (job("a", owner="ada"), job("b", owner="bob"), job("d", owner="dan"))
    repository.commit({"jobs/all.yaml": documents(*texts), "copy/a.yaml": job("a", owner="eve")})
    seen: list[tuple[str, list[tuple[str, str]]]] = []
    may: dict[str, str | Exception] = {}

    def judge(asked: remote_changes.SubmittedDocument, written: object_changes.Documents) -> str:
        seen.append((f"{asked.verb} {asked.name}", object_changes.jobs_of(written)))
        answer = may.get(asked.name, "")
        if isinstance(answer, Exception):
            raise answer
        return answer

    ended = pusher.LastRun(1, "Succeeded")
    place = source.GitSource(str(repository.path))
    one = pusher.GitPusher(place, nodes, lambda _: ended, judge=lambda: judge)
    before = git(repository.path, "rev-parse", "main")
    try:
        may |= {"a": "a is ada's", "d": "d is dan's"}
        may |= {"b": remote_changes.UnavailableError("the store is away")}
        together = [change("cancel", "a"), change("submit", "c", job("c"))]
        first, (late,), (pruned,) = one.push(
            [together, [change("rerun", "b")], [change("prune", "d")]]
        )
        assert (first[0].status, first[0].message) == (403, "a is ada's")
        assert first[1].status == remote_changes.WITHDRAWN
        assert (late.status, late.message) == (503, "the store is away")
        assert (pruned.status, pruned.message) == (403, "its file stays: d is dan's")
        assert git(repository.path, "rev-parse", "main") == before
        assert ("cancel a", [("", "eve"), ("", "ada")]) in [
            (what, [(queue.replace("default", ""), owner) for queue, owner in whose])
            for what, whose in seen
        ]
        may.clear()
        (found,) = one.push([together])
        assert [result.status for result in found] == [200, 200]
    finally:
        one.close()


@pytest.mark.parametrize(
    ("last", "rerun", "told"),
    [
        (pusher.LastRun(1, "Succeeded"), False, ""),
        (pusher.LastRun(1, "Succeeded"), True, "it asks for run 2, and run 1 is what has ended"),
        (pusher.LastRun(2), True, "job a has not ended: its file stays"),
        (None, False, "job a has not ended: its file stays"),
    ],
)
def test_only_the_file_of_the_run_that_has_ended_is_pruned(
    repository: Repository, last: pusher.LastRun | None, told: str, *, rerun: bool
) -> None:
    """A run that was just asked for is in git before anybody knows of it."""
    repository.commit({"jobs/a.yaml": job("a")})
    one = pusher.GitPusher(source.GitSource(str(repository.path)), nodes, lambda _: last)
    try:
        if rerun:
            assert one.push([[change("rerun", "a")]])[0][0].status == 200
        ((found,),) = one.push([[change("prune", "a")]])
    finally:
        one.close()
    kept = git(repository.path, "ls-tree", "-r", "--name-only", "main").splitlines()
    assert ("jobs/a.yaml" in kept, found.commit is None) == (bool(told), bool(told))
    assert (told in found.message) if told else (found.status == 200)


def test_nodes_of_one_request_are_one_override_of_their_pool(repository: Repository) -> None:
    pool = "spec: {hosts: 'n[000-999]', nodes: {cpu: 4, memory: 64Gi}}\n"
    repository.commit({"p.yaml": head("NodePool", "p") + pool})
    hall = [f"n{number:03}" for number in range(1000)]
    place = source.GitSource(str(repository.path))
    judged: list[str] = []

    def judge(asked: remote_changes.SubmittedDocument, _: object_changes.Documents) -> str:
        judged.append(asked.name)
        return ""

    def overrides() -> list[dict[str, str]]:
        text = git(repository.path, "show", "main:p.yaml")
        found: list[dict[str, str]] = yaml.safe_load(text)["spec"].get("overrides", [])
        return found

    one = pusher.GitPusher(place, lambda: {"p": hall}, judge=lambda: judge)
    try:
        (drained,) = one.push([[change("drain", name) for name in hall[:500]]])
        assert {result.status for result in drained} == {200}
        assert [result.name for result in drained] == hall[:500]
        assert [entry["hosts"] for entry in overrides()] == ["n[000-499]"]
        assert judged == hall[:500], "each by itself"
        mixed = [change("undrain", name) for name in (hall[0], hall[700])]
        (refused,) = one.push([mixed])
        assert {result.status for result in refused} == {404}
        assert "drains node n700 in git" in refused[0].message
        (left,) = one.push([[change("undrain", name) for name in hall[100:500]]])
        assert {result.status for result in left} == {200}
        assert [entry["hosts"] for entry in overrides()] == ["n[000-099]"]
        (unknown,) = one.push([[change("drain", "n500"), change("drain", "m1")]])
        assert [result.status for result in unknown] == [remote_changes.WITHDRAWN, 404]
    finally:
        one.close()


def test_no_name_of_a_node_is_a_list_of_them(repository: Repository) -> None:
    """Whoever writes hosts that are not the pool's has the whole structure refused."""
    pool = "spec: {hosts: 'n[1-2]', nodes: {cpu: 4, memory: 64Gi}}\n"
    before = repository.commit({"p.yaml": head("NodePool", "p") + pool})
    pools = {"p": ["n1", "n2"], "q": ["m1"]}
    one = pusher.GitPusher(source.GitSource(str(repository.path)), lambda: pools)
    try:
        for name in ("n[1-2]", "n[1-9]", "n1,m1", "n1,n2", "n[", ""):
            for verb in ("drain", "undrain"):
                ((found,),) = one.push([[change(verb, name)]])
                assert (found.status, found.commit) == (404, None), (verb, name, found)
                assert "there is no Node/" in found.message
    finally:
        one.close()
    assert git(repository.path, "rev-parse", "main") == before


def test_a_submission_that_the_remote_refuses_waits_for_nothing(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit({"a.yaml": job("a")})
    hook = repository.path / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho no jobs on Fridays >&2; exit 1\n")
    hook.chmod(0o755)
    place = source.GitSource(f"file://{repository.path}", state=tmp_path / "mirror")
    one = pusher.GitPusher(place, dict, lambda _: pusher.LastRun(1, "Succeeded"))
    try:
        ((refused,),) = one.push([[BESIDE]])
        assert (refused.status, refused.is_away) == (403, False)
        assert "no jobs on Fridays" in refused.message
        ((stays,),) = one.push([[change("prune", "a")]])
        assert (stays.status, stays.message[:16]) == (403, "its file stays: ")
        repository.path.rename(tmp_path / "away")
        ((away,),) = one.push([[BESIDE]])
        assert (away.status, away.is_away) == (503, True)
    finally:
        one.close()


def test_who_may_not_drain_one_of_the_nodes_drains_none(repository: Repository) -> None:
    pool = "spec: {hosts: 'n[1-3]', nodes: {cpu: 4, memory: 64Gi}}\n"
    before = repository.commit({"p.yaml": head("NodePool", "p") + pool})

    def judge(asked: remote_changes.SubmittedDocument, _: object_changes.Documents) -> str:
        return {"n1": "", "n3": ""}.get(asked.name, f"{asked.name} is not yours")

    place = source.GitSource(str(repository.path))
    one = pusher.GitPusher(place, lambda: {"p": ["n1", "n2", "n3"]}, judge=lambda: judge)
    try:
        (refused,) = one.push([[change("drain", name) for name in ("n1", "n2", "n3")]])
        assert {(found.status, found.message) for found in refused} == {(403, "n2 is not yours")}
        assert git(repository.path, "rev-parse", "main") == before
        (drained,) = one.push([[change("drain", name) for name in ("n1", "n3")]])
        assert [found.status for found in drained] == [200, 200]
    finally:
        one.close()
