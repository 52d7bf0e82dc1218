"""``muster simulate``: sources, policies, figures, pictures, and what is refused."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from reconciler.cli import main, terminal
from reconciler.model import desired
from reconciler.simulation.scenarios import policy_settings

TRACE = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:00:00,100,2,200,a

2017-10-09 07:00:10,100,4,400,b
2017-10-09 07:00:20,50,4,200,b
"""


def muster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["muster", "simulate", *arguments])
    with pytest.raises(SystemExit) as left:
        main.main()
    out, err = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, out, err


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    return str(path)


def test_a_trace_under_every_policy(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [trace, "--nodes", "1", "--per-node", "4", "-o", "json"]
    for policy in ("muster", "fifo", "easy", "conservative", "shortest"):
        arguments += ["--policy", policy]
    code, out, err = muster(monkeypatch, capsys, *arguments)
    assert code == 0
    assert "skipping 1 malformed row:\n  line 3: it is blank\n" in err
    found = json.loads(out)
    assert found["title"] == "t.csv: 3 jobs on 1 x 4 GPUs"
    assert found["malformed"] == 1
    assert [run["policy"] for run in found["runs"]] == [
        "muster", "fifo", "easy", "conservative", "shortest",
    ]  # fmt: skip
    assert {run["finished"] for run in found["runs"]} == {3}
    assert found["runs"][1]["delay_mean_s"] == (0 + 90 + 180) / 3


def test_a_table(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = muster(monkeypatch, capsys, trace, "--nodes", "1", "--per-node", "4")
    assert code == 0
    assert out.splitlines()[0].split()[:4] == ["POLICY", "DONE", "NEVER", "DELAY"]
    assert out.splitlines()[1].split()[:3] == ["muster", "3", "0"]
    assert "\x1b" not in err, "no bar in a pipe"


def test_the_mean_of_several_seeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--jobs", "30", "--nodes", "1", "--policy", "fifo", "--seed", "1", "--seed", "2"]
    code, out, err = muster(monkeypatch, capsys, *arguments, "-o", "json")
    assert code == 0
    runs = json.loads(out)["runs"]
    assert [run["seed"] for run in runs] == [1, 2]
    mean = sum(run["slowdown_mean"] for run in runs) / 2
    assert runs[0]["slowdown_mean"] != runs[1]["slowdown_mean"]
    code, out, err = muster(monkeypatch, capsys, *arguments)
    assert "mean of 2 seeds" in err
    assert f"{mean:.2f}" in out


def test_a_desired_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "all.yaml").write_text(
        """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: pool}
spec:
  hosts: n[1-2]
  nodes: {cpu: 8, memory: 32Gi, gpus: {count: 4}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: default}
spec: {}
---
apiVersion: muster/v1
kind: Job
metadata: {name: sweep}
spec:
  array: {count: 6}
  resources: {cpu: 1, memory: 1Gi, gpu: 2}
  timeLimit: 1h
  command: [date]
"""
    )
    code, out, err = muster(monkeypatch, capsys, str(folder), "-o", "json")
    assert (code, err) == (0, "")
    (run,) = json.loads(out)["runs"]
    assert (run["jobs"], run["finished"]) == (6, 6)
    code, _, err = muster(monkeypatch, capsys, str(folder), "--policy", "easy")
    assert (code, "knows traces and made-up jobs only" in err) == (64, True)
    code, _, err = muster(monkeypatch, capsys, str(folder))
    assert (code, "state: 1 job (6 elements) on 2 nodes" in err) == (0, True), err


def test_what_never_started_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "all.yaml").write_text(
        """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: pool}
spec: {hosts: n1, nodes: {cpu: 8, memory: 32Gi}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: default}
spec: {}
"""
        + "".join(
            f"""\
---
apiVersion: muster/v1
kind: Job
metadata: {{name: {name}}}
spec: {{resources: {{cpu: {cpu}}}, command: [date]{more}}}
"""
            for name, cpu, more in (
                ("fits", 8, ""),
                *((f"large-{letter}", 9, "") for letter in "abcd"),
                ("sweep", 9, ", array: {count: 5}"),
            )
        )
    )
    code, out, err = muster(monkeypatch, capsys, str(tmp_path))
    assert code == 0
    assert err.splitlines()[-1] == (
        "muster: never started: large-a, large-b, large-c, large-d and 1 more"
    )
    code, out, _ = muster(monkeypatch, capsys, str(tmp_path), "-o", "json")
    (run,) = json.loads(out)["runs"]
    assert run["never"] == [f"large-{one}" for one in "abcd"] + [f"sweep[{n}]" for n in range(5)]
    assert run["never_started"] == 9
    text = (tmp_path / "all.yaml").read_text()
    (tmp_path / "all.yaml").write_text(
        text.replace("{cpu: 9}, command: [date]}", "{cpu: 1}, command: [date]}")
    )
    code, out, err = muster(monkeypatch, capsys, str(tmp_path))
    assert err.splitlines()[-1] == "muster: never started: sweep (5 elements)"


