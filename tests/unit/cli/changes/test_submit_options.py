"""What stands behind ``muster submit``: files, a command, or a slip."""

import re
from pathlib import Path

import pytest
import yaml

from reconciler.cli import main, terminal
from reconciler.cli.changes import submit_options


def _submit(*words: str) -> int:
    """The exit code of a dry run."""
    return _submit_files("--name", "j", *words)


def _submit_files(*words: str) -> int:
    """The same, without a name for a command's job."""
    code = main.application("submit").main(
        ["submit", "--dry-run", *words], prog_name="muster", standalone_mode=False
    )
    return code if isinstance(code, int) else 0


@pytest.fixture
def clone(starter: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The clone that one stands in."""
    monkeypatch.chdir(starter)
    return starter


@pytest.mark.usefixtures("clone")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nofile"], "nofile does not exist; expected YAML files"),
        (["jobs/hello.yaml", "train.sh"], "train.sh is not a YAML file"),
        (["program"], "program is no text, so it can't be a script To run a program"),
        (["empty.sh"], "empty.sh is empty"),
        (["windows.sh"], "script: its first line ends as in Windows (CR LF)"),
        (["jobs/hello.yaml", "nofile"], "nofile does not exist"),
        (["sleep", "5"], "To run it on a node: muster submit -- sleep 5"),
        (["jobs/hello.yaml", "--gpus", "1"], "--gpus: job options can't be combined with"),
        (["jobs/hello.yaml", "--dry-run"], "--dry-run comes after jobs/hello.yaml; options go"),
    ],
)
def test_a_word_that_is_no_file_is_no_command(
    words: list[str], told: str, clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clone / "train.sh").write_text("#!/bin/sh\n")
    (clone / "program").write_bytes(b"\x7fELF\xff\0")
    (clone / "empty.sh").write_text("\n")
    (clone / "windows.sh").write_text("#!/bin/sh\r\ntrue\r\n", newline="")
    assert _submit(*words) == terminal.USAGE
    said = capsys.readouterr()
    assert told in " ".join(said.err.split())
    assert not said.out


@pytest.mark.parametrize(
    "words",
    [
        ["--name", "other"],
        ["--queue", "default", "--gpus", "2", "--tasks", "2", "--array", "4", "--time", "5m"],
    ],
)
def test_options_beside_files_are_refused(
    words: list[str], clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clone / "other.yaml").write_text((clone / "jobs/hello.yaml").read_text())
    code = main.application("submit").main(
        ["submit", *words, "other.yaml"], prog_name="muster", standalone_mode=False
    )
    assert code == terminal.USAGE
    told = " ".join(capsys.readouterr().err.split())
    assert f"{', '.join(words[::2])}: job options can't be combined with YAML files" in told
    assert "nothing was submitted. To fix: edit other.yaml" in told


@pytest.mark.usefixtures("clone")
@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--", "./train.sh"], ["./train.sh"]),
        (["--", "hostname"], ["hostname"]),
        (["--", "sh", "--", "x"], ["sh", "--", "x"]),
        (["--", "python3", "train.py"], ["python3", "train.py"]),
    ],
)
def test_a_command_stands_behind_two_dashes(
    words: list[str], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _submit(*words) == 0
    shown = capsys.readouterr().out.partition("command:\n")[2].split()
    assert [word.strip("'") for word in shown[1::2]] == command


def test_a_script_goes_along_with_its_arguments(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = '#!/bin/sh\n# a comment\necho "$@"\n'
    (clone / "train.sh").write_text(text)
    assert _submit("--gpus", "1", "./train.sh", "--lr", "1e-4", "--gpus", "2") == 0
    said = capsys.readouterr()
    spec = yaml.safe_load(said.out)["spec"]
    assert (spec["script"], spec["arguments"]) == (text, ["--lr", "1e-4", "--gpus", "2"])
    assert (spec["resources"], spec.get("command")) == ({"gpu": 1}, None)
    assert "--gpus is an argument of the script; options of the job come before it" in " ".join(
        said.err.split()
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10", (10, None, None)),
        ("0-9", (10, None, None)),
        ("0-0", (1, None, None)),
        ("0-9%4", (10, 4, None)),
        ("1,3,5", (None, None, "1-5:2")),
        ("5-9", (None, None, "5-9")),
        ("1-9:2", (None, None, "1-9:2")),
        ("1,3,5-9:2%4", (None, 4, "1-9:2")),
        ("2,0-1%1", (3, 1, None)),
    ],
)
def test_an_array_is_a_count_or_indexes(
    text: str, expected: tuple[int | None, int | None, str | None]
) -> None:
    problems: list[str] = []
    assert tuple(submit_options.parse_array(text, problems)) == expected
    assert not problems


@pytest.mark.parametrize("text", ["", "ten", "9-1", "0-9:0", "1,", "-1", "0%2", "0-9%", "100000,1"])
def test_other_indexes_are_refused(text: str) -> None:
    problems: list[str] = []
    assert submit_options.parse_array(text, problems) == submit_options.ArrayOption()
    assert "expected a number of elements such as 10" in problems[0]


def test_a_number_of_elements_with_a_limit_is_answered_with_both_meanings() -> None:
    problems: list[str] = []
    assert submit_options.parse_array("40%4", problems) == submit_options.ArrayOption()
    (told,) = problems
    assert told == (
        '--array: found "40%4", expected indexes before %: 0-39%4 for 40 elements, 40-40 for the '
        "index 40, as Slurm reads it"
    )
    for suggested in ("0-39%4", "40-40"):
        assert submit_options.parse_array(suggested, []) != submit_options.ArrayOption()


@pytest.mark.usefixtures("clone")
def test_all_wrong_options_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--time", "10mins", "--memory", "4GB", "--array", "ten", "--tasks", "0"]
    assert _submit(*words, "--", "true") == terminal.USAGE
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith("muster: 4 problems; nothing was submitted --array: ")
    assert "did you mean 10m?" in told
    assert "did you mean 4G or 4Gi?" in told
    assert "--tasks: this number is out of range; found 0" in told


@pytest.mark.usefixtures("clone")
def test_problems_of_several_files_are_counted_together_and_in_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = "apiVersion: muster/v1\nkind: Job\nmetadata: {name: %s}\nspec:\n  command: [echo]\n"
    Path("b.yaml").write_text(
        head % "b1" + "  timeLimit: 10mins\n  resources: {memory: 4GB}\n"
        "---\n" + head % "b2" + "  queue: defalt\n  priorityClass: urgent\n"
    )
    Path("a.yaml").write_text(head % "a1" + "  queue: nowhere\n")
    assert _submit_files("b.yaml", "a.yaml") == terminal.ERROR
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "muster: 5 problems; nothing was submitted"
    places = [line.split(": error")[0].strip().rpartition(":")[0] for line in told[1:]]
    assert places == ["b.yaml:6", "b.yaml:7", "b.yaml:14", "b.yaml:15", "a.yaml:6"]
    assert "did you mean default?" in told[3]


@pytest.mark.usefixtures("clone")
def test_all_files_that_cannot_be_read_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert _submit_files("no.yaml", "none.yaml") == terminal.ERROR
    told = capsys.readouterr().err
    assert "muster: no.yaml can't be read: No such file" in told
    assert "  none.yaml can't be read: No such file" in told


@pytest.mark.usefixtures("clone")
@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["--nodes", "2"], {"count": 2, "tasksPerNode": 1}),
        (["-N", "2", "--tasks", "4"], {"count": 4, "tasksPerNode": 2}),
        (["-N", "2", "-n", "4", "--tasks-per-node", "2"], {"count": 4, "tasksPerNode": 2}),
        (["-N", "2", "--tasks-per-node", "4"], {"count": 8, "tasksPerNode": 4}),
        (["-n", "6", "--ntasks-per-node=2"], {"count": 6, "tasksPerNode": 2}),
        (["--tasks-per-node", "4"], {"count": 4, "tasksPerNode": 4}),
        (["--max", "8", "--tasks-per-node", "2"], {"max": 8, "tasksPerNode": 2}),
        (["--tasks", "4"], {"count": 4}),
        ([], {}),
    ],
)
def test_nodes_are_asked_for_by_their_number(
    words: list[str], written: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _submit(*words, "--", "hostname") == 0
    spec = yaml.safe_load(capsys.readouterr().out)["spec"]
    assert {key: spec[key] for key in ("count", "max", "tasksPerNode") if key in spec} == written


@pytest.mark.usefixtures("clone")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--nodes", "3", "--tasks", "2"], "at least a task per node"),
        (["-N", "4", "-n", "5"], "expected a multiple of 4, such as 4 or 8"),
        (["-n", "5", "--tasks-per-node", "2"], "expected a multiple of 2"),
        (["-N", "2", "-n", "4", "--tasks-per-node", "3"], "are 6 tasks, not --tasks 4"),
        (["--tasks-per-node", "0"], "expected a whole number from 1"),
        (["--max", "3", "--tasks-per-node", "2"], "write a multiple of 2"),
    ],
)
def test_tasks_that_nodes_can_not_share_evenly_are_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _submit(*words, "--", "hostname") == terminal.USAGE
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (None, "no controller is known here"),
        ("http://127.0.0.1:1", "http://127.0.0.1:1 can't be reached (Connection refused)"),
    ],
)
def test_nobody_runs_what_nobody_could_wait_for(
    server: str | None,
    told: str,
    clone: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("MUSTER_SERVER", raising=False)
    if server is not None:
        monkeypatch.setenv("MUSTER_SERVER", server)
    code = main.application("run").main(
        ["run", "--name", "unasked", "--clone", ".", "--", "hostname"],
        prog_name="muster",
        standalone_mode=False,
    )
    assert code == terminal.MUSTER_FAILED
    said = capsys.readouterr().err
    assert told in " ".join(said.split())
    assert "may still run" not in said
    assert not [one for one in clone.rglob("*.yaml") if "unasked" in one.read_text()]


def test_of_several_each_is_told_by_its_name(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names go to programs, and what is said to people: in a pipe the two do not stand together."""
    text = (clone / "jobs/hello.yaml").read_text()
    for name in ("a", "b"):
        (clone.parent / f"{name}.yaml").write_text(text.replace("hello", name))
    commit = r"\([0-9a-f]{12}, in cluster/\)"
    for words, told in (
        (["submit", "../a.yaml", "../b.yaml"], f"submitted; committed locally; .* {commit}"),
        (["submit", "../a.yaml", "../b.yaml"], "submitted already, unchanged"),
        (["cancel", "a", "b"], f"cancelled, its YAML deleted; committed .*{commit}"),
    ):
        main.application(words[0]).main(words, prog_name="muster", standalone_mode=False)
        said = capsys.readouterr()
        assert said.out == "a\nb\n"
        lines = said.err.splitlines()
        assert [line.partition(":")[0] for line in lines] == ["a", "b"]
        assert all(re.fullmatch(f"[ab]: {told}", line) for line in lines), lines
