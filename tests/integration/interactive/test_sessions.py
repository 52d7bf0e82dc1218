"""Commands, terminals, ports and files in tasks that run, over a real controller and agent."""

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import termios
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import websockets
from websockets.asyncio.client import connect

from reconciler.operations.client import api_client
from reconciler.operations.local import free_ports
from tests.integration import beds
from tests.integration.interactive import people

SERVER = """\
  command: [python3, -m, http.server, --bind, 127.0.0.1, '{port}']
  resources: {{cpu: 1, memory: 256Mi}}
"""
SLEEPER = "  command: [sleep, '600']\n  resources: {cpu: 1, memory: 256Mi}"
PORT = free_ports.free_port()


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path_factory.mktemp("sessions"), nodes=1, cpus=8) as made:
        made.commit(
            {
                "jobs/web.yaml": beds.job("web", SERVER.format(port=PORT)),
                "jobs/sleeper.yaml": beds.job("sleeper", SLEEPER),
            }
        )
        made.until_state("web", "Running")
        made.until_state("sleeper", "Running")
        yield made


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0), ("kill -TERM $$", 143)]
)
def test_the_exit_code_is_the_commands(bed: beds.Bed, script: str, code: int) -> None:
    assert people.muster(bed, "exec", "sleeper", "--", "sh", "-c", script).returncode == code


def test_output_errors_and_input_are_passed_on(bed: beds.Bed) -> None:
    done = people.muster(
        bed, "exec", "sleeper", "--", "sh", "-c", "cat; echo oops >&2", given=b"typed\0in\n"
    )
    assert done.stdout == b"typed\0in\n"
    assert done.stderr == b"oops\n"


def test_much_output_arrives_whole(bed: beds.Bed) -> None:
    done = people.muster(bed, "exec", "sleeper", "--", "head", "-c", "30000000", "/dev/zero")
    assert hashlib.sha256(done.stdout).hexdigest() == hashlib.sha256(bytes(30_000_000)).hexdigest()


def test_a_command_is_in_the_folder_the_group_and_the_environment_of_its_task(
    bed: beds.Bed,
) -> None:
    script = "pwd; echo $MUSTER_JOB $MUSTER_SESSION; cat /proc/self/oom_score_adj /proc/self/cgroup"
    done = people.muster(bed, "exec", "sleeper", "--", "sh", "-c", script)
    (attempt,) = bed.job("sleeper")["attempts"]
    folder, words, score, *groups = done.stdout.decode().splitlines()
    assert folder.endswith(f"/attempts/{attempt['id']}/work")
    job, session = words.split()
    assert job == "sleeper"
    assert score == "1000"
    if any("/run/" in group for group in groups):  # the machine has control groups
        assert any(group.endswith(f"{attempt['id']}/session-{session}") for group in groups)


def test_a_command_that_is_not_there_is_said_to_be(bed: beds.Bed) -> None:
    done = people.muster(bed, "exec", "sleeper", "--", "no-such-program")
    assert done.returncode == 127
    assert b"'no-such-program' was not found in PATH" in done.stderr


def test_a_job_that_does_not_run_has_no_sessions(bed: beds.Bed) -> None:
    bed.commit({"jobs/over.yaml": beds.job("over", "  command: ['true']")})
    bed.until_state("over", "Succeeded")
    done = people.muster(bed, "exec", "over", "--", "true")
    assert done.returncode == 125
    assert b"nothing of job over runs that could be entered: it is Succeeded" in done.stderr
    assert b"muster rerun over" in done.stderr
    assert b"--until started" not in done.stderr, "it never starts any more"
    copied = people.muster(bed, "cp", "over:there", "here")
    assert copied.returncode == 125
    assert b"it is Succeeded" in copied.stderr
    done = people.muster(bed, "forward", "over", str(PORT))
    assert done.returncode == 125
    assert b"job over has ended (Succeeded)" in done.stderr
    assert b"reaches port" not in done.stderr
    for words in (["exec", "none", "--", "true"], ["attach", "none"], ["forward", "none", "80"]):
        none = people.muster(bed, *words)
        assert none.returncode == 125, none
        assert b"there is no Job/none" in none.stderr