def test_what_a_time_limit_ended_and_what_comes_later_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.swf"
    path.write_text(SWF % 60 + SWF % 900 + (SWF % 900).replace(" 0 ", " 7200 ", 1))
    code, out, err = muster(monkeypatch, capsys, str(path), "--until", "1h", "-o", "wide")
    assert code == 0
    told = dict(zip(*(line.split() for line in out.splitlines()), strict=True))
    counts = {"DONE": "1", "NEVER": "0", "LIMIT": "1", "LATER": "1", "EVICTED": "0"}
    assert {name: told[name] for name in counts} == counts
    assert told["LOST"] == "0.00%"
    assert err.splitlines()[-2:] == [
        "muster: ended by their time limits: job-000001",
        "muster: not submitted before the end: job-000003",
    ]
    _, out, _ = muster(monkeypatch, capsys, str(path), "--until", "1h", "-o", "json")
    (run,) = json.loads(out)["runs"]
    assert (run["jobs"], run["never"]) == (3, [])
    assert (run["over_limit"], run["later"]) == (["job-000001"], ["job-000003"])


FOLDER = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: pool}
spec: {hosts: n1, nodes: {cpu: 8, memory: 32Gi}}
---
apiVersion: muster/v1
kind: Job
metadata: {name: j}
spec: {resources: {cpu: 1, memory: 1Gi}, timeLimit: 1h, command: [date]%s}
"""
RESERVATION = """\
---
apiVersion: muster/v1
kind: Reservation
metadata: {name: %s}
spec: {hosts: n1, users: [ann], %s}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "state"
    found.mkdir()
    (found / "all.yaml").write_text(FOLDER % "")
    return found


