"""A command runs in the folder in which it was submitted, with the Python that was active there."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import beds

PROGRAM = str(Path(sys.executable).with_name("muster"))
QUEUES = """\
apiVersion: muster/v1
kind: Queue
metadata: {name: default}
spec: {}
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path_factory.mktemp("place"), nodes=1) as made:
        made.commit({"queues.yaml": QUEUES})
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody's folder, with a program."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import os, sys\nprint(os.getcwd(), sys.argv[1:])\n")
    return folder


def muster(
    bed: beds.Bed, folder: Path, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *words],
        cwd=folder,
        env={**bed.environment, **variables, "PWD": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def commit(bed: beds.Bed, files: dict[str, str]) -> None:
    """Commit files on top of what the controller has committed."""
    bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=bed.clone)
    bed.commit(dict(files))


def test_a_command_runs_where_it_was_submitted(bed: beds.Bed, project: Path) -> None:
    done = muster(bed, project, "run", "--cpus", "1", "--", "python3", "train.py", "--lr", "1e-4")
    assert (done.returncode, done.stdout) == (0, f"{project} ['--lr', '1e-4']\n"), done.stderr
    assert [one.name for one in project.iterdir()] == ["train.py"], (
        "nothing of the submission stays"
    )


def test_a_relative_script_is_found_there(bed: beds.Bed, project: Path) -> None:
    script = project / "go.sh"
    script.write_text('#!/bin/sh\necho "$MUSTER_SUBMIT_DIR" > out.txt\n')
    script.chmod(0o755)
    done = muster(bed, project, "run", "--cpus", "1", "--", "./go.sh")
    assert done.returncode == 0, done.stderr
    assert (project / "out.txt").read_text() == f"{project}\n"


def test_a_folder_of_the_same_name_is_not_the_folder(bed: beds.Bed, project: Path) -> None:
    """The job waits until the folder was replaced by another one."""
    done = muster(bed, project, "submit", "--dry-run", "--name", "moved", "--", "pwd")
    assert done.returncode == 0, done.stderr
    project.rename(project.with_name("before"))
    project.mkdir()
    commit(bed, {"moved.yaml": done.stdout})
    job = bed.until_state("moved", "Succeeded", "Failed")
    assert (job["state"], bed.output("moved") == f"{project}\n") == ("Succeeded", False)
    (attempt,) = job["attempts"]
    assert f"{project}, where it was submitted, is not on this node" in attempt["message"]
    assert "--code ." in attempt["message"]
    assert "a folder of that name is another one" in attempt["message"]
    shown = muster(bed, project, "job", "moved")
    assert "is not on this node" in " ".join(shown.stdout.split())


def test_a_folder_that_is_gone_is_named_where_the_command_fails(
    bed: beds.Bed, project: Path
) -> None:
    (project / "train.py").chmod(0o755)
    done = muster(bed, project, "submit", "--dry-run", "--name", "gone", "--", "./train.py")
    project.rename(project.with_name("before"))
    commit(bed, {"gone.yaml": done.stdout})
    job = bed.until_state("gone", "Failed")
    assert "./train.py: No such file or directory" in job["message"]
    assert "is not on this node (there is no such folder)" in job["message"]


def test_another_machine_knows_the_folder_by_its_marker(bed: beds.Bed, project: Path) -> None:
    """As on a node that mounts the submitter's home: another boot, other numbers."""
    made = muster(bed, project, "submit", "--name", "marked", "--", "true")
    assert made.returncode == 0, made.stderr
    bed.git("pull", "--quiet", "origin", "main", folder=bed.clone)
    (written,) = bed.clone.rglob("marked.yaml")
    text = written.read_text()
    assert (project / ".muster-submit" / "marked").stat().st_mode & 0o777 == 0o600
    secret = (project / ".muster-submit" / "marked").read_text()
    assert secret not in text, "who reads git must not be able to make the marker"
    elsewhere = text.replace("bootId: ", "bootId: 0").replace('["true"]', "[pwd]")
    elsewhere = elsewhere.replace("name: marked", "name: remote").replace("- 'true'", "- pwd")
    commit(bed, {"remote.yaml": elsewhere.replace("- true", "- pwd")})
    job = bed.until_state("remote", "Succeeded", "Failed")
    assert (job["state"], job["attempts"][0]["message"]) == ("Succeeded", "")
    assert bed.output("remote") == f"{project}\n"
    (project / ".muster-submit" / "marked").write_text("f" * 64)
    commit(bed, {"forged.yaml": elsewhere.replace("remote", "forged")})
    job = bed.until_state("forged", "Succeeded", "Failed")
    assert "a folder of that name is another one" in job["attempts"][0]["message"]