def test_a_forward_ends_at_the_first_connection_after_its_job(bed: beds.Bed) -> None:
    bed.commit({"jobs/brief.yaml": beds.job("brief", SLEEPER)})
    bed.until_state("brief", "Running")
    here = free_ports.free_port()
    with people.forwarded(bed, "brief", f"{here}:{PORT}") as forward:
        bed.commit({"jobs/brief.yaml": None})
        bed.until_state("brief", "Cancelled")
        with socket.create_connection(("127.0.0.1", here)) as link:
            assert link.recv(1) == b""
        assert forward.wait(people.DEADLINE_S) == 125
        assert forward.stderr is not None
        assert "job brief has ended (Cancelled)" in forward.stderr.read()


def test_a_terminal_has_size_keys_and_an_end(bed: beds.Bed) -> None:
    with people.Person(bed, "exec", "sleeper", "--", "sh", rows=33, columns=111) as person:
        person.type("stty size; tty; echo $TERM\r")
        shown = person.sees("xterm")
        assert "33 111" in shown
        assert "/dev/pts/" in shown
        person.type("PS1='rea''dy> '\r")
        person.sees("ready> ")
        person.resize(44, 99)
        person.type("until stty size | grep '44 9[9]'; do sleep 0.1; done\r")
        person.sees("44 99\r\n")  # what is typed is no such text, and the prompt may come before
        # Ctrl-C ends what runs in the foreground, not the session
        person.type("echo be''gun; cat; echo ended $?\r")  # what is typed is shown as well
        person.sees("begun\r\n")
        person.type("typed\r")
        person.sees("typed\r\ntyped\r\n")
        person.type("\x03")
        person.sees("^C")
        person.sees("ready> ")  # until then what is typed may go to what is being interrupted
        person.type("echo still he''re\r")
        person.sees("still here\r\n")
        person.type("exit 3\r")
        assert person.leaves() == 3


def test_the_local_terminal_is_as_before_afterwards(bed: beds.Bed) -> None:
    with people.Person(bed, "exec", "sleeper", "--", "sh", "-c", "echo there; read x") as person:
        person.sees("there")
        during = termios.tcgetattr(person.terminal)
        assert not during[3] & termios.ICANON
        person.type("\r")
        assert person.leaves() == 0
        assert termios.tcgetattr(person.terminal) == person.before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_client_that_goes(bed: beds.Bed, number: int) -> None:
    mark = f"31{number}.25"
    script = f"t=31{number}; trap '' HUP TERM; (setsid nohup sleep $t.25 &) ; sleep $t.25"
    with people.Person(bed, "exec", "sleeper", "--", "sh", "-c", script) as person:
        people.until(lambda: len(people.marked(mark)) >= 2, "the command")
        os.kill(person.pid, number)
        people.until(lambda: not people.marked(mark), "its end")


def test_nothing_is_left_of_a_command_in_the_background(bed: beds.Bed) -> None:
    mark = "3191.75"
    script = "t=3191; setsid nohup sleep $t.75 > /dev/null 2>&1 & sleep 0.1; echo $!"
    done = people.muster(bed, "exec", "sleeper", "--", "sh", "-c", script)
    assert int(done.stdout)
    people.until(lambda: not people.marked(mark), "the end of what it left")


@pytest.mark.parametrize("process", ["agents.interactive.session_server", "agents"])
def test_nothing_is_left_of_an_agent_that_dies(bed: beds.Bed, process: str) -> None:
    mark = f"32{len(process)}.5"
    script = f"t=32{len(process)}; exec sleep $t.5"
    with people.Person(bed, "exec", "sleeper", "--", "sh", "-c", script) as person:
        people.until(lambda: people.marked(mark), "the command")
        (mine,) = [pid for pid in people.marked(process) if _is_of(pid, bed)]
        os.kill(mine, signal.SIGKILL)
        assert person.leaves() == 255
        people.until(lambda: not people.marked(mark), "the end of its command")
    again = ["exec", "sleeper", "--", "true"]

    def is_served() -> bool:
        return people.muster(bed, *again).returncode == 0

    bed.cluster.keep(is_served, lambda _: None)


