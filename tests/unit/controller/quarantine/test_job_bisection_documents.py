"""A quarantined job stays so whatever happens to its document, and what it holds counts.

The loop, the git watcher and the core are real, as in ``test_job_bisection``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.controller.quarantine import job_bisection
from reconciler.desired.apply import job_quarantine
from tests.unit.controller.quarantine.test_containment import POISON
from tests.unit.controller.quarantine.test_containment_revisions import STRUCTURE, RevisionSite
from tests.unit.controller.quarantine.test_job_bisection import Placing, until
from tests.unit.core.world import job
from tests.unit.desired import repositories


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the search independent of the machine's speed."""
    monkeypatch.setattr(job_bisection, "SEARCH_S", 600.0)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> repositories.Repository:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
        monkeypatch.setenv(name, repositories.ENVIRONMENT[name])
    return repositories.Repository(tmp_path / "repository.git")


@pytest.fixture
def site(tmp_path: Path, repository: repositories.Repository) -> Iterator[RevisionSite]:
    made = RevisionSite(tmp_path, repository)
    made.leader.core.queues = set()
    yield made
    made.close()


NO_QUEUE = repositories.job(POISON).replace("spec:\n", "spec:\n  queue: nosuch\n")
NO_DEPENDENCY = repositories.job(POISON).replace(
    "spec:\n", "spec:\n  dependsOn:\n    - job: " + POISON + "\n"
)


@pytest.mark.parametrize(
    "written",
    [
        pytest.param("apiVersion: muster/v1\nkind: Job\n  metadata: [\n", id="unreadable"),
        pytest.param(NO_QUEUE, id="invalid"),
        pytest.param(NO_DEPENDENCY, id="dependency"),
    ],
)
def test_it_stays_aside_by_what_is_in_force_whatever_is_written_now(
    site: RevisionSite, written: str
) -> None:
    core = Placing(POISON)
    site.leader.loop._decider.decide_by = core
    head = site.commit(
        {
            "structure.yaml": STRUCTURE.replace("LIMIT", "8"),
            "p.yaml": repositories.job(POISON),
            "a.yaml": repositories.job("a"),
        }
    )
    site.until(head, "Synced")
    site.leader.hear(*site.leader.world.nodes)
    site.leader.cycle()
    site.until(head, "OutOfSync")
    found = site.leader.counts["job"]
    head = site.commit({"p.yaml": written})
    site.until(head, "OutOfSync")
    for _ in range(10):
        site.leader.hear(*site.leader.world.nodes)
        site.leader.loop.cycle()
        site.step()
    last = site.leader.loop._track.desired
    assert last is not None
    assert set(last.quarantined) == {POISON}
    assert POISON in last.jobs
    assert site.leader.counts["job"] == found, "it was not tried again before its time"
    site.commit({"b.yaml": repositories.job("b")})
    until(site, lambda: "b" in {one.job for one in site.leader.loop._state.attempts.values()})


def test_one_that_is_written_otherwise_and_raises_so_too_makes_neither_be_tried_again(
    site: RevisionSite,
) -> None:
    site.leader.loop._decider.decide_by = Placing(POISON)
    files: dict[str, str | bytes | None] = {
        "structure.yaml": STRUCTURE.replace("LIMIT", "8"),
        "p.yaml": repositories.job(POISON),
    }
    head = site.commit(files)
    site.until(head, "Synced")
    site.leader.hear(*site.leader.world.nodes)
    site.leader.cycle()
    site.until(head, "OutOfSync")
    head = site.commit({"p.yaml": repositories.job(POISON, run=2)})
    site.until(head, "OutOfSync")
    found = site.leader.counts["job"]
    for _ in range(10):
        site.leader.hear(*site.leader.world.nodes)
        site.leader.loop.cycle()
        site.step()
    assert site.leader.counts["job"] == found


def test_what_is_aside_is_told_by_what_is_in_force() -> None:
    one, newer = job("a"), job("a", run=2)
    known = (
        job_quarantine.QuarantinedJob("a", one, "why", aside=True),
        job_quarantine.QuarantinedJob("a", newer, ""),
    )
    left = job_quarantine.JobsLeftAsBefore({"a": known})
    assert left.aside_of({"a": one}) == {"a": "why"}
    assert left.aside_of({"a": newer}) == {}
    assert left.aside_of({"a": job("a", priority=3)}) == {}
    gone = job_quarantine.JobsLeftAsBefore(
        {"a": (job_quarantine.QuarantinedJob("a", None, "gone", aside=True),)}
    )
    assert gone.aside_of({}) == {"a": "gone"}, "its run may be left, and be what raises"
