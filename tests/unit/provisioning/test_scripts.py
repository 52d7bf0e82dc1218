"""Scripts are told as JSON, believed within limits, and none of them can hurt the controller."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from reconciler import child_process
from reconciler.model.state import instance_records
from reconciler.model.values.resources import Resources
from reconciler.provisioning import runner, scripts

WAIT_S = 60.0
ORDER = instance_records.Order(
    verb="create",
    pool="c",
    script="cloud",
    request="c-0.1",
    number=1,
    timeout_s=60,
    node="c-0",
    resources=Resources(4000, 2**30, 8000),
    gpu_model="H200",
    labels={"room": "b2"},
    settings={"type": "$(touch escaped); `touch escaped`"},
)
DESTROY = msgspec.structs.replace(ORDER, verb="destroy", id="i-1")
LIST = msgspec.structs.replace(ORDER, verb="list", request="list", node="")


def script(folder: Path, body: str, name: str = "cloud") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def until(look: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "scripts"
    made.mkdir(mode=0o755)
    return made


def test_a_script_is_told_everything_and_its_answer_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    path = script(
        folder, 'cat > told.json; echo "$#:$1" > args; ls > there; echo \'{"id": "i-1"}\''
    )
    result = scripts.run(path, ORDER)
    assert result == instance_records.OrderResult("create", "c", "c-0.1", 1, id="i-1")
    assert (folder / "args").read_text() == "1:create\n"
    # nor a file while it runs, which who is killed meanwhile would leave there
    there = (folder / "there").read_text().split()
    assert sorted(there) == sorted([path.name, "args", "there", "told.json"])
    assert json.loads((folder / "told.json").read_text()) == {
        "version": 1,
        "verb": "create",
        "pool": "c",
        "request": "c-0.1",
        "node": "c-0",
        "id": "",
        "resources": {"cpu": 4.0, "memory": 2**30, "gpus": 8},
        "gpuModel": "H200",
        "labels": {"room": "b2"},
        "settings": {"type": "$(touch escaped); `touch escaped`"},
    }
    assert not (folder / "escaped").exists()


def test_a_list_is_taken(folder: Path) -> None:
    listed = {"instances": [{"id": "i-1", "node": "c-0", "request": "c-0.1"}, {"id": "i-2"}]}
    path = script(folder, f"echo '{json.dumps(listed)}'")
    assert scripts.run(path, LIST).instances == (
        instance_records.Listed("i-1", "c-0", "c-0.1"),
        instance_records.Listed("i-2"),
    )


@pytest.mark.parametrize(
    ("order", "body", "told"),
    [
        (ORDER, "echo no money left >&2; exit 3", "ended with status 3: no money left"),
        (ORDER, "kill -9 $$", "ended with signal 9"),
        (ORDER, "echo made it", "printed 'made it', expected {\"id\": …}"),
        (ORDER, "echo '[]'", "printed '[]'"),
        (ORDER, "echo '{\"id\": 7}'", "Expected `str`, got `int`"),
        (ORDER, 'printf \'{"id": "a\\\\nb"}\'', "printable"),
        (LIST, "true", "printed '', expected"),
        (LIST, 'echo \'{"instances": [{"id": ""}]}\'', "without an id"),
        (LIST, "echo '{}'", "missing required field"),
        (ORDER, "head -c 5000000 /dev/zero; sleep 60", "printed more than 4194304 bytes"),
        (ORDER, "printf '\\033[2Jgone\\n' >&2; exit 1", "status 1: [2Jgone"),
    ],
)
def test_what_is_no_answer_is_told(
    folder: Path, order: instance_records.Order, body: str, told: str
) -> None:
    with pytest.raises(scripts.ScriptError) as found:
        scripts.run(script(folder, body), order)
    assert told in str(found.value)
    assert "\x1b" not in str(found.value)


def test_a_script_that_hangs_is_ended_with_all_that_it_started(folder: Path) -> None:
    path = script(folder, "trap '' TERM\nsleep 300 &\necho $! > child\nwait\nsleep 300")
    hanging = msgspec.structs.replace(ORDER, timeout_s=1)
    with pytest.raises(scripts.ScriptError, match="took longer than 1 s and was ended"):
        scripts.run(path, hanging)
    child = Path("/proc", (folder / "child").read_text().strip(), "cmdline")
    until(lambda: not child.exists() or child.read_bytes() == b"")


def test_one_that_not_even_a_kill_ends_holds_up_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed in vain here, as one is that waits in the kernel for a file server."""
    path = script(folder, "echo $$ > pid\nuntil [ -e gone ]; do sleep 0.1; done")
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    monkeypatch.setattr(scripts, "GRACE_S", 0.1)
    monkeypatch.setattr(scripts, "GONE_S", 0.1)
    stuck = child_process.StuckChildren()
    try:
        with pytest.raises(scripts.ScriptError, match="took longer than 1 s and was ended"):
            scripts.run(path, msgspec.structs.replace(ORDER, timeout_s=1), stuck=stuck)
        assert Path("/proc", (folder / "pid").read_text().strip()).exists()
    finally:
        (folder / "gone").touch()
        until(lambda: not stuck.pids())


