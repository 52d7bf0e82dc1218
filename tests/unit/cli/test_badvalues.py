"""A value that an option can't take, whatever there is in a cluster, is wrong usage everywhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli import main, terminal

#: Options that take any text: names, revisions and paths that are looked up, and reasons.
LOOKED_UP = frozenset(
    {
        *("--reason", "--clone", "--token-file", "--ca", "--folder", "--file", "--repo", "--path"),
        *(
            "--branch",
            "--head",
            "--base",
            "--begins",
            "--against",
            "--owner",
            "--job",
            "--node",
            "--pool",
        ),
        *("--object", "--person", "--chdir"),
        *("--queue", "--priority-class", "--task", "--metric", "--prices", "--png", "--html"),
        *("--provisioners", "--secrets", "--notify-secrets", "--out"),
    }
)
#: And those that are looked up in one command alone.
LOOKED_UP_IN = {("plan", "--name"), ("validate", "--since"), ("drift", "--kind")}
COMMAND = ["--", "true"]
#: The other words without which a command looks at nothing else.
OTHERS = {
    "exec": ["j", *COMMAND],
    "forward": ["j", "80"],
    "cp": ["j:a", "b"],
    "cancel": ["a", "--override", "--reason", "because"],
    "drain": ["a", "--override", "--reason", "because"],
    "suspend": ["queue/a", "--override", "--reason", "because"],
    "explain": ["a"],
    "logs": ["a"],
    "plot": ["a"],
    "wait": ["a"],
    "report": ["usage"],
    "backup": ["file"],
    "notify add": ["me"],
    "restore": ["file"],
    "submit": COMMAND,
    "run": COMMAND,
}
SPAN = ["3y", "soon"]
#: What options that take text can't be.
WRONG = {
    "--for": [*SPAN, "0"],
    "--timeout": SPAN,
    "--horizon": SPAN,
    "--older-than": SPAN,
    "--expires": [*SPAN, "0"],
    "--cycle-every": SPAN,
    "--checkpoint-every": SPAN,
    "--time": [*SPAN, "0"],
    "--signal": ["KILL", "USR1@soon", "USR1@", ""],
    "--since": ["soon"],
    "--until": ["soon"],
    "--at": ["soon"],
    "--from": ["soon"],
    "--to": ["soon"],
    "--by": ["nope"],
    "--label": ["nope", "=x"],
    "--sort": ["nope"],
    "--over": ["nope"],
    "--slack": ["http://hooks.slack.com/x", "nope", ""],
    "--webhook": ["http://example.org/x", "nope", ""],
    "--when": ["nope", "", "ended,soon"],
    "--state": ["nope"],
    "--host": ["https://ctl", "ctl:7420", ""],
    "--server": ["nope", "ftp://host", "http://host:port"],
    "--store": ["postgresql://host/db", "nope"],
    "--listen": ["nope", "127.0.0.1:99999"],
    "--accept-revision": ["nope"],
    "--address": ["nope", "", "10.0.0.1:80"],
    "--cpus": ["lots", "-1"],
    "--memory": ["big", "-1", "4096"],
    "--array": ["x", "0"],
    "--env": ["NAME", "1=x", "=x", "MUSTER_NODE=x", "HF_TOKEN=x"],
    "--export": ["NO_SUCH_VARIABLE", "", "ALL", "API_KEY"],
    "--module": ["-x", ""],
    "--depends": ["Bad_Name", "afterSometimes:a", "a:"],
    "--image": ["\x07"],
    "--begin": ["soon", "25:00", "now+3lightyears", ""],
    "--deadline": ["soon", "2027-13-01"],
    "--exclude": ["n[1-", "", "no node"],
    "--output-file": ["%q", "folder/", ""],
    "--error-file": ["%q", "folder/", ""],
    "--set": ["x", "=1", "nope=1", "environment.A=1", "retries=3", "endsWith=nope"],
    "--framework": ["spark"],
    "--name": ["Bad_Name"],
    "--form": ["nope"],
    "--policy": ["nope"],
    "--trust": ["n[1-", "", "no node"],
    "--scheduling": ["nope", "nope=1", "minRuntime=3y"],
}
#: Of numbers more than what is below their range or is none.
WRONG_NUMBERS = {
    **{
        name: ["0", "-1"]
        for name in ("--tasks", "--tasks-per-node", "--min", "--max", "--try", "--run")
    },
    "--gpus": ["-1", "nan", "1.5"],
    "--element": ["-1"],
    **{name: ["nan", "inf"] for name in ("--every", "--load", "--speed-up", "--over-estimate")},
}
#: What is judged with something else that has to be there.
BESIDE = {"--form": ["trace.csv"], "--host": ["tls"], "--expires": ["a", "--role", "user"]}


def _options(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The options of a command and those below it that take a value."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from _options(inner, (*path, name))
    for one in command.params:
        if one.param_type_name == "option" and not one.is_flag:
            yield " ".join(path), one


def _cases() -> Iterator[tuple[str, str, str]]:
    for command, one in _options(main.application()):
        option = next(spelled for spelled in one.opts if spelled.startswith("--"))
        if one.type.name == "path" or option in LOOKED_UP or (command, option) in LOOKED_UP_IN:
            continue
        if one.type.name == "str":
            values = WRONG[option]
        else:
            values = ["nope", *WRONG_NUMBERS.get(option, ())]
            if (least := getattr(one.type, "min", None)) is not None:
                values.append(str(least - 1))
        for value in values:
            yield command, option, value


@pytest.mark.parametrize(("command", "option", "value"), list(_cases()))
def test_a_value_that_can_not_be_is_wrong_usage(  # noqa: PLR0917 - three of a case, three fixtures
    command: str,
    option: str,
    value: str,
    starter: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No controller is asked for that: none is there."""
    monkeypatch.chdir(starter)
    (starter / "trace.csv").write_text("timestamp,duration,num_gpus,gpu_time,cluster\n")
    words = [*command.split(), f"{option}={value}", *BESIDE.get(option, ())]
    monkeypatch.setattr("sys.argv", ["muster", *words, *OTHERS.get(command, ())])
    with pytest.raises(SystemExit) as left:
        main.main()
    said = capsys.readouterr()
    assert left.value.code == terminal.USAGE, said.err
    assert option in " ".join(said.err.split())
    assert not said.out


