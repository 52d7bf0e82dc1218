"""What processes were started with, read without a limit: tests know that theirs answer."""

from agents.host import process_text_reader


def command_of(pid: int) -> list[str]:
    """A process's command line; empty if it is gone."""
    return process_text_reader.text_of(pid, ())[1]


def attempt_of(pid: int, root: str) -> str:
    """The attempt of a node that a process's initial environment names, if any."""
    found, _ = process_text_reader.text_of(pid, ("MUSTER_NODE_ROOT", "MUSTER_ATTEMPT"))
    return found.get("MUSTER_ATTEMPT", "") if found.get("MUSTER_NODE_ROOT") == root else ""
