"""Runs git: short commands with a time limit, and one process that hands out objects.

Starting git costs milliseconds, so objects and references are read through one long-lived
``cat-file --batch``. No command asks for a password, reads replaced objects, or waits for ever.
What git says of a remote URL comes out without its password.
"""

import os
import resource
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from reconciler.desired.git import remote_urls, subprocesses
from reconciler.model.values.text_lines import split_lines

#: How long a git command on local files may take.
LOCAL_TIMEOUT_S = 60.0
#: How long a fetch or push may take.
REMOTE_TIMEOUT_S = 120.0
#: Of a larger object only so much is kept; YAML is refused long before.
OBJECT_BYTES_MAX = 8 * 2**20
_MESSAGE_CHARACTERS_MAX = 1000
#: Commands that sign where a person's configuration says so, with a key that has a passphrase.
_SIGNING = ("commit", "commit-tree", "merge", "rebase", "cherry-pick", "revert", "tag")
#: Commands that reach other machines: the ssh of a person's own settings may ask for a passphrase
#: or password, and the one that stands in for it where there is none asks nothing.
_REMOTE = ("clone", "fetch", "ls-remote", "pull", "push")
_QUIET_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"
#: What git tells a hook, or ``rebase --exec``, of the repository it was started in. Whoever runs
#: git here says itself which repository is meant, and that is another one as often as not.
_ELSEWHERE = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_PREFIX"),
    *("GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS"),
)


#: What git prints if it has no identity for a commit, and what to do.
_NO_IDENTITY = ("tell me who you are", "empty ident name")
UNKNOWN_IDENTITY = (
    "git does not know who you are. To fix: git config --global user.name NAME; "
    "git config --global user.email YOU@HOST"
)


class GitError(RuntimeError):
    """A git command failed; the message is what git printed, without passwords of URLs."""

    def __init__(self, message: str) -> None:
        super().__init__(remote_urls.redacted(message))


class LimitError(GitError):
    """A git command took longer, or brought more, than it may."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of git: no questions, no replaced objects, plain English.

    It does not name a repository: the folder in which git runs does.
    """
    return {
        **{name: value for name, value in os.environ.items() if name not in _ELSEWHERE},
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_GRAFT_FILE": os.devnull,
        "GIT_LITERAL_PATHSPECS": "1",
        "LC_ALL": "C",
        **(extra or {}),
    }


def _ending(printed: bytes) -> str:
    """Return the end of a program's output, from the beginning of a line, with a mark of
    the cut.
    """
    # redacted before the cut, which could fall between a URL's scheme and its password
    text = remote_urls.redacted(printed.decode("utf-8", "replace")).strip()
    if len(text) <= _MESSAGE_CHARACTERS_MAX:
        return text
    rest = text[-_MESSAGE_CHARACTERS_MAX:]
    whole = rest.partition("\n")[2].strip()
    return f"…\n{whole}" if whole else f"…{rest}"


def lacks_identity(printed: str) -> bool:
    """Return True if git failed because it has no identity for a commit."""
    return any(words in printed for words in _NO_IDENTITY)