def test_nothing_is_left_of_a_relay_that_dies(bed: beds.Bed) -> None:
    mark = "3202.125"
    script = "t=3202; exec sleep $t.125"
    with people.Person(bed, "exec", "sleeper", "--", "sh", "-c", script) as person:
        people.until(lambda: people.marked(mark), "the command")
        for pid in people.marked("reconciler.server.relay"):
            if _is_of(pid, bed):
                os.kill(pid, signal.SIGKILL)
        assert person.leaves() == 255
        people.until(lambda: not people.marked(mark), "the end of its command")
    again = ["exec", "sleeper", "--", "true"]
    bed.until(lambda: people.muster(bed, *again).returncode == 0)


def test_a_session_ends_with_its_task(bed: beds.Bed) -> None:
    bed.commit({"jobs/short.yaml": beds.job("short", SLEEPER)})
    pid = bed.process("short")
    with people.Person(
        bed, "exec", "short", "--", "sh", "-c", "echo in; t=32; sleep ${t}03.5"
    ) as person:
        person.sees("in")
        os.kill(pid, signal.SIGKILL)
        assert person.leaves() == 137
    people.until(lambda: not people.marked("3203.5"), "the end of its command")


def _is_of(pid: int, bed: beds.Bed) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return any(word.startswith(str(bed.folder)) for word in words)


# Ports --------------------------------------------------------------------------------------------


def test_a_forward_reaches_a_port_of_the_task(bed: beds.Bed) -> None:
    here = free_ports.free_port()
    with people.forwarded(bed, "web", f"{here}:{PORT}"):
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{here}/", timeout=30) as answer:
                assert b"Directory listing" in answer.read()


def test_a_forward_ends_in_silence_while_something_is_connected(bed: beds.Bed) -> None:
    here = free_ports.free_port()
    with (
        people.forwarded(bed, "web", f"{here}:{PORT}") as forward,
        socket.create_connection(("127.0.0.1", here), 30) as link,
    ):
        link.sendall(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert link.recv(100)
        forward.send_signal(signal.SIGINT)
        assert forward.stderr is not None
        assert forward.stderr.read() == ""
        assert forward.wait(30) == 0


def test_a_forward_may_be_a_socket_of_ones_own(bed: beds.Bed, tmp_path: Path) -> None:
    path = tmp_path / "web.sock"
    with people.forwarded(bed, "web", str(PORT), "--socket", str(path)):
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(path))
            link.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with link.makefile("rb") as answer:
                assert b"Directory listing" in answer.read()
    assert not path.exists()


def test_a_port_of_somebody_else_is_none_of_the_tasks(bed: beds.Bed) -> None:
    done = _of_port(bed, "sleeper", PORT)
    assert f"nothing of this task listens on port {PORT} of loopback" in done


def _of_port(bed: beds.Bed, job: str, port: int) -> str:
    """What the node says to a connection to a port."""
    assert bed.api is not None
    granted = bed.api.post(f"/v1/jobs/{job}/sessions", {"kind": "forward", "port": port})

    async def ask() -> str:
        async with connect(
            f"ws://127.0.0.1:{granted['port']}{granted['path']}",
            additional_headers={"Authorization": f"Bearer {granted['ticket']}"},
            subprotocols=[websockets.Subprotocol(granted["subprotocol"])],
            proxy=None,
        ) as relay:
            return str(await relay.recv())

    return asyncio.run(ask())


# Tickets ------------------------------------------------------------------------------------------


