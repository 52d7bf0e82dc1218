"""Submissions are read whole or not at all, and gathered into bounded batches."""

import asyncio
import json
import threading
from collections.abc import Sequence

import pytest

from reconciler.desired.checks import submission_checks
from reconciler.model import desired
from reconciler.operations.changes import remote_changes

JOB = "apiVersion: muster/v1\nkind: Job\nmetadata: {name: %s}\nspec:\n  command: [echo]\n"


class Pusher:
    """Remembers its batches; ``fails`` makes it a broken one."""

    def __init__(self, *, fails: bool = False) -> None:
        self.batches: list[list[str]] = []
        self.closed = False
        self._fails = fails

    def push(
        self, groups: Sequence[Sequence[remote_changes.SubmittedDocument]]
    ) -> list[list[remote_changes.RemoteChangeResult]]:
        self.batches.append([change.name for group in groups for change in group])
        if self._fails:
            raise RuntimeError("a defect")
        return [
            [remote_changes.RemoteChangeResult(change.name, 200, commit="c") for change in group]
            for group in groups
        ]

    def close(self) -> None:
        self.closed = True


def changes(count: int) -> list[remote_changes.SubmittedDocument]:
    return [remote_changes.SubmittedDocument("hold", "me", f"j{number}") for number in range(count)]


def test_documents_are_taken_apart_as_they_are_written() -> None:
    text = "# mine\n---\n" + JOB % "a" + "---\n" + JOB % "b" + "---\n"
    found = remote_changes.read(text, "me")
    assert [(one.verb, one.identity, one.name) for one in found] == [
        ("submit", "me", "a"),
        ("submit", "me", "b"),
    ]
    assert [one.text for one in found] == [JOB % "a", JOB % "b"]


@pytest.mark.parametrize("between", ["\r---\r", "\u2028---\u2028", "\x85---\x85"])
def test_documents_that_can_t_be_told_apart_are_not_committed_in_one_file(between: str) -> None:
    text = (JOB % "a").rstrip("\n") + between + JOB % "b"
    with pytest.raises(remote_changes.InvalidError, match="Job/b is not told apart"):
        remote_changes.read(text, "me")


def policy(schema: dict[str, object]) -> submission_checks.SubmissionValidator:
    """Judges by one policy of jobs."""
    text = json.dumps({"properties": {"spec": schema}})
    one = desired.AdmissionPolicy(
        name="owner", message="say whose job it is", schema=text, kinds=("Job",)
    )
    structure = desired.Structure(
        policies={"owner": one}, queues={"default": desired.Queue("default")}
    )
    return submission_checks.SubmissionValidator(structure)


@pytest.mark.parametrize("owner", ["ann@example.org", "bob@example.org"])
def test_a_job_is_judged_with_the_owner_that_is_written_into_it(owner: str) -> None:
    asks = policy({"required": ["owner"], "properties": {"owner": {"pattern": "@example"}}})
    (found,) = remote_changes.read(JOB % "a", owner, asks, owner=owner)
    assert found.owner == owner
    assert f"owner: {owner}\n" in found.text
    forbids = policy({"properties": {"owner": {"not": {"const": "bob@example.org"}}}})
    if owner.startswith("ann"):
        remote_changes.read(JOB % "a", owner, forbids, owner=owner)
        return
    with pytest.raises(remote_changes.InvalidError) as refused:
        remote_changes.read(JOB % "a", owner, forbids, owner=owner)
    (problem,) = refused.value.problems
    assert "say whose job it is" in problem.message


@pytest.mark.parametrize("nobody", ["''", '""', "null", "~", ""])
def test_an_owner_that_is_left_empty_is_who_submits_it(nobody: str) -> None:
    text = (JOB % "a").replace("spec:\n", f"spec:\n  owner: {nobody}\n")
    (found,) = remote_changes.read(text, "ann@example.org", owner="ann@example.org")
    assert found.owner == "ann@example.org"
    assert "owner: ann@example.org\n" in found.text.replace('"', "").replace("'", "")


def test_a_job_into_which_no_owner_can_be_written_is_nobody_s() -> None:
    text = JOB % "a" + "...\n"
    with pytest.raises(remote_changes.InvalidError, match=r"write `owner: ann@example\.org`"):
        remote_changes.read(text, "ann@example.org", owner="ann@example.org")
    own = text.replace("spec:\n", "spec:\n  owner: ann@example.org\n")
    assert remote_changes.read(own, "ann@example.org", owner="ann@example.org")[0].owner


