"""Fetches one branch into a mirror, within limits of time and bytes; a first load goes on.

Git throws away what an ended fetch has received. A branch that the mirror has not got yet, and that
does not come at once, is therefore loaded in steps: its newest commit, then more and more of the
history before it. The steps go to a repository beside the mirror, so that no reader ever sees a
part; they stay there over restarts. A branch that is there is fetched as a whole, and after a
time-out the next fetch may take longer.
"""

import shutil
from pathlib import Path

from reconciler.desired.git import git_commands
from reconciler.desired.git.git_commands import GitError, LimitError

#: The largest pack that one fetch may bring.
FETCH_BYTES_MAX = 4 * 2**30
#: What a first load may bring altogether.
LOAD_BYTES_MAX = 16 * 2**30
#: How many times longer a fetch may take after time-outs.
PATIENCE_MAX = 8
#: Commits that the first step back in history adds; later ones add as many as there are.
FIRST_STEP = 64
STEP_MAX = 2**20
_INCOMING = "refs/muster/incoming"


class SizeError(LimitError):
    """A fetch brings more than it may."""


class IncompleteFetchError(GitError):
    """A part of a branch has arrived; another fetch goes on from there."""


class MirrorFetch:
    """The fetches of one branch into one mirror.

    Args:
        folder: the git folder of the mirror.
        address: anything that ``git fetch`` accepts.
        wanted: the reference there.
        reference: the reference here.
        timeout_s: time limit of a fetch, or of a step of a first load.
        bytes_max: the largest pack that one of them may bring.
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
        self._remote = (address, wanted)
        self._reference = reference
        self._timeout_s = timeout_s
        self._bytes_max = bytes_max
        self._patience = 1
        name = reference.replace("/", "-")
        beside = folder.with_name(f"{folder.stem}.{name}.load")
        self._load = _FirstLoad(beside, self._remote, timeout_s, bytes_max)
        self._is_loaded = False

    def run(self) -> None:
        """Fetch the branch, or the next part of it.

        Raises:
            IncompleteFetchError: a part of the branch has arrived.
            LimitError: it took too long, or brings too much at once.
            GitError: it can't be reached.
        """
        if not self._is_loaded and not self._is_there():
            self._run_first()
        else:
            self._load.remove()  # a branch that is there came another way
            self._run_again()
        self._is_loaded, self._patience = True, 1

    def _run_first(self) -> None:
        """Load the branch as a whole, or in steps if it does not come so."""
        if self._load.has_begun:
            self._load.go_on()
        else:
            try:
                self._fetch(self._timeout_s)
            except LimitError as error:
                self._load.begin(error)
            else:
                return
        remote = (str(self._load.folder), _INCOMING)
        fetch(self._folder, remote, self._reference, PATIENCE_MAX * self._timeout_s, None)
        self._load.remove()

    def _run_again(self) -> None:
        """Fetch what is new of the branch; after a time-out the next time may be longer."""
        try:
            self._fetch(self._timeout_s * self._patience)
        except SizeError:
            raise
        except LimitError:
            self._patience = min(PATIENCE_MAX, 2 * self._patience)
            raise

    def _fetch(self, limit_s: float) -> None:
        fetch(self._folder, self._remote, self._reference, limit_s, self._bytes_max)

    def _is_there(self) -> bool:
        found = git_commands.run(
            self._folder, "rev-parse", "--verify", "--quiet", self._reference, good=(0, 1)
        )
        return found.returncode == 0


class _FirstLoad:
    """A repository into which one branch is loaded in steps."""

    def __init__(
        self, folder: Path, remote: tuple[str, str], timeout_s: float, bytes_max: int
    ) -> None:
        self.folder = folder
        self._remote = remote
        self._timeout_s = timeout_s
        self._bytes_max = bytes_max
        self._step_max = STEP_MAX

    @property
    def has_begun(self) -> bool:
        """True if a part of the branch is there."""
        return self.folder.exists()

    def remove(self) -> None:
        """Delete what was loaded."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self, whole: LimitError) -> None:
        """Load the newest commit without its history.

        Args:
            whole: why the branch does not come as a whole.

        Raises:
            IncompleteFetchError: there is history before it.
            LimitError: not even this commit comes within the limits.
        """
        git_commands.run(self.folder.parent, "init", "--quiet", "--bare", str(self.folder))
        try:
            self._fetch("--depth=1")
        except SizeError as error:
            self.remove()
            raise SizeError(
                f"{error}, for the newest commit alone: remove large files from the branch, or "
                "clone it to this machine and name that folder"
            ) from None
        except GitError:
            self.remove()
            raise whole from None  # it hangs, or the server can't give a part
        self._require_whole()

    def go_on(self) -> None:
        """Load some of the history before what has arrived.

        Raises:
            IncompleteFetchError: there is more.
            LimitError: it does not fit; what was loaded is deleted if no smaller step is left.
        """
        self._require_space()
        step = max(1, min(self._step_max, max(FIRST_STEP, self._count())))
        try:
            self._fetch(f"--deepen={step}")
        except LimitError as error:
            self._step_max = step // 4
            if not self._step_max:
                self.remove()
                self._step_max = STEP_MAX
                raise GitError(
                    f"{error}, for one more commit; the next fetch begins with the newest commit"
                ) from None
            raise IncompleteFetchError(f"{error}; the next fetch asks for less at once") from None
        except GitError:
            if not self._count():
                self.remove()
            raise
        self._step_max = min(STEP_MAX, 2 * step) if self._step_max < STEP_MAX else STEP_MAX
        self._require_whole()

    def _fetch(self, depth: str) -> None:
        fetch(self.folder, self._remote, _INCOMING, self._timeout_s, self._bytes_max, depth)

    def _count(self) -> int:
        """Return how many commits of the branch are there; 0: there is no branch."""
        found = git_commands.run(self.folder, "rev-list", "--count", _INCOMING, good=(0, 128))
        return int(found.stdout or b"0")

    def _require_space(self) -> None:
        packs = self.folder / "objects" / "pack"
        size = sum(path.stat().st_size for path in packs.iterdir()) if packs.exists() else 0
        if size > LOAD_BYTES_MAX:
            raise SizeError(
                f"{self._remote[0]} has more than {LOAD_BYTES_MAX} bytes of history: clone it to "
                "this machine, and name that folder"
            )

    def _require_whole(self) -> None:
        """Check that nothing is missing: that no first commit is one whose parents were left out.

        Raises:
            IncompleteFetchError: something is.
        """
        shallow = self.folder / "shallow"
        cut = set(shallow.read_text(encoding="ascii").split()) if shallow.exists() else set()
        if cut:
            found = git_commands.run(self.folder, "rev-list", "--max-parents=0", _INCOMING)
            cut &= set(found.stdout.decode().split())
        if cut:
            raise IncompleteFetchError(
                f"{self._remote[0]} does not come at once: {self._count()} commits have arrived, "
                "and the next fetch goes on from there"
            )
        shallow.unlink(missing_ok=True)  # what is left in it are commits of a replaced history


