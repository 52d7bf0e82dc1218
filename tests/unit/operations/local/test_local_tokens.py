"""A cluster on this machine makes tokens of its own, and keeps those of others."""

import stat
from pathlib import Path

from reconciler.operations.local import local_tokens
from reconciler.operations.tokens import token_changes, token_file


def test_tokens_that_were_created_outlive_a_restart(tmp_path: Path) -> None:
    local_tokens.write(tmp_path, "me@here")
    _, kept = token_changes.create(tmp_path / "tokens", "ada@x.org", "user")
    first = (tmp_path / "token").read_text().strip()
    local_tokens.write(tmp_path, "me@here")
    lines = token_file.load(tmp_path / "tokens", any_node=True)
    assert [(one.identity, one.role) for one in lines] == [
        *(("me@here", "admin"), ("*", "node"), ("ada@x.org", "user"))
    ]
    assert lines[-1] == kept
    assert token_file.digest_of(first.encode()) not in {one.digest for one in lines}
    own = [(tmp_path / name).read_text().strip() for name in ("token", "node-token")]
    assert [token_file.digest_of(one.encode()) for one in own] == [one.digest for one in lines[:2]]
    assert {stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()} == {0o600}
