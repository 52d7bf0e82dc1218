"""No command lets what others have written control a terminal, or look like words of its own."""

import os
import pty
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator

import pytest

from reconciler.cli import main
from tests.integration import beds

#: Clears the screen, sets the title, C1, turns the direction of text, goes back to the beginning of
#: the line; then a line of its own.
EVIL = "\x1b[2J\x1b]0;t\x07\x9b31m\u202e\u2066\u061c\u2028\rwell\nForged    all is well"
#: The same within double quotes of YAML and of a shell's printf.
IN_YAML = EVIL.encode("unicode_escape").decode().replace("\\u061c", "\\u061C")
#: What git and file names take: no end of line.
IN_GIT = EVIL.replace("\n", " ").replace("\u2028", "")
DOCUMENTS = {
    "policy.yaml": f"""\
apiVersion: muster/v1
kind: Policy
metadata: {{name: owned}}
spec:
  match: {{kinds: [Job]}}
  schema: {{properties: {{spec: {{required: [owner]}}}}}}
  message: "say whose it is {IN_YAML}"
  waivers:
    - {{object: Job/waived, reason: "moving {IN_YAML}", expires: "2090-01-01T00:00:00Z"}}
""",
    "refused.yaml": beds.job("refused", f'  command: [echo, "{IN_YAML}"]'),
    "waived.yaml": beds.job(
        "waived", f'  command: [sh, -c, "exit 3", "{IN_YAML}"]\n  resources: {{cpu: 1}}'
    ),
    "waits.yaml": beds.job(
        "waits", '  command: ["true"]\n  owner: a@x.org\n  resources: {cpu: 64, memory: 16Mi}'
    ),
    f"odd {IN_GIT.replace('/', '')}.yaml": f'"kind{IN_YAML}": 1\n',
}
RUNS = beds.job(
    "runs",
    """\
  owner: a@x.org
  resources: {cpu: 1, memory: 16Mi}
  script: |
    echo "$WORDS" >> "$MUSTER_METRICS"
    echo "$WORDS"
    echo "$WORDS" >&2
    exit 3
  environment: {WORDS: "nonsense EVIL"}""",
).replace("EVIL", IN_YAML)
CALLS = {
    "jobs": [["jobs"], ["jobs", "-o", "wide"], ["jobs", "-o", "json"], ["jobs", "-o", "yaml"]],
    "job": [["job", "runs"], ["job", "waived"], ["job", "runs", "-o", "yaml"]],
    "explain": [["explain", "runs"], ["explain", "waits"], ["explain", "refused"]],
    "events": [["events"], ["events", "-o", "json"], ["events", "--job", f"x{EVIL}"]],
    "history": [["history"], ["history", "-o", "yaml"]],
    "audit": [["audit"], ["audit", "-o", "json"], ["audit", "access"], ["audit", "export"]],
    "status": [["status"], ["status", "-o", "yaml"]],
    "nodes": [["nodes"], ["nodes", "-o", "wide"]],
    "node": [["node", "virtual-0"], ["node", f"x{EVIL}"]],
    "queues": [["queues"]],
    "quotas": [["quotas"], ["quotas", f"x{EVIL}"]],
    "drift": [["drift"], ["drift", "-o", "yaml"]],
    "overrides": [["overrides"], ["overrides", "-o", "yaml"]],
    "top": [["top", "--once"], ["top", "-o", "yaml"]],
    "report": [["report", "usage"], ["report", "usage", "--by", "user", "-o", "csv"]],
    "accounting": [["accounting", f"no/{EVIL}/x"], ["accounting", "--from", f"x{EVIL}", "x"]],
    "plot": [["plot", "runs"], ["plot", "runs", "--metric", f"x{EVIL}"]],
    "exec": [["exec", f"x{EVIL}", "--", "true"], ["exec", "runs", "-t", f"x{EVIL}", "--", "true"]],
    "attach": [["attach", f"x{EVIL}"]],
    "notebook": [["notebook", f"x{EVIL}"], ["notebook", "runs", "--port", f"x{EVIL}"]],
    "forward": [["forward", "runs", f"x{EVIL}"]],
    "cp": [["cp", f"x{EVIL}:a", "b"], ["cp", f"no/{EVIL}", f"x{EVIL}"]],
    "wait": [["wait", "runs"], ["wait", f"x{EVIL}"]],
    "validate": [["validate", "."], ["validate", ".", "-o", "json"]],
    "plan": [["plan", "--repo", "."], ["plan", "--repo", ".", "-o", "markdown"], ["plan", EVIL]],
    "export": [["export"]],
    "access": [["access", "can", f"x{EVIL}", "submit", "job/runs"]],
    "schema": [["schema", f"x{EVIL}"]],
    "approve": [["approve", f"x{EVIL}"]],
    "adopt": [["adopt"], ["adopt", "-o", "json"]],
    "prune": [["prune", "--dry-run"]],
    "rollback": [["rollback", "HEAD~1", "--clone", ".", "--dry-run"]],
    "snapshot": [["snapshot", f"no/{EVIL}"]],
    "scenario": [["scenario", f"no/{EVIL}"]],
    "simulate": [["simulate", f"no/{EVIL}"]],
    "backup": [["backup", "x", "--store", f"sqlite:///no/{EVIL}"]],
    "restore": [["restore", f"no/{EVIL}"]],
    "token": [["token", "list", "--file", f"no/{EVIL}"], ["token", f"x{EVIL}"]],
    "ca": [["ca", "issue", f"no/{EVIL}"]],
    "init": [["init", f"no/{EVIL}/x"]],
    "logs": [["logs", f"x{EVIL}"], ["logs", "runs", "--task", f"x{EVIL}"]],
    "submit": [["submit", f"no/{EVIL}.yaml"], ["submit", "waived.yaml", "--dry-run"]],
    "drain": [["drain", f"x{EVIL}"]],
    "undrain": [["undrain", f"x{EVIL}"]],
    "cancel": [["cancel", f"x{EVIL}"], ["cancel", "refused", "--clone", ".", "--dry-run"]],
    "hold": [["hold", f"x{EVIL}"]],
    "release": [["release", f"x{EVIL}"]],
    "rerun": [["rerun", f"x{EVIL}"]],
    "suspend": [["suspend", f"x{EVIL}"]],
    "resume": [["resume", f"x{EVIL}"]],
    "run": [["run", "--queue", f"x{EVIL}", "--", "true"]],
    "demo": [["demo", f"x{EVIL}"]],
    "login": [["login", f"x{EVIL}"], ["login", "http://127.0.0.1:9", "--token-file", f"x{EVIL}"]],
    "logout": [["logout"]],
    "whoami": [["whoami"]],
    "notify": [
        ["notify", "list"],
        ["notify", "add", f"x{EVIL}", "--webhook", f"https://x.org/{EVIL}"],
        ["notify", "add", "me", "--email", "--when", f"x{EVIL}"],
        ["notify", "remove", f"x{EVIL}"],
        ["notify", "test", f"x{EVIL}"],
    ],
    "doctor": [["doctor"], ["doctor", "-o", "json"]],
    "version": [["version", f"x{EVIL}"]],
    "up": [["up", f"x{EVIL}"]],
    # that of their programs is tested there
    "controller": [["controller", f"x{EVIL}"]],
    "agent": [["agent", f"--x{EVIL}"]],
}
#: What commands write to a terminal by themselves: colours, and ends of lines.
_OWN = re.compile(r"\x1b\[[0-9;]*m|\r\n")


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path_factory.mktemp("words"), nodes=1) as made:
        made.git("config", "core.quotePath", "false", folder=made.clone)
        made.commit({"runs.yaml": RUNS})
        made.until_state("runs", "Failed")
        made.commit(dict(DOCUMENTS), f"bad {IN_GIT}")
        made.git(
            *("-c", f"user.name=Ada {IN_GIT}", "commit", "--quiet", "--allow-empty"),
            *(f"--author=Ada {IN_GIT} <ada@x.org>", "--message", f"more {EVIL}"),
            folder=made.clone,
        )
        made.git("push", "--quiet", "origin", "HEAD:main", folder=made.clone)
        made.until_state("waived", "Failed")
        head = made.git("rev-parse", "HEAD", folder=made.clone)
        made.until(lambda: made.get("/v1/sync")["sync"]["attemptedRevision"] == head)
        yield made


