"""A change is judged by what is in force, and by what waits for git."""

import types
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.state import records
from reconciler.operations.changes import remote_changes
from reconciler.operations.views import stored_views
from reconciler.server.auth import tokens
from reconciler.server.changes import change_review
from reconciler.server.repository_facts import RepositoryFacts

STRUCTURE = msgspec.msgpack.encode(desired.Structure(queues={"default": desired.Queue("default")}))
JOB = (
    "apiVersion: muster/v1\nkind: Job\nmetadata: {{name: a}}\n"
    "spec: {{command: [id], dependsOn: [{{job: {0}}}]}}\n"
)


class _Store:
    """What a review reads of a store with no job; one submission waits, another was refused."""

    def overrides(self) -> list[records.Override]:
        waits = records.Submission("1", "text")
        refused = records.Submission("2", "", "ada@x.org has no token any more")
        return [
            records.Override("submit", name, "git is away", "ada@x.org", 0.0, 9e9, submission=one)
            for name, one in (("waits", waits), ("refused", refused))
        ]

    def newest_states(self, _: Sequence[str]) -> list[str]:
        return []

    def view(self, name: str) -> bytes | None:
        return STRUCTURE if name == stored_views.STRUCTURE else None


def review(text: str) -> list[remote_changes.SubmittedDocument]:
    store: Any = _Store()
    opened: Any = types.SimpleNamespace(reader=store)
    asked = change_review.ChangesUnderReview(tokens.Caller("ada@x.org", "user"), text=text)
    return change_review.ChangeReview(opened, RepositoryFacts())._read(asked, store)


@pytest.mark.parametrize(("name", "is_there"), [("waits", True), ("refused", False)])
def test_a_job_is_warned_of_one_that_it_needs_and_git_did_not_take(
    name: str, *, is_there: bool
) -> None:
    (found,) = review(JOB.format(name))
    missing = f"the job {name} is not there: this one waits until it is"
    assert found.warnings == (() if is_there else (missing,))
