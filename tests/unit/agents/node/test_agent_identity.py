"""Whom an agent follows in its root."""

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
