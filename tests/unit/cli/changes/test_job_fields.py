"""Fields of a job by options of `submit`: named ones, any with `--set`, and `#SBATCH` lines."""

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
import yaml

from reconciler import package_data
from reconciler.cli import main, terminal
from reconciler.cli.changes import job_fields, sbatch_lines
from reconciler.operations.changes import job_document

SCHEMA = json.loads((package_data.checkout() / "schemas/job.json").read_text())
#: Fields that `--set` leaves to other options.
NOT_SET = {
    "environment": "--env and --export look for names of secrets",
    "submitted": "the command finds out where it is",
}


def _submit(*words: str) -> int:
    code = main.application("submit").main(
        ["submit", "--dry-run", *words], prog_name="muster", standalone_mode=False
    )
    return code if isinstance(code, int) else 0


@pytest.fixture
def clone(starter: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(starter)
    return starter


def _spec(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert _submit(*words) == 0, capsys.readouterr().err
    return yaml.safe_load(capsys.readouterr().out)["spec"]


@pytest.mark.usefixtures("clone")
@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--depends", "a", "--depends", "afterany:b"], "dependsOn",
         [{"job": "a"}, {"job": "b", "condition": "afterAny"}]),
        (["--chdir", "/data"], "workingDirectory", "/data"),
        (["--image", "debian:12"], "image", "debian:12"),
        (["--image", "debian:12"], "runtime", "podman"),
        (["--image", "a.sif", "--set", "runtime=apptainer"], "runtime", "apptainer"),
        (["--retries", "2", "--set", "retries.backoff=1m"], "retries",
         {"limit": 2, "backoff": "1m"}),
        (["--retries", "0"], "retries", {"limit": 0}),
        (["--priority", "70"], "priority", 70),
        (["--hold"], "suspend", True),
        (["--exclusive"], "exclusive", True),
        (["--output-file", "%x-%j.out"], "output", "%x-%j.out"),
        (["--output-file", "a", "--error-file", "%t"], "error", "%t"),
        (["--pool", "virtual"], "pools", ["virtual"]),
        (["--node", "virtual-[0-1]", "--node", "n7"], "hosts", "virtual-[0-1],n7"),
        (["--exclude", "virtual-1"], "excludeHosts", "virtual-1"),
        (["--begin", "2027-01-31T06:00+01:00"], "notBefore", "2027-01-31T05:00:00.000Z"),
        (["--deadline", "2027-02-01T00:00Z"], "deadline", "2027-02-01T00:00:00.000Z"),
        (["--set", "spec.lease=15m"], "lease", "15m"),
        (["--set", "tolerations=[{key: a}]"], "tolerations", [{"key": "a"}]),
    ],
)  # fmt: skip
def test_an_option_sets_its_field(
    words: list[str], field: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _spec(capsys, *words, "--", "true")[field] == value


@pytest.mark.usefixtures("clone")
def test_a_condition_that_there_is_none_of_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert _submit("--depends", "after:foo", "--", "true") == terminal.USAGE
    told = capsys.readouterr().err
    assert "no job can wait for the start of another" in told
    assert "--depends afterany:foo" in told


def _fields() -> dict[str, Any]:
    """Every field of a job with its example."""
    spec = SCHEMA["properties"]["spec"]
    name = spec.get("$ref", "").rpartition("/")[2]
    properties = (SCHEMA.get("$defs", {}).get(name) or spec)["properties"]
    return {field: one["examples"][0] for field, one in properties.items()}


@pytest.mark.parametrize("field", sorted(_fields().keys() - NOT_SET.keys()))
def test_every_field_of_a_job_can_be_set(field: str) -> None:
    value = _fields()[field]
    options = job_document.JobOptions("j", ("true",), written={field: json.dumps(value)})
    found: Any = job_document.job_document(options)["spec"]
    assert found[field] == value


@pytest.mark.usefixtures("clone")
def test_job_options_are_not_for_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert _submit("--hold", "jobs/hello.yaml") == terminal.USAGE
    assert "--hold: job options can't be combined" in capsys.readouterr().err


SCRIPT = """\
#!/bin/bash
#SBATCH -J train --partition=default  # a comment
#SBATCH --gres=gpu:2
#SBATCH -t 90
#SBATCH --array 0-3%2
#SBATCH --mem=4096 -c4
#SBATCH --signal=B:USR1@60
#SBATCH --hold
#SBATCH --mail-type=END
# a word
echo one
#SBATCH --time=1
"""


@pytest.mark.usefixtures("clone")
def test_lines_of_a_script_become_options_or_are_named(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clone / "job.sh").write_text(SCRIPT)
    assert _submit("--time", "5m", "job.sh") == 0
    said = capsys.readouterr()
    found = yaml.safe_load(said.out)
    assert found["metadata"]["name"] == "train"
    expected = {
        "queue": "default", "resources": {"cpu": "4", "memory": "4096Mi", "gpu": 2},
        "timeLimit": "5m", "array": {"count": 4, "parallelism": 2}, "suspend": True,
        "checkpoint": {"signal": "SIGUSR1", "signalBeforeLimit": "60s"},
    }  # fmt: skip
    assert {name: found["spec"].get(name) for name in expected} == expected
    words = " ".join(said.err.split())
    assert "these lines change nothing: --mail-type=END" in words
    assert "taken from the script" in words


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("--time=90", {"time_limit": "90m"}),
        ("--time=1-12:00:00", {"time_limit": "1-12:00:00"}),
        ("-N 2", {"count": 2, "tasks_per_node": 1}),
        ("-N2 --ntasks-per-node=4", {"count": 8, "tasks_per_node": 4}),
        ("-N2 -n4", {"count": 4, "tasks_per_node": 2}),
        ("-N2 -n4 --ntasks-per-node=8", {"count": 4, "tasks_per_node": 2}),
        ("-n4 --ntasks-per-node=2", {"count": 4, "tasks_per_node": 2}),
        ("-N2 -n6 --ntasks-per-node=2", {"count": 6, "tasks_per_node": 3}),
        ("-N4 -n5", {"count": 5, "tasks_per_node": None}),
        ("-N1-4 -n2", {"count": 2, "tasks_per_node": None}),
        ("-N0", {"count": None, "tasks_per_node": None}),
        ("-N2-2", {"count": 2, "tasks_per_node": 1}),
        ("-n5 --ntasks-per-node=2", {"count": 5, "tasks_per_node": None}),
        ("-N2 --ntasks-per-node=4 --mem=1K", {"memory": "1Ki"}),
        ("-n 8", {"count": 8, "tasks_per_node": None}),
        ("--gpus-per-task=2 -n 8", {"gpus": 2.0, "count": 8}),
        # of a model, which no option here asks for
        ("--gpus-per-task=a100:2 -n 8", {"gpus": None, "count": 8}),
        ("--gres=gpu:a100:2", {"gpus": None}),
        # of a node, which its tasks share
        ("-N 2 -n 8 --gres=gpu:4 --mem=8G", {"gpus": 1.0, "memory": "2048Mi", "count": 8}),
        ("-N 2 -n 8 --gres=gpu:2", {"gpus": None, "count": 8}),
        ("-n 8 --gres=gpu:4 --mem=8G", {"gpus": None, "memory": None, "count": 8}),
        # of the whole job
        ("-N 2 -n 4 --gpus=4", {"gpus": 1.0}),
        ("-n 4 -G 4", {"gpus": 1.0}),
        ("-G 4", {"gpus": 4.0}),
        ("-N 2 -G 3", {"gpus": None}),
        ("-N 2 --gres=gpu:4 --mem=8G", {"gpus": 4.0, "memory": "8Gi", "count": 2}),
        ("--array=1-9", {"array": None, "indexes": "1-9"}),
        ("--array=7", {"array": None, "indexes": "7"}),  # an index, and not seven elements
        ("--array=1,3,5-9:2%4", {"indexes": "1-9:2", "parallelism": 4}),
        ("--array=9-1", {"array": None, "indexes": None}),
        ("--job-name=Bad_Name", {"name": "j"}),
        ("--time", {"time_limit": None}),
        ("--mem=all", {"memory": None}),
        ("--nice", {"framework": "slurm"}),
        ("-w n[1-2] -x n2", {"fields": {"hosts": "n[1-2]", "excludeHosts": "n2"}}),
        ("-b 2027-01-31T06:00Z", {"fields": {"notBefore": "2027-01-31T06:00:00.000Z"}}),
    ],
)
def test_options_of_sbatch(lines: str, expected: dict[str, Any]) -> None:
    found = _filled(lines, UNSAID, others=True)
    assert {name: getattr(found, name) for name in expected} == expected


