"""A push asks the store; what is known of the repository comes from the options."""

from pathlib import Path

import msgspec
import pytest

from reconciler.model.state import records
from reconciler.operations.changes import remote_changes
from reconciler.server.changes import pushed_repository
from reconciler.server.server_store import ServerStore
from reconciler.store import Store
from tests.unit.store import samples


def test_facts_are_those_of_the_options(tmp_path: Path) -> None:
    options = pushed_repository.RepositoryOptions(
        url=str(tmp_path / "git"),
        branch="main",
        path="cluster",
        state=tmp_path / "state",
        signing_key=None,
    )
    store = ServerStore(f"sqlite:///{tmp_path / 'store.db'}")
    facts, _ = pushed_repository.open_repository(options, store)
    assert (facts.folder, facts.branch, facts.jobs_folder) == ("cluster", "main", "cluster/jobs/")
    assert facts.local is not None
    assert (facts.local.path, facts.local.sub_path) == (tmp_path / "git", "cluster")
    assert facts.signing_key is None


def test_a_repository_elsewhere_has_no_folder_and_a_key_that_can_not_be_read_is_unknown(
    tmp_path: Path,
) -> None:
    options = pushed_repository.RepositoryOptions(
        url="https://example.org/git",
        branch="main",
        path="",
        state=tmp_path / "state",
        signing_key=tmp_path / "none",
    )
    store = ServerStore(f"sqlite:///{tmp_path / 'store.db'}")
    facts, _ = pushed_repository.open_repository(options, store)
    assert (facts.local, facts.jobs_folder, facts.signing_key) == (None, "jobs/", "")


def test_without_a_store_a_push_is_put_off_only_where_it_matters(tmp_path: Path) -> None:
    store = ServerStore(f"sqlite:///{tmp_path / 'store.db'}")
    reads = pushed_repository.PushReads(store)
    for needed in (reads.pool_names, reads.judge):
        with pytest.raises(remote_changes.UnavailableError):
            needed()
    assert reads.last_run("train") is None
    assert reads.held_at("digest") == ""
    assert reads.refused("train") is None
    Store.open(store.url).close()
    assert reads.pool_names() == {}
    assert callable(reads.judge())
    store.close()


def test_what_was_withdrawn_meanwhile_is_not_committed(tmp_path: Path) -> None:
    store = ServerStore(f"sqlite:///{tmp_path / 'store.db'}")
    opened = Store.open(store.url)
    epoch = opened.lead("one", 50.0)
    submission = records.Submission("id1", "text")
    waiting = records.Override("submit", "a", "x", "me", 50.0, 9e9, submission=submission)
    opened.commit(epoch, 1, samples.cycle(overrides=(waiting,)))
    reads = pushed_repository.PushReads(store)
    change = remote_changes.SubmittedDocument(
        "submit", "me", "a", above=True, submission="id1", waited_since=50.0
    )
    first = msgspec.structs.replace(change, submission="id2", waited_since=0.0)
    assert [reads.judge()(one, ()) for one in (change, first)] == ["", ""]
    opened.commit(epoch, 2, samples.cycle())
    assert [reads.judge()(one, ()) for one in (change, first)] == ["it was withdrawn", ""]
    opened.close()
    store.close()
