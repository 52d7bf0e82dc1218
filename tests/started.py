"""What processes were started with, read without a limit: tests know that theirs answer."""

from agents.host import process_memory


def command_of(pid: int) -> list[str]:
    """A process's command line; empty if it is gone."""
    return process_memory.text_of(pid, ()).words


def attempt_of(pid: int, root: str) -> str:
    """The attempt of a node that a process's initial environment names, if any."""
    found = process_memory.text_of(pid, ("MUSTER_NODE_ROOT", "MUSTER_ATTEMPT")).variables
    return found.get("MUSTER_ATTEMPT", "") if found.get("MUSTER_NODE_ROOT") == root else ""
