"""One run of a provisioner script, with an order as JSON and limits of time and output.

A script is an executable file in the controller's folder; documents only name it. It gets the verb
as its one argument and the order on standard input, without a shell. It answers with JSON on
standard output and with text for people on standard error. It waits at a gate until its runner has
noted it. Its whole process group is stopped with it.
"""

import contextlib
import os
import re
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from reconciler.model.state import instance_records

#: The most that a script may print before it is ended.
OUTPUT_BYTES_MAX = 4 * 2**20
#: How long a script and its group have to leave after SIGTERM.
GRACE_S = 5.0
#: How long one that was killed may take to be gone.
GONE_S = 2.0
#: How often a script that runs is looked at.
LOOK_S = 0.05
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ID_CHARACTERS_MAX = 256
_ERROR_BYTES = 2000
#: Waits for a line, then becomes the script; where nobody writes one, it is none.
_GATE = 'read -r _ || exit 125; exec "$1" "$2" <"$3"'
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")


class ScriptError(Exception):
    """A script could not be run, or did not follow its order; the message says what to look at."""


class _Created(msgspec.Struct, frozen=True):
    id: str = ""


class _List(msgspec.Struct, frozen=True):
    instances: tuple[instance_records.Listed, ...]


_DECODE_CREATED = msgspec.json.Decoder(_Created).decode
_DECODE_LIST = msgspec.json.Decoder(_List).decode


def find(folder: Path | None, name: str) -> Path:
    """Return the script of this name, if nobody else could have put it there.

    Raises:
        ScriptError: it does not exist, or others may write it or its folder.
    """
    if folder is None:
        raise ScriptError(
            f"this controller runs no scripts: start it with --provisioners FOLDER, and {name} "
            "in that folder"
        )
    if not NAME.fullmatch(name):
        raise ScriptError(f"{name!r} is no name of a script")
    path = folder / name
    for part in (folder, path):
        try:
            found = part.lstat()
        except OSError as error:
            raise ScriptError(f"{part} can't be used: {error.strerror}") from None
        if found.st_uid not in {0, os.geteuid()} or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ScriptError(
                f"{part} may be written by others than root and the controller's user: "
                "change its owner or mode"
            )
    if not stat.S_ISREG(path.lstat().st_mode) or not os.access(path, os.X_OK):
        raise ScriptError(f"{path} is no executable file")
    return path


def told(order: instance_records.Order) -> bytes:
    """Return what a script reads on its standard input."""
    has = order.resources
    return msgspec.json.encode(
        {
            "version": 1,
            "verb": order.verb,
            "pool": order.pool,
            "request": order.request,
            "node": order.node,
            "id": order.id,
            "resources": {
                "cpu": has.cpu_milli / 1000,
                "memory": has.memory_bytes,
                "gpus": has.gpu_milli // 1000,
            },
            "gpuModel": order.gpu_model,
            "labels": order.labels,
            "settings": order.settings,
        }
    )


def _opened(number: int) -> str:
    """Return a name for an open file that has none, so that a killed process leaves no file."""
    return f"/proc/self/fd/{number}"


def run(
    path: Path,
    order: instance_records.Order,
    *,
    stopped: Callable[[], bool] = lambda: False,
    began: Callable[[int], None] = lambda _: None,
) -> instance_records.OrderResult:
    """Run a script once and return its answer.

    Args:
        path: the script.
        order: its order.
        stopped: polled; True stops the script.
        began: called with its process id, which is that of its group, before the script itself
            starts.

    Raises:
        ScriptError: it failed, took too long, printed too much, or printed something that is no
            answer.
    """
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        given.write(told(order))
        given.flush()
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _GATE, "gate", str(path), order.verb, _opened(given.fileno())],
                pass_fds=(given.fileno(),),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                cwd=path.parent,
                start_new_session=True,
            )
        except OSError as error:
            raise ScriptError(f"{path} can't be started: {error.strerror}") from None
        code = -1
        try:
            began(process.pid)
            _open_gate(process)
            code = _wait(process, order, (output, errors), stopped)
        except ScriptError as error:
            raise ScriptError(f"{path} {order.verb} {error}{_last_words(errors)}") from None
        finally:
            if process.stdin is not None:
                process.stdin.close()
            if code != 0:
                _end(process)
        if code != 0:
            how = f"status {code}" if code > 0 else f"signal {-code}"
            raise ScriptError(f"{path} {order.verb} ended with {how}{_last_words(errors)}")
        output.seek(0)
        return _answer(path, order, output.read())


def _open_gate(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(b"\n")


def _wait(
    process: subprocess.Popen[bytes],
    order: instance_records.Order,
    written: tuple[IO[bytes], ...],
    stopped: Callable[[], bool],
) -> int:
    ends_at = time.monotonic() + order.timeout_s
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK_S)
        if stopped():
            raise ScriptError("was ended since the controller leaves")
        if time.monotonic() >= ends_at:
            raise ScriptError(f"took longer than {order.timeout_s} s and was ended")
        if any(os.fstat(file.fileno()).st_size > OUTPUT_BYTES_MAX for file in written):
            raise ScriptError(f"printed more than {OUTPUT_BYTES_MAX} bytes and was ended")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop the script's process group, also if the script itself has ended.

    A process group keeps its number while it has members, so no other group is hit.
    """
    ends_at = time.monotonic() + GRACE_S
    with contextlib.suppress(ProcessLookupError):  # nobody is left
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < ends_at:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(LOOK_S)
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(GONE_S)
    except subprocess.TimeoutExpired:
        _LEFT.append(process)  # it does nothing more once the kernel lets go of it
    _LEFT[:] = [one for one in _LEFT if one.poll() is None]


#: Scripts that were killed and wait in the kernel, as for a file server that is away.
_LEFT: list[subprocess.Popen[bytes]] = []


def _last_words(errors: IO[bytes]) -> str:
    """Return the end of its output for people, on one line."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _ERROR_BYTES))
    text = _UNPRINTABLE.sub(" ", errors.read().decode(errors="replace")).strip()
    return f": {text[-300:]}" if text else ""


def _answer(
    path: Path, order: instance_records.Order, printed: bytes
) -> instance_records.OrderResult:
    result = instance_records.OrderResult(order.verb, order.pool, order.request, order.number)
    try:
        if order.verb == "destroy":
            return result
        if order.verb == "create":
            created = _DECODE_CREATED(printed) if printed.strip() else _Created()
            return msgspec.structs.replace(result, id=_checked(created.id))
        listed = _DECODE_LIST(printed).instances
    except (msgspec.DecodeError, ScriptError) as error:
        start = _UNPRINTABLE.sub(" ", printed[:100].decode(errors="replace")).strip()
        expected = '{"instances": [{"id": …}]}' if order.verb == "list" else '{"id": …}'
        raise ScriptError(
            f"{path} {order.verb} printed {start!r}, expected {expected}: {error}"
        ) from None
    if len(listed) > instance_records.LISTED_MAX:
        raise ScriptError(
            f"{path} lists {len(listed)} instances, "
            f"at most {instance_records.LISTED_MAX} are possible"
        )
    for one in listed:
        if not one.id:
            raise ScriptError(f"{path} lists an instance without an id")
        for text in (one.id, one.node, one.request):
            _checked(text)
    return msgspec.structs.replace(result, instances=listed)


def _checked(text: str) -> str:
    """Return a name that a script gave, if it is valid."""
    if len(text) > _ID_CHARACTERS_MAX or not text.isprintable():
        raise ScriptError(f"an id has at most {_ID_CHARACTERS_MAX} printable characters")
    return text
