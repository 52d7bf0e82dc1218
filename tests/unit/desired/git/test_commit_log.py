"""What somebody writes into a commit takes a bounded amount of memory."""

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.desired.git import commit_log, git_commands, source
from tests.unit.desired.repositories import Repository, git


@given(st.lists(st.binary().map(lambda part: part.replace(b"\0", b""))), st.binary(max_size=9))
def test_fields_come_back_as_they_were_printed(fields: list[bytes], rest: bytes) -> None:
    """What no NUL ends is no field."""
    printed = b"".join(field + b"\0" for field in fields) + rest.replace(b"\0", b"")
    with io.FileIO(_written(printed)) as stream:
        assert list(commit_log.bounded_fields(stream)) == fields


def _written(data: bytes) -> int:
    """A descriptor from which these bytes can be read."""
    end, sink = os.pipe()
    os.write(sink, data)
    os.close(sink)
    return end


@pytest.mark.parametrize("where", ["subject", "trailers", "ours", "address"])
def test_a_large_commit_is_read_as_far_as_it_counts(where: str, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "state.git")
    before = repository.commit({"a.yaml": ""})
    approval = "Muster-Approve: sdramovcrs6en5cgkcqgp3by4s6j2h15"
    floods = {
        "subject": "x" * 3_000_000 + f"\n\n{approval}",
        "trailers": f"s\n\n{approval}\n" + "Odd-Key: value\n" * 200_000,
        "ours": f"s\n\n{approval}\n" + "Muster-Odd: value\n" * 200_000,
        "address": f"s\n\n{approval}",
    }
    author = "a" * 3_000_000 if where == "address" else "ada"
    raw = (
        f"tree {git(repository.path, 'rev-parse', f'{before}^{{tree}}')}\nparent {before}\n"
        f"author Ada <{author}@x.org> 1700000000 +0000\n"
        f"committer Ada <ada@x.org> 1700000000 +0000\n\n{floods[where]}\n"
    )
    made = git_commands.run(
        repository.path, "hash-object", "-t", "commit", "-w", "--stdin", data=raw.encode()
    )
    commit = made.stdout.decode().strip()
    found = source.GitSource(str(repository.path)).log.commit(commit)
    assert found.id == commit
    assert found.parent == before
    assert found.trailer("muster-approve") == [approval.partition(": ")[2]]
    kept = len(found.subject) + len(found.author) + len(str(found.trailers))
    assert kept < 100_000