@pytest.mark.parametrize(
    "option",
    ["--nodes", "--per-node", "--jobs", "--load", "--speed-up", "--over-estimate", "--form"],
)
def test_a_folder_has_a_cluster_and_jobs_of_its_own(
    option: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = muster(monkeypatch, capsys, str(folder), option, "3")
    assert (code, out) == (64, "")
    told = f"{option} is for traces and generated jobs; a folder defines its own cluster"
    assert told in " ".join(err.split())
    assert str(folder) in "".join(err.split())


SWF = "1 0 -1 600 4 -1 -1 4 %d -1 1 1 1 -1 1 -1 -1 -1\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("t.csv --load 0.5", "--load is for generated jobs; t.csv is a trace"),
        ("gone.csv --load 0.5", "--load is for generated jobs; gone.csv is a trace"),
        ("--form swf", "--form is the format of a trace, but no trace is named"),
        ("--policy fifo --cycle-every 30s", "--cycle-every applies only to the policy muster"),
        (
            "t.csv --policy easy --checkpoint-every 30s",
            "--checkpoint-every applies only to",
        ),
        (
            "--policy easy --policy fifo --scheduling backfill=none",
            "--scheduling applies only to the policy muster, not to easy, fifo. To fix: add",
        ),
        ("--policy fifo --until 1d", "--until applies only to the policy muster; fifo would run"),
        ("--policy muster --policy fifo --until 1d", "--until applies only to the policy muster"),
        ("limited.swf --seed 2", "--seed has no effect: every job of limited.swf has its"),
        ("limited.swf --over-estimate 2", "--over-estimate has no effect: every job of"),
        ("t.csv --over-estimate 0 --seed 2", "--seed has no effect: with --over-estimate 0"),
        (
            "--policy fifo --over-estimate 2",
            "--over-estimate sets time limits, which fifo",
        ),
        ("state --policy fifo", "policy fifo knows traces and made-up jobs only: state is a"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    words: str,
    told: str,
    *,
    folder: Path,
    trace: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder.parent)
    assert Path(trace).parent == folder.parent
    Path("limited.swf").write_text(SWF % 900)
    code, out, err = muster(monkeypatch, capsys, *words.split())
    assert (code, out) == (64, "")
    assert told in " ".join(err.split())


MANY = TRACE.splitlines()[0] + "".join(
    f"\n2017-10-09 07:{number:02d}:00,{50 + 37 * number % 400},{1 + number % 4},1,a"
    for number in range(30)
)
#: What is asked for, and the same without one option, which has to come out otherwise.
TELLING = (
    ("many.csv --nodes 1 --per-node 4 --over-estimate 0 --policy shortest", "--over-estimate 0"),
    ("many.csv --nodes 1 --per-node 4 --seed 2 --policy shortest", "--seed 2"),
    ("t.csv --nodes 1 --per-node 4 --speed-up 20", "--speed-up 20"),
    ("t.csv --nodes 1 --per-node 4 --jobs 2", "--jobs 2"),
    ("t.csv --nodes 1 --per-node 4 --scheduling placement=spread", ""),
    ("some.swf --seed 2 --over-estimate 2", ""),
    ("--jobs 25 --nodes 1 --load 3", "--load 3"),
    ("--jobs 25 --nodes 1 --speed-up 2", "--speed-up 2"),
    ("--jobs 25 --nodes 1 --seed 2", "--seed 2"),
    ("--jobs 40 --nodes 1 --load 2 --scheduling backfill=none", "--scheduling backfill=none"),
    ("--jobs 25 --nodes 1 --cycle-every 30m", "--cycle-every 30m"),
    ("--jobs 5 --policy muster --policy fifo --cycle-every 30s", ""),
    ("state --seed 2", "--seed 2"),
    ("state --until 1m", "--until 1m"),
    ("state --cycle-every 30s --scheduling backfill=none", ""),
)


@pytest.mark.parametrize(("words", "option"), TELLING)
def test_an_option_that_changes_something_is_taken(
    words: str,
    option: str,
    *,
    folder: Path,
    trace: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``option``: without it another thing comes out; empty: it is only taken."""
    monkeypatch.chdir(folder.parent)
    assert Path(trace).parent == folder.parent
    Path("some.swf").write_text(SWF % 900 + SWF % -1)
    Path("many.csv").write_text(MANY)
    code, out, err = muster(monkeypatch, capsys, *words.split(), "-o", "json")
    assert code == 0, err
    if option:
        assert option in words
        without = words.replace(option, "").split()
        _, other, _ = muster(monkeypatch, capsys, *without, "-o", "json")
        runs = [
            [{key: value for key, value in run.items() if key != "seed"} for run in of["runs"]]
            for of in (json.loads(out), json.loads(other))
        ]
        assert runs[0] != runs[1]


SETTLED = """\
---
apiVersion: muster/v1
kind: Cluster
metadata: {name: main}
spec: {scheduling: {order: arrival, backfill: none, depth: 1}}
"""
CROWD = "".join(
    FOLDER[FOLDER.index("---") :]
    .replace("name: j", f"name: j{number}")
    .replace("cpu: 1", f"cpu: {cpu}")
    % ""
    for number, cpu in enumerate((5, 8, 2, 3, 1, 2))
)


def test_a_setting_beside_a_folder_leaves_its_other_settings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = FOLDER[: FOLDER.index("---")]
    (folder / "all.yaml").write_text(pool + SETTLED + CROWD)

    def told(*words: str) -> dict[str, object]:
        code, out, err = muster(monkeypatch, capsys, str(folder), *words, "-o", "json")
        assert code == 0, err
        (run,) = json.loads(out)["runs"]
        assert isinstance(run, dict)
        return run

    plain = told()
    assert told("--scheduling", "backfill=none") == plain
    other = told("--scheduling", "backfill=conservative")
    assert other["delay_mean_s"] != plain["delay_mean_s"], "the folder's own setting counts"


SHARES = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: pool}
spec: {hosts: n1, nodes: {cpu: 8, memory: 32Gi, gpus: {count: 1, memory: 80Gi}}}
---
apiVersion: muster/v1
kind: Job
metadata: {name: j}
spec: {array: {count: 8}, resources: {cpu: 1, memory: 1Gi, %s}, timeLimit: 1h, command: [date]}
"""


@pytest.mark.parametrize("share", ["gpu: 0.25", "gpuMemory: 20Gi", "gpu: 1"])
def test_of_shared_devices_the_parts_are_in_use(
    share: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "all.yaml").write_text(SHARES % share)
    code, out, err = muster(monkeypatch, capsys, str(folder), "-o", "json")
    assert code == 0, err
    (run,) = json.loads(out)["runs"]
    assert run["finished"] == 8
    assert 0.5 < run["utilisation"] <= 1.0


def test_half_a_cpu_is_a_cluster_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (FOLDER % "").replace("cpu: 8", "cpu: 0.5").replace("cpu: 1,", "cpu: 0.5,")
    (folder / "all.yaml").write_text(text)
    code, out, err = muster(monkeypatch, capsys, str(folder), "-o", "json")
    assert code == 0, err
    assert json.loads(out)["runs"][0]["utilisation"] == pytest.approx(1.0)


def test_what_waits_for_months_is_simulated_and_what_waits_for_ever_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two days of each week are taken, in one case until June, so that six days of work wait."""
    text = (FOLDER % "").replace("timeLimit: 1h", "timeLimit: 6d")
    for months, never in (("1-5", 0), ("*", 1)):
        again = f'schedule: "0 8 * {months} 1", duration: 2d'
        (folder / "all.yaml").write_text(text + RESERVATION % ("again", again))
        code, out, err = muster(monkeypatch, capsys, str(folder), "-o", "json")
        assert code == 0, err
        (run,) = json.loads(out)["runs"]
        assert (run["never_started"], run["gave_up_s"] is not None) == (never, bool(never))
    code, _, err = muster(monkeypatch, capsys, str(folder), "--until", "9000d")
    assert code == 0
    assert "muster: stopped: nothing ran from " in " ".join(err.split())


def test_where_no_job_takes_a_gpu_cpus_are_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else whatever runs on nodes with GPUs would be told as nothing."""
    (folder / "all.yaml").write_text((FOLDER % "").replace("32Gi}", "32Gi, gpus: {count: 2}}"))
    code, out, err = muster(monkeypatch, capsys, str(folder), "-o", "json")
    assert code == 0, err
    used = json.loads(out)["runs"][0]
    assert used["finished"] == 1
    with_cpus = FOLDER % ""
    (folder / "all.yaml").write_text(with_cpus)
    code, out, _ = muster(monkeypatch, capsys, str(folder), "-o", "json")
    assert json.loads(out)["runs"][0] == used


def test_what_belongs_to_another_time_is_told_to_count_for_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FOLDER % ', deadline: "2090-01-31T06:00:00Z"'
    once = 'start: "2090-01-31T06:00:00Z", end: "2090-01-31T07:00:00Z"'
    again = 'schedule: "0 8 * * *", duration: 1h'
    (folder / "all.yaml").write_text(
        text + RESERVATION % ("once", once) + RESERVATION % ("again", again)
    )
    code, _, err = muster(monkeypatch, capsys, str(folder))
    assert code == 0, err
    assert (
        "virtual time begins at 1970-01-12T13:46:40.000Z, so these never happen: "
        "the deadline of Job/j, the window of Reservation/once\n"
    ) in err


def test_where_nothing_can_be_written_nothing_is_simulated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    for option, path in (("--png", folder / "no" / "a.png"), ("--html", folder)):
        code, out, err = muster(monkeypatch, capsys, str(folder), option, str(path))
        assert (code, out) == (1, "")
        assert str(path) in "".join(err.split("\n"))
        assert "1 job on" not in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--html", "t.csv"], "t.csv is the input; write the picture elsewhere"),
        (["--png", "a", "--html", "./a"], "--png and --html are both a; use two files"),
    ],
)
def test_a_picture_takes_no_file_that_something_else_is(
    words: list[str],
    told: str,
    *,
    trace: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(Path(trace).parent)
    code, _, err = muster(monkeypatch, capsys, "t.csv", *words)
    assert (code, told in " ".join(err.split())) == (64, True), err
    assert Path("t.csv").read_text() == TRACE


def test_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    png, html = tmp_path / "a.png", tmp_path / "a.html"
    arguments = ["--jobs", "20", "--nodes", "2", "--png", str(png), "--html", str(html)]
    code, _, _ = muster(monkeypatch, capsys, *arguments)
    assert code == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert html.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["nothing.csv"], 1, "muster: nothing.csv: no such file or folder\n"),
        (["nothing"], 1, "muster: nothing: no such file or folder\n"),
        (["t.txt"], 1, "add --form philly or --form swf"),
        (["t.txt", "--form", "slurm"], 64, 'no form "slurm"; there are philly and swf'),
        (["--policy", "magic"], 64, 'no policy "magic"'),
        (["--nodes", "0"], 64, "--nodes"),
        (["--scheduling", "backfill"], 64, "expected KEY=VALUE"),
        (["--scheduling", "sorcery=1"], 64, "no setting sorcery; there are backfill"),
        (
            ["--scheduling", "minRuntime.s=1"],
            64,
            "no setting minRuntime.s; did you mean minRuntime",
        ),
        (["--scheduling", "backfil=easy"], 64, "no setting backfil; did you mean backfill?"),
        (
            ["--scheduling", "fairness.halfLife=0s", "--scheduling", "fairness.strength=1"],
            64,
            "--scheduling: fairness.halfLife: found 0s, expected a duration above 0s",
        ),
        (
            ["--scheduling", "depth=201"],
            64,
            "depth: found 201, expected a whole number from 0 to 200",
        ),
        (
            ["--scheduling", "minRuntime=soon"],
            64,
            'minRuntime: found "soon", expected a duration such',
        ),
        (["--scheduling", "depth=x"], 64, 'depth: found "x", expected a whole number from 0'),
        (["--scheduling", "fairness.strength=x"], 64, 'fairness.strength: found "x", expected a'),
        (["--scheduling", "fairness=1"], 64, "fairness: found 1, expected a mapping"),
        (
            ["--scheduling", "backfill=some"],
            64,
            '--scheduling: backfill: found "some", expected one of conservative, easy, none',
        ),
        (["--until", "soon"], 64, "not a duration"),
        (["--jobs", "5", "--checkpoint-every", "0"], 64, "--checkpoint-every: found 0, expected a"),
        (["--over-estimate", "1000"], 64, "--over-estimate"),
        (["--load", "1e308"], 64, "--load"),
        (["--per-node", "10" * 12], 64, "--per-node"),
        (["--nodes", "1000000000"], 64, "--nodes"),
        (
            ["--scheduling", "depth=1", "--scheduling", "depth=2"],
            64,
            "--scheduling: depth is given twice",
        ),
        (["bad.csv"], 1, "holds no job that could be read: line 2: it has 1 fields; expected 5"),
        (["/dev/null", "--form", "swf"], 1, "/dev/null is no regular file"),
    ],
)
def test_what_is_refused(
    arguments: list[str],
    code: int,
    told: str,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("")
    (tmp_path / "bad.csv").write_text(f"{TRACE.splitlines()[0]}\nx\n")
    found, _, err = muster(monkeypatch, capsys, *arguments)
    assert (found, told in err) == (code, True), err


def test_settings_are_written_as_in_a_cluster_document() -> None:
    policy = {
        "backfill": "conservative",
        "minRuntime": "5m",
        "staleGangGrace": 90,
        "learnedRunTimes.quantile": 0.5,
        "fairness": {"halfLife": "1d", "strength": 2},
        "overdueAfter": 3,
    }
    missing: dict[str, None] = {}
    found = policy_settings.settings_of(policy, missing).scheduling
    assert found == desired.Scheduling(
        backfill="conservative",
        usage_half_life_s=86_400,
        usage_strength=2.0,
        learned_quantile=0.5,
        overdue_after=3.0,
        min_runtime_s=300,
        stale_gang_s=90,
    )
    assert not missing


def test_a_terminal_sees_each_policy_come_to_its_end(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Live bars go to the terminal alone: a pipe gets what it got before."""
    arguments = (trace, "--nodes", "1", "--per-node", "4", "--policy", "muster", "--policy", "fifo")
    _, piped, silent = muster(monkeypatch, capsys, *arguments)
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=True, width=100)
    monkeypatch.setattr(terminal, "err", console)
    code, out, _ = muster(monkeypatch, capsys, *arguments)
    assert (code, out) == (0, piped)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.getvalue())
    for policy in ("muster", "fifo"):
        assert re.search(rf"{policy} .*3/3", plain), plain
    assert "3/3" not in silent
