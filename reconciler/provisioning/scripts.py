"""One run of a provisioner script, with an order as JSON and limits of time and output.

A script is an executable file in the controller's folder; documents only name it. It gets the verb
as its one argument and the order on standard input, without a shell. It answers with JSON on
standard output and with text for people on standard error. It waits at a gate until its runner has
noted it. Its whole process group is stopped with it.
"""

import os
import re
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from reconciler import child_process
from reconciler.model.state import instance_records

#: The most that a script may print before it is ended.
OUTPUT_BYTES_MAX = 4 * 2**20
#: How long a script and its group have to leave after SIGTERM.
GRACE_S = 5.0
#: How long one that was killed may take to be gone.
GONE_S = 2.0
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
    stuck: child_process.StuckChildren | None = None,
) -> instance_records.OrderResult:
    """Run a script once and return its answer.

    Args:
        path: the script.
        order: its order.
        stopped: polled; True stops the script.
        began: called with its process id, which is that of its group, before the script itself
            starts.
        stuck: notes a script that was killed and waits in the kernel, as for a file server that is
            away.

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
        program = child_process.ChildProgram(
            ["/bin/sh", "-c", _GATE, "gate", str(path), order.verb, _opened(given.fileno())],
            folder=path.parent,
            given=b"\n",  # opens the gate
            stdout=output,
            stderr=errors,
            inherited=(given.fileno(),),
        )
        limits = child_process.ChildLimits(
            order.timeout_s,
            OUTPUT_BYTES_MAX,
            grace_s=GRACE_S,
            reap_s=GONE_S,
            leftovers=child_process.Leftovers.END_ON_FAILURE,
        )
        try:
            result = child_process.run_child(
                program, limits, is_wanted=lambda: not stopped(), on_start=began
            )
        except OSError as error:
            raise ScriptError(f"{path} can't be started: {error.strerror}") from None
        except ScriptError as error:  # of ``began``
            raise ScriptError(f"{path} {order.verb} {error}") from None
        if stuck is not None:
            stuck.note(None, result)
        problem = _problem(order, result)
        if problem:
            raise ScriptError(f"{path} {order.verb} {problem}{_last_words(errors)}")
        output.seek(0)
        return _answer(path, order, output.read())


def _problem(order: instance_records.Order, result: child_process.ChildResult) -> str:
    """Return why a script did not end well; empty if it did."""
    match result.end:
        case child_process.ChildEnd.UNWANTED:
            return "was ended because the controller ends"
        case child_process.ChildEnd.TIMED_OUT:
            return f"took longer than {order.timeout_s} s and was ended"
        case child_process.ChildEnd.TOO_MUCH_OUTPUT:
            return f"printed more than {OUTPUT_BYTES_MAX} bytes and was ended"
    if result.status is None or result.status == 0:
        return ""
    how = f"status {result.status}" if result.status > 0 else f"signal {-result.status}"
    return f"ended with {how}"


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
