"""The index knows of every document whatever way the revision before it has taken."""

import random
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.changes.writer import object_index
from reconciler.desired.git import source
from tests.unit.desired.repositories import Repository, documents, job, queue

PATHS = ("a.yaml", "jobs/m.yaml", "z.yml")
NAMES = ("x", "y", "z")
BROKEN = "a: ["
LABELS = [("Job", name) for name in NAMES] + [("Queue", "x")]

#: What may stand in a file: None: no such file; "": it can't be read.
Held = list[tuple[str, str]] | None


def text(held: Held) -> bytes | None:
    if held is None:
        return None
    parts = [job(name) if kind == "Job" else queue(name) for kind, name in held]
    return (documents(*parts) if parts else BROKEN).encode()


def known(one: object_index.Index) -> tuple[object, ...]:
    """All that an index tells."""
    return (
        {label: one.paths_of(*label) for label in LABELS},
        {kind: sorted(one.names(kind)) for kind in ("Job", "Queue")},
        [path for path in PATHS if one.has_file(path)],
        one.unreadable(),
    )


HELD = st.none() | st.lists(st.sampled_from(LABELS), max_size=3)


@given(st.lists(st.dictionaries(st.sampled_from(PATHS), HELD), max_size=6))
def test_steps_lead_where_a_fresh_look_does(steps: list[Mapping[str, Held]]) -> None:
    place = source.GitSource("nowhere")
    stepwise = object_index.Index(place)
    files: dict[str, Held] = {}
    for number, step in enumerate(steps):
        files.update(step)
        stepwise.take(str(number), {path: text(held) for path, held in step.items()})
        fresh = object_index.Index(place)
        fresh.take("0", {path: text(held) for path, held in files.items()})
        assert known(stepwise) == known(fresh)
        for label in LABELS:
            stands = [path for path in PATHS for one in files.get(path) or () if one == label]
            assert stepwise.paths_of(*label) == tuple(stands)


@pytest.fixture
def place(repository: Repository) -> Iterator[source.GitSource]:
    found = source.GitSource(str(repository.path))
    yield found
    found.close()


@pytest.mark.parametrize("seed", range(3))
def test_commits_lead_where_a_fresh_look_does(
    repository: Repository, place: source.GitSource, seed: int
) -> None:
    """Moves, second holders of a name and files that leave, several commits at once or one."""
    chance = random.Random(seed)
    stepwise = object_index.Index(place)
    for _ in range(8):
        for _ in range(chance.randint(1, 2)):
            wanted = {
                path: text(
                    [("Job", name) for name in chance.choices(NAMES, k=chance.randint(0, 2))]
                )
                for path in chance.sample(PATHS, k=chance.randint(1, 3))
            }
            if chance.random() < 0.3:
                wanted[next(iter(wanted))] = None
            head = repository.commit(wanted)
        stepwise.advance(head)
        fresh = object_index.Index(place)
        fresh.advance(head)
        assert known(stepwise) == known(fresh)
