"""What a team copies from ``cluster-state``: its policies, its hook, its pipelines."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
import yaml

from reconciler import package_data
from reconciler.desired.apply import validate
from tests.unit.desired.repositories import ENVIRONMENT, git

FOLDER = package_data.checkout() / "cluster-state"
POLICIES = FOLDER / "policies"
GOOD = {
    "command": ["true"],
    "owner": "ada@example.org",
    "timeLimit": "1h",
    "resources": {"gpu": 1},
}
#: Policy to what violates it: fields of a job's spec, None to leave one out.
VIOLATIONS: dict[str, list[dict[str, Any]]] = {
    "max-gpus": [
        {"resources": {"gpu": 9}},
        {"count": 3, "resources": {"gpu": 4}},
        {"command": None, "groups": [
            {"name": "a", "count": 2, "command": ["x"], "resources": {"gpu": 3}},
            {"name": "b", "count": 3, "command": ["x"], "resources": {"gpu": 1}},
        ]},
    ],
    "time-limit": [{"timeLimit": None}],
    "owner": [{"owner": None}, {"owner": "ada@elsewhere.org"}, {"owner": "ada"}],
    "images": [
        {"runtime": "podman", "image": "docker.io/library/python:3.12"},
        {"runtime": "podman", "image": "registry.example.org/train"},
    ],
}  # fmt: skip
#: Jobs that no policy minds.
FINE: list[dict[str, Any]] = [
    {},
    {"count": 8},
    {"array": {"count": 100}, "resources": {"gpu": 8}},
    {"runtime": "podman", "image": "registry.example.org/team/train:1.4"},
    {"timeLimit": None, "queue": "short"},
]
SHORT = """\
apiVersion: muster/v1
kind: Queue
metadata: {name: short}
spec: {defaults: {timeLimit: 10m}}
"""


def judged(changes: dict[str, Any], *, waiver: str = "") -> list[tuple[str, str]]:
    """What is said of a job beside all policies: (rule, severity)."""
    spec = {key: value for key, value in (GOOD | changes).items() if value is not None}
    job = {"apiVersion": "muster/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}
    files = {path.name: path.read_bytes() for path in POLICIES.glob("*.yaml")}
    if waiver:
        files[f"{waiver}.yaml"] += (
            b"  waivers: [{object: Job/j, reason: paper, expires: '2090-01-01T00:00:00Z'}]\n"
        )
    files |= {"job.yaml": json.dumps(job).encode(), "short.yaml": SHORT.encode()}
    found = validate.check(files, now=1e9).status.problems
    return [(problem.rule, problem.severity) for problem in found]


def test_each_policy_has_cases() -> None:
    assert {path.stem for path in POLICIES.glob("*.yaml")} == VIOLATIONS.keys()
    for path in POLICIES.glob("*.yaml"):
        assert yaml.safe_load(path.read_text())["metadata"]["name"] == path.stem


@pytest.mark.parametrize(
    ("name", "changes"),
    [(name, changes) for name, some in VIOLATIONS.items() for changes in some],
)
def test_a_policy_refuses_what_violates_it_unless_it_is_let_off(
    name: str, changes: dict[str, Any]
) -> None:
    assert judged(changes) == [(f"policy/{name}", "error")]
    assert judged(changes, waiver=name) == [(f"policy/{name}", "warning")]


@pytest.mark.parametrize("changes", FINE)
def test_policies_mind_nothing_else(changes: dict[str, Any]) -> None:
    assert judged(changes) == []


# --- hook and pipelines ---------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with the files that a team would copy, one commit deep."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        monkeypatch.delenv(name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    folder = tmp_path / "clone"
    subprocess.run(["cp", "-r", str(FOLDER), str(folder)], check=True)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "start")
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_hook_looks_at_what_is_staged_and_at_nothing_else(clone: Path) -> None:
    git(clone, "config", "core.hooksPath", "hooks")
    queues = clone / "queues.yaml"
    text = queues.read_text()
    queues.write_text(text.replace("limit: {gpu: 8}", "limit: {gpu: eight}"))
    git(clone, "add", "queues.yaml")
    queues.write_text(text)
    refused = run(clone, "git", "commit", "--message", "broken")
    assert refused.returncode == 1
    assert "queues.yaml:6:16: error: Queue/research: spec.limit.gpu" in refused.stderr + (
        refused.stdout
    )
    git(clone, "add", "queues.yaml")
    queues.write_text("broken: [\n")
    (clone / "README.md").write_text("changed\n")
    git(clone, "add", "README.md")
    assert run(clone, "git", "commit", "--message", "fine").returncode == 0


@pytest.mark.parametrize(
    ("new", "status", "verdict"),
    [("limit: {gpu: 6}", 0, "changes"), ("limit: {gpu: six}", 3, "refused"), ("", 0, "none")],
)
def test_the_script_of_pipelines_leaves_a_comment_and_tells_how_it_went(
    clone: Path, new: str, status: int, verdict: str
) -> None:
    queues = clone / "queues.yaml"
    queues.write_text(queues.read_text().replace("limit: {gpu: 8}", new or "limit: {gpu: 8}"))
    git(clone, "commit", "--quiet", "--all", "--allow-empty", "--message", "propose")
    done = run(clone, "ci/plan.sh", "HEAD~1")
    assert done.returncode == status, done.stderr
    assert json.loads((clone / "plan.json").read_text())["verdict"] == verdict
    assert (clone / "plan.md").read_text().startswith("<!-- muster-plan:main -->\n")
    assert run(clone, "ci/plan.sh", "nowhere").returncode == 1


def test_each_path_has_somebody_who_is_asked_and_the_last_line_that_fits_counts() -> None:
    """As forges read the file: what is changed is found by its path, from the last line up."""
    lines = [line.split() for line in (FOLDER / "CODEOWNERS").read_text().splitlines() if line]
    rules = [(one[0], one[1:]) for one in lines if not one[0].startswith("#")]
    assert rules[0][0] == "*"
    assert all(re.fullmatch(r"@[a-z-]+/[a-z-]+", who) for _, whom in rules for who in whom)
    for pattern, _ in rules[1:]:  # none speaks of what is not there
        place = FOLDER / pattern.strip("/")
        assert place.is_dir() if pattern.endswith("/") else place.is_file(), pattern

    def asked(path: str) -> list[str]:
        fits = [whom for one, whom in rules if one == "*" or f"/{path}".startswith(one)]
        return fits[-1]

    assert asked("cluster.yaml") == ["@example/ops"]
    assert asked("jobs/train.yaml") == ["@example/everybody"]
    assert "@example/security" in asked("policies/max-gpus.yaml")
    assert "@example/team-leads" in asked("queues.yaml")
    assert asked("ci/plan.sh") == asked(".github/workflows/muster.yaml") == ["@example/ops"]


def test_editors_find_the_schemas_for_what_is_desired_state_and_for_nothing_else(
    clone: Path,
) -> None:
    """What the settings name is written by the command that the guide names, and fits the files."""
    done = run(clone, sys.executable, "-m", "reconciler.desired.documents.schema", "schemas")
    assert done.returncode == 0, done.stderr
    settings = json.loads((clone / ".vscode/settings.json").read_text())
    ((schema, globs),) = settings["yaml.schemas"].items()
    root = json.loads((clone / schema).read_text())
    references = referencing.Registry().with_resources(
        (path.name, referencing.Resource.from_contents(json.loads(path.read_text())))
        for path in (clone / "schemas").glob("*.json")
    )
    judge = jsonschema.Draft202012Validator(root, registry=references)
    out = {one[1:] for one in globs if one.startswith("!")}
    assert out == {".github/**", ".gitlab-ci.yml"}
    written = [path for path in clone.rglob("*.yaml") if ".github" not in path.parts]
    assert len(written) > 5
    for path in written:
        for document in yaml.safe_load_all(path.read_text()):
            assert not list(judge.iter_errors(document)), path
            wrong = document | {"kind": "Jbo"}
            assert list(judge.iter_errors(wrong)), path
    for name in (".github/workflows/muster.yaml", ".gitlab-ci.yml"):
        assert list(judge.iter_errors(yaml.safe_load((clone / name).read_text()))), name


def test_pipelines_call_what_is_there() -> None:
    workflow = yaml.safe_load((FOLDER / ".github/workflows/muster.yaml").read_text())
    lab = yaml.safe_load((FOLDER / ".gitlab-ci.yml").read_text())
    steps = workflow["jobs"]["plan"]["steps"]
    scripts = [step["run"] for step in steps if "run" in step]
    # nothing that a stranger can write is pasted into a script
    assert not [script for script in scripts if "${{" in script]
    scripts += lab["muster"]["script"] + lab["muster"]["after_script"]
    called = set(re.findall(r"ci/[a-z-]+\.sh", "\n".join(scripts)))
    assert called == {f"ci/{path.name}" for path in (FOLDER / "ci").iterdir()}
    for path in [*(FOLDER / "ci").iterdir(), *(FOLDER / "hooks").iterdir()]:
        assert os.access(path, os.X_OK), path
        assert run(FOLDER, "sh", "-n", str(path)).returncode == 0, path
    settings = json.loads((FOLDER / ".vscode/settings.json").read_text())
    assert list(settings["yaml.schemas"]) == ["schemas/muster.json"]