def test_a_working_directory_of_the_document_wins(bed: beds.Bed, project: Path) -> None:
    done = muster(bed, project, "submit", "--dry-run", "--name", "told", "--", "pwd")
    commit(bed, {"told.yaml": done.stdout.replace("spec:\n", "spec:\n  workingDirectory: /\n")})
    job = bed.until_state("told", "Succeeded", "Failed")
    assert (bed.output("told"), job["attempts"][0]["message"]) == ("/\n", "")


def test_an_active_environment_is_used(bed: beds.Bed, project: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60
    )
    path = f"{venv}/bin:{os.environ['PATH']}"
    code = "import os, sys; print(sys.prefix, os.environ['VIRTUAL_ENV'])"
    done = muster(
        bed, project, "run", "--cpus", "1", "--", "python3", "-c", code,
        VIRTUAL_ENV=str(venv), PATH=path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{venv} {venv}\n"), done.stderr


def test_musters_own_environment_is_no_jobs(bed: beds.Bed, project: Path) -> None:
    own = Path(sys.executable).parent
    done = muster(
        bed, project, "run", "--cpus", "1", "--", "sh", "-c", 'echo "$PATH"; command -v muster',
        VIRTUAL_ENV=str(own.parent), PATH=f"{own}:{os.environ['PATH']}",
    )  # fmt: skip
    assert str(own) not in done.stdout, done.stdout
    assert done.returncode == 127, "muster itself is not found either"
    assert "is Muster's own" in done.stderr


def test_variables_are_those_that_were_named(bed: beds.Bed, project: Path) -> None:
    done = muster(
        bed, project, "run", "--cpus", "1", "--env", "A=1 =x", "--export", "TOKENIZERS_PARALLELISM",
        "--", "sh", "-c", 'echo "$A $TOKENIZERS_PARALLELISM ${OTHER:-unset}"',
        TOKENIZERS_PARALLELISM="false", OTHER="x",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1 =x false unset\n"), done.stderr


@pytest.mark.skipif(shutil.which("modulecmd") is None, reason="needs Environment Modules")
def test_modules_are_loaded_before_the_command(
    bed: beds.Bed, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "modulefiles").mkdir()
    (tmp_path / "modulefiles" / "tool").write_text(
        f"#%Module\nprepend-path PATH {tmp_path}/bin\nsetenv TOOL_HOME {tmp_path}\n"
    )
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$TOOL_HOME"\n')
    tool.chmod(0o755)
    name = str(tmp_path / "modulefiles" / "tool")
    done = muster(bed, project, "run", "--cpus", "1", "--module", name, "--", "tool")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}\n"), done.stderr


@pytest.mark.skipif(shutil.which("modulecmd") is None, reason="needs Environment Modules")
def test_a_module_that_is_not_there_is_named(bed: beds.Bed, project: Path) -> None:
    done = muster(bed, project, "run", "--cpus", "1", "--module", "no-such-tool", "--", "true")
    assert done.returncode == 126 - 1, done.stderr
    assert "module load no-such-tool: ERROR: Unable to locate a modulefile" in done.stderr


def test_a_script_is_embedded_with_its_arguments(bed: beds.Bed, project: Path) -> None:
    """It needs no file on the node, and starts in the folder all the same."""
    script = project / "job.sh"
    script.write_text('#!/bin/sh\npwd\nprintf "%s|" "$@"\n')
    words = ("--name", "embedded", "--cpus", "1", "./job.sh", "--lr", "1e-4", "a b")
    done = muster(bed, project, "submit", *words)
    assert done.returncode == 0, done.stderr
    script.unlink()
    bed.until_state("embedded", "Succeeded")
    assert bed.output("embedded") == f"{project}\n--lr|1e-4|a b|"


LEFT = """\
  queue: default
  owner: tester@example.org
  resources: {cpu: 1, memory: 16Mi}
  command: [sh, -c, "mkdir out; echo x > out/y; echo z > model.pt"]"""


def test_files_that_are_lost_are_named(bed: beds.Bed, project: Path) -> None:
    commit(bed, {"left.yaml": beds.job("left", LEFT)})
    (attempt,) = bed.until_state("left", "Succeeded")["attempts"]
    told = "what it left in its work folder is deleted at its end: model.pt, out/. To keep files:"
    assert told in attempt["message"]
    shown = muster(bed, project, "job", "left")
    assert told in " ".join(shown.stdout.split())
