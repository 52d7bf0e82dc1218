"""``muster up`` as somebody meets it: what it says when it is ready, and what works beside it."""

import json
import os
import pwd
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from reconciler.cli import terminal
from reconciler.operations.client import api_client, endpoints
from reconciler.operations.local import free_ports, local_cluster
from tests.integration import beds
from tests.unit.desired.repositories import ENVIRONMENT

MUSTER = str(Path(sys.executable).with_name("muster"))
READY = "Ctrl-C stops the cluster."
LONG_S = 120.0
NODES = ("virtual-0", "virtual-1")


def environment() -> dict[str, str]:
    """That of somebody who has used Muster nowhere yet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    return {**kept, **ENVIRONMENT}


def muster(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MUSTER, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


class Up:
    """A cluster that was brought up by the command, in a folder of its own.

    Attributes:
        said: lines of its standard error so far.
    """

    def __init__(self, folder: Path) -> None:
        made = muster(folder, "init", "cluster")
        assert made.returncode == 0, made.stderr
        self.folder = folder / "cluster"
        secrets = folder / "secrets"
        own = secrets / pwd.getpwuid(os.geteuid()).pw_name
        own.mkdir(parents=True, mode=0o700)
        (own / "token").touch(mode=0o600)
        (own / "token").write_text("hidden\n")
        self.address = f"127.0.0.1:{free_ports.free_port()}"
        self.said: list[str] = []
        self.is_ready = threading.Event()
        self.process = subprocess.Popen(
            [
                *(MUSTER, "up", "--listen", self.address),
                *("--secrets", "../secrets", "--log-format", "json"),
            ],
            cwd=self.folder,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,))
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self.said.append(line.rstrip("\n"))
                if line.startswith(READY):
                    self.is_ready.set()
        self.is_ready.set()

    def end(self) -> int:
        """Press Ctrl-C; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        status = self.process.wait(LONG_S)
        self._reader.join(LONG_S)
        return status


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    made = Up(tmp_path_factory.mktemp("up"))
    try:
        assert made.is_ready.wait(LONG_S)
        yield made
    finally:
        made.end()


def test_it_says_where_it_is_what_there_is_and_what_to_do_next(up: Up) -> None:
    assert up.process.poll() is None, up.said
    begun, *others = up.said
    assert begun == f"starting a controller over {up.folder} (main)"
    bearer = '"Authorization: Bearer $(cat .muster/token)"'
    assert others == [
        f"API at http://{up.address}",
        "virtual nodes: virtual-0, virtual-1",
        "GPUs of virtual nodes are simulated. In another terminal: muster status",
        f"metrics: curl -H {bearer} \\",
        f"  http://{up.address}/metrics",
        READY,
    ]
    assert max(map(len, others)) <= terminal.PIPE_WIDTH
    own = endpoints.Endpoint(f"http://{up.address}", str(up.folder / ".muster" / "token"))
    with api_client.ApiClient(own) as api:
        assert b"muster_nodes" in b"".join(api.stream("/metrics", {}))


