"""Where a change is made: in the clone that somebody stands in, or at a controller."""

import os
from pathlib import Path

import pytest

from reconciler.operations import changing, endpoints
from tests.unit.desired.repositories import ENVIRONMENT, Repository, git, job


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of desired state with a folder in it."""
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    repository = Repository(tmp_path / "state.git")
    repository.commit({"jobs/a.yaml": job("train")})
    git(tmp_path, "clone", "--quiet", str(repository.path), "work")
    return tmp_path / "work"


def find(here: Path, **changes: object) -> changing.Target:
    options: dict[str, object] = {"clone": None, "server": None, "token_file": None}
    return changing.find_target(here=here, **(options | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("below", ["", "jobs"])
def test_the_clone_around_you_is_where_you_change(work: Path, below: str) -> None:
    target = find(work / below)
    assert target.clone is not None
    assert target.clone.root == work
    assert find(work / below, server="http://127.0.0.1:1").clone is None, "a server was named"


def test_elsewhere_it_is_the_controller(work: Path, tmp_path: Path) -> None:
    with pytest.raises(changing.ChangeError, match="no controller is known here"):
        find(tmp_path)
    endpoints.write(tmp_path, endpoints.Endpoint("http://127.0.0.1:1"))
    assert find(tmp_path).clone is None
    assert find(tmp_path, clone=work).clone is not None


def test_who_has_no_name_in_git_has_one_at_the_controller(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("GIT_AUTHOR", "GIT_COMMITTER"))]:
        monkeypatch.delenv(name)
    git(work, "config", "user.useConfigOnly", "true")
    assert find(work).clone is not None, "there is no other place"
    endpoints.write(work, endpoints.Endpoint("http://127.0.0.1:1"))
    assert find(work).clone is None
    git(work, "config", "user.name", "Ada")
    git(work, "config", "user.email", "ada@example.org")
    assert find(work).clone is not None


def test_a_clone_tells_what_is_like_a_name_it_does_not_have(work: Path) -> None:
    target = find(work)
    for verb in ("cancel", "hold", "release", "rerun"):
        act = changing.Act(verb, "trian")
        with pytest.raises(changing.ChangeError, match=r"there is no Job/trian .*; did you mean"):
            changing.carry_out([act], target)
    (done,) = changing.carry_out([changing.Act("cancel", "train")], target, dry_run=True)
    assert done == changing.Done("train", "would be removed from the repository")
    assert (work / "jobs" / "a.yaml").exists()


def test_what_could_not_be_pushed_is_told_apart(work: Path, tmp_path: Path) -> None:
    (tmp_path / "state.git").rename(tmp_path / "away.git")
    with pytest.raises(changing.ChangeError, match="and not pushed") as told:
        changing.carry_out([changing.Act("cancel", "train")], find(work))
    assert told.value.unreachable
