"""Lets ``mpirun`` of a gang's first task start its daemons on the other nodes, without ssh.

Run as a script, isolated, with the standard library only: ``launching.py ROLE [COMMAND...]``.

- ``follow`` is what all tasks but the first run: it listens on the gang's port of its node, and
  does what the first one asks for, until that one has ended.
- ``lead`` is what the first task runs: it waits until all the others are there, runs the job's
  command, and tells them to leave.
- ``reach HOST COMMAND...`` is what ``mpirun`` calls instead of ssh.

Whoever asks has to know the gang's secret, which stands in the environment of its tasks alone. What
is started so belongs to the task that started it, in its control group, and ends with it.
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

READY_S = 600.0
#: How long one try to reach another task may take.
DIAL_S = 10.0
LINE_BYTES_MAX = 2**20
CLIENTS_MAX = 256
#: What a task ends with whose gang could not be brought together, or fell apart.
APART = 97


def secret() -> bytes:
    """What the tasks of this gang know."""
    return os.environ["MUSTER_GANG_SECRET"].encode()


def helpers() -> list[tuple[str, int]]:
    """Where one follower of each other node listens, in the order of the nodes."""
    return [(host, int(port)) for host, port in json.loads(os.environ["MUSTER_GANG_HELPERS"])]


def say(text: str) -> None:
    """Tell whoever reads the task's errors."""
    sys.stderr.write(f"muster: {text}\n")
    sys.stderr.flush()


class Line:
    """A connection that is spoken over in lines; several may arrive as one."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._rest = b""

    def read(self) -> bytes:
        """The next line, without what ends it.

        Raises:
            ConnectionError: there is none any more, or it has no end.
        """
        parts, length = [self._rest], len(self._rest)
        while b"\n" not in parts[-1]:
            part = self.link.recv(65536)
            if not part or length > LINE_BYTES_MAX:
                raise ConnectionError("the other side has gone")
            parts.append(part)
            length += len(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    def send(self, message: dict[str, object]) -> None:
        """A message as one line."""
        self.link.sendall(json.dumps(message).encode() + b"\n")


def dial(host: str, port: int, deadline: float) -> Line:
    """A connection that has shown the secret; tried again until the deadline."""
    while True:
        link = None
        try:
            link = socket.create_connection((host, port), DIAL_S)
            made = Line(link)
            made.send({"secret": secret().decode()})
            answer = made.read()
            if answer == b'"welcome"':
                link.settimeout(None)
                return made
            problem = f"it says {answer[:100].decode(errors='replace')}"
        except OSError as error:
            problem = str(error)
        if link is not None:
            link.close()
        if time.monotonic() > deadline:
            say(f"{host}:{port} does not answer as this gang does: {problem}")
            raise SystemExit(APART)
        time.sleep(0.2)


# The first task ----------------------------------------------------------------------------------


def lead(command: list[str]) -> int:
    """Run the job's command when everyone is there; its status."""
    deadline = time.monotonic() + READY_S
    lines = [dial(host, port, deadline) for host, port in helpers()]
    for line in lines:
        line.send({"do": "wait"})
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
            pass  # it has left already, and says itself why
    return 128 - status if status < 0 else status


def reach(host: str, words: list[str]) -> int:
    """Run a command line at a host of the gang, as ``ssh HOST WORDS`` would; its status."""
    ports: dict[str, int] = {}
    for name, port in helpers():
        ports.setdefault(name, port)  # the first of a node is enough
    if host not in ports:
        say(f"{host} is not a host of this gang")
        return 255
    line = dial(host, ports[host], time.monotonic() + READY_S)
    line.send({"do": "run", "line": " ".join(words), "cwd": os.getcwd()})  # noqa: PTH109
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
    """Serves the first task until it ends."""

    def __init__(self, address: str, port: int) -> None:
        self.listener = socket.create_server((address, port), backlog=CLIENTS_MAX)
        self.turns = threading.Semaphore(CLIENTS_MAX)

    def serve(self) -> int:
        """Take connections for ever; the one of the first task ends this process."""
        while True:
            link, _ = self.listener.accept()
            self.turns.acquire()
            threading.Thread(target=self.attend, args=(link,), daemon=True).start()

    def attend(self, link: socket.socket) -> None:
        """One connection."""
        try:
            with link:
                self.answer(link)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # whoever it was has gone, or does not speak this
        finally:
            self.turns.release()

    def answer(self, link: socket.socket) -> None:
        """See that the other side belongs here, and do what it asks."""
        line = Line(link)
        link.settimeout(30.0)
        shown = str(json.loads(line.read())["secret"]).encode()
        if not hmac.compare_digest(shown, secret()):
            link.sendall(b'"no"\n')
            return
        link.sendall(b'"welcome"\n')
        link.settimeout(None)
        order = json.loads(line.read())
        if order["do"] == "run":
            run(line, order)
            return
        try:
            line.read()
        except OSError:
            say("the first task of the gang has gone")
            os._exit(APART)
        os._exit(0)  # however it ended: that is its own to report


def run(line: Line, order: dict[str, str]) -> None:
    """Run a command line for the first task: its output goes there, and its end."""
    child = subprocess.Popen(
        ["/bin/sh", "-c", order["line"]], cwd=order["cwd"] if os.path.isdir(order["cwd"]) else None,  # noqa: PTH112
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None  # noqa: S101 - asked for above
    assert child.stderr is not None  # noqa: S101 - asked for above
    link = line.link
    open_streams: dict[int, int] = {child.stdout.fileno(): 1, child.stderr.fileno(): 2}
    # a letter may be cut in two where a piece ends
    texts = {handle: codecs.getincrementaldecoder("utf-8")("replace") for handle in open_streams}
    try:
        while open_streams:
            ready, _, _ = select.select([*open_streams, link.fileno()], [], [])
            if link.fileno() in ready and not link.recv(4096):
                break  # who asked is gone: nobody waits for it
            for handle in [one for one in ready if one in open_streams]:
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
    """See the module's first paragraphs."""
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
