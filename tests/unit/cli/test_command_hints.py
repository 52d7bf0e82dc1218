"""Who comes with another system's words is told ours, and those are there."""

import itertools
import re
import sys

import pytest

from reconciler.cli import command_hints, interrupts, main, terminal

COMMANDS = set(itertools.chain.from_iterable(main.COMMANDS.values()))


def run(*words: str) -> int:
    """What ``muster`` exits with."""
    before, sys.argv = sys.argv, ["muster", *words]
    try:
        main.main()
    except SystemExit as left:
        return int(left.code or 0)
    finally:
        sys.argv = before
    raise AssertionError("it leaves")


def test_no_word_hides_a_command() -> None:
    assert not COMMANDS & command_hints.OTHER_WORDS.keys()


@pytest.mark.parametrize("word", command_hints.OTHER_WORDS)
def test_what_is_told_is_a_command(word: str) -> None:
    named = re.findall(r"\bmuster ([a-z]+)", command_hints.OTHER_WORDS[word])
    assert named
    assert set(named) <= COMMANDS


@pytest.mark.parametrize(
    ("word", "told"), [("sbatch", "muster submit"), ("describe", "muster job JOB")]
)
def test_a_word_of_another_system(
    word: str, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "leave_at_once", lambda: None)
    monkeypatch.setattr(interrupts, "interrupt", lambda: None)
    assert run(word, "--whatever", "x") == terminal.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert f'no command "{word}" here. Use: {told}' in said.err


def options(command: str) -> set[str]:
    """How the options of a command are spelled."""
    found = main.application(command).commands[command]
    return {spelled for one in found.params for spelled in one.opts}


@pytest.mark.parametrize(
    ("command", "word", "meant"),
    [
        ("submit", "--partition", "--queue"),
        ("logs", "--from", "--since"),
        ("logs", "--since", ""),
        ("submit", "--whatever", ""),
        ("jobs", "--user", "--owner"),
    ],
)
def test_an_option_of_another_system(command: str, word: str, meant: str) -> None:
    assert command_hints.option(word, options(command)) == meant


def test_every_option_that_is_told_is_one_of_some_command() -> None:
    known: set[str] = set()
    for name in COMMANDS - {"controller", "agent"}:
        known |= options(name)
    told = set(itertools.chain.from_iterable(command_hints.OTHER_OPTIONS.values()))
    assert told <= known


