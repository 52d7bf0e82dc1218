"""What a shell gets for TAB, by the protocol of the library: the line in the environment."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from reconciler.operations.local import free_ports

JOBS = ("hello", "heat", "train")
LISTS = {"/v1/queues": ("research", "default"), "/v1/nodes": ("gpu001", "gpu002", "cpu001")}


class Lists(http.server.BaseHTTPRequestHandler):
    """Lists of names as a controller has them; only the list of jobs takes a prefix."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        prefix = parse_qs(parts.query).get("prefix", [""])[0]
        names = LISTS.get(parts.path) or [name for name in JOBS if name.startswith(prefix)]
        body = json.dumps({"items": [{"name": name} for name in names]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lists) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def asked(shell: str, words: list[str], url: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What the function that the shell has sourced would run."""
    line = "\n".join(words) if shell == "bash" else " ".join(words)
    given = {
        "_MUSTER_COMPLETE": f"complete_{shell}",
        "COMP_CWORD": str(len(words) - 1),
        ("COMP_WORDS" if shell == "bash" else "_TYPER_COMPLETE_ARGS"): line,
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    return subprocess.run(
        [str(Path(sys.executable).with_name("muster"))],
        env={**kept, **given, **({"MUSTER_SERVER": url} if url else {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("job h", ["hello", "heat"]),
        ("job ", ["hello", "heat", "train"]),
        ("logs -f t", ["train"]),
        ("cancel hello he", ["heat"]),
        ("jobs --queue res", ["research"]),
        ("run -q d", ["default"]),
        ("node gpu", ["gpu001", "gpu002"]),
        ("drain gpu001 gpu", ["gpu002"]),
        ("events --node c", ["cpu001"]),
        ("suspend q", ["queue/"]),
        ("suspend queue/r", ["queue/research"]),
        ("suspend job/h", ["job/hello", "job/heat"]),
        ("job x", []),
        ("expl", ["explain"]),
    ],
)
def test_bash_gets_names(url: str, tmp_path: Path, words: str, expected: list[str]) -> None:
    done = asked("bash", ["muster", *words.split(" ")], url, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == sorted(expected)


def test_zsh_gets_names(url: str, tmp_path: Path) -> None:
    done = asked("zsh", ["muster", "job", "h"], url, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"hello"' in done.stdout
    assert '"heat"' in done.stdout
    assert "train" not in done.stdout


def test_where_there_is_no_controller_nothing_is_said(tmp_path: Path) -> None:
    done = asked("bash", ["muster", "job", "h"], "", tmp_path)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
    gone = f"http://127.0.0.1:{free_ports.free_port()}"
    done = asked("bash", ["muster", "job", "h"], gone, tmp_path)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_a_controller_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = asked("bash", ["muster", "job", "h"], url, tmp_path)
        took_s = time.monotonic() - began
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
    assert took_s < 60  # an answer to any other command may take 90 s


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_set_up_for_the_shell_that_is_named(shell: str, tmp_path: Path) -> None:
    done = _named("--install-completion", shell, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"completion for {shell} is installed in {tmp_path}" in done.stderr
    assert any("muster" in one.name for one in tmp_path.rglob("*") if one.is_file())
    assert "_MUSTER_COMPLETE" in _named("--show-completion", shell, home=tmp_path).stdout


def test_a_shell_that_is_not_known_is_told_apart(tmp_path: Path) -> None:
    done = _named("--install-completion", "tcsh", home=tmp_path)
    assert done.returncode == 64
    assert 'found "tcsh", expected one of bash, zsh, fish' in done.stderr
    assert not list(tmp_path.iterdir())


def _named(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reconciler.cli.main", *words],
        env=os.environ | {"HOME": str(home), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
    )
