"""Whom an agent follows in its root, and what it proves its root by."""

import os
import stat
from pathlib import Path

from agents.node import agent_identity
from reconciler.model.protocol import agent_messages


def test_each_knows_those_before_it_and_not_itself(tmp_path: Path) -> None:
    names = [f"{number:016x}" for number in range(agent_messages.FOLLOWS_MAX + 3)]
    for number, name in enumerate(names):
        before = names[max(0, number - agent_messages.FOLLOWS_MAX) : number]
        assert agent_identity.succeed(tmp_path, name) == tuple(before)


def test_a_broken_file_or_folder_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "incarnations").write_bytes(b"../../x\nab12\n")
    assert agent_identity.succeed(tmp_path, "cd") == ("ab12",)
    (tmp_path / "incarnations").write_bytes(b"\xff\x00")
    assert agent_identity.succeed(tmp_path, "cd") == ()
    assert agent_identity.succeed(tmp_path / "missing", "cd") == ()


def test_a_root_has_one_proof_and_a_secret_that_nobody_else_may_read(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    umask = os.umask(0)
    try:
        proof = agent_identity.proof_of(tmp_path)
    finally:
        os.umask(umask)
    assert len(proof) == agent_messages.PROOF_DIGITS
    assert agent_identity.proof_of(tmp_path) == proof
    assert agent_identity.proof_of(tmp_path / "other") != proof
    secret = tmp_path / "session-secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert secret.read_text().strip() != proof


def test_a_secret_that_is_broken_is_made_anew_and_a_full_disk_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "session-secret").write_bytes(b"\xff\n")
    (tmp_path / "session-secret.new").write_text("half")
    assert agent_identity.proof_of(tmp_path) == agent_identity.proof_of(tmp_path) != ""
    assert agent_identity.proof_of(tmp_path / "missing") == ""