#: Commands and options that take names of what is there, and what else they need.
NAMED = {
    **{command: [] for command in ("job", "jobs", "explain", "logs", "node", "quotas", "plot")},
    **{command: [] for command in ("hold", "release", "rerun", "cancel", "adopt", "undrain")},
    **{command: [] for command in ("wait", "suspend", "resume", "overrides clear drain")},
    "attach": [],
    "notebook": [],
    "exec": COMMAND,
    "forward": ["80"],
    "drain": ["--reason", "because"],
    **{command: [] for command in ("events --job", "events --node", "jobs --queue")},
    **{command: [] for command in ("drift --node", "drift --pool")},
    **{f"submit {name}": COMMAND for name in ("--name", "--queue")},
    **{f"run {name}": COMMAND for name in ("--name", "--queue")},
    **{f"notebook {name}": [] for name in ("--name", "--queue")},
}


@pytest.mark.parametrize("command", NAMED)
def test_an_empty_name_is_wrong_usage(
    command: str,
    starter: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As of a variable that is not set."""
    monkeypatch.chdir(starter)
    monkeypatch.setattr("sys.argv", ["muster", *command.split(), "", *NAMED[command]])
    with pytest.raises(SystemExit) as left:
        main.main()
    said = capsys.readouterr()
    assert left.value.code == terminal.USAGE, said.err
    assert "a name is empty" in said.err
    assert not said.out


def test_empty_words_of_a_command_that_is_run_are_its_own(
    starter: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(starter)
    asked = ["submit", "--dry-run", "--", "echo", ""]
    assert not main.application("submit").main(asked, prog_name="muster", standalone_mode=False)
    assert "echo" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        "--gpus 0.5 --cpus 500m --memory 1Gi --time 1-12:00:00",
        "--gpus 8 --nodes 2 --tasks 4 --framework torchrun --array 0-9%4",
        "--gpus 0 --min 2 --max 4 --name a-job",
    ],
)
def test_what_no_cluster_is_needed_for_is_right_without_one(
    words: str, starter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(starter)
    asked = ["submit", "--dry-run", *words.split(), "--", "true"]
    assert not main.application("submit").main(asked, prog_name="muster", standalone_mode=False)


def test_a_queue_that_is_not_there_is_no_wrong_usage(
    starter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(starter)
    asked = ["submit", "--queue", "nope", "--", "true"]
    code = main.application("submit").main(asked, prog_name="muster", standalone_mode=False)
    assert code == terminal.ERROR