def _status(bed: beds.Bed, ticket: str, granted: beds.Json, **headers: str) -> int:
    async def ask() -> int:
        try:
            async with connect(
                f"ws://127.0.0.1:{granted['port']}{granted['path']}",
                additional_headers={"Authorization": f"Bearer {ticket}", **headers},
                subprotocols=[websockets.Subprotocol(granted["subprotocol"])],
                proxy=None,
            ):
                return 101
        except websockets.InvalidStatus as error:
            return error.response.status_code

    return asyncio.run(ask())


def test_a_ticket_counts_once_and_for_no_page(bed: beds.Bed) -> None:
    assert bed.api is not None
    body = {"kind": "exec", "argv": ["true"]}
    granted = bed.api.post("/v1/jobs/sleeper/sessions", body)
    ticket = granted["ticket"]
    assert _status(bed, "guessed", granted) == 401
    assert _status(bed, ticket, granted, Origin="http://127.0.0.1") == 403
    assert _status(bed, ticket, granted) == 101
    assert _status(bed, ticket, granted) == 401


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "exec"},
        {"kind": "exec", "argv": []},
        {"kind": "exec", "argv": ["a\0b"]},
        {"kind": "exec", "argv": ["true"], "port": 80},
        {"kind": "forward", "port": 0},
        {"kind": "forward", "port": 70_000},
        {"kind": "root", "argv": ["true"]},
        {"kind": "exec", "argv": ["true"], "term": "x;y"},
    ],
)
def test_what_no_session_can_be_is_refused(bed: beds.Bed, body: beds.Json) -> None:
    assert bed.api is not None
    with pytest.raises(api_client.ApiError) as refused:
        bed.api.post("/v1/jobs/sleeper/sessions", body)
    assert refused.value.status == 400


def test_beginning_and_end_are_written_down_without_secrets(bed: beds.Bed) -> None:
    people.muster(bed, "exec", "sleeper", "--", "true", "--password", "hunter2", "KEY=hunter2")

    def told() -> bool:
        log = (bed.cluster.state / "access.jsonl").read_text()
        return "SessionEnded" in log and "true --password *** KEY=***" in log

    bed.until(told)
    assert "hunter2" not in (bed.cluster.state / "access.jsonl").read_text()


# Files --------------------------------------------------------------------------------------------


