"""Queues that change: what is judged anew of the jobs in force, and that nothing else would be."""

import contextlib
import random
from collections.abc import Iterator

import pytest

from reconciler.model import desired
from tests.unit.desired.checks.test_policies import Counted
from tests.unit.desired.loaders import Loaders, Make, restarted
from tests.unit.desired.repositories import Repository, job

#: Bounds that a queue may have; limits and maxima that some of the jobs below are beyond.
BOUNDS = (
    "",
    "limit: {gpu: 2}",
    "limit: {gpu: 4, cpu: 1}",
    "maxima: {gpu: 2}",
    "maxima: {timeLimit: 1h}",
    "defaults: {timeLimit: 30m}",
    "weight: 3",
)
NAMES = ("a", "b", "c", "d")
POOL = (
    "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: p}\nspec:\n"
    "  hosts: n[1-4]\n  nodes: {cpu: 8, memory: 8Gi, gpus: {count: 8, model: H200}}\n"
)
POLICY = (
    "apiVersion: muster/v1\nkind: Policy\nmetadata: {name: short}\n"
    "spec: {match: {kinds: [Job]}, message: it takes too long, schema: {properties: "
    "{effective: {properties: {timeLimitSeconds: {maximum: 5400}}}}}}\n"
)


@pytest.fixture
def make(repository: Repository) -> Iterator[Make]:
    with contextlib.closing(Loaders(repository, lambda: 5.0)) as made:
        yield made.make


def queue(name: str, parent: str = "", bounds: str = "") -> str:
    said = ", ".join(part for part in (f"parent: {parent}" if parent else "", bounds) if part)
    return f"apiVersion: muster/v1\nkind: Queue\nmetadata: {{name: {name}}}\nspec: {{{said}}}\n"


def told(state: desired.Desired) -> tuple[object, ...]:
    """All that is in force and is said of it."""
    return state.jobs, state.refused, state.structure, state.status.problems


@pytest.mark.parametrize("seed", range(4))
def test_whichever_queues_change_all_comes_out_as_if_all_were_judged(
    repository: Repository, make: Make, seed: int
) -> None:
    chance = random.Random(seed)

    def queues() -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for number, name in enumerate(NAMES):
            parent = chance.choice(("", *NAMES[:number]))
            found[f"queues/{name}.yaml"] = queue(name, parent, chance.choice(BOUNDS))
        return found

    def written(name: str) -> str:
        wants = chance.choice(("{gpu: 1}", "{gpu: 3}", "{cpu: 2}"))
        limits = chance.choice(({}, {"timeLimit": "45m"}, {"timeLimit": "2h"}))
        return job(name, queue=chance.choice((*NAMES, "gone")), resources=wants, **limits)

    jobs: dict[str, str | None] = {f"jobs/{n}.yaml": written(f"j{n}") for n in range(12)}
    repository.commit({"pool.yaml": POOL, "policy.yaml": POLICY, **queues(), **jobs})
    one = make()
    one.load()
    for _ in range(12):
        all_of_them = queues()
        changed = dict(chance.sample(sorted(all_of_them.items()), chance.choice((1, 1, 4))))
        if chance.random() < 0.3:
            number = chance.randrange(12)
            changed[f"jobs/{number}.yaml"] = written(f"j{number}")
        repository.commit(changed)
        assert told(one.load()) == told(restarted(make, one).load())


def test_a_queue_that_changes_has_its_own_jobs_judged_and_those_below(
    repository: Repository, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit(
        {
            "pool.yaml": POOL,
            "q.yaml": "---\n".join((queue("top"), queue("low", "top"), queue("else"))),
            "jobs/top.yaml": job("top", queue="top", resources="{gpu: 1}"),
            "jobs/low.yaml": job("low", queue="low", resources="{gpu: 4}"),
            "jobs/else.yaml": job("else", queue="else", resources="{gpu: 1}"),
            "jobs/lost.yaml": job("lost", queue="nowhere"),
        }
    )
    one = make()
    one.load()
    judged = Counted(monkeypatch)
    top = queue("top", bounds="limit: {gpu: 2}")
    repository.commit({"q.yaml": "---\n".join((top, queue("low", "top"), queue("else")))})
    state = one.load()
    assert judged.taken() == ["lost", "low", "top"]
    assert {one.object for one in state.status.problems} == {"Job/low", "Job/lost"}
    repository.commit(
        {"q.yaml": "---\n".join((top, queue("low"), queue("else", bounds="weight: 2")))}
    )
    state = one.load()
    assert judged.taken() == ["lost", "low"]
    assert {one.object for one in state.status.problems} == {"Job/lost"}