def run(
    folder: Path,
    *arguments: str,
    data: bytes = b"",
    timeout_s: float = LOCAL_TIMEOUT_S,
    extra: Mapping[str, str] | None = None,
    good: Sequence[int] = (0,),
    prefix: Sequence[str] = (),
    into: int | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run one git command in ``folder``.

    Its messages, and all that a command prints which reaches other machines, are redacted.

    Args:
        prefix: words before the command, of a program that sets what git's process has.
        into: descriptor for what it prints, which is then not returned.

    Raises:
        LimitError: it took longer than ``timeout_s``.
        GitError: it failed, or there is no git.
    """
    verb = _verb(arguments)
    own_ssh = verb in _REMOTE and _has_own_ssh(folder)
    if verb in _REMOTE and not own_ssh:
        extra = {"GIT_SSH_COMMAND": _QUIET_SSH, **(extra or {})}
    command = [*prefix, "git", "-C", str(folder), *arguments]
    try:
        done = subprocesses.run(
            command,
            environment=environment(extra),
            timeout_s=timeout_s,
            data=data,
            asks=own_ssh or verb in _SIGNING,
            into=into,
        )
    except subprocess.TimeoutExpired:
        raise LimitError(f"`git {verb}` took longer than {timeout_s:g} s") from None
    except OSError as error:
        raise GitError(f"git can't be run: {error}") from error
    if done.returncode not in good:
        raise _failure(verb, done)
    done.stderr = remote_urls.redacted_bytes(done.stderr)
    if verb in _REMOTE:
        done.stdout = remote_urls.redacted_bytes(done.stdout)
    return done


def _failure(verb: str, done: subprocess.CompletedProcess[bytes]) -> GitError:
    message = _ending(done.stderr)
    if lacks_identity(message):
        return GitError(UNKNOWN_IDENTITY)
    return GitError(f"`git {verb}` failed: {message or f'status {done.returncode}'}")


def file_limit(bytes_max: int | None) -> list[str]:
    """Return words before a command that fail it at a file larger than ``bytes_max``.

    There are none without a limit or without prlimit.
    """
    program = shutil.which("prlimit")  # of util-linux, which every distribution has
    if program is None or bytes_max is None:
        return []
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    soft = bytes_max if hard == resource.RLIM_INFINITY else min(bytes_max, hard)
    return [program, f"--fsize={soft}:", "--"]


def reference_there(folder: Path, address: str, name: str) -> str:
    """Return what a reference names; empty if there is none.

    Both git commands also list references whose names only contain this one: who may push
    branches could otherwise answer for it with one that is called ``refs/heads/NAME``.

    Args:
        folder: a git folder.
        address: of a remote; empty: the reference is looked for in the folder.
        name: whole name of the reference.

    Raises:
        GitError: it can't be read.
    """
    if address:
        command = ("ls-remote", "--quiet", "--", address, name)
        listed = run(folder, *command, timeout_s=REMOTE_TIMEOUT_S).stdout
    else:
        shape = "--format=%(objectname)\t%(refname)"
        listed = run(folder, "for-each-ref", shape, name).stdout
    pairs = (line.split("\t", 1) for line in split_lines(listed.decode(errors="replace")))
    return next((pair[0].strip() for pair in pairs if pair[1:] == [name]), "")


def run_program(
    command: Sequence[str],
    *,
    data: bytes = b"",
    timeout_s: float = LOCAL_TIMEOUT_S,
    check: bool = False,
) -> str:
    """Run a helper such as gpg; return its output.

    Raises:
        GitError: there is no such program, it took too long, or, with ``check``, it failed.
    """
    try:
        done = subprocesses.run(command, environment=environment(), timeout_s=timeout_s, data=data)
    except subprocess.TimeoutExpired:
        raise GitError(f"`{command[0]}` took longer than {timeout_s:g} s") from None
    except OSError as error:
        raise GitError(f"{command[0]} can't be run: {error}") from error
    if check and done.returncode:
        message = _ending(done.stderr)
        raise GitError(f"{command[0]} failed: {message}")
    return done.stdout.decode("utf-8", "replace")


def git_folder(path: Path) -> Path:
    """Return the git folder of the repository at ``path``, bare or not.

    Raises:
        GitError: there is no repository exactly there.
    """
    if not path.is_dir():
        raise GitError(f"there is no folder {path}")
    found = run(path, "rev-parse", "--absolute-git-dir").stdout.decode().strip()
    folder = Path(found)
    if (
        folder.resolve() not in {path.resolve(), (path / ".git").resolve()}
        and not (path / ".git").is_file()
    ):
        raise GitError(f"{path} is no git repository, though a folder above it is one")
    return folder


def common_folder(folder: Path) -> Path:
    """Return the git folder with the references: for a linked work tree that of its repository.

    Args:
        folder: as :func:`git_folder` returns it.

    Raises:
        GitError: it cannot be read.
    """
    try:
        named = os.fsdecode((folder / "commondir").read_bytes().rstrip(b"\n"))
    except FileNotFoundError:
        return folder
    except OSError as error:
        raise GitError(f"{folder / 'commondir'} can't be read: {error.strerror}") from error
    return (folder / named).resolve()


#: Device and inode of a folder; None: there is none.
Identity = tuple[int, int] | None


def identity(folder: Path) -> Identity:
    """Return the identity of the folder at a path, to notice a replacement."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


class Objects:
    """Objects of one repository, by id or by name, read through one long-lived git process."""

    def __init__(self, folder: Path, timeout_s: float = LOCAL_TIMEOUT_S) -> None:
        self._folder = folder
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Stop the process."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        process, self._process, self._buffer = self._process, None, b""
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            try:
                with subprocesses.undisturbed():
                    self._process = subprocess.Popen(
                        ["git", "-C", str(self._folder), "cat-file", "--batch"],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        env=environment(),
                        bufsize=0,
                        process_group=0,
                    )
            except OSError as error:
                raise GitError(f"git can't be run: {error}") from error
        return self._process

    def read(self, name: str) -> tuple[str, str, bytes] | None:
        """Return id, type and bytes of an object by id or name; None if there is none."""
        return self.read_many([name])[0]

    def read_many(self, names: Sequence[str]) -> list[tuple[str, str, bytes] | None]:
        """Read many objects as :meth:`read`, in few system calls.

        Raises:
            GitError: git ended or did not answer in time.
        """
        with self._lock:
            try:
                found: list[tuple[str, str, bytes] | None] = []
                for start in range(0, len(names), 256):
                    found.extend(self._ask(names[start : start + 256]))
            except (OSError, GitError) as error:
                self._stop()
                raise GitError(f"objects of {self._folder} can't be read: {error}") from error
            return found

    def _ask(self, names: Sequence[str]) -> list[tuple[str, str, bytes] | None]:
        for name in names:
            if "\n" in name:
                raise GitError(f"{name!r} is no name of an object")
        process = self._started()
        if process.stdin is None or process.stdout is None:
            raise GitError("ggit has no pipes")
        deadline = time.monotonic() + self._timeout_s
        # 256 names are below the 64 KiB that a pipe takes before anybody reads.
        process.stdin.write(("\n".join(names) + "\n").encode())
        return [self._answer(process.stdout.fileno(), deadline) for _ in names]

    def _answer(self, file: int, deadline: float) -> tuple[str, str, bytes] | None:
        while b"\n" not in self._buffer:
            self._fill(file, deadline)
        head, _, self._buffer = self._buffer.partition(b"\n")
        words = head.decode("utf-8", "replace").rsplit(" ", 2)
        if words[-1] in {"missing", "ambiguous"}:
            return None
        if len(words) != 3 or not words[2].isdigit():
            raise GitError(f"unexpected answer {head[:80]!r}")
        size = int(words[2])
        bytes_kept = min(size, OBJECT_BYTES_MAX)
        pieces, have, chunk = [], 0, self._buffer
        while True:
            piece, self._buffer = chunk[: size + 1 - have], chunk[size + 1 - have :]
            if have < bytes_kept:
                pieces.append(piece[: bytes_kept - have])
            have += len(piece)
            if have == size + 1:  # the object, and the line's end behind it
                return words[0], words[1], b"".join(pieces)
            chunk = self._receive(file, deadline)

    def _fill(self, file: int, deadline: float) -> None:
        self._buffer += self._receive(file, deadline)

    @staticmethod
    def _receive(file: int, deadline: float) -> bytes:
        look = select.poll()  # which knows no highest descriptor, as select(2) does
        look.register(file, select.POLLIN)
        if not look.poll(1000 * max(0.0, deadline - time.monotonic())):
            raise GitError("git did not answer in time")
        chunk = os.read(file, 1 << 20)
        if not chunk:
            raise GitError("git ended")
        return chunk


def _has_own_ssh(folder: Path) -> bool:
    """Return True if the environment or git's configuration names a program for ssh."""
    if "GIT_SSH_COMMAND" in os.environ or "GIT_SSH" in os.environ:
        return True
    return bool(run(folder, "config", "--get", "core.sshCommand", good=(0, 1)).stdout.strip())


def _verb(arguments: Sequence[str]) -> str:
    """Return the name of a command after options such as ``-c NAME=VALUE``."""
    rest = list(arguments)
    while len(rest) > 2 and rest[0] == "-c":
        rest = rest[2:]
    return rest[0]
