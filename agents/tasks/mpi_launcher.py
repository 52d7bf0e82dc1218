"""Lets ``mpirun`` in a gang's first task start its daemons on the other nodes, without ssh.

Runs as a script in isolated mode, with the standard library only: ``mpi_launcher.py ROLE
[COMMAND...]``. ``follow`` runs in all tasks but the first, and carries out the first one's requests
until it ends. ``lead`` runs in the first task: it waits for the others, then runs the job's
command. ``reach HOST COMMAND...`` replaces ssh for ``mpirun``.
"""

import codecs
import hmac
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

# Both sides of a connection must know the gang's secret, which is only in the environment of its
# tasks: another user of the node may have taken the port first. The secret itself is never sent.
# The follower proves that it knows it by a code over its address and two fresh nonces, and each
# order carries such a code: {"nonce": F}, {"nonce": D}, {"proof": ...}, {"order": TEXT, "proof":
# ...}. Messages are not encrypted. What a follower starts belongs to its own task and its control
# group, and ends with it.

#: How long the first task waits for the others.
READY_S = 600.0
#: Time for one try to reach another task, and for it to prove who it is.
DIAL_S = 10.0
#: Time for the other side to send an order and prove that it may.
ORDER_S = 30.0
LINE_BYTES_MAX = 2**20
CLIENTS_MAX = 256
#: Exit code of a task whose gang did not come together, or fell apart.
APART = 97


def secret() -> bytes:
    """Return the secret that only tasks of this gang know."""
    return os.environ["MUSTER_GANG_SECRET"].encode()


def proof(*words: str) -> str:
    """Return a code for some words that only an owner of the secret can make."""
    return hmac.new(secret(), json.dumps(words).encode(), "sha256").hexdigest()


def is_proof(shown: str, *words: str) -> bool:
    """Return True if a code for some words was made with the secret."""
    return hmac.compare_digest(shown.encode("utf-8", "surrogatepass"), proof(*words).encode())


def nonce() -> str:
    """Return words that were never used before."""
    return os.urandom(16).hex()


def helpers() -> list[tuple[str, int]]:
    """Return address and port of a follower on each other node, in the order of the nodes."""
    return [(host, int(port)) for host, port in json.loads(os.environ["MUSTER_GANG_HELPERS"])]


def say(text: str) -> None:
    """Write a line to the task's standard error."""
    sys.stderr.write(f"muster: {text}\n")
    sys.stderr.flush()


class LineConnection:
    """A connection that carries lines."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        #: What the proofs of this connection depend on: its address and both nonces.
        self.session: tuple[str, ...] = ()
        self._rest = b""
        self._ends_at: float | None = None

    def allow(self, limit_s: float | None) -> None:
        """Limit the time of all reads from now on together, unless the limit is None."""
        self._ends_at = None if limit_s is None else time.monotonic() + limit_s
        self.link.settimeout(limit_s)

    def _receive(self) -> bytes:
        if self._ends_at is not None:
            left_s = self._ends_at - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("it takes too long to say who it is")
            self.link.settimeout(left_s)
        return self.link.recv(65536)

    def read(self) -> bytes:
        """Return the next line without its end.

        Raises:
            ConnectionError: there are no more, or the line is too long.
            TimeoutError: it does not come in time.
        """
        parts, length = [self._rest], len(self._rest)
        while b"\n" not in parts[-1]:
            part = self._receive()
            if not part or length > LINE_BYTES_MAX:
                raise ConnectionError("the other side has gone")
            parts.append(part)
            length += len(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    def send(self, message: dict[str, object]) -> None:
        """Send a message as one line."""
        self.link.sendall(json.dumps(message).encode() + b"\n")

    def said(self, *names: str) -> list[str]:
        """Return fields of the next message.

        Raises:
            ConnectionError: there is no message, or it lacks these fields.
        """
        line = self.read()
        try:
            message = json.loads(line)
            return [str(message[name]) for name in names]
        except (ValueError, KeyError, TypeError, RecursionError):
            shown = line[:100].decode(errors="replace")
            raise ConnectionError(f"it says {shown}") from None

    def order(self, order: dict[str, object]) -> None:
        """Send an order to a follower that has proved who it is."""
        text = json.dumps(order)
        self.send({"order": text, "proof": proof("order", *self.session, text)})

    def meet(self, place: str) -> None:
        """Verify that the follower of a place answers, and nobody in its stead.

        Raises:
            ConnectionError: another process answers.
        """
        theirs, ours = *self.said("nonce"), nonce()
        self.session = (place, theirs, ours)
        self.send({"nonce": ours})
        (shown,) = self.said("proof")
        if not is_proof(shown, "follower", *self.session):
            raise ConnectionError(
                "another process listens there: it does not know this gang's secret"
            )


def dial(host: str, port: int, deadline: float) -> LineConnection:
    """Return a connection to a follower of this gang, retrying until the deadline."""
    while True:
        link = None
        try:
            link = socket.create_connection((host, port), DIAL_S)
            connection = LineConnection(link)
            connection.allow(DIAL_S)
            connection.meet(f"{host}:{port}")
            connection.allow(None)
        except OSError as error:
            problem = str(error)
        else:
            return connection
        if link is not None:
            link.close()
        if time.monotonic() > deadline:
            say(f"{host}:{port} does not answer as this gang does: {problem}")
            raise SystemExit(APART)
        time.sleep(0.2)


# The first task ----------------------------------------------------------------------------------


def lead(command: list[str]) -> int:
    """Run the job's command once all tasks are reachable. Return its status."""
    deadline = time.monotonic() + READY_S
    lines = []
    for host, port in helpers():
        lines.append(dial(host, port, deadline))
        lines[-1].order({"do": "wait"})
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)  # the whole group gets it; here it is waited for
    try:
        child = subprocess.Popen(command)
    except OSError as problem:
        say(f"command {command[0]}: {problem.strerror}")
        status = 127
    else:
        status = child.wait()
    for line in lines:
        try:
            line.send({"status": status})
            line.link.close()
        except OSError:
            pass  # it has ended already, and reports why itself
    return 128 - status if status < 0 else status