def test_who_logs_in_needs_no_folder_and_a_doctor_tells_what_is_left(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    lost = muster(tmp_path, "doctor")
    assert lost.returncode == 1
    assert "to do: muster login URL" in lost.stdout
    url = f"http://{up.address}"
    refused = subprocess.run(
        [MUSTER, "login", url],
        cwd=tmp_path,
        env=environment(),
        input="wrong\n",
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert refused.returncode == 1
    assert "no valid token" in refused.stderr
    assert "nothing was kept" in refused.stderr
    assert not (tmp_path / "config").exists()
    kept = endpoints.find(None, None, up.folder).token_file
    assert kept is not None
    done = muster(tmp_path, "login", url, "--token-file", kept)
    assert done.returncode == 0, done.stderr
    mine = muster(tmp_path, "whoami", "-o", "json")
    assert json.loads(mine.stdout)["role"] == "admin", mine.stderr
    ran = muster(tmp_path, "run", "--name", "first", "--", "true")  # a node has joined then
    assert ran.returncode == 0, ran.stderr
    well = muster(tmp_path, "doctor")
    assert well.returncode == 0, well.stdout + well.stderr
    assert re.search(r"nodes       \d Ready", well.stdout), well.stdout
    assert muster(tmp_path, "jobs").returncode == 0
    assert url in muster(tmp_path, "logout").stderr
    assert muster(tmp_path, "jobs").returncode == 1


def test_what_is_committed_where_there_is_no_remote_says_so(up: Up) -> None:
    done = muster(up.folder, "submit", "--name", "here", "--", "true")
    assert (done.returncode, done.stdout) == (0, "here\n"), done.stderr
    # as the controller tells that it has read it within the time that is waited for that, or not
    unread = r"; committed locally; this clone has no remote \([0-9a-f]{12}, in cluster/\)"
    told = rf"submitted( \([0-9a-f]{{12}}\)|{unread})"
    assert re.fullmatch(told, done.stderr.splitlines()[0])
    # what was committed a moment ago is waited for
    waited = muster(up.folder, "wait", "here")
    assert (waited.returncode, waited.stdout) == (0, "here: Succeeded\n"), waited.stderr


def test_a_job_that_comes_back_as_it_was_starts_nothing_and_says_so(up: Up) -> None:
    asked = ("submit", "--name", "back", "--", "sleep", "600")
    assert muster(up.folder, *asked).returncode == 0
    assert muster(up.folder, "cancel", "back").returncode == 0
    assert muster(up.folder, "wait", "back").stdout == "back: Cancelled\n"
    told = r"cancelled by \S+@\S+ at .* in [0-9a-f]{7}"
    for command in ("job", "explain"):
        said = " ".join(muster(up.folder, command, "back").stdout.split())
        assert re.search(told, said), said
    refused = (
        "nothing would start: run 1 of Job/back with the same contents is Cancelled already, and a "
        "run happens once. To run it again: spec.run: 2 (--set run=2), or another name"
    )
    back = muster(up.folder, *asked)
    assert (back.returncode, back.stdout) == (1, "")
    assert refused in back.stderr
    changed = muster(up.folder, "submit", "--name", "back", "--", "true")
    assert "warning" not in changed.stderr
    assert muster(up.folder, "wait", "back").stdout == "back: Succeeded\n"
    assert muster(up.folder, "cancel", "back").returncode == 0
    # other contents had the name in between, and it is the same run all the same
    for way in ((), ("--dry-run",)):
        again = muster(up.folder, "submit", *way, *asked[1:])
        assert (again.returncode, refused in again.stderr) == (1, True), again.stderr
    second = muster(up.folder, "submit", "--set", "run=2", *asked[1:])
    assert second.returncode == 0, second.stderr
    assert muster(up.folder, "cancel", "back").returncode == 0


def test_the_controller_commits_nothing_that_would_start_nothing(up: Up, tmp_path: Path) -> None:
    found = endpoints.find(None, None, up.folder)
    place = ("--server", found.url, "--token-file", str(found.token_file))
    for number, text in enumerate(("one", "two", "one")):
        (tmp_path / "there.yaml").write_text(
            "apiVersion: muster/v1\nkind: Job\nmetadata: {name: there}\n"
            f"spec: {{command: [echo, {text}]}}\n"
        )
        done = muster(tmp_path, "submit", *place, "there.yaml")
        if number < 2:
            assert done.returncode == 0, done.stderr
            assert muster(tmp_path, "wait", *place, "there").stdout == "there: Succeeded\n"
            assert muster(tmp_path, "cancel", *place, "there").returncode == 0
            continue
        assert (done.returncode, done.stdout) == (1, "")
        assert "run 1 of Job/there with the same contents is Succeeded already" in done.stderr
    last = git_out(up.folder, "log", "-1", "--format=%s")
    assert last == "Cancel Job/there"


def git_out(clone: Path, *words: str) -> str:
    command = ["git", "-C", str(clone), *words]
    done = subprocess.run(
        command, check=True, timeout=LONG_S, env=environment(), capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_contents_that_a_document_has_now_are_what_is_answered_for(up: Up) -> None:
    """Whoever edits a file back gets the run of those contents, and nothing of the one between."""
    clone, found = up.folder, endpoints.find(None, None, up.folder)
    for text in ("one", "two", "one"):
        document = (
            "apiVersion: muster/v1\nkind: Job\nmetadata: {name: edited}\n"
            f"spec: {{command: [sh, -c, 'echo {text}; test {text} = one']}}\n"
        )
        (clone / "jobs" / "edited.yaml").write_text(document)
        for words in (("add", "-A"), ("commit", "-qm", text)):
            git_out(clone, *words)
        made = git_out(clone, "rev-parse", "HEAD")
        with api_client.ApiClient(found) as api:
            ends_at = time.monotonic() + LONG_S
            while api.get("/v1/sync")["sync"]["attemptedRevision"] != made:
                assert time.monotonic() < ends_at
                time.sleep(0.1)
        wanted = "Succeeded" if text == "one" else "Failed"
        waited = muster(up.folder, "wait", "edited")
        assert waited.stdout == f"edited: {wanted}\n", waited.stderr
        assert muster(up.folder, "logs", "edited").stdout == f"{text}\n"


def test_the_same_run_again_runs_nothing_and_says_so(up: Up) -> None:
    words = ("run", "--name", "again", "--", "echo", "once")
    first = muster(up.folder, *words)
    assert (first.returncode, first.stdout) == (0, "once\n"), first.stderr
    second = muster(up.folder, *words)
    assert (second.returncode, second.stdout) == (125, "")
    assert "job again already exists and its run has ended (Succeeded)" in second.stderr
    assert "muster rerun again" in second.stderr


def test_its_nodes_have_the_secrets_and_its_logs_the_form_that_were_asked_for(up: Up) -> None:
    text = (
        "apiVersion: muster/v1\nkind: Job\nmetadata: {name: knows}\n"
        "spec:\n  secrets: [{name: token, environment: TOKEN}]\n"
        "  command: [sh, -c, 'test \"$TOKEN\" = hidden']\n"
    )
    (up.folder.parent / "knows.yaml").write_text(text)
    assert muster(up.folder, "submit", "../knows.yaml").returncode == 0
    waited = muster(up.folder, "wait", "knows")
    assert (waited.returncode, waited.stdout) == (0, "knows: Succeeded\n"), waited.stderr
    for log in ("controller.log", "nodes/virtual-0.log"):
        first = (up.folder / ".muster" / log).read_text().splitlines()[0]
        assert json.loads(first)["message"], log


def test_a_folder_that_is_not_there_is_told_before_anything_starts(tmp_path: Path) -> None:
    for option in ("--secrets", "--notify-secrets"):
        done = muster(tmp_path, "up", option, "nowhere")
        assert (done.returncode, done.stdout) == (64, "")
        assert f"{option}: folder nowhere does not exist" in done.stderr


def test_a_name_that_no_job_has_is_told_before_anything_is_waited_for(up: Up) -> None:
    assert muster(up.folder, "submit", "--name", "long", "--", "sleep", "600").returncode == 0
    done = muster(up.folder, "wait", "long", "lnog", "nosuch")
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    first, *others = (line.strip() for line in done.stderr.splitlines())
    assert first.startswith("the controller does not know lnog, nosuch yet; ")
    assert [line.partition(";")[0] for line in others] == [
        "muster: there is no Job/lnog",
        "there is no Job/nosuch",
    ]


def test_a_word_that_is_no_program_ends_as_in_a_shell(up: Up) -> None:
    done = muster(up.folder, "run", "--name", "word", "--", "nosuch-program", "-v")
    assert (done.returncode, done.stdout) == (127, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("word Failed: ")
    assert "nosuch-program" in last
    assert "was not found in PATH" in last


def test_a_wrong_option_is_told_by_its_name(up: Up) -> None:
    done = muster(up.folder, "run", "--gpus", "-1", "--", "true")
    assert (done.returncode, done.stdout) == (64, "")
    assert "\n  --gpus: this value does not fit; found -1" in done.stderr
    assert "submission:" not in done.stderr


def test_a_job_whose_document_has_left_is_known_to_who_changes_it(up: Up) -> None:
    submitted = muster(up.folder, "submit", "--name", "gone", "--gpus", "9", "--", "true")
    assert submitted.returncode == 0, submitted.stderr
    assert "warning: gone: no pool could ever hold" in submitted.stderr
    assert "warning: gone: 9 GPUs asked for what starts together" in submitted.stderr
    known_by = time.monotonic() + LONG_S
    while muster(up.folder, "job", "gone").returncode:
        assert time.monotonic() < known_by
    assert muster(up.folder, "cancel", "gone").returncode == 0
    assert muster(up.folder, "wait", "gone").stdout == "gone: Cancelled\n"
    again = muster(up.folder, "cancel", "gone")
    assert (again.returncode, again.stdout) == (0, "gone\n"), again.stderr
    assert again.stderr.startswith("its YAML is deleted already; the job is Cancelled (")
    rerun = muster(up.folder, "rerun", "gone")
    assert rerun.returncode == 1
    assert "gone is Cancelled, and its YAML was deleted" in rerun.stderr
    assert "`git log -p -- jobs/gone.yaml` shows it" in rerun.stderr
    assert "spec.run: 2" in rerun.stderr
    shown = muster(up.folder, "history").stdout.splitlines()
    assert shown[0].split() == ["AT", "REVISION", "RESULT", "OBJECTS", "TOOK"]


def said_of_nodes(up: Up, text: str) -> set[str]:
    """The nodes of which it said so, waited for until there is one."""
    ends_at = time.monotonic() + LONG_S
    while not (found := {one for one in NODES if text.format(one) in up.said}):
        assert time.monotonic() < ends_at, up.said
        time.sleep(0.1)
    return found


def test_nodes_become_what_their_pool_declares_once_nothing_runs_there(up: Up) -> None:
    assert muster(up.folder, "submit", "--name", "keeps", "--", "sleep", "600").returncode == 0
    ends_at = time.monotonic() + LONG_S
    while '"Running"' not in (told := muster(up.folder, "job", "keeps", "-o", "json").stdout):
        assert time.monotonic() < ends_at, told
    structure = up.folder / "cluster.yaml"
    structure.write_text(structure.read_text().replace("cpu: 2", "cpu: 3"))
    commit = ["git", "commit", "--quiet", "--all", "--message", "more CPUs"]
    subprocess.run(commit, cwd=up.folder, env=environment(), check=True)
    busy = said_of_nodes(up, "{} becomes what its pool declares now once its tasks have ended")
    assert not busy & {one for one in NODES if f"started {one} anew" in "\n".join(up.said)}
    for name in ("keeps", "long"):  # long: of another test, if that was run
        muster(up.folder, "cancel", name)
    ends_at = time.monotonic() + LONG_S
    while True:
        items = json.loads(muster(up.folder, "nodes", "-o", "json").stdout)["items"]
        shapes = {one["name"]: (one["state"], one["capacity"]["cpu"]) for one in items}
        if shapes == dict.fromkeys(NODES, ("Ready", 3.0)):
            break
        assert time.monotonic() < ends_at, (up.said, shapes)


def test_it_ends_with_all_that_it_started(up: Up) -> None:
    assert up.end() == 0
    assert up.said[-1] == "stopping"
    after = muster(up.folder, "status")
    assert after.returncode == 1
    assert "muster up" in after.stderr


def test_a_controller_that_can_not_be_reached_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_cluster, "LOOK_S", 0.01)
    monkeypatch.setattr(local_cluster, "FOLLOW_POOLS_S", 0.0)
    with beds.Bed(tmp_path, nodes=1) as bed:
        nowhere = endpoints.Endpoint(f"http://127.0.0.1:{free_ports.free_port()}")
        if bed.cluster._api is not None:
            bed.cluster._api.close()
        bed.cluster._api = api_client.ApiClient(nowhere)
        said: list[str] = []
        looks = 0

        def is_over() -> bool:
            nonlocal looks
            looks += 1
            if looks == 20:
                bed.cluster._api = None  # the controller itself, from the next look on
            return looks > 2000 or any("again" in line for line in said)

        bed.cluster.keep(is_over, said.append)
    told = [line for line in said if "controller" in line]
    assert [line.partition(" (")[0] for line in told] == [
        f"the controller at {nowhere.url} can't be reached",
        "the controller answers again",
    ]
    assert "controller.log" in told[0]
