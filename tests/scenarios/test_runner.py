"""The runner tells what disagrees, refuses what it does not understand, and drops nothing."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.cli import main
from reconciler.operations import scenarios
from reconciler.simulation import forms, situations
from reconciler.simulation import scenarios as runs

DOCUMENT: dict[str, Any] = {
    "scenario": "one job, one GPU",
    "source": "own",
    "nodes": {"n0": {"gpu": 1}},
    "queues": [{"name": "team"}],
    "jobs": [{"name": "a", "queue": "team", "tasks": [{"gpu": 1}]}],
    "rounds": {"settle": 1, "stable": 1},
    "expect": {"jobs": {"a": {"state": "running", "node": "n0"}}},
}


def verdict(**changes: object) -> runs.Verdict:
    return runs.run(forms.parse(DOCUMENT | changes))


def test_what_agrees_is_exact() -> None:
    assert verdict() == runs.Verdict(exact=True, states=True)


@pytest.mark.parametrize(
    ("expected", "states", "found"),
    [
        (
            {"a": {"state": "pending"}},
            False,
            {"a": {"state": "running", "node": "n0", "start": 0.0}},
        ),
        (
            {"a": {"state": "running", "node": "n1"}},
            True,
            {"a": {"state": "running", "node": "n0", "start": 0.0}},
        ),
        ({"a": {"start": 60}}, False, {"a": {"state": "running", "node": "n0", "start": 0.0}}),
    ],
)
def test_what_disagrees_is_told(expected: dict[str, Any], states: bool, found: object) -> None:
    told = verdict(expect={"jobs": expected})
    assert (told.exact, told.states) == (False, states)
    assert told.found == found
    assert told.expected.keys() == expected.keys()


def test_a_state_that_is_not_stable_disagrees() -> None:
    """The job runs when first looked at, and has ended two rounds later."""
    jobs = [{"name": "a", "queue": "team", "duration": 150, "tasks": [{"gpu": 1}]}]
    assert verdict(jobs=jobs, rounds={"settle": 1, "stable": 1}).exact
    told = verdict(jobs=jobs, rounds={"settle": 1, "stable": 2})
    assert told.found["a"]["state"] == "succeeded"


@pytest.mark.parametrize(
    ("changes", "where", "message"),
    [
        ({"surprise": 1}, "surprise", "there is no such field"),
        ({"nodes": {"n0": {"gpus": 1}}}, "nodes.n0.gpus", "there is no such field"),
        ({"nodes": {"n0": {"gpu": "many"}}}, "nodes.n0.gpu", "'many' is not a number of GPUs"),
        ({"queues": []}, "jobs[0].queue", "there is no queue 'team'"),
        ({"queues": [{"name": "team", "parent": "up"}]}, "queues[0].parent", "no queue 'up'"),
        ({"queues": [{"name": "team", "parent": "team"}]}, "queues", "its own ancestor"),
        ({"rounds": {"settle": 0}}, "rounds", "expected settle from 1"),
        ({"until": 5}, "", "either `rounds` or `until`"),
        ({"expect": {"jobs": {"b": {}}}}, "expect.jobs.b", "there is no job 'b'"),
        ({"expect": {"tasks": {"a-1": {}}}}, "expect.tasks.a-1", "there is no task 'a-1'"),
        (
            {"jobs": [{"name": "a", "queue": "team", "min": 2, "tasks": [{}]}]},
            "jobs[0].min",
            "min is 2",
        ),
        (
            {"jobs": [{"name": "a", "queue": "team", "tasks": [{"state": "running"}]}]},
            "jobs[0].tasks[0].node",
            "a node that is not there",
        ),
        (
            {"jobs": [{"name": "a", "queue": "team", "tasks": [{}]}] * 2},
            "jobs[1].name",
            "a second job 'a'",
        ),
    ],
)
def test_what_is_not_understood_is_refused(
    changes: dict[str, Any], where: str, message: str
) -> None:
    with pytest.raises(forms.ScenarioError) as refused:
        verdict(**changes)
    assert refused.value.where == where
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"policy": {"sorcery": True}}, "policy sorcery"),
    ],
)
def test_what_is_not_built_is_said_and_not_dropped(changes: dict[str, Any], missing: str) -> None:
    told = verdict(**changes)
    assert not told.states
    assert told.found["*"]["state"].startswith("not built yet: ")
    assert missing in told.found["*"]["state"]


def test_devices_of_what_runs() -> None:
    """Equal labels are one device; who names none gets those that nobody named."""
    tasks = [
        {"gpu": 1, "state": "running", "node": "n0", "devices": ["b"]},
        {"gpu": 1, "state": "running", "node": "n0", "devices": [1]},
        {"gpu": 1, "state": "running", "node": "n0"},
    ]
    jobs = [{"name": "a", "queue": "team", "tasks": tasks}]
    made = situations.build(forms.parse(DOCUMENT | {"jobs": jobs, "nodes": {"n0": {"gpu": 3}}}))
    assert [attempt.devices for attempt in made.observed.attempts.values()] == [(0,), (1,), (2,)]


def test_tasks_of_higher_priority_come_first_in_their_group() -> None:
    tasks = [{"gpu": 1, "priority": 1}, {"gpu": 1, "priority": 2}, {"cpu": 1}]
    jobs = [{"name": "a", "queue": "team", "tasks": tasks}]
    made = situations.build(forms.parse(DOCUMENT | {"jobs": jobs}))
    assert made.tasks["a"] == [("g0", 1), ("g0", 0), ("g1", 0)]


# -- files, and the command


def muster(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["muster", *arguments])
    with pytest.raises(SystemExit) as left:
        main.main()
    out, err = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, out, err


def write(path: Path, *documents: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"---\n".join(msgspec.yaml.encode(document) for document in documents))


def test_figures_by_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = DOCUMENT | {"expect": {"jobs": {"a": {"state": "running", "node": "n9"}}}}
    write(tmp_path / "one" / "a.yaml", DOCUMENT)
    write(tmp_path / "two" / "b.yml", DOCUMENT, other)
    code, out, _ = muster(["scenario", str(tmp_path), "-o", "json"], monkeypatch, capsys)
    assert code == 0
    assert json.loads(out) == {
        "folders": {
            "one": {"total": 1, "exact": 1, "states": 1, "diverging": [], "elsewhere": []},
            "two": {"total": 2, "exact": 1, "states": 2, "diverging": [], "elsewhere": ["b.yml"]},
        }
    }


def test_a_divergence_exits_with_1_and_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "f" / "a.yaml", DOCUMENT | {"expect": {"jobs": {"a": {"state": "pending"}}}})
    code, out, _ = muster(["scenario", str(tmp_path)], monkeypatch, capsys)
    assert code == 1
    assert "a: found running on n0 since second 0; expected pending" in out
    code, out, _ = muster(["scenario", str(tmp_path), "-o", "json"], monkeypatch, capsys)
    assert code == 1
    assert json.loads(out)["folders"]["f"]["diverging"] == [
        {
            "file": "a.yaml",
            "expected": {"a": {"state": "pending"}},
            "found": {"a": {"state": "running", "node": "n0", "start": 0.0}},
            "meant": None,
        }
    ]


def test_a_divergence_that_is_meant_agrees(tmp_path: Path) -> None:
    write(tmp_path / "f" / "a.yaml", DOCUMENT | {"expect": {"jobs": {"a": {"state": "pending"}}}})
    files = scenarios.find([tmp_path])
    report = scenarios.run(files, {"f/a.yaml": "idle devices are never left idle here"})
    assert report.agrees
    assert report.folders["f"].diverging[0].meant == "idle devices are never left idle here"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("scenario: s\nsource: o\nnodes:\n  n0: {gpu: 1, gpus: 2}\n", "a.yaml:4:16: nodes.n0.gpus"),
        ("scenario: [s\n", "a.yaml:"),
        ("", "it holds no document"),
    ],
)
def test_a_bad_document_is_an_error_with_its_place(
    text: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    write(tmp_path / "b.yaml", DOCUMENT)
    code, out, err = muster(["scenario", str(tmp_path), "-o", "json"], monkeypatch, capsys)
    assert code == 1
    assert told in err
    assert json.loads(out)["folders"][tmp_path.name]["states"] == 1, "the other one ran"


def test_a_path_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = muster(["scenario", str(tmp_path / "no")], monkeypatch, capsys)
    assert code == 1
    assert "does not exist" in err
