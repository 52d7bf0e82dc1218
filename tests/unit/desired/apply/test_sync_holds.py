"""What is held over revisions and restarts, on real repositories, behind the real judgement."""

import contextlib
from collections.abc import Iterator

import pytest

from reconciler.core.safety import sync_limits
from reconciler.desired.apply import job_quarantine, loader
from reconciler.desired.git import source
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.notifications import messages
from reconciler.operations.changes import held_changes
from tests.unit.desired.loaders import Loaders, Make, restarted
from tests.unit.desired.repositories import Repository, documents, git, job, queue


@pytest.fixture
def make(repository: Repository) -> Iterator[Make]:
    with contextlib.closing(Loaders(repository, lambda: 5.0)) as made:
        yield made.make


def pool(count: int, name: str = "a") -> str:
    return (
        f"apiVersion: muster/v1\nkind: NodePool\nmetadata: {{name: {name}}}\nspec:\n"
        f"  hosts: {name}[1-{count}]\n"
        "  nodes: {cpu: 8, memory: 8Gi, gpus: {count: 8, model: H200}}\n"
    )


def cluster(sync: str) -> str:
    return f"apiVersion: muster/v1\nkind: Cluster\nmetadata: {{name: c}}\nspec:\n  sync: {sync}\n"


BASE = {"pool.yaml": pool(8), "jobs/a.yaml": job("a")}


def nodes(value: desired.Desired) -> int:
    return len(value.structure.pools["a"].nodes)


def digest(value: desired.Desired) -> str:
    return value.status.held[0].digest


def test_half_of_the_nodes_are_held_and_jobs_apply(repository: Repository, make: Make) -> None:
    good = repository.commit(BASE)
    one = make()
    one.load()
    head = repository.commit({"pool.yaml": pool(4), "jobs/b.yaml": job("b"), "jobs/a.yaml": None})
    for value in (one.load(), one.load(), restarted(make, one).load()):
        assert nodes(value) == 8
        assert set(value.jobs) == {"b"}
        assert value.status.sync == "OutOfSync"
        assert (value.status.structure_revision, value.status.jobs_revision) == (good, head)
        assert "32 of 64 GPUs (50%)" in value.status.message
        assert f"muster approve {digest(value)}" in value.status.message
    repository.commit({"jobs/c.yaml": job("c")})
    assert set(one.load().jobs) == {"b", "c"}


def test_it_applies_once_it_is_approved(repository: Repository, make: Make) -> None:
    repository.commit(BASE)
    one = make()
    one.load()
    repository.commit({"pool.yaml": pool(4)})
    held = one.load()
    one = restarted(make, one)
    repository.commit({"jobs/b.yaml": job("b")})
    assert digest(one.load()) == digest(held)
    head = repository.commit({}, message=f"Yes\n\nMuster-Approve: {digest(held)}")
    value = one.load()
    assert nodes(value) == 4
    assert value.status.sync == "Synced"
    assert value.status.structure_revision == head
    # It was for this once.
    repository.commit({"pool.yaml": pool(8)})
    one.load()
    repository.commit({"pool.yaml": pool(4)})
    assert nodes(one.load()) == 8


def test_the_commit_itself_may_carry_the_approval(repository: Repository, make: Make) -> None:
    first = repository.commit(BASE)
    one, reviewing = make(), make()
    one.load()
    reviewing.load()
    repository.commit({"pool.yaml": pool(4)})
    text = digest(reviewing.load())
    message = f"Return the racks\n\nMuster-Approve: {text}\n"
    repository.commit({"pool.yaml": pool(4)}, parent=first, message=message)
    assert nodes(one.load()) == 4


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0b", "\x1e", "\r"])
def test_nothing_within_a_trailer_approves(repository: Repository, make: Make, mark: str) -> None:
    """Only a line feed ends a trailer: a name with another mark in it holds no second one."""
    repository.commit(BASE)
    one = make()
    one.load()
    repository.commit({"pool.yaml": pool(4)})
    trick = f"Ann{mark}Muster-Approve: {digest(one.load())}{mark}Smith <ann@example.org>"
    repository.commit({}, message=f"Merge\n\nCo-authored-by: {trick}")
    assert nodes(one.load()) == 8


def test_an_approval_covers_no_more_than_was_approved(repository: Repository, make: Make) -> None:
    repository.commit(BASE)
    one = make()
    one.load()
    repository.commit({"pool.yaml": pool(4)})
    text = digest(one.load())
    repository.commit({"pool.yaml": pool(2)}, message=f"More\n\nMuster-Approve: {text}")
    value = one.load()
    assert nodes(value) == 8
    assert digest(value) != text
    # What was approved applies when it is what is asked for again.
    repository.commit({"pool.yaml": pool(4)})
    assert nodes(one.load()) == 4