#: How Slurm's users name a person.
USERS = (["-u", "ada"], ["--user", "ada"])


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals stay as they are when the command ends."""
    monkeypatch.setattr(interrupts, "leave_at_once", lambda: None)
    monkeypatch.setattr(interrupts, "interrupt", lambda: None)


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["jbs"], 'no command "jbs" here; did you mean jobs or job?'),
        (["Submit"], 'no command "Submit" here; did you mean submit?'),
        (["sbtach"], 'no command "sbtach" here. Use: muster submit'),
        (["pools"], 'no command "pools" here. Use: muster nodes'),
        (["xyzzy"], 'no command "xyzzy" here\n'),
        (["access", "cna"], 'no command "cna" here; did you mean can?'),
        (["access", "sbatch"], 'no command "sbatch" here\n'),
        (["plan", "--branch", "x"], "no option --branch here; did you mean --head?"),
        (["submit", "--qeue", "x"], "no option --qeue here; did you mean --queue?"),
        (["submit", "--gpu", "1"], "no option --gpu here; did you mean --gpus?"),
        (["jobs", "-u", "ada"], "no option -u here; did you mean --owner?"),
        (["status", "--json"], "no option --json here; for JSON: -o json"),
        (["status", "--watch"], "no option --watch here; to follow changes: muster top"),
        (["jobs", "--xyzzy"], "no option --xyzzy here\n"),
        (["nodes", "n1"], "unexpected argument n1. Use: muster node n1"),
        (["plan", "a", "b"], "unexpected argument b. Use: muster plan b --base a"),
        (["suspend", "queue", "a"], "unexpected argument a; did you mean queue/a?"),
        (["resume", "Queue", "a"], "unexpected argument a; did you mean Queue/a?"),
        (["overrides", "clear", "suspend", "queue", "a"], "did you mean queue/a?"),
        (["access", "can", "ada", "submit", "queue", "a"], "did you mean queue/a?"),
        (["submit", "--gpus", "two"], '--gpus: found "two", expected a number such as 2\n'),
        (["history", "-n", "x"], '--limit: found "x", expected a whole number such as 2\n'),
        (["up", "--nodes", "-1"], '--nodes: found "-1", expected 0 or more\n'),
        (["nodes", "-o", "x"], '--output: found "x", expected table, wide, json or yaml\n'),
        (["report", "x"], 'what: found "x", expected usage, waiting, efficiency or fairness\n'),
        (["report"], "muster: report needs usage, waiting, efficiency or fairness\n"),
        (["explain"], "muster: explain needs JOB\n"),
        (["access", "can"], "muster: access can needs EMAIL\n"),
        (["drain", "n1"], 'muster: drain needs --reason: muster drain n1 --reason "why"\n'),
        (["ca", "init", "tls"], "muster: ca init needs --host: muster ca init tls --host NAME\n"),
        (
            ["token", "create", "ada@example.org"],
            "muster: token create needs --role: user, admin, node or metrics\n",
        ),
        (["submit", "--owner", "me"], "no option --owner here; the owner is your git identity\n"),
        (["submit", "--mail-type", "END"], "no option --mail-type here; to be told of your jobs"),
        (["submit", "--mem-per-cpu", "2"], "--memory is that of one task"),
        (["submit", "-n4", "--gres=gpu:2", "--", "x"], "say what one task gets, --gpus"),
        (["submit", "-n", "4", "--mem", "4G", "--", "x"], "say what one task gets, --memory"),
        (["submit", "-a", "1-3"], "no option -a here; did you mean --array?"),
        (["submit", "-C", "a"], "no option -C here; for nodes with a label: --set nodeSelector"),
        (["run", "-G", "2", "--", "x"], "no option -G here; did you mean --gpus?"),
        *(
            (["jobs", *words], f"no option {words[0]} here; did you mean --owner?")
            for words in USERS
        ),
        *(
            (["cancel", *words], f"no option {words[0]} here; did you mean --owner?")
            for words in USERS
        ),
        *(
            (
                [command, *words],
                f"no option {words[0]} here; for the jobs of one person: muster jobs",
            )
            for words in USERS
            for command in (
                "submit",
                "logs",
                "events",
                "top",
                "explain",
                "wait",
                "quotas",
                "queues",
            )
        ),
        (["report", "usage", "--user", "ada"], "for their use: muster report usage --by user"),
        (["report", "usage", "-S", "now-1d"], "no option -S here; did you mean --from?"),
        *(
            (
                [command, *words, "afterok:x"],
                f"no option {words[0]} here; dependencies are for jobs",
            )
            for words in (["--dependency"], ["-d"])
            for command in ("notebook", "wait", "hold", "rerun", "jobs")
        ),
        (
            ["submit", "--dependency", "singleton"],
            "no option --dependency here; did you mean --depends",
        ),
        (["jobs", "-t", "R"], "no option -t here; did you mean --state?"),
        (["jobs", "-j", "x"], "no option -j here; a job is named without an option"),
        (["cancel", "--name", "x"], "no option --name here; a job is named without an option"),
        (["jobs", "--start"], "no option --start here; when jobs that wait are to start"),
        (["explain", "a", "b"], "Use: muster explain a, then muster explain b\n"),
        (["version", "x"], "unexpected argument x; muster version takes none\n"),
        (["backup", "a", "b"], "unexpected argument b\n"),
    ],
)
def test_a_wrong_word_is_answered_with_the_nearest_right_one(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == terminal.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err
    assert "  see: muster" in said.err


def test_advice_names_commands_and_no_option_that_exists() -> None:
    texts = [*command_hints.OPTION_ADVICE.values(), *command_hints.EXTRA_WORD_ADVICE.values()]
    named = {name for text in texts for name in re.findall(r"\bmuster ([a-z]+)", text)}
    assert named <= COMMANDS
    assert command_hints.EXTRA_WORD_ADVICE.keys() <= COMMANDS
