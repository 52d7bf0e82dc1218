"""Slips that a command tells instead of answering them as if nothing were wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from reconciler.cli import main, terminal, usage_errors
from reconciler.cli.changes import submit_options
from reconciler.cli.cluster import report
from reconciler.model.state import records
from reconciler.operations.changes import job_document
from reconciler.operations.client import endpoints
from reconciler.operations.plan import cluster_snapshot


def _run(*words: str) -> int:
    code = main.application(words[0]).main(list(words), prog_name="muster", standalone_mode=False)
    return code if isinstance(code, int) else 0


@pytest.fixture(autouse=True)
def _here(starter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(starter)


WHO = "ada@example.org"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["access", "can", WHO, "fly", "X"], 64, "there is no verb fly; known: submit, manage"),
        (["access", "can", WHO, "submit"], 64, "submit what? give Kind/name, such as "),
        (["access", "can", WHO, "drain", "Queue/a"], 64, "drain NodePool/NAME, not Queue/a"),
        (["access", "can", WHO, "change", "Foo/bar"], 64, "there is no kind Foo that rules are "),
        (["access", "can", WHO, "change", "Queu/a"], 64, "; did you mean Queue?; known: Acc"),
        (["access", "can", WHO, "submit", "Queue/defalt"], 1, "did you mean default?"),
        (["access", "can", WHO, "submit", "queue/defalt"], 1, "there is no Queue/defalt; did you"),
        (
            ["drain", "h2", "--override", "--reason", "fan", "--for", "9d"],
            64,
            '--for: found "9d", expected 1s to 7d',
        ),
        (["approve", "soon"], 64, '"soon" is not the digest of a change; `muster status`'),
        (["approve", "sha256:" + "0" * 16], 1, "is the digest of a whole plan"),
    ],
)
def test_a_slip_is_told(
    words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(*words) == code
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["MUSTER_SERVER", "MUSTER_TOKEN_FILE", "MUSTER_CLONE"])
def test_an_empty_variable_is_as_good_as_none(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = endpoints.Endpoint("http://127.0.0.1:1", str(Path(".muster/nosuch").resolve()))
    endpoints.write(Path(), there)
    Path("below").mkdir()
    monkeypatch.setenv(name, "")
    found = endpoints.find(None, None, Path())
    assert found == there
    assert _run("cancel", "hello", "--dry-run") == terminal.DONE, "in the clone one stands in"
    assert "would be" in capsys.readouterr().err


def test_a_folder_is_no_token_file(tmp_path: Path) -> None:
    with pytest.raises(endpoints.EndpointError, match=r"it is a folder; expected a file"):
        endpoints.read_token(tmp_path)


def test_what_init_writes_can_be_suspended() -> None:
    assert _run("suspend", "cluster", "--clone", ".") == terminal.DONE
    assert "suspend: true" in Path("cluster.yaml").read_text()


def _plan(*words: str) -> None:
    _run("plan", "--base", "HEAD", "--no-forecast", *words)


def test_a_plan_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    _plan()
    assert "not committed" not in capsys.readouterr().err
    with Path("cluster.yaml").open("a") as file:
        file.write("# more\n")
    Path(".hidden").mkdir()
    Path(".hidden/x.yaml").write_text("")
    _plan()
    told = "not in this plan, because not committed: cluster.yaml"
    assert told in capsys.readouterr().err.splitlines()
    Path("jobs/new.yaml").write_text("")
    _plan()
    assert f"{told} and 1 more" in capsys.readouterr().err.splitlines()
    for words in (["--path", "jobs"], ["--repo", "jobs", "--path", "jobs"]):
        _plan(*words)
        assert told.replace("cluster.yaml", "jobs/new.yaml") in capsys.readouterr().err
    _plan("main")
    assert "not committed" not in capsys.readouterr().err, "a revision was named"
    subprocess.run(["git", "add", "--all"], check=True)
    _plan()
    assert "not in this plan" in capsys.readouterr().err, "what is staged is no commit either"


def test_a_problem_of_a_file_is_where_somebody_wrote_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = Path("j.yaml")
    file.write_text("apiVersion: muster/v1\nkind: Job\nmetadata: {name: j}\nspec:\n  comand: [a]\n")
    assert _run("submit", str(file)) == terminal.ERROR
    told = capsys.readouterr().err
    assert "j.yaml:5:3" in told
    assert "submission:" not in told


def test_a_problem_of_what_was_added_is_at_the_line_before() -> None:
    """An owner that a submission writes into a job stands in no line that somebody wrote."""
    asked = "kind: Job\nspec:\n  command: [a]\n"
    sent = "kind: Job\nspec:\n  owner: a@b\n  command: [a]\n"
    for found, expected in {
        "submission:3:3: error: x": "j.yaml:2: error: x",
        "submission:4:3: error: x": "j.yaml:3:3: error: x",
        "submission:0: error: x": "j.yaml: error: x",
        "elsewhere:3:3: error: x": "elsewhere:3:3: error: x",
    }.items():
        assert job_document.placed(found, asked, sent, "j.yaml") == expected


def test_a_problem_in_a_line_that_got_an_owner_keeps_its_place() -> None:
    asked = "kind: Job\nspec: {comand: [a]}\n"
    sent = "kind: Job\nspec: {comand: [a], owner: a@b}\n"
    found = job_document.placed("submission:2:8: error: x", asked, sent, "j.yaml")
    assert found == "j.yaml:2:8: error: x"


def test_a_wrong_price_is_told_by_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, told in {
        "gpuHour: {a100: much}": "gpuHour of a model: expected a number, got a text",
        "cpuHour: []": "cpuHour: expected a number",
        "gpuhour: {}": "gpuhour",
    }.items():
        (tmp_path / "p.yaml").write_text(text)
        with pytest.raises(typer.Exit) as ended:
            report._prices(tmp_path / "p.yaml")
        assert ended.value.exit_code == terminal.ERROR
        assert told in capsys.readouterr().err


def test_a_limit_of_no_time_is_refused_and_a_bare_number_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for verb in ("submit", "run"):
        assert _run(verb, "--time", "0", "--", "true") == terminal.USAGE
        assert "For no limit, leave out --time" in " ".join(capsys.readouterr().err.split())
    assert _run("submit", "--dry-run", "--time", "5", "--", "true") == terminal.DONE
    assert "time limit: 5s (a bare number is seconds; for minutes: --time 5m)" in " ".join(
        capsys.readouterr().err.split()
    )
    assert _run("submit", "--dry-run", "--time", "5m", "--", "true") == terminal.DONE
    assert "time limit" not in capsys.readouterr().err


def test_memory_without_a_unit_is_refused_with_the_choice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for verb in ("submit", "run"):
        assert _run(verb, "--memory", "4096", "--", "true") == terminal.USAGE
        told = " ".join(capsys.readouterr().err.split())
        assert 'found "4096", without a unit. To fix: --memory 4096Mi as Slurm' in told
    assert _run("submit", "--dry-run", "--memory", "0", "--", "true") == terminal.DONE


def _with_a_second_commit() -> None:
    Path("more.yaml").write_text("apiVersion: muster/v1\nkind: Queue\nmetadata: {name: more}\n")
    subprocess.run(["git", "add", "more.yaml"], check=True)
    subprocess.run(["git", "commit", "--quiet", "-m", "more"], check=True)


def test_a_question_that_nobody_answers_names_the_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_a_second_commit()
    with Path(os.devnull).open() as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        assert _run("rollback", "HEAD~1") == terminal.ERROR
    assert "no answer. To skip the question, use --yes" in capsys.readouterr().err


def test_a_rollback_is_tried_and_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_a_second_commit()
    assert _run("rollback", "HEAD~1", "--dry-run") == terminal.DONE
    said = capsys.readouterr()
    assert "- Queue/more" in said.out
    assert "no controller is known here" in " ".join(said.out.split())
    assert "\nImpact\n" in said.out
    assert said.err == "nothing was changed\n"
    assert " -> a commit on top\n" in said.out
    assert _run("rollback", "HEAD~1", "--dry-run") == terminal.DONE
    assert capsys.readouterr().out == said.out, "a rehearsal says the same each time"
    assert Path("more.yaml").exists()
    Path("yes").write_text("y\n")
    with Path("yes").open() as answer:
        monkeypatch.setattr("sys.stdin", answer)
        assert _run("rollback", "HEAD~1") == terminal.DONE
    assert capsys.readouterr().err.startswith("Restore HEAD~1? [y/N]: \ncommitted locally; this ")
    assert not Path("more.yaml").exists()


@pytest.mark.parametrize(("text", "expected"), [(b"abc", True), (b"", False)])
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_what_waits_on_standard_input_is_seen(
    monkeypatch: pytest.MonkeyPatch, kind: str, text: bytes, *, expected: bool
) -> None:
    if kind == "pipe":
        reads, writes = os.pipe()
        os.write(writes, text)
        os.close(writes)
        opened = os.fdopen(reads)
    else:
        Path("in").write_bytes(text)
        opened = Path("in").open()  # noqa: SIM115 - closed below
    with opened:
        monkeypatch.setattr("sys.stdin", opened)
        assert submit_options.has_input() is expected


def test_a_file_that_is_not_there_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("submit", "nosuch.yaml") == terminal.ERROR
    assert capsys.readouterr().err == (
        "muster: nosuch.yaml can't be read: No such file or directory\n"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"\xff\xfe", "standard input is not UTF-8 text"),
        (b"", "standard input: no document found"),
        (None, "standard input can't be read: closed"),
    ],
)
def test_documents_that_can_not_be_read_are_told(
    text: bytes | None,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("in").write_bytes(text or b"")
    with Path("in").open() as opened:
        monkeypatch.setattr("sys.stdin", None if text is None else opened)
        assert _run("submit", "-") == terminal.ERROR
    assert told in " ".join(capsys.readouterr().err.split())


def test_input_that_comes_late_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, writes = os.pipe()
    with os.fdopen(reads) as opened:
        monkeypatch.setattr("sys.stdin", opened)
        with submit_options.report_unread_input():
            assert capsys.readouterr().err == ""
            os.write(writes, b"late")
        assert capsys.readouterr().err == f"{submit_options.NOT_READ}\n"
        with submit_options.report_unread_input():
            assert capsys.readouterr().err == f"{submit_options.NOT_READ}\n"
        assert capsys.readouterr().err == ""
    os.close(writes)


def test_a_document_of_another_program_is_told_wherever_it_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("apiVersion: batch/v1\nkind: Job\nmetadata: {name: other}\n")
    assert _run("submit", str(file)) == terminal.ERROR
    told = " ".join(capsys.readouterr().err.split())
    assert "not an object of Muster: those begin with `apiVersion: muster/v1`" in told
    assert "move the file" not in told, "it lies in no folder that Muster reads"


@pytest.mark.parametrize(
    "words", [("init", "taken/inside"), ("up", "--repo", "."), ("demo", "--folder", "taken/inside")]
)
def test_a_folder_that_can_not_be_is_told_in_a_line(words: tuple[str, ...], starter: Path) -> None:
    Path("taken").write_text("a file\n")
    Path(".muster").write_text("a file\n")
    muster = str(Path(sys.executable).with_name("muster"))
    done = subprocess.run(
        [muster, *words], cwd=starter, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == terminal.ERROR, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("muster: ")
    assert line.endswith(("Not a directory", "File exists"))


@pytest.mark.parametrize("is_known", [True, False])
def test_a_plan_where_no_clone_is_says_so_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    is_known: bool,
) -> None:
    """Also where a controller tells what is in force."""
    file = tmp_path / "cluster.snapshot"
    live = cluster_snapshot.Live("0", 0.0, "a" * 40, "a" * 40, records.Observed())
    file.write_bytes(cluster_snapshot.pack(live))
    monkeypatch.chdir(tmp_path)
    assert _run("plan", *(("--against", str(file)) if is_known else ())) == terminal.ERROR
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith("muster: . is no git repository")


def test_a_state_folder_that_can_not_be_made_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file\n")
    command = [sys.executable, "-m", "reconciler.controller.process", "--repo", str(tmp_path)]
    done = subprocess.run(
        [*command, "--state", str(tmp_path / "taken" / "state"), "--listen", "127.0.0.1:1"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == terminal.ERROR
    (line,) = done.stderr.splitlines()
    assert line.startswith("muster controller: --state ")
    assert line.endswith("can't be created: Not a directory")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "2"], "--nodes"),
        (["--tasks", "3"], "--tasks"),
        (["--nodes", "2", "--tasks", "3"], "--tasks"),
    ],
)
def test_what_says_twice_how_many_tasks_there_are_is_told_as_it_was_written(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words += ["--min", "1", "--max", "4"]
    assert _run("submit", *words, "--", "true") == terminal.USAGE
    told = " ".join(capsys.readouterr().err.split())
    assert told == (f"muster: {said} and --max both set the number of tasks; use one of them")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--gpus", "-1"], "--gpus: this value does not fit; found -1"),
        (["--gpus", "1.5"], "--gpus: a task takes whole GPUs"),
        (["--cpus", "x"], '--cpus: this value does not fit; found "x"'),
        (["--memory", "5q"], '--memory: this value does not fit; found "5q"'),
        (["--framework", "foo"], '--framework: this value does not fit; found "foo"'),
        (["--tasks", "0"], "--tasks: this number is out of range; found 0"),
        (["--name", "A_b"], '--name: this value does not fit; found "A_b"'),
        (["--queue", "nosuch"], "--queue: unknown queue"),
        (["--priority-class", "zz"], "--priority-class: unknown PriorityClass"),
        (["--min", "5", "--max", "2"], "--min: min is more than the tasks"),
        (["--array", "0"], "--array: this number is out of range; found 0"),
        (["--array", "0-9%0"], "--array: this number is out of range; found 0"),
    ],
)
def test_a_wrong_option_is_told_by_its_name(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    looked_up = words[0] in {"--queue", "--priority-class"}
    code = terminal.ERROR if looked_up else terminal.USAGE
    assert _run("submit", *words, "--", "true") == code
    said = " ".join(capsys.readouterr().err.split())
    assert f"nothing was submitted {told}" in said
    assert "submission:" not in said


@pytest.mark.parametrize(
    ("subject", "code", "told"),
    [
        ("default", 64, "default: expected cluster, queue/NAME or job/NAME; did you mean queue/d"),
        ("clutser", 64, "; did you mean cluster?"),
        ("cluster/x", 64, "; did you mean cluster?"),
        ("queues/default", 64, "; did you mean queue/default?"),
        ("queue", 64, "queue: expected cluster, queue/NAME or job/NAME"),
        ("job/", 64, "job/: expected cluster, queue/NAME or job/NAME"),
        ("node/virtual-0", 64, "; nodes are drained: `muster drain NODE`"),
        ("queue/defalt", 1, "; did you mean default?"),
        ("job/helo", 1, "there is no Job/helo in "),
    ],
)
@pytest.mark.parametrize("verb", ["suspend", "resume"])
def test_a_wrong_subject_is_answered_alike_by_every_verb(
    verb: str, subject: str, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(verb, subject) == code
    assert told in " ".join(capsys.readouterr().err.split())
    if code == terminal.USAGE:
        words = ["--override", *(["--reason", "fan"] if verb == "suspend" else [])]
        assert _run(verb, subject, *words) == code
        assert told in " ".join(capsys.readouterr().err.split())
        assert _run("overrides", "clear", "suspend", subject) == code
        assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "words",
    [
        *(["cancel"], ["hold"], ["release"], ["rerun"], ["job"], ["explain"], ["logs"]),
        *(["wait"], ["plot"], ["jobs"], ["node"], ["undrain"], ["events", "--job"]),
        ["overrides", "clear", "cancel"],
    ],
)
def test_a_kind_before_a_name_is_answered_with_the_name(words: list[str]) -> None:
    with pytest.raises(usage_errors.UsageError, match="expected a name without its kind, train"):
        _run(*words, "job/train")


@pytest.mark.parametrize("command", ["job", "explain", "logs", "cancel"])
def test_a_name_with_a_slash_is_no_path_that_an_older_controller_lacks(command: str) -> None:
    with pytest.raises(usage_errors.UsageError, match="a-1/b: expected a name, which has no /"):
        _run(command, "a-1/b")