@pytest.mark.parametrize(
    ("timeout_s", "end", "told"),
    [
        (3, "wait", "took longer than 3 s and was ended"),  # the script itself leaves on SIGTERM
        (60, "exit 3", "ended with status 3"),
    ],
)
def test_nothing_of_a_script_that_failed_works_on_when_that_is_told(
    folder: Path, timeout_s: int, end: str, told: str
) -> None:
    deaf = "trap '' TERM; echo deaf > ready; sleep 300 & wait; sleep 300"
    path = script(
        folder,
        f"( {deaf} ) &\necho $! > child\nuntil [ -e ready ]; do sleep 0.1; done\n{end}",
    )
    with pytest.raises(scripts.ScriptError, match=told):
        scripts.run(path, msgspec.structs.replace(ORDER, timeout_s=timeout_s))
    child = Path("/proc", (folder / "child").read_text().strip(), "cmdline")
    until(lambda: not child.exists() or child.read_bytes() == b"")


def test_what_a_script_starts_for_good_does_not_hold_it_up(folder: Path) -> None:
    path = script(folder, 'setsid sleep 20 & echo $! > child; echo \'{"id": "i-1"}\'')
    assert scripts.run(path, ORDER).id == "i-1"
    os.kill(int((folder / "child").read_text()), 9)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: None, "No such file"),
        (lambda folder: script(folder, "").chmod(0o777), "may be written by others"),
        (lambda folder: script(folder, "").chmod(0o644), "is no executable file"),
        (lambda folder: (folder / "cloud").symlink_to("/bin/true"), "cloud"),
        (lambda folder: (script(folder, ""), folder.chmod(0o777)), "may be written by others"),
    ],
)
def test_only_the_operators_scripts_are_run(
    folder: Path, spoil: Callable[[Path], object], told: str
) -> None:
    spoil(folder)
    with pytest.raises(scripts.ScriptError, match=told):
        scripts.find(folder, "cloud")


@pytest.mark.parametrize("name", ["../cloud", "/bin/sh", "a/b", "", ".", "Cloud", "-x"])
def test_a_name_can_not_leave_the_folder(folder: Path, name: str) -> None:
    with pytest.raises(scripts.ScriptError, match="no name of a script"):
        scripts.find(folder, name)


def test_without_a_folder_the_operator_is_told_what_to_do() -> None:
    with pytest.raises(scripts.ScriptError, match="--provisioners FOLDER"):
        scripts.find(None, "cloud")


# --- many of them ---------------------------------------------------------------------------


class Results:
    def __init__(self) -> None:
        self.found: list[instance_records.OrderResult] = []
        self.lock = threading.Lock()

    def __call__(self, result: instance_records.OrderResult) -> None:
        with self.lock:
            self.found.append(result)


def test_an_order_is_carried_out_once_however_often_it_is_wanted(
    folder: Path, tmp_path: Path
) -> None:
    script(folder, 'echo x >> runs; echo \'{"id": "i-1"}\'')
    results = Results()
    made = runner.Runner(folder, tmp_path / "state", results)
    for _ in range(5):
        made.want([ORDER])
    until(lambda: len(results.found) == 1)
    made.want([ORDER])
    made.want([])
    made.want([msgspec.structs.replace(ORDER, number=2)])
    until(lambda: len(results.found) == 2)
    made.stop()
    assert (folder / "runs").read_text() == "x\nx\n"


