"""Jupyter in a job: the job's command, where it listens, and the page that opens it. Pure.

The token is made on the node, in a file of the task that its user alone reads. It comes here
through a session, and is in no argument, no log and no document of the job.
"""

import html
import urllib.parse

import msgspec

from reconciler.model.values import addresses, found_values

#: How long Jupyter may take to listen: a large environment on a file server needs its time.
LISTEN_S = 300
#: Exit codes of the look: it does not listen yet after that time, and the job is none of these.
LATE, NOT_ONE = 124, 3
#: The most that a task may say of its server.
INFO_BYTES_MAX = 2**16
_FOLDER = "folder=${MUSTER_METRICS%/*}/notebook"
_JOB = f"""
mask=$(umask)
umask 077
{_FOLDER}
mkdir "$folder" || exit 125
od -An -v -N32 -tx1 /dev/urandom | tr -d ' \\n' > "$folder/token" || exit 125
unset JUPYTER_TOKEN
export JUPYTER_TOKEN_FILE="$folder/token" JUPYTER_RUNTIME_DIR="$folder"
umask "$mask"
[ "$(id -u)" != 0 ] || set -- --allow-root "$@"
for program in jupyter-lab jupyter-notebook; do
  if command -v "$program" > /dev/null; then
    exec "$program" --no-browser --ip=127.0.0.1 --port=0 "$@"
  fi
done
echo "no jupyter-lab and no jupyter-notebook is in PATH of this job, which is $PATH. To fix: \
pip install jupyterlab in the Python environment that is active where you type muster notebook, \
or name what has it: --module, --image or --env PATH=..." >&2
exit 127
"""
_LOOK = f"""
{_FOLDER}
tries=0
while [ $tries -lt {5 * LISTEN_S} ]; do
  for found in "$folder"/jpserver-*.json "$folder"/nbserver-*.json; do
    [ ! -s "$found" ] || exec cat "$found"
  done
  tries=$((tries + 1))
  [ -d "$folder" ] || [ $tries -lt 50 ] || exit {NOT_ONE}
  sleep 0.2
done
exit {LATE}
"""
LOOK = ("sh", "-c", _LOOK, "muster-notebook")


class NotebookError(Exception):
    """Error: what a task says of its server is no server that can be opened."""


class NotebookServer(msgspec.Struct, frozen=True):
    """A server that listens, as Jupyter itself writes it down.

    Attributes:
        port: on loopback of the task.
        base_url: path below which it answers. token: lets a browser in; empty: it asks for more.
        secure: True if it speaks TLS.
    """

    port: int
    base_url: str = "/"
    token: str = ""
    secure: bool = False


def job_command(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command of a job that runs Jupyter with some options of its own."""
    return ("sh", "-c", _JOB, "muster-notebook", *options)


def secret_option(options: tuple[str, ...]) -> str:
    """Return the first option that would put a secret into the job's document; empty: none."""
    names = (one.partition("=")[0] for one in options if one.startswith("-"))
    return next((one for one in names if "token" in one.lower() or "password" in one.lower()), "")


def read(said: bytes) -> NotebookServer:
    """Return the server that a task says it has.

    Raises:
        NotebookError: it says something else.
    """
    try:
        found = msgspec.json.decode(said, type=NotebookServer)
    except msgspec.MsgspecError as error:
        raise NotebookError(f"what the job says of its server can't be read: {error}") from None
    if not 0 < found.port <= addresses.PORT_MAX:
        raise NotebookError(f"found the port {found.port}, expected one that is listened on")
    if not found.base_url.startswith("/") or found.base_url.startswith("//"):
        shown = found_values.quote(found.base_url)
        raise NotebookError(f"found {shown} as the path of the server, expected one such as /")
    return found


def url(server: NotebookServer, port: int) -> str:
    """Return what opens a server by a port of this machine, with its token."""
    scheme = "https" if server.secure else "http"
    path = urllib.parse.quote(server.base_url, safe="/%")
    token = f"?token={urllib.parse.quote(server.token, safe='')}" if server.token else ""
    return f"{scheme}://127.0.0.1:{port}{path}{token}"


def page(address: str) -> str:
    """Return a page that goes on to an address, so that no program gets it as an argument."""
    shown = html.escape(address, quote=True)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Jupyter</title>\n'
        '<meta name="referrer" content="no-referrer">\n'
        f'<meta http-equiv="refresh" content="0; url={shown}"></head>\n'
        f'<body><p><a href="{shown}">Open Jupyter</a></p></body></html>\n'
    )