UNSAID = job_fields.GivenCounts(None, None, None)


def _filled(
    lines: str, given: job_fields.GivenCounts, *, others: bool = False
) -> job_document.JobOptions:
    """The options of a job of a script with these lines and a command line that says this."""
    script = f"#!/bin/sh\n#SBATCH {lines}\n"
    sizes = job_fields.sizes(sbatch_lines.with_lines(script, given, others=others))
    options = job_document.JobOptions(
        "j",
        ("job.sh",),
        script=script,
        count=sizes.tasks,
        most=given.most,
        tasks_per_node=sizes.per_node,
    )
    return sbatch_lines.fill(options, named=False, others=others)


@pytest.mark.parametrize(
    ("lines", "given", "expected"),
    [
        ("-N2", {"tasks": 4}, (4, 2, None)),
        ("-N2 --ntasks-per-node=2", {"nodes": 4}, (8, 2, None)),
        ("-N2 -n4 --gres=gpu:4", {"nodes": 1}, (4, 4, 1.0)),
        ("-N2 -n4 --gres=gpu:4", {"nodes": 4}, (4, 1, 4.0)),
        ("-N1-3", {"nodes": 2}, (2, 1, None)),
        ("-N4 -n5", {"tasks": 8}, (8, 2, None)),
        ("-N2 -n4 --ntasks-per-node=2", {"most": 8}, (None, 2, None)),
        ("-N2 -n4", {"tasks": 2, "per_node": 1}, (2, 1, None)),
    ],
)
def test_numbers_of_tasks_are_those_of_the_command_line_and_else_of_the_script(
    lines: str, given: dict[str, int], expected: tuple[int | None, int | None, float | None]
) -> None:
    found = _filled(lines, UNSAID._replace(**given))
    assert (found.count, found.tasks_per_node, found.gpus) == expected