def test_taking_the_change_back_ends_the_hold(repository: Repository, make: Make) -> None:
    repository.commit(BASE)
    one = make()
    one.load()
    repository.commit({"pool.yaml": pool(4)})
    one.load()
    head = repository.commit({"pool.yaml": pool(8)})
    value = one.load()
    assert value.status.sync == "Synced"
    assert value.status.structure_revision == head
    assert value.status.held == ()


def test_removals_are_held_by_the_commit_and_later_ones_are_not(
    repository: Repository, make: Make
) -> None:
    many = {f"jobs/{name}.yaml": job(name) for name in "abcd"}
    confirm = documents(pool(8), cluster("{prune: {Job: confirm}}"))
    repository.commit({**many, "pool.yaml": confirm})
    one = make()
    one.load()
    repository.commit({"jobs/a.yaml": None, "jobs/b.yaml": None, "jobs/e.yaml": job("e")})
    held = one.load()
    assert set(held.jobs) == set("abcde")
    assert held.status.held[0].jobs == ("a", "b")
    repository.commit({"jobs/c.yaml": None})
    for value in (one.load(), restarted(make, one).load()):
        assert set(value.jobs) == set("abcde")
        assert {one.jobs for one in value.status.held} == {("a", "b"), ("c",)}
    one = restarted(make, one)
    text = next(h.digest for h in one.load().status.held if h.jobs == ("a", "b"))
    assert text == digest(held)
    repository.commit({}, message=f"Yes\n\nMuster-Approve: {text}")
    value = one.load()
    assert set(value.jobs) == set("cde")
    repository.commit({"jobs/c.yaml": job("c")})
    value = one.load()
    assert value.status.sync == "Synced"
    assert set(value.jobs) == set("cde")


def test_jobs_whose_removal_is_held_keep_their_queue(repository: Repository, make: Make) -> None:
    repository.commit(
        {
            "pool.yaml": documents(pool(8), cluster("{prune: {Job: confirm}}")),
            "q.yaml": queue("q"),
            "jobs/a.yaml": job("a", queue="q"),
        }
    )
    one = make()
    one.load()
    repository.commit({"jobs/a.yaml": None, "q.yaml": None})
    value = one.load()
    assert "a" in value.jobs
    assert "q" in value.structure.queues
    assert "queue-in-use" in {problem.rule for problem in value.status.problems}
    repository.commit({}, message=f"Yes\n\nMuster-Approve: {value.status.held[0].digest}")
    value = one.load()
    assert "a" not in value.jobs


def test_a_job_that_is_never_removed_stays(repository: Repository, make: Make) -> None:
    kept = job("a").replace(
        "metadata: {name: a}", "metadata: {name: a, annotations: {muster/prune: never}}"
    )
    repository.commit({**BASE, "jobs/a.yaml": kept})
    one = make()
    one.load()
    repository.commit({"jobs/a.yaml": None})
    value = one.load()
    assert "a" in value.jobs
    assert "prune-never" in {problem.rule for problem in value.status.problems}
    repository.commit({"jobs/a.yaml": kept})
    assert one.load().status.sync == "Synced"


def test_what_can_be_approved_is_named_although_something_beside_it_never_is(
    repository: Repository, make: Make
) -> None:
    kept = job("a").replace(
        "metadata: {name: a}", "metadata: {name: a, annotations: {muster/prune: never}}"
    )
    repository.commit({**BASE, "jobs/a.yaml": kept})
    one = make()
    one.load()
    repository.commit({"jobs/a.yaml": None, "pool.yaml": pool(4)})
    value = one.load()
    assert [(held.part, bool(held.digest)) for held in value.status.held] == [
        ("structure", True),
        ("removal", False),
    ]
    repository.commit({}, message=f"Yes\n\nMuster-Approve: {digest(value)}")
    value = one.load()
    assert nodes(value) == 4
    assert "a" in value.jobs
    assert {problem.rule for problem in value.status.problems} == {"prune-never"}


def test_what_was_held_as_a_whole_is_approved_as_such_whatever_came_since(
    repository: Repository, make: Make
) -> None:
    """By then it is told part by part, each with a digest of its own."""
    confirm = documents(pool(8), cluster("{prune: {Job: confirm}}"))
    repository.commit({"pool.yaml": confirm, "jobs/a.yaml": job("a")})
    one = make()
    one.load()
    small = documents(pool(4), cluster("{prune: {Job: confirm}}"))
    repository.commit({"pool.yaml": small, "jobs/a.yaml": None})
    (whole,) = {held.digest for held in one.load().status.held}
    repository.commit({"jobs/b.yaml": job("b")})
    parts = {held.digest for held in one.load().status.held}
    assert whole not in parts
    assert [held_changes.is_of(whole, part) for part in parts] == [True, True]
    repository.commit({}, message=f"Yes\n\nMuster-Approve: {whole}")
    value = one.load()
    assert (nodes(value), set(value.jobs), value.status.held) == (4, {"b"}, ())