def test_at_most_so_many_run_at_once_and_never_two_for_one_request(
    folder: Path, tmp_path: Path
) -> None:
    script(
        folder,
        "cat > in.$$\n"
        'n=$(sed \'s/.*"request":"\\([^"]*\\)".*/\\1/\' in.$$)\n'
        'mkdir "at.$n" || { echo twice at $n >&2; exit 1; }\n'
        "ls -d at.* | wc -l >> most; sleep 0.05\n"
        'rmdir "at.$n"',
    )
    results = Results()
    made = runner.Runner(folder, tmp_path / "state", results)
    orders = [
        msgspec.structs.replace(ORDER, request=f"c-{number % 12}.1", number=number)
        for number in range(24)
    ]
    made.want(orders)
    until(lambda: len(results.found) == 24)
    made.stop()
    assert [one.failure for one in results.found] == [""] * 24
    assert max(map(int, (folder / "most").read_text().split())) <= runner.WORKERS


def test_the_end_of_the_controller_ends_scripts_and_tells_nothing(
    folder: Path, tmp_path: Path
) -> None:
    script(folder, "touch began; sleep 300")
    results = Results()
    made = runner.Runner(folder, tmp_path / "state", results)
    made.want([ORDER])
    until((folder / "began").exists)
    made.stop()
    assert results.found == []
    assert not list((tmp_path / "state").iterdir())


def test_a_script_that_outlived_its_controller_is_ended_before_it_is_begun_anew(
    folder: Path, tmp_path: Path
) -> None:
    script(folder, "echo $$ >> pids; exec sleep 300")
    first = runner.Runner(folder, tmp_path / "state", Results())
    first.want([ORDER])
    until(lambda: bool(list((tmp_path / "state").glob("*.run"))))
    until(lambda: (folder / "pids").exists() and (folder / "pids").read_text().endswith("\n"))
    pid = int((folder / "pids").read_text())
    second = runner.Runner(folder, tmp_path / "state", Results())  # the first was killed
    line = Path(f"/proc/{pid}/cmdline")
    until(lambda: not line.exists() or line.read_bytes() == b"")
    first.stop()
    second.stop()


KILLED = """\
import os, pathlib, signal, sys
from tests.unit.provisioning import test_scripts
from reconciler.provisioning import scripts

def began(pid):
    pathlib.Path("pid").write_text(str(pid))
    os.kill(os.getpid(), signal.SIGKILL)

scripts.run(pathlib.Path(sys.argv[1]), test_scripts.ORDER, began=began)
"""


def test_no_script_begins_whose_controller_is_killed_before_it_is_noted(
    folder: Path, tmp_path: Path
) -> None:
    path = script(folder, f"touch {tmp_path}/begun; sleep 3600")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "TMPDIR": str(tmp_path)},
        check=False,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL
    pid = int((tmp_path / "pid").read_text())
    until(lambda: runner._began_at(pid) is None)
    assert not (tmp_path / "begun").exists()


def test_what_can_not_be_noted_does_not_begin(folder: Path, tmp_path: Path) -> None:
    path = script(folder, f"touch {tmp_path}/begun")
    results: list[instance_records.OrderResult] = []
    one = runner.Runner(path.parent, tmp_path / "state", results.append)
    (tmp_path / "state").rmdir()
    (tmp_path / "state").write_text("no folder")
    one.want([ORDER])
    until(lambda: bool(results))
    one.stop()
    assert "was not begun, because" in results[0].failure
    assert not (tmp_path / "begun").exists()


def test_a_script_that_is_left_may_end_in_order_and_a_note_without_end_is_nobody_s(
    folder: Path, tmp_path: Path
) -> None:
    """What it makes it writes down yet; and pid 0 is everybody's."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "c.1.run").write_text("")
    body = f"trap 'touch {tmp_path}/wrote; exit 0' TERM; touch {tmp_path}/begun"
    waits = "while :; do sleep 0.1; done"
    left = subprocess.Popen(["sh", "-c", f"{body}; {waits}"], start_new_session=True)
    with left:
        until((tmp_path / "begun").exists)
        began = runner._began_at(left.pid)
        (state / "c.2.run").write_text(f"{left.pid} {began}\n")
        runner.Runner(folder, state, lambda _: None).stop()
        assert left.wait(WAIT_S) == 0
    assert (tmp_path / "wrote").exists()
    assert list(state.iterdir()) == []