def fetch(
    folder: Path,
    remote: tuple[str, str],
    reference: str,
    timeout_s: float,
    bytes_max: int | None,
    *options: str,
) -> None:
    """Fetch one reference. What a fetch that failed has left is deleted.

    Args:
        folder: the git folder.
        remote: the address, and the reference there.
        reference: the reference here.
        timeout_s: time limit.
        bytes_max: the largest pack that may come; None: no limit.
        options: further options of ``git fetch``.

    Raises:
        SizeError: it brings more.
        LimitError: it took longer.
        GitError: it fails.
    """
    # as a pack even if it is small: git would give the limit to each of the objects instead
    command = [
        "-c",
        "fetch.unpackLimit=1",
        "fetch",
        "--quiet",
        "--no-tags",
        "--no-write-fetch-head",
    ]
    command += ["--no-auto-maintenance", *options, "--", remote[0], f"+{remote[1]}:{reference}"]
    before = set((folder / "objects").glob("*/tmp_*"))  # of who else fetches: notes
    try:
        limit = git_commands.file_limit(bytes_max)
        git_commands.run(folder, *command, timeout_s=timeout_s, prefix=limit)
    except GitError:
        fragments = set((folder / "objects").glob("*/tmp_*")) - before
        # git does not say why the program that writes the pack has ended
        is_large = bytes_max is not None and any(
            path.stat().st_size >= bytes_max for path in fragments
        )
        for path in (*fragments, folder / "shallow.lock"):
            path.unlink(missing_ok=True)
        if is_large:
            raise SizeError(f"`git fetch` brings more than {bytes_max} bytes at once") from None
        raise
