"""Large texts are read in another process: nothing of them is parsed beside other requests."""

import types
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import pytest

from reconciler.desired.documents import document_reader, yaml_reader
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.operations.changes import remote_changes
from reconciler.operations.views import stored_views
from reconciler.server.auth import tokens
from reconciler.server.changes import change_review, text_worker
from reconciler.server.repository_facts import RepositoryFacts

JOB = "apiVersion: muster/v1\nkind: Job\nmetadata: {{name: j{0}}}\nspec: {{command: [{1}]}}\n"
STRUCTURE = msgspec.msgpack.encode(desired.Structure(queues={"default": desired.Queue("default")}))
CALLER = tokens.Caller("ada@x.org", "user")


def jobs(count: int, word: str = "id") -> str:
    return "---\n".join(JOB.format(number, word) for number in range(count))


class _Store:
    """What a review reads of a store in which one job is known."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def overrides(self) -> tuple[records.Override, ...]:
        return ()

    def newest_states(self, names: Sequence[str]) -> Collection[str]:
        self.asked += names
        return [name for name in names if name == "here"]

    def view(self, name: str) -> bytes | None:
        return STRUCTURE if name == stored_views.STRUCTURE else None


def review(store: _Store, text: str) -> list[remote_changes.SubmittedDocument]:
    opened: Any = types.SimpleNamespace(reader=store)
    known: Any = store
    asked = change_review.ChangesUnderReview(CALLER, text=text, owner=CALLER.name, dry_run=True)
    return change_review.ChangeReview(opened, RepositoryFacts())._read(asked, known)


@pytest.fixture
def unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process can't parse anything."""
    monkeypatch.setattr(document_reader, "read", None)
    monkeypatch.setattr(yaml_reader, "read", None)
    monkeypatch.setattr(yaml_reader, "positions", None)


@pytest.mark.usefixtures("unparsed")
def test_a_large_text_is_not_parsed_in_the_process_of_the_server() -> None:
    found = review(_Store(), jobs(900, '"' + "x" * 100 + '"'))
    assert [one.name for one in found] == [f"j{number}" for number in range(900)]
    assert {one.owner for one in found} == {CALLER.name}
    assert all(one.dry_run for one in found)


@pytest.mark.usefixtures("unparsed")
def test_what_is_wrong_with_a_large_text_comes_back() -> None:
    with pytest.raises(remote_changes.InvalidError, match="problem") as refused:
        review(_Store(), jobs(3_000).replace("command", "comand"))
    assert len(refused.value.problems) == document_reader.LISTED_MAX + 1


@pytest.mark.usefixtures("unparsed")
def test_too_many_documents_are_refused() -> None:
    with pytest.raises(remote_changes.InvalidError) as refused:
        review(_Store(), jobs(yaml_reader.FILE_DOCUMENTS_MAX + 1))
    assert "more than 5000 documents" in refused.value.problems[0].message


@pytest.mark.usefixtures("unparsed")
def test_dependencies_of_a_large_text_are_looked_up_in_the_store() -> None:
    store = _Store()
    spec = "spec: {command: [id], dependsOn: [{job: here}, {job: gone}]}"
    text = jobs(900, '"' + "x" * 100 + '"')
    text += "---\n" + JOB.format("z", "id").partition("spec")[0] + spec + "\n"
    found = review(store, text)
    assert store.asked == ["here", "gone"]
    assert [len(one.warnings) for one in found] == [0] * 900 + [1]
    assert "gone" in found[-1].warnings[0]


def test_a_small_text_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_worker, "read", None)
    assert [one.name for one in review(_Store(), jobs(2))] == ["j0", "j1"]


def test_a_text_that_takes_too_long_is_refused_alone() -> None:
    request = text_worker.TextRequest(jobs(1), "ada@x.org", 0.0)
    with pytest.raises(remote_changes.InvalidError, match="To fix: send fewer"):
        text_worker.read(request, lambda names: names, timeout_s=0.0)


def test_a_document_that_would_hold_up_its_own_commit_is_refused() -> None:
    most = text_worker.DOCUMENT_NODES_MAX
    large = JOB.format(0, ", ".join(["id"] * most))
    with pytest.raises(remote_changes.InvalidError, match="Job/j0 has more than 10000 fields"):
        review(_Store(), large)
    assert not text_worker.is_too_large("[" + "a, " * (most // 2) + "]")
    assert text_worker.is_too_large("[" + "a, " * most + "]")
    assert text_worker.is_too_large("&a [" + "*a, " * most + "]")
    text = "script: |\n" + "  echo: [a, b, c]\n" * most
    assert not text_worker.is_too_large(text), "a long script is one value"
