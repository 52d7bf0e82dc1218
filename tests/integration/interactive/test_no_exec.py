"""A node whose agent was started with --no-exec runs nothing of people, and all else as ever."""

import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from reconciler.operations.local import free_ports
from tests.integration import beds
from tests.integration.interactive import people

PORT = free_ports.free_port()
SERVER = f"""\
  command: [python3, -m, http.server, --bind, 127.0.0.1, '{PORT}']
  resources: {{cpu: 1, memory: 256Mi}}
"""
REASON = b"its agent was started with --no-exec"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    """A task that was there before its agent was started again, with --no-exec."""
    with beds.Bed(tmp_path_factory.mktemp("no-exec"), nodes=1) as made:
        made.commit({"jobs/web.yaml": beds.job("web", SERVER)})
        made.until_state("web", "Running")
        nodes = made.cluster.nodes
        assert nodes is not None
        nodes.options = msgspec.structs.replace(nodes.options, more=("--no-exec",))
        (name,) = nodes.names()
        nodes.kill_agent(name)
        nodes.start(name)
        refused = ["exec", "web", "--", "true"]
        made.until(lambda: REASON in people.muster(made, *refused).stderr, 60)
        yield made


def test_commands_and_copies_are_refused(bed: beds.Bed, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("x")
    for words in (
        ["exec", "web", "--", "touch", "been-here"],
        ["exec", "web", "--pty", "--", "touch", "been-here"],
        ["cp", str(tmp_path / "here"), "web:been-here"],
        ["cp", "web:.", str(tmp_path)],
    ):
        done = people.muster(bed, *words)
        assert REASON in done.stderr, words
        assert done.returncode == 125 if words[0] == "exec" else 1, words
    assert not list(bed.folder.glob("**/been-here"))
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_ports_are_refused(bed: beds.Bed) -> None:
    here = free_ports.free_port()
    with people.forwarded(bed, "web", f"{here}:{PORT}") as forward:
        with socket.create_connection(("127.0.0.1", here), 30) as link:
            link.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert link.recv(100) == b""
        assert forward.stderr is not None
        assert REASON.decode() in forward.stderr.readline()


def test_a_job_with_a_terminal_says_why_it_can_t_have_one(bed: beds.Bed) -> None:
    with people.Person(bed, "run", "--pty", "--name", "shell", "--", "true") as person:
        assert person.leaves() == 125
        assert REASON in b" ".join(person.seen.split())
    bed.until_state("shell", "Cancelled")


def test_all_else_is_as_ever(bed: beds.Bed) -> None:
    done = people.muster(bed, "run", "--name", "plain", "--", "echo", "said")
    assert (done.returncode, done.stdout) == (0, b"said\n")
    assert people.muster(bed, "attach", "plain").stdout == b"said\n"
    assert people.muster(bed, "logs", "plain").stdout.endswith(b"said\n")
    with socket.create_connection(("127.0.0.1", PORT), 30):
        assert bed.job("web")["state"] == "Running"
