"""`muster run --pty`: a job whose command has the terminal of whoever started it.

The job itself waits, and ends as the command does, which runs in a session beside it. A session
that breaks off ends the command, and so the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reconciler.cli import lazy_import, retries, terminal
from reconciler.cli.interactive import local_terminal, remote_command
from reconciler.cli.waiting import job_wait

if TYPE_CHECKING:
    from reconciler.operations.client import api_client, endpoints, session_connection
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")
    session_connection = lazy_import.module("reconciler.operations.client.session_connection")

Json = Any
#: Shells that do nothing without input.
SHELLS = frozenset({"bash", "sh", "zsh", "fish", "dash", "ksh", "csh", "tcsh"})
#: How long the job waits for its terminal.
COME_S = 120
#: The job: it waits until the command has opened the pipe, and then until nobody has it open:
#: its end would end a session that has only just written its status. The second line that came is
#: the status; without one the command was ended with its session.
_JOB = f"""
pipe=${{MUSTER_METRICS%/*}}/terminal
mkfifo -m 600 "$pipe" || exit 125
(sleep {COME_S} && echo "nobody came to this terminal within {COME_S} s" >&2 && kill $$) &
timer=$!
{{ read -r begun; kill "$timer"; read -r status; read -r end; }} < "$pipe" 2> /dev/null
exit "${{status:-129}}"
"""
#: The session: it runs the command, which does not have the pipe.
_SESSION = """
pipe=${MUSTER_METRICS%/*}/terminal
tries=0
while [ ! -p "$pipe" ] && [ $tries -lt 200 ]; do tries=$((tries + 1)); sleep 0.05; done
[ -p "$pipe" ] || exit 125
exec 3> "$pipe" || exit 125
echo begun >&3
trap : INT QUIT
"$@" 3>&-
status=$?
echo "$status" >&3
exit "$status"
"""


def job_command(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command of the job for a command with a terminal, which it names."""
    return ("sh", "-c", _JOB, "muster-terminal", *command)


def require_terminal(command: Sequence[str], *, pty: bool) -> None:
    """Exit if the command needs a terminal that it would not get."""
    if pty and not local_terminal.is_one():
        terminal.fail(
            "--pty needs a terminal here: input and output are not one. To fix: leave out --pty "
            "for a command that needs none",
            terminal.USAGE,
        )
    if not pty and len(command) == 1 and command[0].rpartition("/")[2] in SHELLS:
        terminal.fail(
            f"{command[0]} does nothing without input, which a job has not. Use: muster run --pty "
            f"-- {command[0]} (with a terminal), or muster run -- {command[0]} SCRIPT",
            terminal.USAGE,
        )


def attend(
    api: retries.Patient,
    plain: api_client.ApiClient,
    endpoint: endpoints.Endpoint,
    name: str,
    command: Sequence[str],
) -> int | None:
    """Run the command of a job with this terminal, once the job has started.

    Return its exit code; None if the job ended by something else.

    Raises:
        ImpossibleError: the command can't be run in it.
    """
    job = job_wait.wait_until(api, name, _is_ready, give_up=True, newer_than="")
    if job["state"] in job_wait.FINISHED:
        return None
    place = session_connection.SessionPlace(name)
    argv = ("sh", "-c", _SESSION, "muster-terminal", *command)
    wanted = remote_command.RemoteCommand(place, argv, has_terminal=True)
    try:
        code = remote_command.attend(plain, endpoint, wanted)
    except (api_client.ApiError, session_connection.StartRefusal) as error:
        raise job_wait.ImpossibleError(str(error)) from None
    if code == remote_command.LOST:
        return code
    job = job_wait.wait_until(api, name, lambda item: item["state"] in job_wait.FINISHED)
    return code if job["state"] in {"Succeeded", "Failed"} else None


def _is_ready(job: Json) -> bool:
    """Return True if a task of a job runs, or the job has ended."""
    runs = any(attempt["state"] == "Running" for attempt in job["attempts"])
    return runs or job["state"] in job_wait.FINISHED