def test_a_removal_that_new_rules_allow_applies_at_the_next_look_and_not_by_a_restart(
    repository: Repository, make: Make
) -> None:
    never, auto = (
        documents(pool(8), cluster(f"{{prune: {{Job: {word}}}}}")) for word in ("never", "auto")
    )
    repository.commit({"pool.yaml": never, "jobs/a.yaml": job("a"), "jobs/b.yaml": job("b")})
    one = make()
    one.load()
    repository.commit({"jobs/a.yaml": None})
    assert "a" in one.load().jobs
    assert "a" in one.load().jobs
    head = repository.commit({"pool.yaml": auto})
    value = one.load()
    assert "a" in value.jobs, "a revision is judged by the rules before it"
    assert value.status.structure_revision == head
    assert set(one.load().jobs) == {"b"}
    assert one.load().status.sync == "Synced"
    assert one.judge_again_at is None
    assert set(restarted(make, one).load().jobs) == {"b"}


def test_a_wrong_policy_of_removal_is_a_mistake(repository: Repository, make: Make) -> None:
    wrong = job("a").replace("{name: a}", "{name: a, annotations: {muster/prune: nver}}")
    repository.commit({"jobs/a.yaml": wrong})
    value = make().load()
    assert "a" in value.refused
    assert [problem.rule for problem in value.status.problems] == ["bad-prune"]


def test_a_disruptive_change_waits_for_its_time(repository: Repository, make: Make) -> None:
    now = [10 * 3600.0]
    sync = "{windows: [{kind: deny, schedule: '0 9 * * *', duration: 2h}]}"
    repository.commit({**BASE, "c.yaml": cluster(sync)})
    one = make(clock=lambda: now[0])
    one.load()
    repository.commit({"pool.yaml": pool(7), "q.yaml": queue("q")})
    value = one.load()
    assert (nodes(value), value.status.sync) == (8, "OutOfSync")
    assert one.judge_again_at == value.status.held[0].until == 11 * 3600
    now[0] = 11 * 3600.0
    value = one.load()
    assert (nodes(value), value.status.sync) == (7, "Synced")
    assert one.judge_again_at is None


UNDECIDED = desired.Problem("defect", "error", "", "no cycle passed with it")


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_change_has_its_time_although_a_later_head_is_left_alone(
    repository: Repository, make: Make, *, rewritten: bool
) -> None:
    now = [10 * 3600.0]
    sync = "{windows: [{kind: deny, schedule: '0 9 * * *', duration: 2h}]}"
    first = repository.commit({**BASE, "c.yaml": cluster(sync)})
    one = make(clock=lambda: now[0])
    one.load()
    held = repository.commit({"pool.yaml": pool(7)})
    one.load()
    before = one.incumbents()
    repository.commit({"jobs/b.yaml": job("b")}, parent=first if rewritten else None)
    one.load()
    if not rewritten:
        one.go_back(before, UNDECIDED)
    value = one.load()
    assert (nodes(value), value.status.jobs_revision, "b" in value.jobs) == (8, held, False)
    now[0] = 11 * 3600.0 - 1
    if not rewritten:  # it was tried again meanwhile
        assert "b" in one.load().jobs
        one.go_back(before, UNDECIDED)
    assert nodes(one.load()) == 8
    now[0] = 11 * 3600.0
    value = one.load()
    assert (nodes(value), value.status.sync, "b" in value.jobs) == (7, "OutOfSync", False)
    assert value.status.problems[0].rule == ("not-a-fast-forward" if rewritten else "defect")
    assert rewritten or one.judge_again_at == now[0] - 1 + 2 * job_quarantine.WAIT_S


def test_a_rewritten_branch_is_told_first_and_nothing_is_offered_that_it_would_not_take(
    repository: Repository, make: Make
) -> None:
    first = repository.commit(BASE)
    one = make()
    one.load()
    held_by = repository.commit({"pool.yaml": pool(4)})
    before = one.load()
    approval = digest(before)
    head = repository.commit({"jobs/b.yaml": job("b")}, parent=first)
    for value in (one.load(), one.load(), restarted(make, one).load()):
        status = value.status
        assert f"--accept-revision {head}" in status.message
        assert [one.rule for one in status.problems] == ["not-a-fast-forward", "over-limit"]
        (held,) = status.held
        assert held.message.startswith("held: 32 of 64 GPUs (50%)")
        assert held.message.endswith(
            "nothing approves it until a newer revision is taken: it is judged anew then"
        )
        assert (held.digest, nodes(value)) == ("", 8)
        assert not [one for one in status.problems if "muster approve" in one.message]
        notice = messages.of_status(status, 5.0)
        assert notice is not None
        assert (notice.reason, notice.message, notice.approve) == ("refused", status.message, ())
    # An approval on the rewritten branch is a commit that waits as well.
    repository.commit({}, message=f"Yes\n\nMuster-Approve: {approval}")
    assert nodes(one.load()) == 8
    # The branch restored, all is as it was.
    git(repository.path, "update-ref", "refs/heads/main", held_by)
    value = one.load()
    assert (digest(value), value.status.message) == (approval, before.status.message)