def test_json_is_read_too() -> None:
    text = (
        '{"apiVersion": "muster/v1", "kind": "Job", "metadata": {"name": "a"},'
        ' "spec": {"command": ["echo"]}}'
    )
    (found,) = remote_changes.read(text, "me")
    assert (found.name, found.text) == ("a", text)


def test_one_batch_holds_what_comes_together() -> None:
    async def scene(pusher: Pusher) -> list[list[remote_changes.RemoteChangeResult]]:
        batcher = remote_changes.Batcher(pusher)
        running = asyncio.create_task(batcher.run())
        found = await asyncio.gather(*(batcher.submit([change]) for change in changes(9)))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return found

    pusher = Pusher()
    results = asyncio.run(scene(pusher))
    assert [one.name for (one,) in results] == [f"j{number}" for number in range(9)]
    assert pusher.batches == [[f"j{number}" for number in range(9)]]
    assert pusher.closed


def test_a_batch_is_bounded_and_so_is_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_changes, "COMMIT_MAX", 4)
    monkeypatch.setattr(remote_changes, "WAITING_MAX", 10)

    async def scene(pusher: Pusher) -> None:
        batcher = remote_changes.Batcher(pusher)
        first = asyncio.create_task(batcher.submit(changes(9)))
        await asyncio.sleep(0)
        assert {one.status for one in await batcher.submit(changes(2))} == {503}
        running = asyncio.create_task(batcher.run())
        assert {one.status for one in await first} == {200}
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    pusher = Pusher()
    asyncio.run(scene(pusher))
    assert [len(batch) for batch in pusher.batches] == [4, 4, 1]


def test_what_goes_together_is_in_one_batch_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_changes, "COMMIT_MAX", 4)

    async def scene(pusher: Pusher) -> None:
        batcher = remote_changes.Batcher(pusher)
        asked = [
            asyncio.create_task(batcher.submit(changes(count), together=together))
            for count, together in ((3, True), (2, True), (2, False), (6, True), (1, True))
        ]
        await asyncio.sleep(0)
        running = asyncio.create_task(batcher.run())
        found = await asyncio.gather(*asked)
        assert [len(results) for results in found] == [3, 2, 2, 6, 1]
        assert await batcher.submit([], together=True) == []
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    pusher = Pusher()
    asyncio.run(scene(pusher))
    assert [len(batch) for batch in pusher.batches] == [3, 4, 6, 1]


def test_what_is_taken_back_before_its_push_begins_is_not_pushed() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(Pusher):
        """Is pushing until it is told to go on."""

        def push(
            self, groups: Sequence[Sequence[remote_changes.SubmittedDocument]]
        ) -> list[list[remote_changes.RemoteChangeResult]]:
            begun.set()
            assert goes_on.wait(30)
            return super().push(groups)

    async def scene(pusher: Pusher) -> None:
        batcher = remote_changes.Batcher(pusher)
        running = asyncio.create_task(batcher.run())
        first, same, last = changes(1), changes(1), changes(2)
        pushing = asyncio.create_task(batcher.submit(first, together=True))
        assert await asyncio.to_thread(begun.wait, 30)
        behind = [
            asyncio.create_task(batcher.submit(one, together=True)) for one in (same, last, same)
        ]
        await asyncio.sleep(0)
        assert not batcher.drop(first), "its push has begun"
        assert batcher.drop(last)
        assert not batcher.drop(last)
        goes_on.set()
        await asyncio.gather(pushing, behind[0], behind[2])
        await asyncio.wait({behind[1]})
        assert behind[1].cancelled()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    pusher = Slow()
    asyncio.run(scene(pusher))
    assert pusher.batches == [["j0"], ["j0", "j0"]]


def test_a_defect_in_a_push_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(pusher: Pusher) -> list[remote_changes.RemoteChangeResult]:
        batcher = remote_changes.Batcher(pusher)
        running = asyncio.create_task(batcher.run())
        try:
            return await batcher.submit(changes(1))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    (result,) = asyncio.run(scene(Pusher(fails=True)))
    assert result.status == 500
    assert "a defect" not in result.message
    assert "a defect" in caplog.text


def test_a_submission_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_changes, "DOCUMENTS_MAX", 1)
    with pytest.raises(remote_changes.InvalidError, match="2 documents at once; at most 1"):
        remote_changes.read(JOB % "a" + "---\n" + JOB % "b", "me")
