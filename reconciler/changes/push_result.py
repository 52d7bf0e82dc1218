"""One push with its result: done, overtaken by somebody else, or refused."""

from pathlib import Path

from reconciler.desired.git import git_commands
from reconciler.model.values import text_lines

#: The most characters of a remote's words that are told.
_WORDS_CHARACTERS_MAX = 800
#: A remote says so of a push that its rules or hooks don't let in.
_REFUSED = "[remote rejected]"
#: And of one that it can't take now: its disk is full, it is being moved, it fails by itself.
_TROUBLES = ("unpacker error", "internal server error", "remote failed to report status")
_LOST_RACE = ("fetch first", "non-fast-forward", "cannot lock ref", "failed to update ref")


class RefusedPushError(git_commands.GitError):
    """Error: the remote can be reached, and does not let these commits in."""


def push(folder: Path, remote: str, commit: str, reference: str) -> str:
    """Push ``commit`` to ``reference``; return git's message if somebody else was faster, else "".

    Raises:
        RefusedPushError: the remote does not let the commit in.
        GitError: the remote can't be reached, or can't take anything now.
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
    if _REFUSED in said and not any(sign in said.lower() for sign in _TROUBLES):
        raise RefusedPushError(f"the repository refuses it{_words(said)}")
    raise git_commands.GitError(f"the push failed: {said}")


def _words(said: str) -> str:
    """Return why a remote refuses a push, without what git says about itself."""
    lines = text_lines.split_lines(said)
    why = " ".join(one.partition(_REFUSED)[2].strip() for one in lines if _REFUSED in one)
    told = "\n".join(
        one.removeprefix("remote:").strip() for one in lines if one.startswith("remote:")
    ).strip()
    return (f" {why}" + (f": {told}" if told else ""))[:_WORDS_CHARACTERS_MAX]
