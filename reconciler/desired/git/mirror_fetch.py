"""Fetches one branch into a mirror, within limits of time and bytes, and goes on where it stopped.

Git throws away what an ended fetch has received. So when a fetch takes too long or brings too much
at once, the branch is loaded in steps: first its newest commit alone, then more and more of the
history before it. Each step stays in the mirror, also over restarts. The reference that readers use
moves only when the history is whole.
"""

from pathlib import Path

from reconciler.desired.git import git_commands
from reconciler.desired.git.git_commands import GitError, LimitError

#: The largest file, which is a pack, that one fetch may write.
FETCH_BYTES_MAX = 4 * 2**30
#: Commits that the first step back in history adds; each step that succeeds doubles it.
FIRST_STEP = 64
STEP_MAX = 2**20
#: Where the newest commit is kept while its history is loaded.
_INCOMING = "refs/muster/incoming"


class IncompleteFetchError(GitError):
    """A part of the history has arrived; another fetch goes on from there."""


class MirrorFetch:
    """The fetches of one branch into one mirror.

    Args:
        folder: the git folder of the mirror.
        address: anything that ``git fetch`` accepts.
        wanted: the reference there.
        reference: the reference here.
        timeout_s: time limit of each step.
        bytes_max: the largest pack that a step may bring.
    """

    def __init__(
        self,
        folder: Path,
        address: str,
        wanted: str,
        reference: str,
        *,
        timeout_s: float,
        bytes_max: int = FETCH_BYTES_MAX,
    ) -> None:
        self._folder = folder
        self._address = address
        self._wanted = wanted
        self._reference = reference
        self._timeout_s = timeout_s
        self._bytes_max = bytes_max
        self._step = FIRST_STEP

    def run(self) -> None:
        """Fetch the branch, or the next part of it.

        Raises:
            IncompleteFetchError: it takes more than one step; a part has arrived.
            GitError: it can't be reached, or not even its newest commit is within the limits.
        """
        if self._is_partial():
            self._load_more()
            return
        try:
            self._fetch(f"+{self._wanted}:{self._reference}")
        except LimitError:
            self._remove_fragments()
            self._load_newest()

    def _is_partial(self) -> bool:
        return (self._folder / "shallow").exists()

    def _load_newest(self) -> None:
        """Load the newest commit without its history."""
        try:
            self._fetch("--depth=1", f"+{self._wanted}:{_INCOMING}")
        except LimitError as error:
            self._remove_fragments()
            raise GitError(
                f"{error}, for the newest commit alone: remove large files from the branch, or "
                "clone it to this machine and name that folder"
            ) from None
        self._finish_or_wait()

    def _load_more(self) -> None:
        """Load some of the history before what has arrived."""
        try:
            self._fetch(f"--deepen={self._step}", f"+{self._wanted}:{_INCOMING}")
        except LimitError as error:
            self._remove_fragments()
            if self._step == 1:
                raise GitError(f"{error}, for one more commit of its history") from None
            self._step = max(1, self._step // 8)
            raise IncompleteFetchError(f"{error}; the next fetch asks for less at once") from None
        self._step = min(STEP_MAX, 2 * self._step)
        self._finish_or_wait()

    def _finish_or_wait(self) -> None:
        if self._is_partial():
            found = git_commands.run(self._folder, "rev-list", "--count", _INCOMING).stdout
            raise IncompleteFetchError(
                f"{self._address} is too large to be fetched at once: {int(found)} commits have "
                "arrived, and the next fetch goes on from there"
            )
        git_commands.run(self._folder, "update-ref", self._reference, _INCOMING)
        git_commands.run(self._folder, "update-ref", "-d", _INCOMING)

    def _fetch(self, *arguments: str) -> None:
        *options, reference = arguments
        options = ["--quiet", "--no-tags", "--no-auto-maintenance", *options]
        try:
            git_commands.run(
                self._folder,
                *("fetch", "--no-write-fetch-head", *options),
                *("--", self._address, reference),
                timeout_s=self._timeout_s,
                file_bytes_max=self._bytes_max,
            )
        except GitError as error:
            # git does not say why the program that writes the pack has ended
            if any(part.stat().st_size >= self._bytes_max for part in self._fragments()):
                raise LimitError(
                    f"`git fetch` brings more than {self._bytes_max} bytes at once"
                ) from None
            raise error from None

    def _fragments(self) -> list[Path]:
        return list((self._folder / "objects" / "pack").glob("tmp_*"))

    def _remove_fragments(self) -> None:
        """Delete what an ended fetch has left: nothing else fetches into a mirror."""
        for fragment in self._fragments():
            fragment.unlink(missing_ok=True)
        (self._folder / "shallow.lock").unlink(missing_ok=True)