def test_a_head_that_could_not_be_decided_is_tried_again_and_more_and_more_seldom(
    repository: Repository, make: Make
) -> None:
    """What kept it from being decided may have passed."""
    now = [1000.0]
    repository.commit(BASE)
    one = make(clock=lambda: now[0])
    one.load()
    before = one.incumbents()
    repository.commit({"jobs/b.yaml": job("b")})
    assert "b" in one.load().jobs
    wait_s = job_quarantine.WAIT_S
    for _ in range(8):
        one.go_back(before, UNDECIDED)
        assert "b" not in one.load().jobs
        assert one.judge_again_at == now[0] + wait_s
        now[0] += wait_s - 1
        assert "b" not in one.load().jobs
        now[0] += 1
        assert "b" in one.load().jobs
        wait_s = min(2 * wait_s, job_quarantine.WAIT_S_MAX)
    assert wait_s == job_quarantine.WAIT_S_MAX
    one.go_back(before, UNDECIDED)
    one.load()
    repository.commit({"jobs/c.yaml": job("c")})
    assert {"b", "c"} <= one.load().jobs.keys(), "another head is tried at once"
    one.go_back(before, UNDECIDED)
    one.load()
    assert one.judge_again_at == now[0] + job_quarantine.WAIT_S


def test_a_pulled_merge_still_shows_approvals(repository: Repository, make: Make) -> None:
    """Somebody merged the branch into theirs: the last head is no first parent of the new one."""
    first = repository.commit(BASE)
    one = make()
    one.load()
    repository.commit({"pool.yaml": pool(4)})
    text = digest(one.load())
    repository.commit(
        {"jobs/x.yaml": job("x")},
        branch="mine",
        parent=first,
        message=f"Mine\n\nMuster-Approve: {text}",
    )
    repository.commit(
        {"pool.yaml": pool(4), "jobs/x.yaml": job("x")},
        parent="refs/heads/mine",
        merge="refs/heads/main^0",
    )
    value = one.load()
    # What was said on a side branch counts for nothing: who merges answers for it.
    assert nodes(value) == 8
    assert set(value.jobs) == {"a", "x"}


def test_a_broken_gate_lets_nothing_through(repository: Repository) -> None:
    class Broken:
        def judge(self, *_: object) -> None:
            raise RuntimeError("a defect")

    repository.commit(BASE)
    gates = [sync_limits.SafetyGate(records.Observed, lambda: 5.0)]
    one = loader.Loader(source.GitSource(str(repository.path)), gate=gates[0])
    first = one.load()
    one._in_force._state._gate = Broken()  # type: ignore[assignment]
    repository.commit({"pool.yaml": pool(4)})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a defect"):
            one.load()
        assert one._in_force._state.basis.structure == first.structure
    one._in_force._state._gate = gates[0]
    assert nodes(one.load()) == 8
    one.close()


@pytest.mark.parametrize("other", [None, "never", "confirm"])
def test_an_approval_is_used_up_although_something_else_stays_held(
    repository: Repository, make: Make, other: str | None
) -> None:
    kept = job("keep").replace(
        "{name: keep}", f"{{name: keep, annotations: {{muster/prune: {other}}}}}"
    )
    repository.commit(BASE | {"jobs/keep.yaml": kept if other else job("keep")})
    one = make()
    one.load()
    if other:
        repository.commit({"jobs/keep.yaml": None})
        assert len(one.load().status.held) == 1
    repository.commit({"pool.yaml": pool(2)})
    (given,) = {held.digest for held in one.load().status.held if held.part == "structure"}
    repository.commit({}, message=f"ok\n\nMuster-Approve: {given}\n")
    assert nodes(one.load()) == 2
    assert len(one.last.status.held) == bool(other)
    repository.commit({"pool.yaml": pool(8)})
    assert nodes(one.load()) == 8
    one = restarted(make, one)
    one.load()
    repository.commit({"pool.yaml": pool(2)})
    assert nodes(one.load()) == 8, "the same again, by anybody"
    if other == "confirm":
        (left,) = {held.digest for held in one.last.status.held if held.part == "removal"}
        repository.commit({}, message=f"ok\n\nMuster-Approve: {left}\n")
        assert "keep" not in one.load().jobs
        assert nodes(one.last) == 8
