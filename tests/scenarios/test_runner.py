"""The runner tells what disagrees, refuses what it does not understand, and drops nothing."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.cli import main
from reconciler.desired.apply import validate
from reconciler.operations.simulate import scenarios
from reconciler.simulation.scenarios import builder, policy_settings, runner, schema

DOCUMENT: dict[str, Any] = {
    "scenario": "one job, one GPU",
    "source": "own",
    "nodes": {"n0": {"gpu": 1}},
    "queues": [{"name": "team"}],
    "jobs": [{"name": "a", "queue": "team", "tasks": [{"gpu": 1}]}],
    "rounds": {"settle": 1, "stable": 1},
    "expect": {"jobs": {"a": {"state": "running", "node": "n0"}}},
}


RUNS: dict[str, Any] = {"gpu": 1, "state": "running", "node": "n0"}
SHARE = RUNS | {"gpu": 0.5}


def queue(**changes: object) -> dict[str, Any]:
    return {"queues": [{"name": "team"} | changes]}


def job(**changes: object) -> dict[str, Any]:
    return {"jobs": [DOCUMENT["jobs"][0] | changes]}


def verdict(**changes: object) -> runner.ScenarioVerdict:
    return runner.run(schema.parse(DOCUMENT | changes))


def test_what_agrees_is_exact() -> None:
    assert verdict() == runner.ScenarioVerdict(exact=True, states=True)


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


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (2, 1, 2), (2, 2, 1)])
def test_states_of_a_gang_have_no_order(sizes: tuple[int, ...]) -> None:
    """Only the smallest has room: told alike, and agreed with in either order."""
    gang = job(min=1, tasks=[{"gpu": size} for size in sizes])
    for told in ("running, pending", "pending, running"):
        assert verdict(**gang, expect={"jobs": {"a": {"state": told}}}).exact
    wrong = verdict(**gang, expect={"jobs": {"a": {"state": "running"}}})
    assert wrong.found["a"]["state"] == "running, pending"


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
        ({"nodes": {"n0": {"gpu": "many"}}}, "nodes.n0.gpu", '"many" is not a number of GPUs'),
        ({"queues": []}, "jobs[0].queue", "there is no Queue/team"),
        (
            {"queues": [{"name": "team", "parent": "up"}]},
            "queues[0].parent",
            "there is no Queue/up",
        ),
        ({"queues": [{"name": "team", "parent": "team"}]}, "queues", "its own ancestor"),
        ({"rounds": {"settle": 0}}, "rounds", "expected settle from 1"),
        ({"until": 5}, "", "either `rounds` or `until`"),
        ({"expect": {"jobs": {"b": {}}}}, "expect.jobs.b", "there is no Job/b"),
        ({"expect": {"tasks": {"a-1": {}}}}, "expect.tasks.a-1", "there is no Task/a-1"),
        (
            {"jobs": [{"name": "a", "queue": "team", "min": 2, "tasks": [{}]}]},
            "jobs[0].min",
            "min is 2",
        ),
        (
            {"jobs": [{"name": "a", "queue": "team", "tasks": [{"state": "running"}]}]},
            "jobs[0].tasks[0].node",
            "it runs, and names no node",
        ),
        (
            job(tasks=[RUNS | {"node": "n7"}]),
            "jobs[0].tasks[0].node",
            "it runs, on a node that is not there: n7",
        ),
        (
            {"jobs": [{"name": "a", "queue": "team", "tasks": [{}]}] * 2},
            "jobs[1].name",
            'a second job "a"',
        ),
        ({"queues": [{"name": "team"}] * 2}, "queues[1].name", 'found a second queue "team"'),
        (queue(weight=-1), "queues[0].weight", "found -1; expected 0 to 1000000"),
        (queue(weight=2e6), "queues[0].weight", "found 2e+06; expected 0 to 1000000"),
        (queue(priority=10**20), "queues[0].priority", "expected -1000000 to 1000000"),
        (
            queue(flavors=[{"pool": "n0", "weight": -1}]),
            "queues[0].flavors[0].weight",
            "found -1; expected 0 to 1000000",
        ),
        (
            job(priority=10**20),
            "jobs[0].priority",
            f"found {10**20}; expected -1000000 to 1000000",
        ),
        (job(duration=-10), "jobs[0].duration", "found -10; expected at least 0"),
        (job(timeLimit=0), "jobs[0].timeLimit", "found 0; expected 1 to 2^62 seconds"),
        (job(timeLimit=-5), "jobs[0].timeLimit", "found -5; expected 1 to 2^62 seconds"),
        (job(timeLimit=2**63), "jobs[0].timeLimit", "expected 1 to 2^62 seconds"),
        (job(submit=-10), "jobs[0].submit", "found -10; expected at least 0"),
        ({"rounds": None, "until": -5}, "until", "found -5; expected at least 0"),
        (job(tasks=[{"gpu": 1.5}]), "jobs[0].tasks[0].gpu", "found 1.5; expected a whole number"),
        (job(tasks=[{"gpu": 2e6}]), "jobs[0].tasks[0].gpu", "expected at most 1000000"),
        (
            job(submit=10, tasks=[RUNS]),
            "jobs[0].tasks[0].state",
            "found running, of a job that is submitted at second 10",
        ),
        (
            {"expect": {"jobs": {"a": {"state": "runing"}}}},
            "expect.jobs.a.state",
            'found "runing"; expected one of ',
        ),
        (
            {"expect": {"tasks": {"a-0": {"state": "Running"}}}},
            "expect.tasks.a-0.state",
            'found "Running"; expected one of ',
        ),
        (
            {"expect": {"jobs": {"a": {"state": "running,pending"}}}},
            "expect.jobs.a.state",
            "with a comma and a space between",
        ),
    ],
)
def test_what_is_not_understood_is_refused(
    changes: dict[str, Any], where: str, message: str
) -> None:
    with pytest.raises(schema.ScenarioError) as refused:
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


@pytest.mark.parametrize(
    "changes",
    [
        queue(weight=0, limit={"gpu": 0}),
        queue(guaranteed={"gpu": 1.5}),
        {"jobs": [], "expect": {}},
        {"nodes": {}},
        {"nodes": {"n0": {"gpu": 1, "cpu": 1}}} | job(tasks=[RUNS | {"cpu": 2}]),
        job(duration=0, timeLimit=1, priority=-(10**6), submit=0),
        {"rounds": None, "until": 0},
        {"expect": {"jobs": {"a": {"state": "running, pending, timedout", "node": "elsewhere"}}}},
    ],
)
def test_what_is_unusual_is_taken(changes: dict[str, Any]) -> None:
    assert "*" not in verdict(**changes).found


def devices(gpus: float, *tasks: dict[str, Any]) -> list[tuple[int, ...]]:
    changes = job(tasks=list(tasks)) | {"nodes": {"n0": {"gpu": gpus}}}
    made = builder.build(schema.parse(DOCUMENT | changes))
    return [attempt.devices for attempt in made.observed.attempts.values()]


@pytest.mark.parametrize(
    ("gpus", "tasks", "expected"),
    [
        pytest.param(
            3,
            [RUNS | {"devices": ["b"]}, RUNS | {"devices": [1]}, RUNS],
            [(0,), (1,), (2,)],
            id="equal labels are one device, and who names none gets those that nobody named",
        ),
        pytest.param(2, [SHARE, SHARE], [(0,), (1,)], id="shares are apart where they can be"),
        pytest.param(1, [SHARE, SHARE], [(0,), (0,)], id="and of one device where they can't"),
        pytest.param(2, [SHARE, RUNS, SHARE], [(1,), (0,), (1,)], id="or whole GPUs are there"),
        pytest.param(
            2,
            [SHARE, SHARE | {"gpu": 0.4}, SHARE, SHARE | {"gpu": 0.6}],
            [(1,), (0,), (1,), (0,)],
            id="larger shares first",
        ),
        pytest.param(
            2,
            [SHARE | {"devices": ["x"]}, SHARE, SHARE, SHARE],
            [(0,), (0,), (1,), (1,)],
            id="beside those that are named",
        ),
        pytest.param(2, [RUNS | {"devices": ["0", "1"]}], [(0, 1)], id="halves of two"),
        pytest.param(1, [RUNS | {"gpu": 0}], [()], id="none"),
    ],
)
def test_devices_of_what_runs(
    gpus: float, tasks: list[dict[str, Any]], expected: list[tuple[int, ...]]
) -> None:
    assert devices(gpus, *tasks) == expected


@pytest.mark.parametrize(
    ("gpus", "tasks", "where", "message"),
    [
        (1, [RUNS, RUNS], "tasks[1].gpu", "found 2 GPUs taken"),
        (0, [RUNS], "tasks[0].gpu", "found 1 GPU taken by what runs there"),
        (2, [RUNS | {"gpu": 3}], "tasks[0].gpu", "node n0 has 2 of them"),
        (2, [RUNS | {"devices": ["5"]}], "tasks[0].devices", 'found device "5"; expected one that'),
        (2, [SHARE | {"devices": [label]} for label in "abc"], "tasks[2].devices", 'device "c"'),
        (
            2,
            [RUNS | {"gpu": 2, "devices": ["0"]}],
            "tasks[0].devices",
            "found 1 of them; expected 2, as many as the task has GPUs",
        ),
        (2, [RUNS | {"gpu": 2, "devices": [0, "0"]}], "tasks[0].devices", "found 1 of them"),
        (
            2,
            [SHARE | {"gpu": 0.6, "devices": ["0"]}] * 2,
            "tasks[1].devices",
            'found 1.2 of device "0" taken, up to this task; expected at most 1',
        ),
        (2, [SHARE | {"gpu": 0.6}] * 3, "tasks[2].gpu", "no device left for 0.6 GPUs"),
        (
            2,
            [SHARE | {"devices": ["0"]}, SHARE | {"devices": ["1"]}, RUNS],
            "tasks[2].gpu",
            "no device left for 1 GPU;",
        ),
    ],
)
def test_devices_that_are_not_there_are_refused(
    gpus: float, tasks: list[dict[str, Any]], where: str, message: str
) -> None:
    with pytest.raises(schema.ScenarioError) as refused:
        devices(gpus, *tasks)
    assert refused.value.where == f"jobs[0].{where}"
    assert message in refused.value.message


# -- the policy

#: Each name of a policy: a value, and the field of the settings with what must be in it.
POLICY: dict[str, tuple[object, str, object]] = {
    "backfill": ("conservative", "backfill", "conservative"),
    "depth": (3, "depth", 3),
    "consolidation": (False, "consolidation", False),
    "fairness.halfLife": ("1d", "usage_half_life_s", 86_400),
    "fairness.window": ("2d", "usage_window_s", 172_800),
    "fairness.strength": (2, "usage_strength", 2.0),
    "placement": ("spread", "placement", "spread"),
    "order": ("arrival", "order", "arrival"),
    "learnedRunTimes.quantile": (0.5, "learned_quantile", 0.5),
    "overdueAfter": (3, "overdue_after", 3.0),
    "minRuntime": ("10m", "min_runtime_s", 600),
    "graceMax": ("10m", "grace_max_s", 600),
    "staleGangGrace": (300, "stale_gang_s", 300),
}


def settings(policy: dict[str, Any]) -> dict[str, Any]:
    made = builder.build(schema.parse(DOCUMENT | {"policy": policy}))
    assert made.missing == []
    found: dict[str, Any] = msgspec.structs.asdict(made.structure.settings.scheduling)
    return found


def test_a_policy_holds_every_name_there_is() -> None:
    inner = {
        f"{name}.{part}" for name, parts in policy_settings.SCHEDULING.items() for part in parts
    }
    plain = {name for name, parts in policy_settings.SCHEDULING.items() if not parts}
    assert set(POLICY) == inner | plain


@pytest.mark.parametrize("name", POLICY)
def test_what_a_policy_names_is_applied_and_nothing_else(name: str) -> None:
    value, field, expected = POLICY[name]
    before, (top, _, part) = settings({}), name.partition(".")
    assert before[field] != expected
    assert settings({name: value}) == before | {field: expected}
    assert settings({top: {part: value} if part else value}) == before | {field: expected}


def test_waits_are_none_where_a_policy_does_not_name_them() -> None:
    unsaid = settings({"depth": 3})
    assert (unsaid["min_runtime_s"], unsaid["stale_gang_s"]) == (0, 0)
    assert settings({"staleGangGrace": "1m"})["stale_gang_s"] == 60, "also what a cluster has"


@pytest.mark.parametrize(
    ("policy", "where", "message"),
    [
        (
            {"fairness": {"halfLife": "0s", "strength": 1}},
            "policy.fairness.halfLife",
            "found 0s, expected a duration above 0s",
        ),
        ({"fairness.window": 0}, "policy.fairness.window", "found 0, expected a duration above 0s"),
        (
            {"fairness.halfLife": "7d", "fairness": {"strength": 1}},
            "policy.fairness",
            "found fairness beside fairness.halfLife, expected one of the two",
        ),
        ({"fairness": 3}, "policy.fairness", "found 3, expected `object`"),
        ({"fairness": {"half": 3}}, "policy.fairness.half", "there is no such field"),
        ({"depth": 201}, "policy.depth", "found 201, expected `int` <= 200"),
        ({"depth": -3}, "policy.depth", "found -3, expected `int` >= 0"),
        ({"backfill": "some"}, "policy.backfill", 'found "some", expected one of conservative'),
        ({"minRuntime": "soon"}, "policy.minRuntime", '"soon" is not a duration such as'),
        ({"fairness.halfLife": "1.5d"}, "policy.fairness.halfLife", "is not a duration such as"),
    ],
)
def test_a_policy_has_the_bounds_of_a_cluster(
    policy: dict[str, Any], where: str, message: str
) -> None:
    with pytest.raises(schema.ScenarioError) as refused:
        verdict(policy=policy)
    assert refused.value.where == where
    assert message in refused.value.message


def test_tasks_of_higher_priority_come_first_in_their_group() -> None:
    tasks = [{"gpu": 1, "priority": 1}, {"gpu": 1, "priority": 2}, {"cpu": 1}]
    jobs = [{"name": "a", "queue": "team", "tasks": tasks}]
    made = builder.build(schema.parse(DOCUMENT | {"jobs": jobs}))
    assert made.tasks["a"] == [("g0", 1), ("g0", 0), ("g1", 0)]


@pytest.mark.parametrize(
    "value", [0, "0s", 1, "1d", -1, 0.5, 201, 2_000_000, "some", "none", True, None]
)
@pytest.mark.parametrize("name", POLICY)
def test_a_policy_takes_what_a_cluster_takes(name: str, value: object) -> None:
    """The loader and a scenario take the same values, and make the same of them."""
    top, _, part = name.partition(".")
    scheduling = {top: {part: value} if part else value}
    cluster = {"apiVersion": "muster/v1", "kind": "Cluster", "metadata": {"name": "c"}}
    text = msgspec.yaml.encode(cluster | {"spec": {"scheduling": scheduling}})
    loaded = validate.check({"c.yaml": text})
    try:
        found = policy_settings.settings_of(scheduling, {}).scheduling
    except schema.ScenarioError:
        assert loaded.status.problems
    else:
        assert not loaded.status.problems
        assert found == loaded.structure.settings.scheduling


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


def test_what_is_no_file_is_not_called_absent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path / "pipe.yaml", Path(os.devnull)):
        with pytest.raises(scenarios.PathError, match=f"{path} is no file, but a device, a pipe"):
            scenarios.find([path])
    with pytest.raises(scenarios.PathError, match=r"none\.yaml does not exist"):
        scenarios.find([tmp_path / "none.yaml"])
    report = scenarios.run(scenarios.find([tmp_path]))
    (told,) = report.errors
    assert told.startswith(f"{tmp_path / 'pipe.yaml'} is no file, but a device, a pipe or a socket")


def test_a_folder_with_the_name_of_a_file_is_gone_through(tmp_path: Path) -> None:
    inner = tmp_path / "d.yaml"
    inner.mkdir()
    with pytest.raises(scenarios.PathError, match=r"no \.yaml file in"):
        scenarios.find([tmp_path])
    (inner / "a.yaml").write_text(json.dumps(DOCUMENT))
    files = scenarios.find([tmp_path])
    assert files == [inner / "a.yaml"]
    assert scenarios.run(files).agrees


def test_a_file_that_can_not_be_read_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "away.yaml").symlink_to(tmp_path / "nowhere.yaml")
    report = scenarios.run(scenarios.find([tmp_path]))
    assert report.errors == [f"{tmp_path / 'away.yaml'} can't be read: No such file or directory"]
    (diverging,) = report.folders[tmp_path.name].diverging
    assert diverging.found["*"]["state"] == ("refused: it can't be read: No such file or directory")