@pytest.mark.parametrize(
    ("lines", "given", "told"),
    [
        ("-N 1-3", {}, "#SBATCH --nodes=1-3: expected a whole number from 1"),
        ("-N0", {}, "#SBATCH --nodes=0: expected a whole number from 1"),
        ("-N4 -n5", {}, "--tasks 5 can't be shared evenly by --nodes 4"),
        ("-n6", {"nodes": 4}, "#SBATCH --ntasks=6: --tasks 6 can't be shared evenly by --nodes 4"),
        ("-N2", {"tasks": 5}, "#SBATCH --nodes=2: --tasks 5 can't be shared evenly by --nodes 2"),
        ("-N2 -n4", {"per_node": 4}, "are 8 tasks, not --tasks 4"),
    ],
)
def test_numbers_of_tasks_in_a_script_that_can_not_be_are_refused(
    lines: str, given: dict[str, int], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        _filled(lines, UNSAID._replace(**given))
    assert ended.value.exit_code == terminal.USAGE
    assert told in " ".join(capsys.readouterr().err.split())


def test_lines_that_are_ignored_are_not_said_to_be_taken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = _filled("-N4 -n5", UNSAID, others=True)
    assert (found.count, found.tasks_per_node) == (5, None)
    changing, taken = capsys.readouterr().err.splitlines()
    assert changing.endswith("these lines change nothing: --nodes=4")
    assert taken.endswith(": --ntasks=5")


def test_a_script_that_starts_mpi_by_itself_is_told_how(capsys: pytest.CaptureFixture[str]) -> None:
    options = job_document.JobOptions("j", ("job.sh",), script="#!/bin/sh\nmpirun ./a\n")
    for count, framework in ((1, None), (2, "mpi")):
        given = msgspec.structs.replace(options, count=count, framework=framework)
        sbatch_lines.fill(given, named=False)
    assert not capsys.readouterr().err
    sbatch_lines.fill(msgspec.structs.replace(options, count=2), named=False)
    assert "--framework mpi" in capsys.readouterr().err


def test_the_array_of_the_command_line_counts() -> None:
    script = "#!/bin/sh\n#SBATCH --array=0-3%2\n"
    options = job_document.JobOptions("j", ("job.sh",), script=script, indexes="5-7")
    found = sbatch_lines.fill(options, named=False)
    assert (found.array, found.indexes, found.parallelism) == (None, "5-7", None)


def test_what_is_not_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["-N 2 -n 8 --gres=gpu:2", "--array=9-1", "--nice", "'", "word"]
    assert _filled("\n#SBATCH ".join(lines), UNSAID, others=True).gpus is None
    said = " ".join(capsys.readouterr().err.split())
    assert "change nothing: --gres=gpu:2, --array=9-1, --nice, ', word" in said


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("-d afterok:123", "--dependency=afterok:123"),
        ("--switches=1", "--switches=1"),
        ("--mem-per-cpu=4G", "--mem-per-cpu=4G"),
        ("--constraint=a100", "--constraint=a100"),
        ("-n 4 --gpus-per-node=2", "--gpus-per-node=2"),
        ("--gres=gpu:a100:2", "--gres=gpu:a100:2"),
        ("--nobody-knows=this", "--nobody-knows=this"),
        ("--mail-type=END --comment=x -q normal", ""),
        ("--account=lab", ""),
    ],
)
def test_what_a_job_would_go_wrong_without_is_refused(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if not told:
        assert _filled(line, UNSAID).framework == "slurm"
        return
    with pytest.raises(typer.Exit) as left:
        _filled(line, UNSAID)
    assert left.value.exit_code == terminal.USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert f"no option does the same as {told}, and" in said
    assert "--ignore-sbatch" in said


def test_a_script_of_another_language_names_its_program(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clone / "train.py").write_text("import sys\n")
    assert _submit("train.py", "--lr", "1e-4") == terminal.USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert "muster submit -- python3 train.py --lr 1e-4" in said
    (clone / "train.py").write_text("#!/usr/bin/env python3\nimport sys\n")
    assert _submit("train.py") == 0


def test_lines_in_yaml_are_named(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / "a.yaml").write_text(
        "apiVersion: muster/v1\nkind: Job\nmetadata: {name: ck}\nspec:\n  script: |\n"
        "    #!/bin/bash\n    #SBATCH --gres=gpu:2\n    true\n"
    )
    assert _submit("a.yaml") == 0
    assert "these lines change nothing: #SBATCH --gres=gpu:2" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("srun python3 a.py", True),
        ("  exec srun a", True),
        ("# srun a", False),
        ("echo srun a", False),
    ],
)
def test_steps_of_slurm_are_told_before_they_fail(
    line: str, capsys: pytest.CaptureFixture[str], *, told: bool
) -> None:
    options = job_document.JobOptions("j", ("job.sh",), script=f"#!/bin/sh\n{line}\n")
    assert sbatch_lines.fill(options, named=False) == options
    assert ("srun: there are no steps here" in capsys.readouterr().err) == told


class _Input:
    """Standard input that can be read once."""

    def __init__(self, text: str) -> None:
        self.buffer = io.BytesIO(text.encode())

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        raise OSError


@pytest.mark.usefixtures("clone")
def test_a_script_may_come_on_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "#!/bin/sh\n#SBATCH --time=5\necho $1\n"
    monkeypatch.setattr("sys.stdin", _Input(script))
    assert _submit("--name", "heard", "-", "word") == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["metadata"]["name"] == "heard"
    assert (found["spec"]["script"], found["spec"]["arguments"]) == (script, ["word"])
    assert found["spec"]["timeLimit"] == "5m"


@pytest.mark.usefixtures("clone")
def test_yaml_on_standard_input_is_no_script(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"apiVersion": "muster/v1", "kind": "Job", "metadata": {"name": "told"},
                "spec": {"command": ["true"], "resources": {"cpu": 1}}}  # fmt: skip
    monkeypatch.setattr("sys.stdin", _Input(yaml.safe_dump(document)))
    assert _submit("-") == 0, capsys.readouterr().err
    assert yaml.safe_load(capsys.readouterr().out)["metadata"]["name"] == "told"