def _in_pipe(bed: beds.Bed, arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "reconciler.cli.main", *arguments],
        check=False,
        cwd=bed.clone,
        env=bed.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    )
    return done.stdout.decode()


def _on_terminal(bed: beds.Bed, arguments: list[str]) -> str:
    parent, child = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "reconciler.cli.main", *arguments],
        cwd=bed.clone,
        env={**bed.environment, "TERM": "xterm", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        stdout=child,
        stderr=child,
    ) as process:
        os.close(child)
        shown = b""
        try:
            while data := os.read(parent, 65_536):
                shown += data
        except OSError:
            pass  # nobody holds the other end any more
        finally:
            os.close(parent)
        process.wait(timeout=60)
    return _OWN.sub(lambda found: "\n" if found[0] == "\r\n" else "", shown.decode())


def test_each_command_is_tried() -> None:
    assert CALLS.keys() == main.application().commands.keys()


@pytest.mark.parametrize("command", CALLS)
def test_no_word_of_others_controls_a_terminal_or_is_a_line(bed: beds.Bed, command: str) -> None:
    for arguments in CALLS[command]:
        for where in (_in_pipe, _on_terminal):
            shown = where(bed, arguments)
            assert "Traceback" not in shown, shown
            odd = {
                character
                for character in shown
                if unicodedata.category(character) in {"Cc", "Cf", "Zl", "Zp"}
            }
            assert odd - {"\n", "\u200b"} == set(), (arguments, where.__name__, shown)
            forged = [line for line in shown.splitlines() if line.startswith("Forged")]
            assert forged == [], (arguments, where.__name__, shown)
