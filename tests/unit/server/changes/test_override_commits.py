"""What git takes needs no override; what it can't take now is left to one."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from reconciler.model import desired
from reconciler.operations.changes import remote_changes
from reconciler.operations.views import stored_views
from reconciler.server import errors
from reconciler.server.auth import tokens
from reconciler.server.changes import override_commits
from reconciler.server.repository_facts import RepositoryFacts

CALLER = tokens.Caller("a@example.org", "user")


class Git:
    """A submitter; ``results`` are by the name of a subject, None: it takes too long."""

    def __init__(self, **statuses: int | None) -> None:
        self.statuses = statuses
        self.hints = 0
        self.dropped = 0

    def drop(self, documents: list[remote_changes.SubmittedDocument]) -> bool:
        """Note what is taken back."""
        self.dropped += len(documents)
        return True

    async def submit(
        self, documents: list[remote_changes.SubmittedDocument], *, together: bool = False
    ) -> list[remote_changes.RemoteChangeResult]:
        """Push."""
        assert together
        if None in self.statuses.values():
            await asyncio.sleep(3600)
        return [
            remote_changes.RemoteChangeResult(name, status or 0, "so", "c" if status == 200 else "")
            for name, status in self.statuses.items()
        ]

    def pushed(self) -> None:
        """Take a hint."""
        self.hints += 1


def _commits(
    git: Git | None, *, signed: bool = False, sync: desired.SyncStatus | None = None
) -> override_commits.OverrideCommits:
    settings = desired.ClusterSettings(verification="required" if signed else "off")
    views = {
        stored_views.STRUCTURE: msgspec.msgpack.encode(desired.Structure(settings=settings)),
        stored_views.SYNC: msgspec.msgpack.encode(
            sync or desired.SyncStatus("Synced", "a", "a", "a")
        ),
    }
    store: Any = SimpleNamespace(reader=SimpleNamespace(view=views.get))
    around: Any = git
    return override_commits.OverrideCommits(store, around, around, RepositoryFacts())


def _committed(git: Git | None, **known: Any) -> dict[str, str | None]:
    verb: Any = known.pop("verb", "drain")
    asked = _commits(git, **known).commit(verb, list(git.statuses) if git else ["n1"], "x", CALLER)
    return asyncio.run(asked)


def test_git_takes_it() -> None:
    git = Git(n1=200)
    assert _committed(git) == {"n1": "c"}
    assert git.hints == 1


def test_git_can_not_take_it() -> None:
    assert _committed(None) == {}, "there is no repository"
    assert _committed(Git(n1=503)) == {}, "it can't be reached"
    assert _committed(Git(n1=403)) == {}, "another person has to commit it"


def test_git_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(override_commits, "GIT_PATIENCE_S", 0.0)
    git = Git(n1=None)
    assert _committed(git) == {}
    assert (git.hints, git.dropped) == (0, 1), "an override that is ended leaves no push behind"


def test_what_makes_no_sense_is_refused_unless_it_may_still_be_in_force() -> None:
    with pytest.raises(errors.Failure) as failed:
        _committed(Git(n1=404))
    assert (failed.value.status, failed.value.message) == (404, "n1: so")
    held = desired.SyncStatus("OutOfSync", "b", "a", "b")
    assert _committed(Git(n1=404), sync=held) == {}
    with pytest.raises(errors.Failure):
        _committed(Git(j1=404), sync=held, verb="cancel")


@pytest.mark.parametrize("signed", [True, False])
def test_a_commit_without_a_key_that_counts_is_in_vain(*, signed: bool) -> None:
    change = remote_changes.SubmittedDocument("drain", CALLER.name, "n1")
    assert _commits(None, signed=signed).is_in_vain([change]) == signed
