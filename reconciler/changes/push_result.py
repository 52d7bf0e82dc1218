"""One push with its result: done, overtaken by somebody else, or refused."""

from pathlib import Path

from reconciler.desired.git import git_commands

_LOST_RACE = ("fetch first", "non-fast-forward", "cannot lock ref", "failed to update ref")


def push(folder: Path, remote: str, commit: str, reference: str) -> str:
    """Push ``commit`` to ``reference``; return git's message if somebody else was faster, else "".

    Raises:
        GitError: the remote cannot be reached, or refuses for another reason.
    """
    done = git_commands.run(
        folder,
        "-c",
        "advice.pushUpdateRejected=false",
        "push",
        "--porcelain",
        "--",
        remote,
        f"{commit}:{reference}",
        timeout_s=git_commands.REMOTE_TIMEOUT_S,
        good=(0, 1),
    )
    if done.returncode == 0:
        return ""
    said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()
    if any(sign in said for sign in _LOST_RACE):
        return said
    raise git_commands.GitError(f"the push was refused: {said}")