def reach(host: str, words: list[str]) -> int:
    """Run a command line on a host of the gang, like ``ssh HOST WORDS``. Return its status."""
    ports: dict[str, int] = {}
    for name, port in helpers():
        ports.setdefault(name, port)  # one follower per node is enough
    if host not in ports:
        say(f"{host} is not a host of this gang")
        return 255
    line = dial(host, ports[host], time.monotonic() + READY_S)
    line.order({"do": "run", "line": " ".join(words), "cwd": os.getcwd()})  # noqa: PTH109
    while True:
        try:
            message = json.loads(line.read())
        except OSError as problem:
            say(f"{host}: {problem}")
            return 255
        if "status" in message:
            return int(message["status"])
        stream = sys.stdout if message["stream"] == 1 else sys.stderr
        stream.write(message["text"])
        stream.flush()


# The others --------------------------------------------------------------------------------------


class Follower:
    """A server for the first task, until that task ends."""

    def __init__(self, address: str, port: int) -> None:
        self.listener = socket.create_server((address, port), backlog=CLIENTS_MAX)
        self.place = f"{address}:{port}"
        self.turns = threading.Semaphore(CLIENTS_MAX)

    def serve(self) -> int:
        """Accept connections for ever; the first task's connection ends this process."""
        while True:
            link, _ = self.listener.accept()
            self.turns.acquire()
            threading.Thread(target=self.attend, args=(link,), daemon=True).start()

    def attend(self, link: socket.socket) -> None:
        """Serve one connection."""
        try:
            with link:
                self.answer(link)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # it has gone, or does not speak this protocol
        finally:
            self.turns.release()

    def answer(self, link: socket.socket) -> None:
        """Verify that the other side belongs to the gang, and do what it asks."""
        line = LineConnection(link)
        line.allow(ORDER_S)
        ours = nonce()
        line.send({"nonce": ours})
        session = (self.place, ours, *line.said("nonce"))
        line.send({"proof": proof("follower", *session)})
        text, shown = line.said("order", "proof")
        if not is_proof(shown, "order", *session, text):
            return
        line.allow(None)
        order = json.loads(text)
        if order["do"] == "run":
            run(line, order)
            return
        try:
            line.read()
        except OSError:
            say("the first task of the gang has gone")
            os._exit(APART)
        os._exit(0)  # however it ended: that is its own to report


def run(line: LineConnection, order: dict[str, str]) -> None:
    """Run a command line for the first task, and send back its output and status."""
    child = subprocess.Popen(
        ["/bin/sh", "-c", order["line"]], cwd=order["cwd"] if os.path.isdir(order["cwd"]) else None,  # noqa: PTH112
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None  # noqa: S101 - asked for above
    assert child.stderr is not None  # noqa: S101 - asked for above
    link = line.link
    open_streams: dict[int, int] = {child.stdout.fileno(): 1, child.stderr.fileno(): 2}
    # a character may be split between two pieces
    texts = {handle: codecs.getincrementaldecoder("utf-8")("replace") for handle in open_streams}
    try:
        while open_streams:
            ready, _, _ = select.select([*open_streams, link.fileno()], [], [])
            if link.fileno() in ready and not link.recv(4096):
                break  # the requester is gone: nobody waits for it
            for handle in [stream for stream in ready if stream in open_streams]:
                data = os.read(handle, 65536)
                text = texts[handle].decode(data, final=not data)
                if text:
                    line.send({"stream": open_streams[handle], "text": text})
                if not data:
                    del open_streams[handle]
        if not open_streams:
            line.send({"status": child.wait()})
            return
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        child.stdout.close()
        child.stderr.close()


def main(words: list[str]) -> int:
    """Run the role that the arguments name. Return the exit status."""
    role, rest = words[0], words[1:]
    if role == "lead":
        return lead(rest)
    if role == "reach":
        while rest and rest[0].startswith("-"):
            del rest[: 2 if rest[0] in {"-l", "-p"} else 1]
        return reach(rest[0], rest[1:])
    address, port = os.environ["MUSTER_GANG_LISTEN"].rsplit(":", 1)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    return Follower(address, int(port)).serve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
