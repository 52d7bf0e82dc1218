"""Slips that a command tells instead of answering them as if nothing were wrong."""

import subprocess
from pathlib import Path

import pytest

from reconciler.cli import main, terminal


def _run(*words: str) -> int:
    code = main.application(words[0]).main(list(words), prog_name="muster", standalone_mode=False)
    return code if isinstance(code, int) else 0


@pytest.fixture(autouse=True)
def _here(starter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(starter)


WHO = "ada@example.org"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["access", "can", WHO, "fly", "X"], "there is no verb fly; there are submit, manage, "),
        (["access", "can", WHO, "change", "Foo/bar"], "there is no kind Foo that rules are about"),
        (["access", "can", WHO, "change", "Queu/a"], "; did you mean Queue?; there are Access, "),
        (["approve", "sha256:" + "0" * 16], "is the digest of a plan as a whole"),
    ],
)
def test_a_slip_is_told(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(*words) == terminal.ERROR
    assert told in " ".join(capsys.readouterr().err.split())


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
    told = "not in this plan, as it is not committed: cluster.yaml"
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