def test_files_are_copied_both_ways(bed: beds.Bed, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below/data").write_bytes(os.urandom(3_000_000))
    (tree / "run.sh").write_text("#!/bin/sh\n")
    (tree / "run.sh").chmod(0o755)
    up = people.muster(bed, "cp", str(tree), "sleeper:copied")
    assert up.returncode == 0, up.stderr
    again = people.muster(bed, "cp", str(tree / "run.sh"), "sleeper:copied/below")
    assert again.returncode == 0, again.stderr
    down = people.muster(bed, "cp", "sleeper:copied", "back", folder=tmp_path)
    assert down.returncode == 0, down.stderr
    assert (tmp_path / "back/below/data").read_bytes() == (tree / "below/data").read_bytes()
    assert (tmp_path / "back/run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "back/below/run.sh").is_file()


def test_what_is_not_there_is_not_copied(bed: beds.Bed, tmp_path: Path) -> None:
    down = people.muster(bed, "cp", "sleeper:nothing", "back", folder=tmp_path)
    assert down.returncode == 1
    assert down.stderr.decode() == (
        "muster: sleeper:nothing: there is no such file or folder. To fix: see what is there "
        "(muster exec sleeper -- ls -la .)\n"
    )
    assert not (tmp_path / "back").exists()
    up = people.muster(bed, "cp", str(tmp_path / "nothing"), "sleeper:there")
    assert up.returncode == 1
    assert b"there is no such file" in up.stderr
    (tmp_path / "here").touch()
    up = people.muster(bed, "cp", str(tmp_path / "here"), "sleeper:/etc/hostname/there")
    assert up.stderr.startswith(b"muster: sleeper:/etc/hostname: a part of the path is a file")
    up = people.muster(bed, "cp", str(tmp_path / "here"), "sleeper:no/such/folder/there")
    assert up.returncode == 1
    assert up.stderr.decode() == (
        "muster: sleeper:no/such/folder: there is no such file or folder. To fix: see what is "
        "there (muster exec sleeper -- ls -la no/such)\n"
    )


# Runs ---------------------------------------------------------------------------------------------


def test_a_run_with_a_terminal_ends_as_its_command(bed: beds.Bed) -> None:
    words = ["run", "--pty", "--name", "shell", "--cpus", "1", "--clone", str(bed.clone)]
    with people.Person(bed, *words, "--", "sh") as person:
        person.sees("submitted shell")
        person.type("echo in $MUSTER_JOB\r")
        person.sees("in shell\r\n")
        person.type("exit 5\r")
        assert person.leaves() == 5
    assert bed.job("shell")["state"] == "Failed"
    (attempt,) = bed.job("shell")["attempts"]
    assert attempt["exitCode"] == 5


def test_a_run_whose_terminal_goes_ends(bed: beds.Bed) -> None:
    words = ["run", "--pty", "--name", "left", "--cpus", "1", "--clone", str(bed.clone)]
    with people.Person(bed, *words, "--", "sh") as person:
        person.sees("submitted left")
        person.type("echo in $MUSTER_JOB\r")
        person.sees("in left\r\n")
        os.kill(person.pid, signal.SIGKILL)
        bed.until_state("left", "Failed")
    (attempt,) = bed.job("left")["attempts"]
    assert attempt["exitCode"] == 129


@pytest.mark.parametrize("hears", [True, False])
def test_what_a_terminal_had_ends_with_it(bed: beds.Bed, hears: bool) -> None:
    name = f"closed-{hears}".lower()
    words = ["run", "--pty", "--name", name, "--cpus", "1", "--clone", str(bed.clone)]
    with people.Person(bed, *words, "--", "sh", hears=hears) as person:
        person.sees(f"submitted {name}")
        person.type("echo in $MUSTER_JOB\r")
        person.sees(f"in {name}\r\n")
        assert person.close() == 128 + signal.SIGHUP
    bed.until_state(name, "Failed", "Cancelled")
    with people.Person(bed, "exec", "sleeper", "--", "sh", hears=hears) as one:
        one.type(f"echo $((40 + 2)); exec sleep 4711.{hears:d}\r")
        one.sees("42\r\n")
        assert one.close() == 128 + signal.SIGHUP
    people.until(lambda: not people.marked(f"4711.{hears:d}"), "its end")


@pytest.mark.parametrize("hears", [True, False])
def test_a_terminal_may_close_while_something_is_shown(bed: beds.Bed, hears: bool) -> None:
    with people.Person(bed, "exec", "--pty", "sleeper", "--", "yes", hears=hears) as person:
        person.sees("y\r\n")
        assert person.close() == 128 + signal.SIGHUP


def test_a_reader_that_leaves_is_no_fault_of_the_relay(bed: beds.Bed) -> None:
    command = [*people.MUSTER, "exec", "sleeper", "--", "seq", "1", "1000000"]
    process = subprocess.Popen(
        command, env=bed.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"1\n"
    process.stdout.close()
    assert process.wait(people.DEADLINE_S) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_shell_without_a_terminal_is_told_what_to_do(bed: beds.Bed) -> None:
    done = people.muster(bed, "run", "--", "bash")
    assert done.returncode == 64
    assert b"muster run --pty -- bash" in done.stderr
    done = people.muster(bed, "run", "--pty", "--", "bash")
    assert done.returncode == 64
    assert b"--pty needs a terminal here" in done.stderr


def test_attach_shows_a_job_to_its_end(bed: beds.Bed) -> None:
    bed.commit({"jobs/talk.yaml": beds.job("talk", "  command: [sh, -c, 'echo said; exit 4']")})
    bed.until_state("talk", "Failed")
    done = people.muster(bed, "attach", "talk")
    assert done.returncode == 4
    assert done.stdout == b"said\n"
