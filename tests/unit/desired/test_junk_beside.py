"""While a document of nobody's stands beside an object, what is done to that counts by who does it.

An unsigned commit puts a second document of its name into the repository, so that the object stays
as it is in force. Whatever somebody who may then does to it, an unsigned commit takes none of it
back, and ends nothing, whether all are looked at one by one or at once.
"""

from collections.abc import Callable

import pytest

from reconciler.desired.apply import loader
from reconciler.model import desired
from tests.unit.desired import signing
from tests.unit.desired.authorize import test_provenance
from tests.unit.desired.authorize.test_provenance import (
    Keys,
    access,
    base,
    cluster,
    messages,
    pool,
    rules,
)
from tests.unit.desired.loaders import Make, restarted
from tests.unit.desired.repositories import Repository, job

make, keys = test_provenance.make, test_provenance.keys

NOBODY = "apiVersion: muster/v1\nkind: Access\nmetadata: {name: people}\nspec: {}\n"
Files = dict[str, str | None]


def objects(keys: Keys) -> dict[str, tuple[str, str, str]]:
    """Of each kind the file of an object, what it says, and junk of the same name."""
    files = base(keys)
    ada = job("ada", queue="research", owner="ada@x.org")
    return {
        "Job/ada": ("jobs/ada.yaml", ada, job("ada", queue="ops")),
        "NodePool/a": ("pool.yaml", files["pool.yaml"], pool(2)),
        "Cluster/c": ("cluster.yaml", files["cluster.yaml"], cluster("'off'")),
        "Access/people": ("access.yaml", files["access.yaml"], NOBODY),
    }


@pytest.fixture(params=["Job/ada", "NodePool/a", "Cluster/c", "Access/people"])
def thing(request: pytest.FixtureRequest, keys: Keys) -> tuple[str, str, str, str]:
    """Label, file, text and junk of an object."""
    return (request.param, *objects(keys)[request.param])


@pytest.fixture
def one(repository: Repository, make: Make, keys: Keys) -> loader.Loader:
    repository.commit(base(keys) | {"jobs/ada.yaml": objects(keys)["Job/ada"][1]})
    made = make()
    assert made.load().status.sync == "Synced"
    return made


class Story:
    """Commits one after the other, each looked at, or all at once."""

    def __init__(self, repository: Repository, one: loader.Loader, *, at_once: bool) -> None:
        self.repository, self.one, self.at_once = repository, one, at_once

    def step(self, files: Files, key: signing.Key | None = None) -> None:
        self.repository.commit(files)
        if key is not None:
            signing.sign(self.repository, key)
        if not self.at_once:
            self.one.load()


@pytest.fixture(params=[False, True], ids=["in steps", "at once"])
def story(request: pytest.FixtureRequest, repository: Repository, one: loader.Loader) -> Story:
    return Story(repository, one, at_once=request.param)


def stays(make: Make, one: loader.Loader, before: desired.Desired, label: str) -> desired.Desired:
    """All is in force that was, over a restart too, and something is told of the object."""
    for value in (one.load(), restarted(make, one).load()):
        assert value.structure == before.structure
        assert value.jobs == before.jobs
        assert label in {problem.object for problem in value.status.problems}
    return one.load()


def test_who_clears_the_junk_away_has_not_answered_for_a_move(
    make: Make, story: Story, keys: Keys, thing: tuple[str, str, str, str]
) -> None:
    label, path, text, junk = thing
    before = story.one.last
    story.step({"junk.yaml": junk, path: None, "moved/x.yaml": text})
    story.step({"junk.yaml": None}, keys["ada"])
    story.step({"moved/x.yaml": None})
    stays(make, story.one, before, label)
    story.step({path: text})
    assert story.one.load().status.problems == ()  # as it was, whoever puts it back


def test_what_was_moved_by_who_may_is_taken_out_by_nobody_else(
    make: Make, story: Story, keys: Keys, thing: tuple[str, str, str, str]
) -> None:
    label, path, text, junk = thing
    before = story.one.last
    story.step({"junk.yaml": junk})
    story.step({path: None, "team/x.yaml": text}, keys["ada"])
    story.step({"team/x.yaml": None})
    story.step({"junk.yaml": None})
    value = stays(make, story.one, before, label)
    assert "has no signature" in messages(value)
    story.step({"team/x.yaml": text}, keys["ada"])
    assert story.one.load().status.problems == ()


DRAINED = '[{hosts: "a1", reason: fire}]'
CAROL = "    - {{email: carol@x.org, groups: [research], keys: [{}]}}"
#: By label, what ada does, and whether it is done.
Done = Callable[[desired.Desired], bool]
ACTS: dict[str, tuple[Callable[[Keys], str | None], Done]] = {
    "Job/ada": (lambda _: None, lambda value: "ada" not in value.jobs),
    "NodePool/a": (
        lambda _: pool(8, DRAINED),
        lambda value: bool(value.structure.pools["a"].drains),
    ),
    "Access/people": (
        access,
        lambda value: "carol@x.org" not in value.structure.access.identities,
    ),
}


@pytest.mark.parametrize("label", ACTS)
def test_what_somebody_does_who_may_is_not_taken_back_by_nobody(
    make: Make, repository: Repository, story: Story, keys: Keys, label: str
) -> None:
    """A cancel, a drain, a key that is taken away: it waits for the junk to go."""
    act, done = ACTS[label]
    path, text, junk = objects(keys)[label]
    if label == "Access/people":
        text = access(keys, CAROL.format(keys["mallory"].listed()))
        repository.commit({path: text})
        signing.sign(repository, keys["ada"])
        assert story.one.load().status.problems == ()
    story.step({"junk.yaml": junk})
    story.step({path: act(keys)}, keys["ada"])
    story.step({path: text})
    story.step({"junk.yaml": None})
    for value in (story.one.load(), restarted(make, story.one).load()):
        assert not done(value)
        assert "unsigned-commit" in rules(value)
    story.step({path: act(keys)})
    value = story.one.load()
    assert done(value)
    assert value.status.problems == ()


def test_a_key_that_is_taken_away_counts_no_more_whatever_stands_beside_it(
    make: Make, repository: Repository, story: Story, keys: Keys
) -> None:
    carol = CAROL.format(keys["mallory"].listed())
    repository.commit({"access.yaml": access(keys, carol)})
    signing.sign(repository, keys["ada"])
    assert story.one.load().status.problems == ()
    story.step({"junk.yaml": access(keys, carol)}, keys["mallory"])
    story.step({"access.yaml": access(keys)}, keys["ada"])
    story.step({"jobs/m.yaml": job("m", queue="research")}, keys["mallory"])
    for value in (story.one.load(), restarted(make, story.one).load()):
        assert "m" not in value.jobs
        assert "unknown-key" in rules(value)
    story.step({"junk.yaml": None, "jobs/m.yaml": None}, keys["ada"])
    assert story.one.load().status.problems == ()


def test_who_may_answers_for_a_removal_by_writing_it_anew(
    story: Story, keys: Keys, thing: tuple[str, str, str, str]
) -> None:
    """Where somebody has moved what he may not, putting it back settles it."""
    _, path, text, _ = thing
    story.step({path: None, "moved/x.yaml": text})
    story.step({"moved/x.yaml": text.replace("metadata: {name", "metadata: { name")})
    assert "unsigned-commit" in rules(story.one.load())
    story.step({"moved/x.yaml": None, path: text}, keys["ada"])
    assert story.one.load().status.problems == ()
